"""A planner's declaration: its settings, the kind of its plans and its function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from railx.performance.pipeline_cost import PipelineShape
from railx.performance.sequence_cost import CostModel
from railx.planning.format.parts import refused
from railx.planning.format.plan import PipelineBatch, PlanKind, Predictions, SequenceParallelBatch
from railx.planning.format.predictions import PlanCosts
from railx.planning.groups import Assignment, check_lengths_fit, micro_batch
from railx.progress import counted
from railx.workload.batches import SampledBatch

#: A batch in the format of a plan's kind.
_Batch = TypeVar("_Batch", SequenceParallelBatch, PipelineBatch)
#: The batches of a plan, in the format of its kind.
Batches = tuple[SequenceParallelBatch, ...] | tuple[PipelineBatch, ...]


@dataclass(frozen=True)
class PlannerBase:
    """Settings of every planner."""

    planner: str
    """Which planner it is; a ``Literal`` with the planner's name in each of them."""


class StagedSettings(PlannerBase):
    """Settings of a planner of pipelines of one shape."""

    stages: int
    replicas: int
    sequence_parallel_degree: int

    @property
    def shape(self) -> PipelineShape:
        return PipelineShape(self.stages, self.sequence_parallel_degree, self.replicas)


@dataclass(frozen=True)
class PlanningTask(PlanCosts):
    """A planner's input: the cost model and its inputs, drawn batches and a seed.

    The plan must fit the longest context; the seed serves random choices.
    """

    batches: tuple[SampledBatch, ...]
    seed: int = 0

    @property
    def devices(self) -> int:
        """All devices of the cluster."""
        return self.cluster.devices

    def planned(self, plan: Callable[[int, SampledBatch], _Batch]) -> tuple[_Batch, ...]:
        """All batches, each planned by its number and itself, with progress."""
        batches = enumerate(counted(self.batches, "batches"))
        return tuple(plan(index, batch) for index, batch in batches)


def check_group_holds(batch: SampledBatch, tokens_per_device: int, degree: int) -> None:
    """Refuse a sequence longer than a group holds; PlanError names it."""
    limit, where = tokens_per_device * degree, f"a group of degree {degree}"
    check_lengths_fit(batch.sequences, batch.lengths, limit, where)


def check_replicas(replicas: int, sequences: int) -> None:
    """Refuse more replicas than sequences of a batch."""
    if sequences < replicas:
        most = f"at most {sequences}, the sequences of a batch"
        raise refused("planner.replicas", f"got {replicas}", most)


def batch_by_batch(
    plan: Callable[[int, SampledBatch, Any, int, CostModel], SequenceParallelBatch],
) -> Callable[[Any, PlanningTask], tuple[SequenceParallelBatch, ...]]:
    """A planner's function from one that plans a batch of groups.

    ``plan`` takes the batch's number, the batch, the settings, the devices and the cost
    model.
    """

    def planned(settings: Any, task: PlanningTask) -> tuple[SequenceParallelBatch, ...]:
        return task.planned(
            lambda index, batch: plan(index, batch, settings, task.devices, task.cost)
        )

    return planned


def assignment_of(groups: Iterable[tuple[int, Iterable[int]]]) -> Assignment:
    """The micro-batch of pairs of a degree and positions."""
    pairs = [(degree, tuple(members)) for degree, members in groups]
    return Assignment(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))


def planned_batch(
    iteration: int,
    batch: SampledBatch,
    assignments: Iterable[Assignment],
    cost: CostModel,
    account: Mapping[str, Any],
) -> SequenceParallelBatch:
    """A planner's batch: its assignments, timed, and its account of its work."""
    parts = (micro_batch(part, batch.sequences, batch.lengths, cost) for part in assignments)
    return SequenceParallelBatch(iteration, tuple(parts), account)


@dataclass(frozen=True)
class Planner:
    """An entry of ``railx.planning.planners.PLANNERS``.

    ``name`` is the value of ``planner`` in its ``settings``. ``kind`` is the format of
    its plans, None where it chooses a format for each plan (:meth:`kind_of`); those of
    kind ``pipeline`` have a schedule. ``plan`` makes the batches of a plan from the
    settings and the task. ``predictions`` is ``own`` where a planner does not price by
    the task's cost model, so that reading cannot compute its times again.
    ``whole_heads`` is False where degrees need not divide the heads, as in ring
    attention.
    """

    name: str
    kind: PlanKind | None
    settings: type[PlannerBase]
    plan: Callable[[Any, PlanningTask], Batches]
    predictions: Predictions = "cost_model"
    whole_heads: bool = True

    def kind_of(self, batches: Batches) -> PlanKind:
        """The format of a plan of these batches."""
        if self.kind is not None:
            return self.kind
        pipelined = all(isinstance(batch, PipelineBatch) for batch in batches)
        return "pipeline" if pipelined else "sequence_parallel"

    def ranks_of(self, settings: PlannerBase, devices: int) -> int:
        """The ranks of a plan: those of the settings' pipelines, else all devices."""
        return settings.shape.all_devices if isinstance(settings, StagedSettings) else devices
