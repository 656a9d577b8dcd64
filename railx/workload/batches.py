"""Global batches: the sequences of a corpus in each training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from railx.effort import Cost, Costs
from railx.errors import UserError
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.arrays import IntArray
from railx.workload.lengths import MOST_TOKENS


@dataclass(frozen=True)
class BatchSettings:
    """The global batches of a plan: sequences per training step and their lengths."""

    batch_size: Annotated[int, AtLeast(1)] | None
    """Sequences per step; null takes the whole corpus in each."""
    batches: Annotated[int, AtLeast(1)]
    """Steps, and with them batches that are planned."""
    max_length_tokens: Annotated[int, AtLeast(1)] | None
    """Longest sequence that is used; null takes the longest of the corpus."""
    overlong: Literal["truncate", "drop"] = "drop"
    """What happens to longer sequences: ``truncate`` cuts them off there, ``drop``
    leaves them out."""

    def filled(self, lengths: npt.ArrayLike) -> FilledBatchSettings:
        """The settings with null values taken from corpus ``lengths`` int64 [n]."""
        corpus = checked_lengths(lengths)
        limit = self.max_length_tokens if self.max_length_tokens is not None else int(corpus.max())
        size = self.batch_size if self.batch_size is not None else len(corpus)
        return FilledBatchSettings(size, self.batches, limit, self.overlong)

    def costs(self) -> Costs:
        size = self.batch_size or 1
        return {
            "batches": Cost(0.02 + 1e-4 * size, 1e4 + 100 * size) * self.batches,
            "batch_size": Cost(1e-4, 1e3) * self.batch_size,
        }


def checked_lengths(lengths: npt.ArrayLike) -> IntArray:
    """Lengths int64 [n] of a corpus; ValueError names the first invalid one."""
    given = np.asarray(lengths)
    if not given.size:
        raise UserError("lengths: no sequences; allowed: at least one length")
    numeric = given.dtype.kind in "iuf" and given.ndim == 1
    good = (given >= 1) & (given <= MOST_TOKENS) & (given == np.floor(given)) if numeric else None
    if good is None:
        raise UserError(
            f"lengths: got {given.dtype} of {given.ndim} dimensions; allowed: a list of whole"
            " numbers"
        )
    if not good.all():
        first = int(np.argmin(good))
        raise UserError(
            f"sequence {first}: got {given[first]} tokens; allowed: a whole number from 1 to"
            f" {MOST_TOKENS}"
        )
    return given.astype(np.int64)


@dataclass(frozen=True)
class FilledBatchSettings:
    """Batch settings without null values."""

    batch_size: int
    """Sequences per step."""
    batches: int
    """Steps."""
    max_length_tokens: int
    """Longest sequence that is used."""
    overlong: Literal["truncate", "drop"]
    """What happens to longer sequences: cut off there, or left out."""


@dataclass(frozen=True)
class SampledBatch:
    """One step: corpus rows int64 [batch_size], each at most once, and lengths.

    The lengths int64 [batch_size] are truncated.
    """

    sequences: IntArray
    lengths: IntArray


def check_batch(lengths: IntArray, settings: FilledBatchSettings) -> IntArray:
    """Rows of the corpus that a batch may take; ``lengths`` int64 [n] are the corpus's.

    SettingsError below ``batch`` where there are too few for a batch.
    """
    limit = settings.max_length_tokens
    if settings.overlong == "truncate":
        eligible, within = np.arange(len(lengths)), ""
    else:
        eligible, within = np.flatnonzero(lengths <= limit), f" of at most {limit} tokens"
    if not len(eligible):
        raise SettingsError(
            "batch.max_length_tokens",
            f"got {limit}; allowed: at least {lengths.min()}, the shortest sequence in the corpus,"
            " or overlong truncate",
        )
    if len(eligible) < settings.batch_size:
        raise SettingsError(
            "batch.batch_size",
            f"got {settings.batch_size}; allowed: at most {len(eligible)}, the"
            f" sequences{within} in the corpus",
        )
    return eligible


def sample_batches(
    lengths: npt.ArrayLike, settings: FilledBatchSettings, seed: int
) -> list[SampledBatch]:
    """Draw batches without replacement.

    A new random order follows whenever the corpus is used up. ``lengths`` int64 [n] are
    those of the corpus. The rest of an order that no longer fills a batch is dropped,
    so that no batch contains a sequence twice. SettingsError where a batch needs more
    sequences than the corpus allows.
    """
    corpus = checked_lengths(lengths)
    limit = settings.max_length_tokens
    eligible = check_batch(corpus, settings)
    random = np.random.default_rng(seed)
    per_order = len(eligible) // settings.batch_size
    drawn: list[SampledBatch] = []
    while len(drawn) < settings.batches:
        order = random.permutation(eligible)
        for index in range(min(per_order, settings.batches - len(drawn))):
            rows = order[index * settings.batch_size : (index + 1) * settings.batch_size]
            drawn.append(SampledBatch(rows, np.minimum(corpus[rows], limit)))
    return drawn
