"""The 45 batches that planners are compared on, and what they are planned for.

Three corpora times contexts up to 32K, 64K and 192K times five draws of 512 sequences,
all from fixed seeds. Model, cluster and constants are FlexSP's: GPT-7B on 64 A100.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModel, CostModelSettings, build_cost_model
from railx.settings import load
from railx.workload.batches import FilledBatchSettings, SampledBatch, sample_batches
from railx.workload.corpus import CorpusSettings, build_corpus
from workflow.config import read_choice

__all__ = [
    "CONTEXTS",
    "CORPORA",
    "DEVICES",
    "DRAWS",
    "Case",
    "cases",
    "cost_of",
    "delayed",
    "lengths_of",
]

CONF = Path(__file__).resolve().parent.parent / "conf"
CORPORA = ("wikipedia", "github_like", "commoncrawl_like")
CONTEXTS = (32_000, 64_000, 192_000)
DRAWS = 5
DEVICES = 64
#: Sequences and devices of small batches.
SMALL_SEQUENCES, SMALL_DEVICES = 128, 16
#: Seed of the corpora, and of their batches.
SEED = 1


@dataclass(frozen=True)
class Case:
    """One batch of the comparison with its cost model."""

    corpus: str
    max_length_tokens: int
    draw: int
    batch: SampledBatch
    cost: CostModel

    @property
    def name(self) -> str:
        return f"{self.corpus}_{self.max_length_tokens // 1000}k_{self.draw}"


def cases(
    corpora: tuple[str, ...] = CORPORA,
    contexts: tuple[int, ...] = CONTEXTS,
    draws: int = DRAWS,
    sequences: int = 512,
    seed: int = SEED,
) -> Iterator[Case]:
    """The batches, corpus by corpus, contexts rising; others with another ``seed``."""
    for corpus in corpora:
        for context in contexts:
            settings = FilledBatchSettings(sequences, draws, context, "drop")
            drawn = sample_batches(lengths_of(corpus, seed), settings, seed)
            for draw, batch in enumerate(drawn):
                yield Case(corpus, context, draw, batch, cost_of(context))


def small_batches(kind: str, batches: int) -> Iterator[tuple[npt.NDArray[np.int64], CostModel]]:
    """Batches of 128 sequences for 16 devices, and their costs.

    ``kind``: nearly equal, truncated (at a context) or tight memory.
    """
    corpus = lengths_of("github_like")
    for index in range(batches):
        rng = np.random.default_rng(index)
        cost = replace(cost_of(CONTEXTS[0]), tokens_per_device=int(rng.integers(4000, 7000)))
        if kind == "nearly equal":
            longest = int(rng.integers(1000, 6000))
            lengths = longest - rng.integers(0, longest // 50, SMALL_SEQUENCES)
        else:
            most = CONTEXTS[0] if kind == "truncated" else 8000
            lengths = np.minimum(rng.choice(corpus, SMALL_SEQUENCES), most)
        if kind == "tight memory":
            share = float(rng.uniform(0.97, 0.995))
            micro_batches = int(rng.integers(1, 4))
            needed = lengths.sum() / (share * SMALL_DEVICES * micro_batches)
            cost = replace(
                cost, tokens_per_device=max(int(needed), int(lengths.max()) // SMALL_DEVICES + 1)
            )
        yield lengths, cost


@cache
def lengths_of(corpus: str, seed: int = SEED) -> npt.NDArray[np.int64]:
    """The lengths of a corpus of ``conf/corpus``."""
    return build_corpus(_settings("corpus", corpus, CorpusSettings), seed).lengths


@cache
def cost_of(max_length_tokens: int, devices: int = DEVICES, model: str = "7b") -> CostModel:
    """FlexSP's constants for a context and a number of devices."""
    cluster = _settings("cluster", "a100_64", ClusterSettings, devices=devices)
    return build_cost_model(
        _settings("cost_model", f"flexsp_{model}", CostModelSettings),
        cluster,
        _settings("model", f"gpt_{model}", ModelSettings),
        max_length_tokens,
    )


def _settings(group: str, name: str, kind: Any, **changes: Any) -> Any:
    plain = read_choice(group, name) | changes
    quantiles = plain.get("quantiles")
    if quantiles is not None:
        plain["quantiles"] = str(CONF.parent / quantiles)
    return load(kind, plain, group)


def delayed(
    batches: Iterable[SampledBatch], outlier_tokens: int, at_once: int
) -> list[SampledBatch]:
    """The batches with outliers delayed, as WLB-LLM does.

    Documents over ``outlier_tokens`` wait, first in first out, and enter a batch
    ``at_once`` at a time. Those waiting at the end are in the last batch.
    """
    drawn = list(batches)
    queue: list[tuple[int, int]] = []
    delayed_batches = []
    for number, batch in enumerate(drawn):
        rows = list(zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True))
        leaving_rows = [row for row in rows if row[1] <= outlier_tokens]
        queue += [row for row in rows if row[1] > outlier_tokens]
        is_last = number == len(drawn) - 1
        leaving = len(queue) if is_last else len(queue) // at_once * at_once
        leaving_rows += queue[:leaving]
        queue = queue[leaving:]
        sequences, lengths = zip(*leaving_rows, strict=True) if leaving_rows else ((), ())
        delayed_batches.append(
            SampledBatch(np.array(sequences, dtype=np.int64), np.array(lengths, np.int64))
        )
    return delayed_batches
