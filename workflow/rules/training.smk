# Real training under emulated optical switching. Runs take the whole machine, one at a time, so that their times can be compared.


def training_inputs(wildcards):
    """The plan that the run follows and the corpus behind it."""
    plan = EXPERIMENT.runs[wildcards.run].plan
    return {
        "plan": RESULTS / f"plans/{plan}.json",
        "corpus": RESULTS / f"corpora/{EXPERIMENT.plans[plan].corpus}.parquet",
    }


rule train:
    input:
        unpack(training_inputs),
    output:
        iterations=RESULTS / "training/{run}/iterations.parquet",
        trace=RESULTS / "training/{run}/trace.parquet",
        chrome_trace=RESULTS / "training/{run}/trace.json",
        result=RESULTS / "training/{run}/result.json",
        settings=RESULTS / "training/{run}/settings.parquet",
        summary=RESULTS / "training/{run}/summary.json",
        config=RESULTS / "training/{run}/config.json",
    params:
        settings=lambda wildcards: SETTINGS["runs"][wildcards.run],
        model=lambda wildcards: SETTINGS["plans"][EXPERIMENT.runs[wildcards.run].plan]["model"],
        code=code("train"),
    threads: workflow.cores
    log:
        RESULTS / "logs/training/{run}.log",
    benchmark:
        RESULTS / "benchmarks/training/{run}.tsv"
    message:
        "Training run {wildcards.run} under emulated optical switching"
    script:
        "../scripts/train.py"
