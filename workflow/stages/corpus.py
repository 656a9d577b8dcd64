"""Stage corpus: gather or draw sequences and write them as one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow.outputs import Json, Table
from workflow.stage import ByHand, Config, Experiment, Inputs, Item, Job, Stage, Summary, Tracked


def run(job: Job) -> Summary:
    """Build the corpus; return its summary."""
    from railx.workload.corpus import CorpusSettings, build_corpus, write_corpus
    from railx.workload.lengths import length_statistics

    settings: CorpusSettings = job.load(CorpusSettings, "corpus")
    corpus = build_corpus(settings, job.settings["seed"])
    job.write("sequences", write_corpus, corpus)
    facts = {key: getattr(corpus, key) for key in ("name", "source", "kind", "description")}
    return facts | length_statistics(corpus.lengths)


def _lengths(experiment: Config, corpus: str) -> Inputs:
    """The file or folder of the lengths, if they come from one."""
    settings = experiment["corpora"][corpus]
    path = settings.get("path", settings.get("quantiles"))
    return {"source": Path(path)} if path is not None else {}


def check(experiment: Experiment) -> None:
    """Refuse missing lengths and text; jobs run in the working folder."""
    from railx.places import WORK
    from railx.workload.corpus_check import check_corpus

    for name, corpus in experiment.corpora.items():
        check_corpus(corpus, f"corpora.{name}", WORK)


def check_choices(chosen: Mapping[str, Any]) -> None:
    """Check the chosen corpus, and the batches drawn from it."""
    from railx.workload.corpus_check import check_corpus, check_drawn_batch

    if "corpus" in chosen:
        check_corpus(chosen["corpus"], "corpus")
        if {"batch", "seed"} <= chosen.keys():
            check_drawn_batch(chosen["corpus"], chosen["batch"], chosen["seed"], "")


STAGE = Stage(
    name="corpus",
    help="gather or draw the sequences of a corpus",
    message="Corpus {item}",
    item=Item("corpus", lambda experiment: experiment["corpora"]),
    settings=lambda experiment, corpus: {
        "corpus": experiment["corpora"][corpus],
        "seed": experiment["seed"],
    },
    inputs=_lengths,
    outputs={
        "sequences": Table("integer sequence length_tokens, binary tokens"),
        "summary": Json(),
    },
    run=run,
    by_hand=ByHand(
        groups=("seed", "corpus"),
        example="railx corpus corpus=folder corpus.path=texts --out corpus.parquet",
        out="the corpus file to write (.parquet)",
        writes={".parquet": "sequences"},
        settings=lambda chosen: {"corpus": chosen["corpus"], "seed": chosen["seed"]},
    ),
    tracked=Tracked("summary", ("summary",)),
    check=check,
    check_choices=check_choices,
)
