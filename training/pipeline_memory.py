"""Memory of a pipeline's stages over time: live bytes after each pass, measured and
predicted.

One batch is observed, at the end of the warm-up, so that timed steps are undisturbed. A
row per operation and rank has the live chunks and the live bytes after the operation
and the peak during it; bytes count from the beginning of the batch. On a CPU the
storages of tensors are counted, on a GPU the caching allocator reports.

The prediction counts tensors as ``railx.performance.trainer_memory`` does: saved
tensors of live chunks, gradients from later slices for earlier ones, gradients of the
stage's parameters, and the receive that is posted ahead. Sends under way are not
counted: their end depends on the network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from railx.performance.decoder import ModelSettings
from railx.performance.trainer_memory import ModelShard, Pass, pass_bytes, unit_sizes
from railx.planning.format.parts import Chunk
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import Op
from training.allocations import LiveStorages
from training.pipeline import PipelineParallel, coming_steps, stage_steps
from training.sequence_parallel import token_cut


@dataclass(frozen=True)
class PassRecord:
    """One pass on one rank.

    Live chunks and held bytes are those right after it. ``start_ns`` and ``end_ns`` are
    on the monotonic clock, which all processes of a host share.
    """

    pipeline: int
    kind: str
    chunk: int
    start_ns: int
    end_ns: int
    live_chunks: int
    predicted_live_chunks: int
    held_bytes: int
    peak_bytes: int
    predicted_held_bytes: int


class Predicted(NamedTuple):
    """Predicted live chunks and bytes after an operation."""

    live_chunks: int
    live_bytes: int


class PassLog:
    """Records the passes of a batch on a ``shard`` (a ``training.pipeline.Log``)."""

    def __init__(
        self,
        runner: PipelineParallel,
        model: ModelSettings,
        shard: ModelShard,
        *,
        fused_attention: bool,
    ) -> None:
        self.runner, self.device = runner, runner.device
        self.stage = Stage(
            *(model, shard, runner.stage, runner.stages, runner.sequence_rank, runner.degree),
            fused_attention,
        )
        self._seen: list[tuple[int, Op, int, int, int]] = []
        self._bytes: list[tuple[int, int]] = []
        self._predicted: list[Predicted] = []
        self._before = 0
        self._storages: LiveStorages | None = None

    @contextmanager
    def watching(self, batch: Any) -> Iterator[None]:
        """Record the batch that the runner runs inside the block."""
        self._seen, self._bytes = [], []
        self._predicted = predicted_memory(self.stage, batch, self.runner.replica)
        self.runner.log = self
        try:
            with self._counting():
                yield
        finally:
            self.runner.log = None

    @contextmanager
    def _counting(self) -> Iterator[None]:
        if self.device.type == "cuda":
            self._before = torch.cuda.memory_allocated(self.device)
            yield
            return
        # Sharding resizes the storage of gathered parameters.
        with LiveStorages(self.runner.decoder.parameters()) as self._storages:
            yield

    @contextmanager
    def operation(self, number: int, op: Op) -> Iterator[None]:
        """Record one pass."""
        if self._storages is None:
            torch.cuda.reset_peak_memory_stats(self.device)
        start_ns = time.monotonic_ns()
        yield
        self._seen.append((number, op, start_ns, time.monotonic_ns(), self.runner.live_chunks))
        self._bytes.append(self._live_bytes())

    def _live_bytes(self) -> tuple[int, int]:
        """Live bytes now, and the peak since the last operation."""
        if self._storages is not None:
            return self._storages.live_bytes(), self._storages.peak_bytes()
        now = torch.cuda.memory_allocated(self.device)
        return now - self._before, torch.cuda.max_memory_allocated(self.device) - self._before

    def operations(self) -> list[PassRecord]:
        """The recorded passes, in order."""
        return [
            PassRecord(
                *(number, op.kind, op.chunk, start_ns, end_ns),
                *(live, expected.live_chunks, live_bytes, peak, expected.live_bytes),
            )
            for (number, op, start_ns, end_ns, live), (live_bytes, peak), expected in zip(
                self._seen, self._bytes, self._predicted, strict=True
            )
        ]


@dataclass(frozen=True)
class Stage:
    """A rank's position in its pipelines, and its part of the model."""

    model: ModelSettings
    shard: ModelShard
    stage: int
    stages: int
    sequence_rank: int = 0
    degree: int = 1
    fused_attention: bool = False

    @property
    def last(self) -> bool:
        """Whether it is the last stage."""
        return self.stage == self.stages - 1

    def tokens(self, chunk: Chunk) -> int:
        """This rank's tokens of a chunk."""
        return token_cut(chunk.tokens, self.degree)[self.sequence_rank]

    def message_bytes(self, chunk: Chunk) -> int:
        """Hidden states of a chunk, or their gradients."""
        return self.shard.compute_bytes * self.tokens(chunk) * self.model.hidden

    def chunk_bytes(self, chunk: Chunk) -> int:
        """Bytes that a chunk saves between its forward and its backward pass."""
        recomputed = chunk.recomputed_layers(self.stage)
        chunk_pass = Pass(self.tokens(chunk), self.degree, 0, recomputed, len(chunk.slices) > 1)
        saved_bytes = pass_bytes(self.model, self.shard, chunk_pass, self.fused_attention)
        if _read_later(chunk):
            saved_bytes += self.key_value_bytes(chunk, min(recomputed, self.shard.layers))
        if self.shard.scores:
            saved_bytes += self.message_bytes(chunk)
        return saved_bytes

    def key_value_bytes(self, chunk: Chunk, layers: int) -> int:
        """Keys and values of a chunk in ``layers`` layers, for this rank's heads."""
        heads = max(self.model.kv_heads // self.degree, 1)
        width = self.model.head_width * heads
        return 2 * layers * self.shard.compute_bytes * chunk.tokens * width

    def gathered_bytes(self) -> int:
        """Parameters to compute with, where they differ from the master weights."""
        return self.shard.compute_bytes * self._parameters() if self.shard.apart else 0

    def gradients_bytes(self, *, backward: bool) -> int:
        """Gradients of the stage; before any backward pass, those of the head."""
        _, bottom, top = unit_sizes(self.model, self.shard)
        tied = self.shard.embeds and self.model.tied_embeddings
        head = (bottom if tied else top) if self.shard.scores else 0
        return self.shard.master_bytes * (self._parameters() if backward else head)

    def _parameters(self) -> int:
        shard = self.shard
        layer, bottom, top = unit_sizes(self.model, shard)
        scores = shard.scores and not (shard.embeds and self.model.tied_embeddings)
        return shard.layers * layer + shard.embeds * bottom + scores * top


def predicted_memory(stage: Stage, batch: PipelineBatch, replica: int) -> list[Predicted]:
    """Chunks and bytes alive after each operation, beyond those before the batch.

    Memory that a sharded stage frees during its last backward pass is still counted.
    """
    steps = stage_steps(batch, replica, stage.stage)
    coming = coming_steps(batch, replica, stage.stage, stage.stages)
    posted: dict[tuple[int, str, int], int] = {}
    live: dict[tuple[int, int], int] = {}
    added: dict[tuple[int, int], int] = {}
    predictions: list[Predicted] = []
    ran = False
    for index, step in enumerate(steps):
        for ahead in steps[index : index + 2]:
            while coming[ahead.forward] and ahead.awaited not in posted:
                sent = coming[ahead.forward].popleft()
                posted[sent.awaited] = stage.message_bytes(sent.chunk)
        posted[step.awaited] = 0
        if step.forward:
            live[step.live] = stage.chunk_bytes(step.chunk)
        else:
            ran = True
            del live[step.live]
            added.pop(step.live, None)
            for number in range(step.op.chunk - 1, -1, -1):
                earlier = step.pipeline.chunks[number]
                if not _continues(earlier, step.chunk):
                    break
                added_bytes = stage.key_value_bytes(earlier, stage.shard.layers)
                added[step.number, number] = added_bytes
        parameters = stage.gathered_bytes() + stage.gradients_bytes(backward=ran)
        chunks = sum(live.values()) + sum(added.values()) + sum(posted.values())
        predictions.append(Predicted(len(live), parameters + chunks))
    return predictions


def _read_later(chunk: Chunk) -> bool:
    """Whether later slices attend to a chunk's keys and values."""
    return chunk.slices[0].stop < chunk.slices[0].length


def _continues(earlier: Chunk, chunk: Chunk) -> bool:
    """Whether a slice of ``chunk`` attends to that of ``earlier``."""
    return _read_later(earlier) and any(
        part.start > 0 and part.sequence == earlier.slices[0].sequence for part in chunk.slices
    )
