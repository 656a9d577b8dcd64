# Packet by packet: latency against offered load, one job a sweep.


def sweep_topology(wildcards):
    """The topology that the sweep runs on."""
    return RESULTS / f"topology/{EXPERIMENT.sweeps[wildcards.sweep].topology}.parquet"


rule sweep:
    input:
        topology=sweep_topology,
    output:
        packets=RESULTS / "packets/{sweep}.parquet",
        summary=RESULTS / "packets/{sweep}.json",
    params:
        settings=lambda wildcards: SETTINGS["sweeps"][wildcards.sweep],
        seed=SETTINGS["seed"],
        code=code("sweep"),
    log:
        RESULTS / "logs/packets/{sweep}.log",
    benchmark:
        RESULTS / "benchmarks/packets/{sweep}.tsv"
    message:
        "Packets of {wildcards.sweep}"
    script:
        "../scripts/sweep.py"
