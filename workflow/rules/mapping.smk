# Training jobs laid on topologies: the time of a step, at equal bandwidth and at equal cost.


rule mapping:
    input:
        topology=RESULTS / "topology/{topology}.parquet",
        catalogue=SETTINGS["mapping"]["catalogue"],
    output:
        steps=RESULTS / "steps/{topology}.parquet",
        summary=RESULTS / "steps/{topology}.json",
    params:
        settings=SETTINGS["mapping"],
        reference=SETTINGS["topologies"][SETTINGS["mapping"]["reference"]],
        code=code("mapping"),
    log:
        RESULTS / "logs/steps/{topology}.log",
    benchmark:
        RESULTS / "benchmarks/steps/{topology}.tsv"
    message:
        "Step times on {wildcards.topology}"
    script:
        "../scripts/mapping.py"
