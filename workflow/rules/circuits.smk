# Cross-connect lists of the optical switches, and plans from one setting of them to another.


rule circuits:
    input:
        topology=RESULTS / "topology/{topology}.parquet",
    output:
        circuits=RESULTS / "circuits/{topology}.json",
        csv=RESULTS / "circuits/{topology}.csv",
    params:
        code=code("circuits"),
    log:
        RESULTS / "logs/circuits/{topology}.log",
    benchmark:
        RESULTS / "benchmarks/circuits/{topology}.tsv"
    message:
        "Cross-connects of {wildcards.topology}"
    script:
        "../scripts/circuits.py"


rule transition:
    input:
        before=lambda wildcards: RESULTS / f"topology/{SETTINGS['transitions'][wildcards.transition]['before']}.parquet",
        after=lambda wildcards: RESULTS / f"topology/{SETTINGS['transitions'][wildcards.transition]['after']}.parquet",
    output:
        plan=RESULTS / "circuits/transitions/{transition}.json",
        csv=RESULTS / "circuits/transitions/{transition}.csv",
        summary=RESULTS / "circuits/transitions/{transition}.parquet",
    params:
        settings=lambda wildcards: SETTINGS["transitions"][wildcards.transition],
        code=code("circuits"),
    log:
        RESULTS / "logs/circuits/transitions/{transition}.log",
    benchmark:
        RESULTS / "benchmarks/circuits/transitions/{transition}.tsv"
    message:
        "Reconfiguration plan {wildcards.transition}"
    script:
        "../scripts/transition.py"
