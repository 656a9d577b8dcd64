# Graphs of chips, switches and circuits.


rule topology:
    output:
        topology=RESULTS / "topology/{topology}.parquet",
        metrics=RESULTS / "topology/{topology}.json",
    params:
        settings=lambda wildcards: SETTINGS["topologies"][wildcards.topology],
        code=code("topology"),
    log:
        RESULTS / "logs/topology/{topology}.log",
    benchmark:
        RESULTS / "benchmarks/topology/{topology}.tsv"
    message:
        "Topology {wildcards.topology}"
    script:
        "../scripts/topology.py"


rule metrics:
    input:
        metrics=expand(RESULTS / "topology/{name}.json", name=EXPERIMENT.topologies),
    output:
        metrics=RESULTS / "topology/metrics.parquet",
    params:
        names=list(EXPERIMENT.topologies),
        code=code("metrics"),
    log:
        RESULTS / "logs/topology/metrics.log",
    benchmark:
        RESULTS / "benchmarks/topology/metrics.tsv"
    message:
        "Metrics of all topologies"
    script:
        "../scripts/metrics.py"
