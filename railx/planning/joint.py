"""The better of sequence-parallel groups and elastic pipelines for a plan.

FlexSP gives each micro-batch groups of different degrees on all devices, InfiniPipe
runs chunks through the stages of one shape. The winner depends on the lengths, the
devices and the network. Here both plan the same batches under one cost model:

* groups, by our search (``railx.planning.sequence.flexsp``);
* pipelines of every shape of stages x ranks of a stage x replicas that fills the
  devices, two stages or more, by the planner of elastic pipelines
  (``railx.planning.pipeline.infinipipe``).

The least total time of all batches wins, so that a joint plan is never slower than
either, at any shape. No paper has such a planner.

A lower bound on the time of a shape excludes shapes: replicas share the work of all
sequences at the shape's degree, and none ends before the longest sequence. Shapes are
tried in the order of that bound. A plan has one kind and a pipeline plan one shape for
all batches, so that each rank keeps its layers. The account of each batch lists the
times of all plans tried on it. Where chunks are searched, a short search plans every
shape, and the whole one follows for the few that may still win.

One difference of the two models remains. Groups begin each micro-batch together, as
ZeRO-3's gathers require; replicas of a pipeline wait for one another only at the end of
a batch, as in InfiniPipe. That is why one stage is no shape here.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from railx.performance.pipeline_cost import PipelineCost, PipelineShape
from railx.planning.format.parts import PlanError
from railx.planning.pipeline.infinipipe import PIPELINE, PipelineSettings
from railx.planning.planner import Batches, Planner, PlannerBase, PlanningTask
from railx.planning.sequence.flexsp import FLEXSP, FlexSPSettings
from railx.progress import counted
from railx.settings import AtLeast, SettingsError
from railx.workload.batches import SampledBatch

#: Shapes for which chunks are searched at full effort at most, and the share of a
#: plan's time that this may save.
_MOST_SEARCHED = 2
_SEARCH_GAIN = 0.04


@dataclass(frozen=True)
class JointSettings(PlannerBase):
    """The best of sequence-parallel groups and elastic pipelines of every shape."""

    planner: Literal["joint"]
    """Which planner it is."""

    most_stages: Annotated[int, AtLeast(1)]
    """Most stages of a pipeline that are tried; 1 leaves pipelines out."""

    sequence_parallel: FlexSPSettings
    """How groups are searched."""

    pipeline: PipelineSettings
    """How pipelines are made. Its stages, replicas and ranks of a stage do not count:
    every shape is tried."""


@dataclass(frozen=True)
class _Candidate:
    """A shape of pipelines, with a lower bound on the time of each batch."""

    settings: PipelineSettings
    bounds_ms: tuple[float, ...]

    @property
    def name(self) -> str:
        shape = self.settings.shape
        return f"{shape.stages}x{shape.degree}x{shape.replicas}"

    @property
    def bound_ms(self) -> float:
        return sum(self.bounds_ms)

    @property
    def searches_twice(self) -> bool:
        """Whether a short search comes before the whole one."""
        return self.settings.chunking == "searched" and self.settings.effort > 0


def shapes_of(task: PlanningTask, most_stages: int) -> list[PipelineShape]:
    """Every shape of two or more stages that fills the devices, fewest stages first."""
    return [
        PipelineShape(stages, degree, task.devices // (stages * degree))
        for stages in range(2, min(most_stages, task.model.layers, task.devices) + 1)
        for degree in task.cost.degrees
        if task.devices % (stages * degree) == 0
    ]


def pipeline_bound_ms(batch: SampledBatch, cost: PipelineCost) -> float:
    """A lower bound on the time of pipelines of this shape for a batch.

    Every stage of a replica runs all tokens of the replica, in one chunk or more.
    """
    forward, backward, _ = cost.slice_times_ms(0 * batch.lengths, batch.lengths)
    work = forward + backward
    shared = max(float(work.sum()) / cost.shape.replicas, float(work.max()))
    return shared + cost.chunk_constant_ms + cost.batch_ms


def _pipelines(settings: JointSettings, task: PlanningTask) -> list[_Candidate]:
    """Shapes that memory allows, by ascending bound."""
    candidates = []
    for shape in shapes_of(task, settings.most_stages):
        try:
            cost = task.pipelines(shape)
        except SettingsError:  # states leave no memory on its stages
            continue
        shaped: dict[str, Any] = {"stages": shape.stages, "replicas": shape.replicas}
        shaped["sequence_parallel_degree"] = shape.degree
        bounds_ms = tuple(pipeline_bound_ms(batch, cost) for batch in task.batches)
        candidates.append(_Candidate(replace(settings.pipeline, **shaped), bounds_ms))
    return sorted(candidates, key=lambda candidate: candidate.bound_ms)


def _plan(settings: JointSettings, task: PlanningTask) -> Batches:
    refused: Exception | None = None
    tried: dict[str, Batches] = {}
    times_ms: dict[str, list[float]] = {}

    def total_ms(name: str) -> float:
        return sum(times_ms[name])

    def take(name: str, batches: Batches) -> None:
        ms = [batch.predicted_ms for batch in batches]
        if name not in times_ms or sum(ms) < total_ms(name):
            tried[name], times_ms[name] = batches, ms

    def best_ms() -> float:
        return min(map(total_ms, tried), default=math.inf)

    pipelines = _pipelines(settings, task)
    try:
        take("groups", FLEXSP.plan(settings.sequence_parallel, task))
    except (PlanError, SettingsError) as error:
        refused = error
    for candidate in counted(pipelines, "shapes"):
        short = replace(candidate.settings, effort=0)
        if candidate.bound_ms < best_ms():
            with suppress(PlanError, SettingsError):
                chosen = short if candidate.searches_twice else candidate.settings
                take(candidate.name, PIPELINE.plan(chosen, task))
    near = [candidate for candidate in pipelines if candidate.name in tried]
    nearest = sorted(near, key=lambda near_: total_ms(near_.name))[:_MOST_SEARCHED]
    for candidate in counted(nearest, "nearest shapes"):
        if candidate.searches_twice and total_ms(candidate.name) * (1 - _SEARCH_GAIN) < best_ms():
            take(candidate.name, PIPELINE.plan(candidate.settings, task))
    if not tried:
        raise PlanError(f"{refused}; nor does a pipeline of any of {len(pipelines)} shapes")
    best = min(tried, key=total_ms)
    bounds_ms = [candidate.bounds_ms for candidate in pipelines]
    if "groups" in tried:
        groups: Any = tried["groups"]
        bounds_ms.append(tuple(batch.solver.get("lower_bound_ms", 0.0) for batch in groups))
    batches: list[Any] = list(tried[best])
    for index, batch in enumerate(batches):
        account = {
            **batch.solver,
            "name": "joint",
            "lower_bound_ms": min(*(ms[index] for ms in bounds_ms), times_ms[best][index]),
            "chosen": best,
            "tried_ms": {name: ms[index] for name, ms in times_ms.items()},
            "not_planned": len(pipelines) + 1 - len(tried),
        }
        batches[index] = replace(batch, solver=account)
    return tuple(batches)


JOINT = Planner("joint", None, JointSettings, _plan)
