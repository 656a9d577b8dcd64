# Channel loads, throughput bounds and collectives on every topology.


rule simulate:
    input:
        topology=RESULTS / "topology/{topology}.parquet",
    output:
        network=RESULTS / "network/{topology}.parquet",
        channels=RESULTS / "network/{topology}.channels.parquet",
        collectives=RESULTS / "collectives/{topology}.parquet",
        summary=RESULTS / "network/{topology}.json",
    params:
        traffic=SETTINGS["traffic"],
        networks=SETTINGS["networks"],
        collective=SETTINGS["collective"],
        seed=SETTINGS["seed"],
        code=code("simulate"),
    log:
        RESULTS / "logs/network/{topology}.log",
    benchmark:
        RESULTS / "benchmarks/network/{topology}.tsv"
    message:
        "Network simulation of {wildcards.topology}"
    script:
        "../scripts/simulate.py"
