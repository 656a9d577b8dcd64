# Published numbers against ours.


def result_files():
    """Every table of the experiment that a claim may rest on."""
    return (
        expand(RESULTS / "topology/{name}.json", name=EXPERIMENT.topologies)
        + [RESULTS / "topology/metrics.parquet"]
        + expand(RESULTS / "network/{name}.parquet", name=EXPERIMENT.topologies)
        + expand(RESULTS / "collectives/{name}.parquet", name=EXPERIMENT.topologies)
        + expand(RESULTS / "packets/{name}.parquet", name=EXPERIMENT.sweeps)
        + expand(RESULTS / "packets/{name}.json", name=EXPERIMENT.sweeps)
        + [RESULTS / "flows/agreement.parquet", RESULTS / "flows/agreement.json"]
        + expand(RESULTS / "circuits/transitions/{name}.parquet", name=EXPERIMENT.transitions)
        + expand(RESULTS / "steps/{name}.parquet", name=EXPERIMENT.mapping.topologies)
        + expand(RESULTS / "tenancy/{name}.parquet", name=["faults", "utilisation", "degraded"])
        + [RESULTS / "tenancy/summary.json"]
        + expand(RESULTS / "economics/{name}.parquet", name=["bill", "summary", "sensitivity", "scale", "claim_map"])
        + expand(RESULTS / "corpora/{name}.json", name=EXPERIMENT.corpora)
        + expand(RESULTS / "plans/{name}.parquet", name=EXPERIMENT.plans)
        + expand(RESULTS / "plans/{name}.schedule.parquet", name=plan_names("pipeline"))
        + expand(RESULTS / "plans/{name}.summary.json", name=EXPERIMENT.plans)
        + expand(RESULTS / "training/{name}/iterations.parquet", name=EXPERIMENT.runs)
        + expand(RESULTS / "training/{name}/result.json", name=EXPERIMENT.runs)
    )


rule claims:
    input:
        results=result_files(),
        claims=sorted(Path("resources/claims").glob("*.yaml")),
        published=sorted(Path("resources/published").glob("*.csv")),
    output:
        claims=RESULTS / "evidence/claims.parquet",
        counts=RESULTS / "evidence/verdicts.json",
    params:
        results=str(RESULTS),
        code=code("claims"),
    log:
        RESULTS / "logs/evidence/claims.log",
    benchmark:
        RESULTS / "benchmarks/evidence/claims.tsv"
    message:
        "Verdicts on the papers' claims"
    script:
        "../scripts/claims.py"
