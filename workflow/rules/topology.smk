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
