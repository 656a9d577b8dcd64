"""Memory of a pipeline's stages over time: what was alive after each pass, measured and
predicted.

One batch is watched, at the end of the warm-up, so that no timed step pays for it. A
row for each operation of each rank says how many chunks are alive after it, how many
bytes are held beyond those that were there when the batch began, and the most that was
held while it ran. On a CPU the storages of tensors are counted, on a GPU the allocator
is.

The prediction counts tensors as ``railx.workload.memory`` does: what chunks alive keep,
what later slices have left for earlier ones, the gradients of the stage's parameters,
and the receive that is posted ahead. Messages that have not left are not in it: when
they leave is the network's affair.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from railx.planning.format.parts import Chunk, Pipeline
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import Op, operations
from railx.workload.memory import Kernels, ModelShard, Pass, pass_bytes, unit_sizes
from railx.workload.model import ModelSettings
from training.allocations import HeldStorages
from training.pipeline import PipelineParallel
from training.sequence_parallel import token_cut

__all__ = ["Operation", "PassLog", "Predicted", "Stage", "predicted_memory"]


@dataclass(frozen=True)
class Operation:
    """One pass on one rank.

    Chunks alive and bytes held are those right after it. ``start_ns`` and ``end_ns``
    are on the clock that all processes of a host share.
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
    """What is alive after an operation."""

    live_chunks: int
    held_bytes: int


class PassLog:
    """Watches a batch of a runner (a ``training.pipeline.Log``).

    ``held`` is what the rank holds of the model.
    """

    def __init__(
        self,
        runner: PipelineParallel,
        model: ModelSettings,
        held: ModelShard,
        *,
        fused_attention: bool,
    ) -> None:
        self.runner, self.device = runner, runner.device
        self.stage = Stage(
            *(model, held, runner.stage, runner.stages, runner.place, runner.degree),
            fused_attention,
        )
        self._seen: list[tuple[int, Op, int, int, int]] = []
        self._bytes: list[tuple[int, int]] = []
        self._predicted: list[Predicted] = []
        self._before = 0
        self._storages: HeldStorages | None = None

    @contextmanager
    def watching(self, batch: Any) -> Iterator[None]:
        """Inside, the runner runs a batch and is watched."""
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
        # Gathered parameters come and go by their storage.
        with HeldStorages(self.runner.decoder.parameters()) as self._storages:
            yield

    @contextmanager
    def operation(self, number: int, op: Op) -> Iterator[None]:
        """One pass."""
        if self._storages is None:
            torch.cuda.reset_peak_memory_stats(self.device)
        start_ns = time.monotonic_ns()
        yield
        self._seen.append((number, op, start_ns, time.monotonic_ns(), self.runner.live_chunks))
        self._bytes.append(self._held())

    def _held(self) -> tuple[int, int]:
        """What is held now, and the most since the last operation."""
        if self._storages is not None:
            return self._storages.held_bytes(), self._storages.peak_bytes()
        now = torch.cuda.memory_allocated(self.device)
        return now - self._before, torch.cuda.max_memory_allocated(self.device) - self._before

    def operations(self) -> list[Operation]:
        """What was seen, in order."""
        return [
            Operation(
                *(number, op.kind, op.chunk, start_ns, end_ns),
                *(live, expected.live_chunks, held, peak, expected.held_bytes),
            )
            for (number, op, start_ns, end_ns, live), (held, peak), expected in zip(
                self._seen, self._bytes, self._predicted, strict=True
            )
        ]


@dataclass(frozen=True)
class Stage:
    """A rank's place in its pipelines, and what it holds of the model."""

    model: ModelSettings
    held: ModelShard
    stage: int
    stages: int
    place: int = 0
    degree: int = 1
    fused_attention: bool = False

    @property
    def last(self) -> bool:
        """Whether it is the last stage."""
        return self.stage == self.stages - 1

    def tokens(self, chunk: Chunk) -> int:
        """This rank's tokens of a chunk."""
        return token_cut(chunk.tokens, self.degree)[self.place]

    def message_bytes(self, chunk: Chunk) -> int:
        """Hidden states of a chunk, or their gradients."""
        return self.held.compute_bytes * self.tokens(chunk) * self.model.hidden

    def chunk_bytes(self, chunk: Chunk) -> int:
        """What a chunk keeps between its forward and its backward pass."""
        recomputed = chunk.checkpoint_layers[self.stage] if chunk.checkpoint_layers else 0
        kernels = Kernels(self.fused_attention)
        own = Pass(self.tokens(chunk), self.degree, 0, recomputed, len(chunk.slices) > 1)
        kept = pass_bytes(self.model, self.held, own, kernels)
        if _read_later(chunk):
            kept += self.key_value_bytes(chunk, min(recomputed, self.held.layers))
        if self.held.scores:
            kept += self.message_bytes(chunk)
        return kept

    def key_value_bytes(self, chunk: Chunk, layers: int) -> int:
        """Keys and values of a chunk in some layers: of all tokens, of this rank's
        heads.
        """
        heads = max(self.model.kv_heads // self.degree, 1)
        width = self.model.head_width * heads
        return 2 * layers * self.held.compute_bytes * chunk.tokens * width

    def gathered_bytes(self) -> int:
        """Parameters to compute with, where they are apart from the masters."""
        return self.held.compute_bytes * self._parameters() if self.held.apart else 0

    def gradients_bytes(self, *, backward: bool) -> int:
        """Gradients of the stage's parameters, or before any backward pass the head's
        alone.
        """
        _, bottom, top = unit_sizes(self.model, self.held)
        tied = self.held.embeds and self.model.tied_embeddings
        head = (bottom if tied else top) if self.held.scores else 0
        return self.held.master_bytes * (self._parameters() if backward else head)

    def _parameters(self) -> int:
        held = self.held
        layer, bottom, top = unit_sizes(self.model, held)
        scores = held.scores and not (held.embeds and self.model.tied_embeddings)
        return held.layers * layer + held.embeds * bottom + scores * top


def predicted_memory(stage: Stage, batch: PipelineBatch, replica: int) -> list[Predicted]:
    """What a rank holds after each operation beyond what it held before the batch.

    But for what a sharded stage gives back while its last chunk runs backward.
    """
    steps = _steps(batch, replica, stage.stage)
    senders = {
        kind: deque(
            step
            for step in (
                _steps(batch, replica, stage.stage + shift)
                if 0 <= stage.stage + shift < stage.stages
                else ()
            )
            if step[2].kind == kind
        )
        for kind, shift in (("forward", -1), ("backward", 1))
    }
    posted: dict[tuple[int, Op], int] = {}
    live: dict[tuple[int, int], int] = {}
    added: dict[tuple[int, int], int] = {}
    found: list[Predicted] = []
    for index, (number, pipeline, op) in enumerate(steps):
        for ahead in steps[index : index + 2]:
            coming = senders[ahead[2].kind]
            while coming and (ahead[0], ahead[2]) not in posted:
                sent, of, one = coming.popleft()
                posted[sent, one] = stage.message_bytes(of.chunks[one.chunk])
        posted[number, op] = 0
        chunk, key = pipeline.chunks[op.chunk], (number, op.chunk)
        if op.kind == "forward":
            live[key] = stage.chunk_bytes(chunk)
        else:
            del live[key]
            added.pop(key, None)
            for earlier in range(op.chunk - 1, -1, -1):
                if not _continues(pipeline.chunks[earlier], chunk):
                    break
                whole = stage.key_value_bytes(pipeline.chunks[earlier], stage.held.layers)
                added[number, earlier] = whole
        ran = any(one.kind == "backward" for _, _, one in steps[: index + 1])
        parameters = stage.gathered_bytes() + stage.gradients_bytes(backward=ran)
        chunks = sum(live.values()) + sum(added.values()) + sum(posted.values())
        found.append(Predicted(len(live), parameters + chunks))
    return found


def _steps(batch: PipelineBatch, replica: int, stage: int) -> list[tuple[int, Pipeline, Op]]:
    return [
        (number, pipeline, op)
        for number, pipeline in enumerate(batch.pipelines)
        if pipeline.replica == replica
        for op in operations(pipeline, stage)
    ]


def _read_later(chunk: Chunk) -> bool:
    """Whether later slices attend to a chunk's keys and values."""
    return chunk.slices[0].stop < chunk.slices[0].length


def _continues(earlier: Chunk, chunk: Chunk) -> bool:
    """Whether a slice of ``chunk`` attends to that of ``earlier``."""
    return _read_later(earlier) and any(
        part.start > 0 and part.sequence == earlier.slices[0].sequence for part in chunk.slices
    )
