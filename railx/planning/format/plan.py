"""Batches and plans.

A plan is the only thing that passes from a planner to the training runtime. It names
sequences by their row in the corpus file and contains their lengths after truncation,
so that a runtime needs only the corpus besides.

Two kinds (``Plan.kind``):

* ``sequence_parallel``: a batch is a list of micro-batches that run one after another;
  the groups of a micro-batch run side by side, each on consecutive ranks (Ulysses
  sequence parallelism with a degree per group, FlexSP). A group may have any number of
  ranks; a power of two starts at a multiple of itself, so that the group lies inside a
  node where possible.
* ``pipeline``: a batch is a list of pipelines; those of one data-parallel replica run
  one after another, replicas side by side. A pipeline runs chunks in 1F1B order
  (InfiniPipe section III), in another named order or in an explicit one. Each stage is
  a group of ``degree`` ranks that share the tokens of a chunk; rank = (replica * stages
  + stage) * degree + place. All pipelines of a plan have equally many stages, so that a
  rank keeps its layers.

Each batch contains the ids and lengths of its sequences, so that reading refuses a plan
that drops, repeats or changes one, or gives a group more tokens than its ranks hold, if
the plan knows that limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, cast

from railx.planning.format.parts import Count, MicroBatch, Milliseconds, Pipeline, PlanError
from railx.planning.format.schedule import pipeline_ms
from railx.settings import AtLeast, NotEmpty

SCHEMA: Literal["railx.plan/3"] = "railx.plan/3"
#: The two formats of a plan.
PlanKind = Literal["sequence_parallel", "pipeline"]
#: Source of predicted times: the cost model named in ``settings``, or the planner
#: alone.
Predictions = Literal["cost_model", "own"]


@dataclass(frozen=True)
class SequenceParallelBatch:
    """One training step: micro-batches one after another.

    ``solver`` is the planner's account of its work. ``sequences`` and ``lengths`` are
    the planned batch. ``lower_bound_ms`` is a time that no plan of the batch beats,
    ``solved_by`` the solver and ``effort`` its work, in units that do not depend on the
    machine; None where unknown.
    """

    iteration: Count
    micro_batches: Annotated[tuple[MicroBatch, ...], NotEmpty()]
    solver: Mapping[str, Any] = field(default_factory=dict)
    sequences: tuple[Count, ...] = ()
    lengths: tuple[Annotated[int, AtLeast(1)], ...] = ()
    lower_bound_ms: Milliseconds | None = None
    solved_by: str | None = None
    effort: Count | None = None

    @property
    def predicted_ms(self) -> float:
        """Time of the whole batch: micro-batches run one after another."""
        return sum(micro_batch.predicted_ms for micro_batch in self.micro_batches)

    @property
    def tokens(self) -> int:
        return sum(micro_batch.tokens for micro_batch in self.micro_batches)


@dataclass(frozen=True)
class PipelineBatch:
    """One training step: pipelines of a replica in order, replicas side by side.

    ``predicted_other_ms`` comes once a batch, after the pipelines: exposed traffic of
    ZeRO-3. The other fields are those of a :class:`SequenceParallelBatch`.
    """

    iteration: Count
    pipelines: Annotated[tuple[Pipeline, ...], NotEmpty()]
    solver: Mapping[str, Any] = field(default_factory=dict)
    sequences: tuple[Count, ...] = ()
    lengths: tuple[Annotated[int, AtLeast(1)], ...] = ()
    lower_bound_ms: Milliseconds | None = None
    solved_by: str | None = None
    effort: Count | None = None
    predicted_other_ms: Milliseconds = 0.0

    @property
    def spans_ms(self) -> list[tuple[float, float]]:
        """Start and end of each pipeline, after the earlier ones of its replica."""
        clock: dict[int, float] = {}
        spans = []
        for pipeline in self.pipelines:
            start_ms = clock.get(pipeline.replica, 0.0)
            clock[pipeline.replica] = start_ms + pipeline_ms(pipeline)
            spans.append((start_ms, clock[pipeline.replica]))
        return spans

    @property
    def predicted_ms(self) -> float:
        """Simulated time of the whole batch: until the last replica is done."""
        return max(end_ms for _, end_ms in self.spans_ms) + self.predicted_other_ms

    @property
    def tokens(self) -> int:
        return sum(pipeline.tokens for pipeline in self.pipelines)


#: A training step of either kind.
Batch: TypeAlias = SequenceParallelBatch | PipelineBatch


@dataclass(frozen=True)
class Plan:
    """A plan for ``devices`` ranks.

    ``settings`` are the planner's inputs as plain data, for provenance.
    ``tokens_per_device`` is the tokens of the whole model in a rank's memory, None
    where unknown. ``predictions`` is ``cost_model`` where the predicted times are those
    of the cost model in ``settings`` (cluster, model, cost_model and
    max_length_tokens), else ``own``. ``whole_heads``: every degree divides the heads of
    that model, as Ulysses requires; the runtime takes no other degrees.
    """

    schema: Literal["railx.plan/3"]
    kind: PlanKind
    planner: str
    devices: Annotated[int, AtLeast(1)]
    settings: Mapping[str, Any]
    batches: tuple[Batch, ...]
    tokens_per_device: Annotated[int, AtLeast(1)] | None = None
    predictions: Predictions = "own"
    whole_heads: bool = True

    def sequence_parallel_batches(self) -> tuple[SequenceParallelBatch, ...]:
        """The batches of a sequence-parallel plan; PlanError for a pipeline plan."""
        if self.kind != "sequence_parallel":
            raise PlanError(f"the plan is of kind {self.kind}; allowed here: sequence_parallel")
        return cast("tuple[SequenceParallelBatch, ...]", self.batches)

    def pipeline_batches(self) -> tuple[PipelineBatch, ...]:
        """The batches of a pipeline plan; PlanError for a sequence-parallel plan."""
        if self.kind != "pipeline":
            raise PlanError(f"the plan is of kind {self.kind}; allowed here: pipeline")
        return cast("tuple[PipelineBatch, ...]", self.batches)


def sequence_lengths(batch: Batch) -> Iterator[tuple[int, int]]:
    """The sequences that a batch processes and their lengths, in its order."""
    if isinstance(batch, SequenceParallelBatch):
        for micro_batch in batch.micro_batches:
            for group in micro_batch.groups:
                yield from zip(group.sequences, group.lengths, strict=True)
        return
    for pipeline in batch.pipelines:
        for chunk in pipeline.chunks:
            yield from ((part.sequence, part.length) for part in chunk.slices if part.start == 0)


def check_ranks(plan: Plan, ranks: int) -> None:
    """Refuse to run a plan with another number of ranks than the plan's."""
    if ranks != plan.devices:
        made_for = f"{plan.devices}, the number of devices that the plan was made for"
        raise PlanError(f"ranks: got {ranks}; allowed: {made_for}")


def layers_of(plan: Plan) -> int | None:
    """The layers of the plan's model; None where the plan names no model."""
    model = plan.settings.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    return layers if isinstance(layers, int) and not isinstance(layers, bool) else None


def priced_zero_stage(plan: Plan) -> int | None:
    """The ZeRO stage of the plan's cost model; None where the plan names none."""
    cost_model = plan.settings.get("cost_model")
    stage = cost_model.get("zero_stage") if isinstance(cost_model, Mapping) else None
    return stage if isinstance(stage, int) else None
