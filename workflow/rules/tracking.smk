# One rule writes all tracked runs: MLflow's SQLite store cannot take concurrent first writes.


rule track:
    input:
        files=result_files(),
        claims=RESULTS / "evidence/claims.parquet",
    output:
        tracking=RESULTS / "tracking.json",
    params:
        settings=SETTINGS["tracking"],
        experiment=EXPERIMENT.name,
        stages=tracked_stages(),
        code=code("track"),
    log:
        RESULTS / "logs/tracking.log",
    benchmark:
        RESULTS / "benchmarks/tracking.tsv"
    message:
        "Tracked runs in MLflow and W&B"
    script:
        "../scripts/track.py"
