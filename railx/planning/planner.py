"""A planner's declaration: its settings, the kind of its plans and its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModel, CostModelSettings
from railx.planning.format.plan import PipelineBatch, PlanKind, Predictions, SequenceParallelBatch
from railx.workload.batches import SampledBatch

__all__ = ["Batches", "Planner", "PlannerBase", "PlanningTask"]

#: The batches of a plan, in the format of its kind.
Batches = tuple[SequenceParallelBatch, ...] | tuple[PipelineBatch, ...]


@dataclass(frozen=True)
class PlannerBase:
    """Settings of every planner."""

    planner: str
    """Which planner it is; a ``Literal`` with the planner's name in each of them."""


@dataclass(frozen=True)
class PlanningTask:
    """A planner's input: drawn batches, their cost model, longest context and seed.

    The plan must fit the longest context; the seed serves random choices. ``cluster``,
    ``model`` and ``constants`` are the inputs of the cost model, for planners that
    price more than it does.
    """

    batches: tuple[SampledBatch, ...]
    cost: CostModel
    max_length_tokens: int
    cluster: ClusterSettings
    model: ModelSettings
    constants: CostModelSettings
    seed: int = 0

    @property
    def devices(self) -> int:
        """All devices of the cluster."""
        return self.cluster.devices


@dataclass(frozen=True)
class Planner:
    """An entry of ``railx.planning.planners.PLANNERS``.

    ``name`` is the value of ``planner`` in its ``settings``. ``kind`` is the format of
    its plans, None where it chooses a format for each plan (:meth:`kind_of`); those of
    kind ``pipeline`` have a schedule. ``plan`` makes the batches of a plan from the
    settings and the task. ``ranks`` gives the ranks of a plan for a number of devices
    (None: one per device). ``predictions`` is ``own`` where a planner does not price by
    the task's cost model, so that reading cannot compute its times again.
    ``whole_heads`` is False where degrees need not divide the heads, as in ring
    attention.
    """

    name: str
    kind: PlanKind | None
    settings: type[PlannerBase]
    plan: Callable[[Any, PlanningTask], Batches]
    ranks: Callable[[Any], int] | None = None
    predictions: Predictions = "cost_model"
    whole_heads: bool = True

    def kind_of(self, batches: Batches) -> PlanKind:
        """The format of a plan of these batches."""
        if self.kind is not None:
            return self.kind
        pipelined = all(isinstance(batch, PipelineBatch) for batch in batches)
        return "pipeline" if pipelined else "sequence_parallel"

    def ranks_of(self, settings: PlannerBase, devices: int) -> int:
        """The ranks of a plan with these settings on ``devices`` devices."""
        return devices if self.ranks is None else self.ranks(settings)
