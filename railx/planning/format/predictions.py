"""Times and memory of a plan, computed again from its cost model.

A plan of ``railx.planning.make`` names its cluster, its model, its cost model and the
longest context that sized the model. These determine the tokens of a rank and every
time in the plan, so that reading refuses a file with times that are too good for its
sequences, or with pipelines that exceed the memory of their devices, recomputation
included.

Bytes of live chunks are those of the cost model for the stage's recomputed layers
(InfiniPipe eqs. 5, 9 and 10), and their maximum is that of the 1F1B window. Virtual
stages of a stage share its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.performance.sequence_cost import CostModel, CostModelSettings, build_cost_model
from railx.planning.format.parts import Chunk, Group, Pipeline, PlanError, confirm, refused
from railx.planning.format.plan import PipelineBatch, Plan
from railx.planning.format.schedule import ScheduledOp, peak_live, simulate_pipeline, stage_layers
from railx.settings import SettingsError, load


def weight_ms(cost: PipelineCost, tokens: int) -> float:
    """The weight pass of a chunk: the gradients of weights in its backward pass.

    It is half of the part linear in tokens: a layer's products need as many operations
    for the gradients of weights as for those of inputs, and attention has no weights.
    """
    return cost.backward.linear_ms * tokens / 2


#: Sums of bytes in another order differ in their last bits.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class StageTime:
    """Busy and idle time of a stage, from ``start_ms`` of the pipeline on."""

    stage: int
    busy_ms: float
    idle_ms: float

    @property
    def bubble_share(self) -> float:
        """Share of the pipeline's time in which the stage has nothing to run."""
        total_ms = self.busy_ms + self.idle_ms
        return self.idle_ms / total_ms if total_ms else 0.0


@dataclass(frozen=True)
class StageMemory:
    """Live chunks of a stage from a moment on; bytes of a rank, None without a cost."""

    stage: int
    time_ms: float
    live_chunks: int
    live_tokens: int
    activation_bytes: float | None


def stage_times(rows: Sequence[ScheduledOp], start_ms: float = 0.0) -> list[StageTime]:
    """Busy and idle time of every stage of a simulated pipeline."""
    makespan_ms = max(row.end_ms for row in rows) - start_ms
    busy: dict[int, float] = {}
    for row in rows:
        busy[row.stage] = busy.get(row.stage, 0.0) + row.end_ms - row.start_ms
    return [StageTime(stage, ms, max(0.0, makespan_ms - ms)) for stage, ms in sorted(busy.items())]


def memory_over_time(
    pipeline: Pipeline, cost: PipelineCost | None = None, rows: Sequence[ScheduledOp] | None = None
) -> list[list[StageMemory]]:
    """By stage the moments at which its live chunks change, in order of time.

    ``rows`` are those of :func:`simulate_pipeline` where they are at hand.
    """
    rows = simulate_pipeline(pipeline) if rows is None else rows
    table = None if cost is None else chunk_bytes(pipeline, cost)
    closing = "weight" if any(row.kind == "weight" for row in rows) else "backward"
    samples: list[list[StageMemory]] = [[] for _ in range(pipeline.stages)]
    live_bytes = [0.0] * pipeline.stages
    for row in rows:
        if row.kind not in ("forward", closing):
            continue
        change, time_ms = (1, row.start_ms) if row.kind == "forward" else (-1, row.end_ms)
        of_stage = samples[row.stage]
        before = of_stage[-1] if of_stage else StageMemory(row.stage, 0.0, 0, 0, None)
        # A stage runs one pass at a time: memory freed at a moment is free before the
        # next pass takes some, also where passes take no time.
        if of_stage and before.time_ms == time_ms and change > 0:
            of_stage.pop()
        if table is not None:
            model_stage = row.part * pipeline.stages + row.stage
            live_bytes[row.stage] += change * table[model_stage][row.chunk]
        of_stage.append(
            StageMemory(
                row.stage,
                time_ms,
                before.live_chunks + change,
                before.live_tokens + change * pipeline.chunks[row.chunk].tokens,
                None if table is None else max(live_bytes[row.stage], 0.0),
            )
        )
    return samples


def peak_bytes(pipeline: Pipeline, cost: PipelineCost) -> list[float]:
    """The most bytes of activations that a rank of each stage holds at once."""
    table = chunk_bytes(pipeline, cost)
    return peak_live(pipeline, lambda model_stage, chunk: table[model_stage][chunk])


def fits(pipeline: Pipeline, cost: PipelineCost) -> bool:
    """Whether activations fit the memory of every stage at every moment."""
    peaks = zip(peak_bytes(pipeline, cost), cost.capacities, strict=True)
    return all(peak <= capacity * _ROUNDING for peak, capacity in peaks)


def chunk_bytes(pipeline: Pipeline, cost: PipelineCost) -> list[list[float]]:
    """Activation bytes of a rank, by model stage and chunk."""
    part, chunks = virtual_cost(cost, pipeline.virtual_stages), pipeline.chunks
    tokens = [chunk.tokens for chunk in chunks]
    split = [chunk.kind == "split" for chunk in chunks]
    rows = []
    for stage in range(pipeline.model_stages):
        recomputed = [chunk.recomputed_layers(stage) for chunk in chunks]
        rows.append(part.activation_bytes(tokens, split, stage, recomputed).tolist())
    return rows


def virtual_cost(cost: PipelineCost, virtual_stages: int) -> PipelineCost:
    """The cost of a virtual stage, as of ``virtual_stages`` times the stages.

    ValueError where there are fewer layers than virtual stages.
    """
    if virtual_stages == 1:
        return cost
    stages = cost.shape.stages * virtual_stages
    counts = tuple(map(len, stage_layers(sum(cost.layer_counts), stages)))
    share = max(counts) / max(cost.layer_counts)
    return replace(
        cost,
        shape=replace(cost.shape, stages=stages),
        forward=cost.forward.part(share, 1, 0.0),
        backward=cost.backward.part(share, 1, 0.0),
        all_to_all=cost.all_to_all.part(share, 1, 0.0),
        layer_counts=counts,
        capacities=cost.capacities * virtual_stages,
        gather_ms=cost.gather_ms * share,
    )


#: Keys of ``settings`` in a plan with predictions of a cost model.
NAMED = ("cluster", "model", "cost_model", "max_length_tokens")


@dataclass(frozen=True)
class PlanCosts:
    """The cost model of a plan with its inputs, which also price pipelines."""

    cost: CostModel
    max_length_tokens: int
    cluster: ClusterSettings
    model: ModelSettings
    constants: CostModelSettings

    def pipelines(self, shape: PipelineShape) -> PipelineCost:
        """The cost of a shape of pipelines; SettingsError where it is impossible."""
        return build_pipeline_cost(
            self.constants, self.cluster, self.model, self.max_length_tokens, shape, self.cost
        )


def named_cost_model(plan: Plan) -> PlanCosts:
    """The cost model of a plan's settings; PlanError where they name none."""
    missing = [key for key in NAMED if key not in plan.settings]
    if missing:
        what = f"settings.{missing[0]}: is missing; allowed with predictions of a cost model"
        raise PlanError(f"{what}: {', '.join(NAMED)}")
    given, longest = plan.settings, plan.settings["max_length_tokens"]
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise refused("settings.max_length_tokens", f"got {longest!r}", "at least 1")
    try:
        cluster: ClusterSettings = load(ClusterSettings, given["cluster"], "cluster")
        model: ModelSettings = load(ModelSettings, given["model"], "model")
        settings: CostModelSettings = load(CostModelSettings, given["cost_model"], "cost_model")
        cost = build_cost_model(settings, cluster, model, longest)
    except SettingsError as error:
        raise PlanError(f"settings.{error}") from None
    return PlanCosts(cost, longest, cluster, model, settings)


def cost_of(plan: Plan) -> PipelineCost | None:
    """The cost of the pipelines of a plan, from its settings.

    None without a cluster, model and cost model, as in plans written by hand. PlanError
    where they are inconsistent.
    """
    if any(key not in plan.settings for key in NAMED):
        return None
    batches = plan.pipeline_batches()
    # Where times are the cost model's, the planner's account is no input.
    tensor = tensor_ranks(batches) if plan.predictions == "own" else None
    return _pipeline_cost(batches, named_cost_model(plan), tensor)


def _pipeline_cost(
    batches: Sequence[PipelineBatch], named: PlanCosts, tensor: int | None = None
) -> PipelineCost:
    """The cost of pipelines, all of one shape, with ``tensor`` ranks.

    States lie on all replicas. PlanError where the shape is impossible.
    """
    pipelines = [pipeline for batch in batches for pipeline in batch.pipelines]
    replicas = 1 + max(pipeline.replica for pipeline in pipelines)
    shape = PipelineShape(pipelines[0].stages, pipelines[0].degree, replicas, tensor)
    try:
        return named.pipelines(shape)
    except SettingsError as error:
        raise PlanError(f"settings.{error}") from None


def tensor_ranks(batches: Sequence[PipelineBatch]) -> int | None:
    """Ranks of tensor parallelism in a planner's account; None without."""
    tensor, degree = batches[0].solver.get("tensor"), batches[0].pipelines[0].degree
    return tensor if isinstance(tensor, int) and tensor >= 1 and degree % tensor == 0 else None


def check_predictions(plan: Plan, named: PlanCosts) -> None:
    """Refuse times, degrees, devices or memory that differ from the named cost model's.

    PlanError names the group or the chunk, the plan's value and the expected one.
    """
    longest, devices = named.max_length_tokens, named.cluster.devices
    for batch in plan.batches:
        for sequence, length in zip(batch.sequences, batch.lengths, strict=True):
            if length > longest:
                where = f"batch {batch.iteration}, sequence {sequence}"
                most = f"at most {longest}, settings.max_length_tokens"
                raise refused(where, f"{length} tokens", most)
    if plan.kind == "pipeline":
        if plan.devices > devices:
            raise _devices(plan, f"at most {devices}")
        _check_pipelines(plan, named)
        return
    _check_tokens_per_device(plan, named.cost.tokens_per_device)
    if plan.devices != devices:
        raise _devices(plan, str(devices))
    for planned in plan.sequence_parallel_batches():
        for index, micro_batch in enumerate(planned.micro_batches):
            for number, group in enumerate(micro_batch.groups):
                where = f"batch {planned.iteration}, micro-batch {index}, group {number}"
                _check_degree(group.degree, plan, named, where)
                _check_group(group, named.cost, where)


def pipeline_tokens_per_device(batches: tuple[PipelineBatch, ...], named: PlanCosts) -> int:
    """Most tokens of the whole model on a device of these pipelines."""
    return _pipeline_cost(batches, named, tensor_ranks(batches)).tokens_per_device


def _check_pipelines(plan: Plan, named: PlanCosts) -> None:
    batches = plan.pipeline_batches()
    for batch in batches:
        for index, pipeline in enumerate(batch.pipelines):
            where = f"batch {batch.iteration}, pipeline {index}"
            _check_degree(pipeline.degree, plan, named, where)
    # The account of a planner is no input: no plan with times of the cost model has
    # tensor parallelism.
    cost = _pipeline_cost(batches, named)
    _check_tokens_per_device(plan, cost.tokens_per_device)
    for batch in batches:
        where = f"batch {batch.iteration}"
        _check_ms(where, "predicted_other_ms", batch.predicted_other_ms, cost.batch_ms)
        for index, pipeline in enumerate(batch.pipelines):
            where = f"batch {batch.iteration}, pipeline {index}"
            part = virtual_cost(cost, pipeline.virtual_stages)
            for number, chunk in enumerate(pipeline.chunks):
                _check_chunk(chunk, cost, part, f"{where}, chunk {number}")
            for stage, peak in enumerate(peak_bytes(pipeline, cost)):
                capacity = cost.capacity_bytes(stage)
                if peak > capacity * _ROUNDING:
                    by_states = "memory_gib leaves beside its states"
                    key = by_states if cost.given_tokens is None else "tokens_per_device says"
                    got = f"stage {stage} holds {peak / 2**20:.1f} MiB of activations"
                    most = f"at most {capacity / 2**20:.1f} MiB, what settings.cluster.{key}"
                    raise refused(where, got, most)


def _check_tokens_per_device(plan: Plan, expected: int) -> None:
    if plan.tokens_per_device != expected:
        right = f"{expected}, what the plan's cluster and cost model say"
        raise refused("tokens_per_device", f"got {plan.tokens_per_device}", right)


def _devices(plan: Plan, allowed: str) -> PlanError:
    return refused("devices", f"got {plan.devices}", f"{allowed}, those of settings.cluster")


def _check_degree(degree: int, plan: Plan, named: PlanCosts, where: str) -> None:
    if plan.whole_heads and degree not in named.cost.any_degrees:
        allowed = ", ".join(map(str, named.cost.any_degrees))
        heads = f"those that divide the {named.model.heads} heads and have a bandwidth"
        raise refused(where, f"degree {degree}", f"{allowed}, {heads}")


def _check_group(group: Group, cost: CostModel, where: str) -> None:
    time = cost.group_time_ms(group.lengths, group.degree)
    _check_ms(where, "predicted_compute_ms", group.predicted_compute_ms, time.compute_ms)
    _check_ms(where, "predicted_all_to_all_ms", group.predicted_all_to_all_ms, time.all_to_all_ms)
    for name, time_ms in group.predicted_other_ms.items():
        _check_ms(where, f"predicted_other_ms.{name}", time_ms, 0.0)


def _check_chunk(chunk: Chunk, cost: PipelineCost, part: PipelineCost, where: str) -> None:
    """``part`` is the cost of a virtual stage, ``cost`` that of a whole one."""
    time = part.chunk_time_ms([(piece.start, piece.tokens) for piece in chunk.slices])
    _check_ms(where, "predicted_forward_ms", chunk.predicted_forward_ms, time.forward_ms)
    _check_ms(where, "predicted_backward_ms", chunk.predicted_backward_ms, time.backward_ms)
    _check_ms(where, "predicted_all_to_all_ms", chunk.predicted_all_to_all_ms, time.all_to_all_ms)
    _check_ms(where, "predicted_send_ms", chunk.predicted_send_ms, cost.send_ms(chunk.tokens))
    if any(chunk.checkpoint_layers) or chunk.predicted_layer_forward_ms:
        layer = part.layer_forward_ms(time.forward_ms)
        _check_ms(where, "predicted_layer_forward_ms", chunk.predicted_layer_forward_ms, layer)
    if chunk.predicted_weight_ms:
        weights = weight_ms(part, chunk.tokens)
        _check_ms(where, "predicted_weight_ms", chunk.predicted_weight_ms, weights)


def _check_ms(where: str, key: str, said: float, right: float) -> None:
    confirm(where, key, said, right, "what the plan's cost model gives")
