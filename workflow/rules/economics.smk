# Bills of materials at full scale, cost over scale, and the map of the cost claims.


rule cost:
    input:
        catalogue=EXPERIMENT.economics.catalogue,
    output:
        bill=RESULTS / "economics/bill.parquet",
        summary=RESULTS / "economics/summary.parquet",
        sensitivity=RESULTS / "economics/sensitivity.parquet",
        scale=RESULTS / "economics/scale.parquet",
        claim_map=RESULTS / "economics/claim_map.parquet",
    params:
        settings=SETTINGS["economics"],
        code=code("cost"),
    log:
        RESULTS / "logs/economics/cost.log",
    benchmark:
        RESULTS / "benchmarks/economics/cost.tsv"
    message:
        "Bill of materials"
    script:
        "../scripts/cost.py"
