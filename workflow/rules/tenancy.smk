# Jobs and failures on the grid of nodes.


rule tenancy:
    output:
        faults=RESULTS / "tenancy/faults.parquet",
        utilisation=RESULTS / "tenancy/utilisation.parquet",
        degraded=RESULTS / "tenancy/degraded.parquet",
        summary=RESULTS / "tenancy/summary.json",
    params:
        settings=SETTINGS["tenancy"],
        seed=SETTINGS["seed"],
        code=code("tenancy"),
    log:
        RESULTS / "logs/tenancy/tenancy.log",
    benchmark:
        RESULTS / "benchmarks/tenancy/tenancy.tsv"
    message:
        "Jobs and failures on the grid"
    script:
        "../scripts/tenancy.py"
