"""Rule corpus: settings -> one file of sequences."""

from workflow.stages import corpus
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    corpus.run(
        snakemake.params.settings,
        seed=snakemake.params.seed,
        corpus_path=snakemake.output.corpus,
        summary_path=snakemake.output.summary,
    )
