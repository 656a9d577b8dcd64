# The flow model against the packet simulator on the same traffic.


rule agreement:
    input:
        topologies=expand(RESULTS / "topology/{name}.parquet", name=EXPERIMENT.agreement.topologies),
    output:
        agreement=RESULTS / "flows/agreement.parquet",
        summary=RESULTS / "flows/agreement.json",
    params:
        settings=SETTINGS["agreement"],
        names=list(EXPERIMENT.agreement.topologies),
        seed=SETTINGS["seed"],
        code=code("agreement"),
    log:
        RESULTS / "logs/flows/agreement.log",
    benchmark:
        RESULTS / "benchmarks/flows/agreement.tsv"
    message:
        "Flows against packets"
    script:
        "../scripts/agreement.py"
