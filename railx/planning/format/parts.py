"""The parts of a batch: groups and micro-batches, slices, chunks and pipelines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.planning.format.simulation import ScheduleName
from railx.settings import AtLeast, NonNegative, NotEmpty, PowerOfTwo

ChunkKind = Literal["batched", "split", "hybrid"]
Count = Annotated[int, NonNegative()]
Milliseconds = Annotated[float, NonNegative()]


class PlanError(UserError):
    """A plan that cannot run; the message names batch, part and allowed values."""


def refused(where: str, got: str, allowed: object) -> PlanError:
    """The error that refuses a part of a plan or a setting, with what is allowed."""
    return PlanError(f"{where}: {got}; allowed: {allowed}")


@dataclass(frozen=True)
class Group:
    """A sequence-parallel group: the ranks that share the tokens of its sequences.

    The degree is the number of ranks. ``predicted_ms`` is the sum of compute,
    all-to-all and ``predicted_other_ms``: further terms of its planner by name.
    """

    ranks: Annotated[tuple[Count, ...], NotEmpty()]
    sequences: Annotated[tuple[Count, ...], NotEmpty()]
    lengths: tuple[Annotated[int, AtLeast(1)], ...]
    predicted_ms: Milliseconds
    predicted_compute_ms: Milliseconds = 0.0
    predicted_all_to_all_ms: Milliseconds = 0.0
    predicted_other_ms: Mapping[str, Milliseconds] = field(default_factory=dict)

    @property
    def degree(self) -> int:
        return len(self.ranks)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class MicroBatch:
    """Groups side by side; ranks in no group wait. The slowest group sets the time."""

    groups: Annotated[tuple[Group, ...], NotEmpty()]
    predicted_ms: Milliseconds

    @property
    def tokens(self) -> int:
        return sum(group.tokens for group in self.groups)

    def timed(self, times_of: Callable[[Group], Mapping[str, Any]]) -> MicroBatch:
        """The same groups with other predicted times, by the names of their fields."""
        groups = tuple(replace(group, **times_of(group)) for group in self.groups)
        return MicroBatch(groups, max(group.predicted_ms for group in groups))


@dataclass(frozen=True)
class Slice:
    """Tokens ``start`` to ``stop`` (exclusive) of a sequence of ``length`` tokens.

    The ``start`` tokens before them are context.
    """

    sequence: Count
    start: Count
    stop: Annotated[int, AtLeast(1)]
    length: Annotated[int, AtLeast(1)]

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def is_uncut(self) -> bool:
        return self.start == 0 and self.stop == self.length


@dataclass(frozen=True)
class Chunk:
    """A micro-batch of a pipeline: slices processed together.

    Attention stays within each sequence.

    ``predicted_*_ms`` are the times on any one stage (stages have equally many layers);
    ``predicted_all_to_all_ms`` is the all-to-all part of forward plus backward.
    ``predicted_weight_ms`` is the part of backward for gradients of weights, which a
    zero-bubble schedule delays. ``predicted_send_ms`` is the time of a message to a
    neighbouring stage, either way. ``checkpoint_layers[stage]`` layers are recomputed
    in the backward pass (empty: none), each at the cost of
    ``predicted_layer_forward_ms``. With several virtual stages, both apply to each of
    them: model stage v * stages + p is virtual stage v of stage p.
    """

    slices: Annotated[tuple[Slice, ...], NotEmpty()]
    predicted_forward_ms: Milliseconds
    predicted_backward_ms: Milliseconds
    predicted_all_to_all_ms: Milliseconds = 0.0
    checkpoint_layers: tuple[Count, ...] = ()
    predicted_layer_forward_ms: Milliseconds = 0.0
    predicted_weight_ms: Milliseconds = 0.0
    predicted_send_ms: Milliseconds = 0.0

    @property
    def kind(self) -> ChunkKind:
        """InfiniPipe's kind of chunk: batched, split or hybrid.

        Whole sequences; one slice of a cut sequence; the tail of a cut sequence with
        whole ones.
        """
        if all(part.is_uncut for part in self.slices):
            return "batched"
        return "split" if len(self.slices) == 1 else "hybrid"

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.slices)

    @property
    def predicted_ms(self) -> float:
        """Forward and backward time on a stage, nothing recomputed."""
        return self.predicted_forward_ms + self.predicted_backward_ms

    def recomputed_layers(self, stage: int) -> int:
        """Layers of a stage (of virtual stages: a model stage) that are recomputed."""
        return self.checkpoint_layers[stage] if self.checkpoint_layers else 0

    @property
    def cut_sequence(self) -> int | None:
        """The sequence of this chunk that is cut; None if all are whole."""
        return next((part.sequence for part in self.slices if not part.is_uncut), None)


@dataclass(frozen=True)
class Pipeline:
    """Chunks in forward order through the stages of one data-parallel replica.

    Each stage is ``degree`` ranks, which share the tokens of every chunk in order.
    ``schedule`` names the order of the stages' passes; ``order``, a list of passes for
    each stage ("F0", "F1", "B1", ...), replaces it (``schedule``). Only ``interleaved``
    has several virtual stages.
    """

    stages: Annotated[int, AtLeast(1)]
    replica: Count
    chunks: Annotated[tuple[Chunk, ...], NotEmpty()]
    degree: Annotated[int, PowerOfTwo()] = 1
    schedule: ScheduleName = "1f1b"
    virtual_stages: Annotated[int, AtLeast(1)] = 1
    order: tuple[tuple[str, ...], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    def with_chunks(self, change: Callable[[Chunk], Chunk]) -> Pipeline:
        """The same pipeline with every chunk changed."""
        return replace(self, chunks=tuple(map(change, self.chunks)))

    @property
    def model_stages(self) -> int:
        """The parts of the layers: virtual stages of all stages."""
        return self.stages * self.virtual_stages

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, stage by stage."""
        count = self.stages * self.degree
        return tuple(range(self.replica * count, (self.replica + 1) * count))


def agree(value: float, other: float) -> bool:
    """Whether two times are equal up to rounding of their sums."""
    return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12)


def confirm(where: str, key: str, said: float, right: float, what: str) -> None:
    """Refuse a time that differs from the right one, which is ``what``."""
    if not agree(said, right):
        raise refused(where, f"{key} {said}", f"{right}, {what}")
