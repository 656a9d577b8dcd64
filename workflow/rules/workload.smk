# Corpora: how long the sequences are, and for real text the tokens themselves.


def corpus_source(wildcards):
    """The user's own file or folder, where the corpus is one; a change in it reruns what depends on it."""
    return getattr(EXPERIMENT.corpora[wildcards.corpus], "path", [])


rule corpus:
    input:
        source=corpus_source,
    output:
        corpus=RESULTS / "corpora/{corpus}.parquet",
        summary=RESULTS / "corpora/{corpus}.json",
    params:
        settings=lambda wildcards: SETTINGS["corpora"][wildcards.corpus],
        seed=SETTINGS["seed"],
        code=code("corpus"),
    log:
        RESULTS / "logs/corpora/{corpus}.log",
    benchmark:
        RESULTS / "benchmarks/corpora/{corpus}.tsv"
    message:
        "Corpus {wildcards.corpus}"
    script:
        "../scripts/corpus.py"
