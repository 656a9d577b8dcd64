# Plans: which sequence runs where, in which order.


rule plan:
    input:
        corpus=lambda wildcards: RESULTS / f"corpora/{EXPERIMENT.plans[wildcards.plan].corpus}.parquet",
    output:
        plan=RESULTS / "plans/{plan}.json",
        table=RESULTS / "plans/{plan}.parquet",
        schedule=RESULTS / "plans/{plan}.schedule.parquet",
        summary=RESULTS / "plans/{plan}.summary.json",
    params:
        settings=lambda wildcards: SETTINGS["plans"][wildcards.plan],
        code=code("plan"),
    log:
        RESULTS / "logs/plans/{plan}.log",
    benchmark:
        RESULTS / "benchmarks/plans/{plan}.tsv"
    message:
        "Plan {wildcards.plan}"
    script:
        "../scripts/plan.py"
