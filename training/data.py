"""Tokens for a plan: the sequences of a corpus file, cut and packed as the plan says.

A corpus is one Parquet table with the columns sequence, length_tokens and tokens (the
token ids, one after another). Its metadata has the bytes per id (``token_bytes``,
little endian, default 1) and optionally a ``beginning_of_sequence`` token, which is
prepended to the ids and counts in length_tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from railx.errors import UserError
from railx.io import read_metadata, read_table
from railx.planning.format.parts import Slice
from railx.planning.format.plan import PipelineBatch, Plan, SequenceParallelBatch, sequence_lengths
from training.loss import IGNORED_LABEL

_TOKEN_BYTES = (1, 2, 4)

Sequences = Mapping[int, NDArray[np.int64]]


@dataclass(frozen=True)
class PackedTokens:
    """Packed ids, positions in sequences, next-token labels: int64 tensors [T]."""

    tokens: Tensor
    positions: Tensor
    labels: Tensor

    def part(self, start: int, stop: int) -> PackedTokens:
        """Tokens ``start`` to ``stop`` of the packed axis."""
        return PackedTokens(
            self.tokens[start:stop], self.positions[start:stop], self.labels[start:stop]
        )

    def to(self, device: torch.device) -> PackedTokens:
        """The same tokens on ``device``, copied to a GPU while the host goes on."""
        columns = [self.tokens, self.positions, self.labels]
        if device.type == "cuda":
            # From pinned memory; other copies wait for the device's queue.
            columns = [column.pin_memory() for column in columns]
        return PackedTokens(*(column.to(device, non_blocking=True) for column in columns))


def plan_lengths(plan: Plan) -> dict[int, int]:
    """The tokens that the plan uses of each sequence, the maximum over its batches."""
    lengths: dict[int, int] = {}
    for batch in plan.batches:
        for sequence, length in sequence_lengths(batch):
            lengths[sequence] = max(length, lengths.get(sequence, 0))
    return lengths


def valid_tokens(batch: SequenceParallelBatch | PipelineBatch) -> int:
    """Tokens of a batch with a label: all but the last of each truncated sequence."""
    return sum(length - 1 for _, length in sequence_lengths(batch))


def uncut_slices(sequences: Sequence[int], lengths: Sequence[int]) -> list[Slice]:
    """One slice per (truncated) sequence."""
    return [
        Slice(sequence, 0, length, length)
        for sequence, length in zip(sequences, lengths, strict=True)
    ]


def read_sequences(
    path: str | Path, needed: Mapping[int, int], vocabulary: int
) -> dict[int, NDArray[np.int64]]:
    """Token ids of sequences, truncated.

    ``needed``: sequence -> number of tokens. ValueError names the file and a sequence
    that is missing, has no text, is too short or has an id not below ``vocabulary``.
    """
    table = read_table(path, ["sequence", "length_tokens", "tokens"])
    table = table.filter(
        pc.is_in(table["sequence"], value_set=pa.array(sorted(needed), type=table["sequence"].type))
    )
    metadata = read_metadata(path)
    first, width = metadata.get("beginning_of_sequence"), metadata.get("token_bytes") or 1
    if width not in _TOKEN_BYTES:
        raise UserError(
            f"{path}: token_bytes: got {width}; allowed: {', '.join(map(str, _TOKEN_BYTES))}"
        )
    sequences: dict[int, NDArray[np.int64]] = {}
    for row in table.to_pylist():
        sequence, text = row["sequence"], row["tokens"]
        if text is None:
            raise UserError(
                f"{path}: sequence {sequence} has a length but no text; allowed: a corpus with"
                " tokens, to train on"
            )
        if len(text) % width:
            raise UserError(
                f"{path}: sequence {sequence} has {len(text)} bytes of tokens; allowed: a multiple"
                f" of {width}, the token_bytes of the corpus"
            )
        tokens = np.frombuffer(text, dtype=f"<u{width}").astype(np.int64)
        if first is not None:
            tokens = np.concatenate(([int(first)], tokens))
        needed_tokens = needed[sequence]
        if len(tokens) != row["length_tokens"] or len(tokens) < needed_tokens:
            raise UserError(
                f"{path}: sequence {sequence} has {len(tokens)} tokens, {row['length_tokens']} by"
                f" its length, and the plan wants {needed_tokens}; allowed: a plan made for this"
                " corpus"
            )
        sequences[sequence] = tokens[:needed_tokens]
    missing = sorted(set(needed) - set(sequences))
    if missing:
        raise UserError(
            f"{path}: no sequence {missing[0]} ({len(missing)} missing); allowed: a plan made for"
            " this corpus"
        )
    highest = max(int(tokens.max()) for tokens in sequences.values())
    if highest >= vocabulary:
        raise UserError(
            f"{path}: token id {highest}; allowed: below model.vocabulary, which is {vocabulary}"
        )
    return sequences


def pack(slices: Iterable[Slice], sequences: Sequences) -> PackedTokens:
    """Concatenate slices.

    The label of a token is the next token of its sequence, also across slices; the last
    token of a sequence has none.
    """
    tokens, positions, labels = [], [], []
    for part in slices:
        text = sequences[part.sequence][: part.length]
        tokens.append(text[part.start : part.stop])
        positions.append(np.arange(part.start, part.stop, dtype=np.int64))
        following = np.full(part.stop - part.start, IGNORED_LABEL, dtype=np.int64)
        ahead = text[part.start + 1 : part.stop + 1]
        following[: len(ahead)] = ahead
        labels.append(following)
    packed = (torch.from_numpy(np.concatenate(column)) for column in (tokens, positions, labels))
    return PackedTokens(*packed)
