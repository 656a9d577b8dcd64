"""InfiniPipe's pipelines: grouping, checkpoints, memory, order, errors."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.performance.pipeline_cost import PipelineCost, PipelineShape, build_pipeline_cost
from railx.planning.format.files import validate_plan
from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.plan import SCHEMA, PipelineBatch, Plan
from railx.planning.format.schedule import pipeline_ms, shape_of
from railx.planning.make import make_plan
from railx.planning.pipeline import checkpoints, infinipipe
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem
from railx.planning.pipeline.checkpoints import Solution
from railx.planning.pipeline.chunks import Chunked, share_among_replicas
from railx.planning.pipeline.infinipipe import (
    PipelineSettings,
    _most_chunk_tokens,
    _recomputing,
    plan_pipeline_batch,
)
from railx.planning.pipeline.kernels import sweep
from railx.settings import SettingsError
from railx.workload.batches import BatchSettings, FilledBatchSettings, SampledBatch, sample_batches
from railx.workload.corpus import build_corpus
from tests.builders import checked, drawn_batch
from tests.planning.pipelines import cost_of, held_bytes
from tests.plans import made_for_itself


def _planner(name: str = "pipeline_2x1", **changes: Any) -> PipelineSettings:
    found: PipelineSettings = checked("planner", name, **({"alignment_tokens": 8} | changes))
    return found


def _batch_ms(batch: PipelineBatch) -> float:
    """Pipelines of one replica one after another; the slowest replica counts."""
    replicas: dict[int, float] = {}
    for pipeline in batch.pipelines:
        replicas[pipeline.replica] = replicas.get(pipeline.replica, 0.0) + pipeline_ms(pipeline)
    return max(replicas.values())


def _check(batch: PipelineBatch, drawn: SampledBatch, devices: int, cost: PipelineCost) -> None:
    validate_plan(made_for_itself(Plan(SCHEMA, "pipeline", "pipeline", devices, {}, (batch,))))
    held: dict[int, int] = {}
    for pipeline in batch.pipelines:
        assert pipeline.stages == cost.shape.stages
        counts = [
            sum(part.sequence == chunk.cut_sequence for c in pipeline.chunks for part in c.slices)
            for chunk in pipeline.chunks
        ]
        assert counts == sorted(counts, reverse=True)
        for stage in range(pipeline.stages):
            each = [
                float(
                    cost.activation_bytes(
                        chunk.tokens,
                        chunk.kind == "split",
                        stage,
                        chunk.checkpoint_layers[stage] if chunk.checkpoint_layers else 0,
                    )
                )
                for chunk in pipeline.chunks
            ]
            assert max(held_bytes(pipeline, stage, each)) <= cost.capacity_bytes(stage) * 1.000001
        for chunk in pipeline.chunks:
            time = cost.chunk_time_ms([(part.start, part.tokens) for part in chunk.slices])
            assert chunk.predicted_forward_ms == pytest.approx(time.forward_ms)
            assert chunk.predicted_backward_ms == pytest.approx(time.backward_ms)
            assert chunk.predicted_all_to_all_ms == pytest.approx(time.all_to_all_ms)
            if chunk.checkpoint_layers:
                assert chunk.predicted_layer_forward_ms == pytest.approx(
                    cost.layer_forward_ms(time.forward_ms)
                )
                assert all(
                    count <= cost.layers_of(stage)
                    for stage, count in enumerate(chunk.checkpoint_layers)
                )
            for part in chunk.slices:
                held[part.sequence] = held.get(part.sequence, 0) + part.tokens
    assert held == dict(zip(drawn.sequences.tolist(), drawn.lengths.tolist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=2, max_size=30),
    stages=st.integers(1, 4),
    replicas=st.integers(1, 2),
    tokens=st.sampled_from([350, 500, 1000]),
    layers=st.sampled_from([1, 3, 4]),
    chunking=st.sampled_from(["balanced", "published", "even"]),
    checkpointing=st.sampled_from(["adaptive", "exact", "full", "none"]),
)
def test_plans_keep_every_rule(
    lengths: list[int],
    stages: int,
    replicas: int,
    tokens: int,
    layers: int,
    chunking: str,
    checkpointing: str,
) -> None:
    drawn = drawn_batch(lengths)
    cost = cost_of(stages, tokens=tokens * stages, layers=layers)
    planner = _planner(
        stages=stages, replicas=replicas, chunking=chunking, checkpointing=checkpointing
    )
    planned = plan_pipeline_batch(0, drawn, planner, cost)
    _check(planned, drawn, stages * replicas, cost)
    assert {pipeline.replica for pipeline in planned.pipelines} == set(range(replicas))
    for pipeline in planned.pipelines:
        for chunk in pipeline.chunks:
            if checkpointing == "none":
                assert chunk.checkpoint_layers == ()
            elif checkpointing == "full":
                assert chunk.checkpoint_layers == (layers,) * stages


def test_short_memory_recomputes_or_divides() -> None:
    drawn, planner = drawn_batch([800, *[100] * 12]), _planner()
    roomy, narrow = cost_of(tokens=4000), cost_of(tokens=1500)
    whole = plan_pipeline_batch(0, drawn, planner, roomy)
    recomputed = plan_pipeline_batch(0, drawn, planner, narrow)
    divided = plan_pipeline_batch(0, drawn, replace(planner, checkpointing="none"), narrow)
    everything = plan_pipeline_batch(0, drawn, replace(planner, checkpointing="full"), narrow)
    assert [len(one.pipelines) for one in (whole, recomputed, divided)] == [1, 1, 2]
    assert whole.solver["recomputed_diagonals"] == [0]
    assert recomputed.solver["recomputed_diagonals"][0] > 0
    for batch in (recomputed, divided, everything):
        _check(batch, drawn, 2, narrow)
    times = [_batch_ms(batch) for batch in (whole, recomputed, divided, everything)]
    assert times[0] < times[1] < min(times[2:])


def test_long_sequences_that_do_not_fit_together_run_one_by_one() -> None:
    drawn, planner = drawn_batch([800, 800, 790, 50, 50]), _planner(checkpointing="none")
    cost = cost_of(tokens=980)
    planned = plan_pipeline_batch(0, drawn, planner, cost)
    assert len(planned.pipelines) >= 3
    _check(planned, drawn, 2, cost)


def test_splitting_a_long_sequence_pays() -> None:
    drawn, cost = drawn_batch([900, 40, 30, 20]), cost_of(tokens=8000)
    whole = plan_pipeline_batch(0, drawn, _planner(most_slices=1), cost)
    split = plan_pipeline_batch(0, drawn, _planner(), cost)
    assert split.solver["slices_of_the_longest"][0] > 1
    assert _batch_ms(split) < _batch_ms(whole)


def _groupings(count: int) -> list[list[tuple[int, int]]]:
    """Every way to divide ``count`` units into neighbouring groups."""
    found = []
    for cuts in itertools.product((False, True), repeat=count - 1):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), count]
        found.append(list(itertools.pairwise(edges)))
    return found


@pytest.mark.parametrize("tokens", [240, 280, 330, 380, 500, 900])
@pytest.mark.parametrize("mode", ["adaptive", "none", "full"])
def test_the_grouping_is_the_best_of_all(tokens: int, mode: str) -> None:
    """Eq. 14 against every division of the classes of equal count: never worse than one
    group or all separate.
    """
    # The grouping works on chunks that no plan shows, so it is asked itself.
    from railx.planning.pipeline import grouping as module
    from railx.planning.pipeline.chunks import cut_and_pack

    cost = cost_of(3, tokens=tokens)
    lengths = np.array([400, 300, 290, 200, 190, *[100] * 30])
    chunked = cut_and_pack(np.arange(len(lengths)), lengths, [100, 200, 300], 120, cost)
    assert chunked is not None
    chosen = _planner(stages=3, checkpointing=mode)
    starts = [0, *np.flatnonzero(np.diff(chunked.count)) + 1, chunked.chunks]
    closed: dict[tuple[int, ...], float] = {}
    for grouping in _groupings(len(starts) - 1):
        total = float(chunked.total_ms.sum())
        for first, end in grouping:
            own = slice(starts[first], starts[end])
            problem = checkpoints.problem_of(chunked, own.start, own.stop, cost)
            if mode == "adaptive":
                found = _without_trades(problem)
                counts = math.inf if found is None else float(found.sum())
            else:
                everything = np.full(problem.stored.shape, 4 if mode == "full" else 0)
                holds = checkpoints.fits(problem, everything)
                counts = float(everything[0, 0] * problem.diagonals) if holds else math.inf
            total += 2 * float(chunked.total_ms[own].mean())
            total += counts * float(chunked.forward_ms[own].mean()) / 4
        closed[*(starts[first] for first, _ in grouping), chunked.chunks] = total
    grouped = module.divide(chunked, chosen, cost)
    if min(closed.values()) == math.inf:
        # Sequences of one count do not fit together: they are divided one by one.
        assert grouped is None or set(grouped.bounds) - set(starts)
    else:
        assert grouped is not None
        assert closed[grouped.bounds] == pytest.approx(min(closed.values()))
        again = _grouped(chunked, grouped.bounds, mode, cost)
        assert again is not None
        assert grouped.layers.tolist() == again.layers.tolist()
        assert grouped.diagonals == again.diagonals
        assert grouped.simulated_ms == pytest.approx(again.simulated_ms)
    if mode == "adaptive" and tokens == 330:
        # Memory holds one pipeline of all; two recompute so much less that they win.
        assert grouped is not None
        assert len(grouped.bounds) == 3
        whole = checkpoints.problem_of(chunked, 0, chunked.chunks, cost)
        assert _without_trades(whole) is not None


def _without_trades(problem: CheckpointProblem) -> Any:
    """Counts by one rule without trades, as the grouping takes them; None: too few."""
    counts = np.zeros(problem.diagonals, dtype=np.int64)
    return counts if sweep(problem, 0, 0, counts) else None


def _grouped(chunked: Chunked, bounds: tuple[int, ...], mode: str, cost: PipelineCost) -> Any:
    """Pipelines and their layers, one by one; None where one does not fit."""
    from railx.planning.pipeline import grouping as module

    layers, diagonals = np.zeros((cost.shape.stages, chunked.chunks), dtype=np.int64), 0
    for first, end in itertools.pairwise(bounds):
        problem = checkpoints.problem_of(chunked, first, end, cost)
        counts = np.full(problem.diagonals, 4 if mode == "full" else 0)
        if mode == "adaptive":
            found = _without_trades(problem)
            if found is None:
                return None
            counts = found
        layers[:, first:end] = problem.counts(counts)
        diagonals += int(counts.sum())
    time_ms = module._time_ms(chunked, bounds, layers, cost)
    return module.Grouping(chunked, bounds, layers, diagonals, time_ms)


@pytest.mark.parametrize("tokens", [330, 380, 500])
def test_grouping_by_simulations_is_the_best_of_all(tokens: int) -> None:
    """Chunks of unequal time, every division of the classes of equal count."""
    from railx.planning.pipeline import grouping as module
    from railx.planning.pipeline.chunks import cut_and_pack

    cost, chosen = cost_of(3, tokens=tokens), _planner(stages=3)
    lengths = np.array([400, 390, 260, 250, 230, 120, 110, *[45] * 9])
    chunked = cut_and_pack(np.arange(len(lengths)), lengths, [100, 200, 300], 110, cost)
    assert chunked is not None
    starts = [0, *np.flatnonzero(np.diff(chunked.count)) + 1, chunked.chunks]
    times = []
    for grouping in _groupings(len(starts) - 1):
        bounds = (*(starts[first] for first, _ in grouping), chunked.chunks)
        alone = _grouped(chunked, bounds, "adaptive", cost)
        if alone is not None:
            times.append(alone.simulated_ms)
    grouped = module.divide(chunked, chosen, cost, simulated=True)
    assert grouped is not None
    assert len(times) > 1
    assert grouped.simulated_ms == pytest.approx(min(times))


@pytest.mark.parametrize(
    ("lengths", "stages", "tokens"),
    [
        # The fastest is neither the first nor the last of its family.
        ([748, 709, 699, 504, 495, 408, 364, 337, 239, 51, 27, 13], 3, 300),
        # The closed form divides the fastest otherwise than simulations do.
        ([840, 788, 621, 578, 542, 419, 236, 135, 82, 64, 53, 33, 16, 12, 12], 3, 1000),
    ],
)
def test_no_candidate_is_faster_than_the_plan(lengths: list[int], stages: int, tokens: int) -> None:
    """Every number of slices and limit of tokens, grouped in either way."""
    from railx.planning.pipeline import grouping

    drawn, cost = drawn_batch(lengths), cost_of(stages, tokens=tokens)
    chosen = _planner(stages=stages, most_over_mean=None)
    planned = plan_pipeline_batch(0, drawn, chosen, cost)
    found = [
        grouping.divide(one, chosen, cost, simulated=simulated)
        for one in infinipipe._candidates(drawn, chosen, cost, True)
        for simulated in (False, True)
    ]
    least = min(one.simulated_ms for one in found if one is not None)
    assert planned.predicted_ms <= least * (1 + 1e-9) + cost.batch_ms


def test_problems_of_plans_and_of_chunks_agree() -> None:
    drawn, cost = drawn_batch([800, 500, 300, *[100] * 5]), cost_of(3, tokens=2000)
    planned = plan_pipeline_batch(0, drawn, _planner(stages=3), cost)
    for pipeline in planned.pipelines:
        problem = checkpoints.problem_of_pipeline(pipeline, cost)
        shape = shape_of(pipeline)
        assert problem.backward.tolist() == shape.backward
        assert problem.longest_split == shape.longest
        layers = np.array([chunk.checkpoint_layers or (0,) * 3 for chunk in pipeline.chunks]).T
        assert checkpoints.fits(problem, layers)
        found = checkpoints.fast(problem)
        assert found is not None
        assert problem.counts(found).tolist() == layers.tolist()


@pytest.mark.parametrize("checkpointing", ["adaptive", "exact"])
def test_stages_of_unequal_layers_recompute_all_where_they_must(checkpointing: str) -> None:
    """Counts reach the layers of the smallest stage; beyond that all are recomputed."""
    drawn = drawn_batch([60] * 6)
    planner = _planner(checkpointing=checkpointing, most_slices=1)
    seen = set()
    for tokens in (12, 30, 40, 50, 60, 80, 130):
        cost = cost_of(tokens=tokens, layers=(4, 3))
        try:
            planned = plan_pipeline_batch(0, drawn, planner, cost)
        except PlanError:
            continue
        _check(planned, drawn, 2, cost)
        for pipeline in planned.pipelines:
            seen |= {chunk.checkpoint_layers for chunk in pipeline.chunks}
    assert () in seen
    assert (4, 3) in seen
    assert any(layers and max(layers) <= 3 for layers in seen)


def test_replicas_share_the_work() -> None:
    cost = cost_of(4, degree=8, quadratic_ms=5e-6)
    lengths = np.random.default_rng(0).integers(100, 50_000, 200)
    shared = share_among_replicas(SampledBatch(np.arange(200), lengths), 4, cost)
    assert sorted(row for share in shared for row in share.sequences.tolist()) == list(range(200))
    assert all((share.lengths == lengths[share.sequences]).all() for share in shared)
    work = [
        cost.slice_times_ms(np.zeros(len(share.lengths)), share.lengths)[0].sum()
        for share in shared
    ]
    assert max(work) <= 1.02 * min(work)


@pytest.mark.parametrize("context", [48_000, 96_000, 192_000])
@pytest.mark.parametrize("corpus", ["commoncrawl_like", "github_like"])
def test_chunks_of_both_corpora_are_even(corpus: str, context: int) -> None:
    """InfiniPipe's cluster and batch: longest over mean chunk time at most 1.2."""
    lengths = build_corpus(checked("corpus", corpus, sequences=5000), 1).lengths
    drawn = sample_batches(lengths, FilledBatchSettings(512, 1, context, "truncate"), 1)[0]
    cost = build_pipeline_cost(
        checked("cost_model", "flexsp_7b"),
        checked("cluster", "a800_32"),
        checked("model", "gpt_7b"),
        context,
        PipelineShape(4, 8),
    )
    planned = plan_pipeline_batch(0, drawn, checked("planner", "pipeline_4x8_infinipipe"), cost)
    times = [
        chunk.predicted_forward_ms + chunk.predicted_backward_ms
        for pipeline in planned.pipelines
        for chunk in pipeline.chunks
    ]
    assert max(times) <= 1.2 * sum(times) / len(times)
    assert planned.solver["longest_over_mean"] == [
        pytest.approx(max(times) * len(times) / sum(times))
    ]
    _check(planned, drawn, 32, cost)
    # Chunks of short sequences hold more tokens than the longest slice, the limit that
    # the paper prints; they cost less per token.
    slices = [part for one in planned.pipelines for chunk in one.chunks for part in chunk.slices]
    longest = max(slices, key=lambda part: part.length).sequence
    widest = max(part.tokens for part in slices if part.sequence == longest)
    assert widest < max(chunk.tokens for one in planned.pipelines for chunk in one.chunks)
    paper = checked("planner", "pipeline_4x8_published")
    assert planned.predicted_ms < plan_pipeline_batch(0, drawn, paper, cost).predicted_ms


def test_one_process_plans_the_same_twice() -> None:
    drawn, cost = drawn_batch([700, 500, *range(10, 90, 3)]), cost_of(tokens=900)
    first, second = (plan_pipeline_batch(0, drawn, _planner(), cost) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble", "searched", "best", "best_trained"])
def test_other_schedules_run_the_same_chunks(schedule: str) -> None:
    drawn, cost = drawn_batch([800, 500, 300, *[100] * 5]), cost_of(3, tokens=9000)
    paper = plan_pipeline_batch(0, drawn, _planner(stages=3), cost)
    other = plan_pipeline_batch(0, drawn, _planner(stages=3, schedule=schedule), cost)
    for one, two in zip(paper.pipelines, other.pipelines, strict=True):
        assert [chunk.slices for chunk in one.chunks] == [chunk.slices for chunk in two.chunks]
    if schedule in ("best", "best_trained"):
        assert _batch_ms(other) <= _batch_ms(paper)
        assert len(other.solver["schedules"]) == len(other.pipelines)
    if schedule == "best_trained":
        assert {one.schedule for one in other.pipelines} <= {"1f1b", "gpipe"}


def test_a_schedule_without_the_memory_for_it_is_named() -> None:
    drawn, cost = drawn_batch([100] * 30), cost_of(tokens=350)
    planner = _planner(schedule="gpipe", most_slices=1, checkpointing="none")
    with pytest.raises(
        PlanError,
        match=r"^planner\.schedule: got gpipe, for which batch 0, pipeline 0 does not fit .*;"
        r" allowed: 1f1b, best, best_trained$",
    ):
        plan_pipeline_batch(0, drawn, planner, cost)


def test_a_sequence_that_fits_at_no_number_of_slices_is_named() -> None:
    cost, planner = cost_of(tokens=100), _planner()
    with pytest.raises(
        PlanError,
        match=(
            r"^sequence 100: 5000 tokens; allowed: at most (\d+), the longest that a pipeline of 2"
            r" stages of 1 ranks holds in up to 8 slices, every layer recomputed$"
        ),
    ) as error:
        plan_pipeline_batch(0, drawn_batch([5000, 5]), planner, cost)
    longest = int(str(error.value).split("at most ")[1].split(",")[0])
    plan_pipeline_batch(0, drawn_batch([longest]), planner, cost)
    with pytest.raises(PlanError, match=f"at most {longest}, "):
        plan_pipeline_batch(0, drawn_batch([longest + 1]), planner, cost)
    with pytest.raises(PlanError, match=r"^sequence 100: .* in up to 8 slices$"):
        plan_pipeline_batch(
            0, drawn_batch([longest, 5]), replace(planner, checkpointing="none"), cost
        )


def test_memory_that_recomputing_everything_cannot_meet_names_stage_and_key() -> None:
    """Each sequence fits alone, 30 tokens of 40 bytes; three at once, the window of the
    first stage, do not.
    """
    cost, drawn = cost_of(3, tokens=5), drawn_batch([30] * 12)
    assert cost.capacity_bytes(0) == 2000
    planner = _planner(stages=3, most_slices=1)
    with pytest.raises(
        PlanError,
        match=(
            r"^cluster\.memory_gib: leaves stage 0 1.86265e-06 GiB for activations; allowed: at"
            r" least 3.35276e-06 GiB, what .* need there with every layer recomputed$"
        ),
    ):
        plan_pipeline_batch(0, drawn, planner, cost)
    plan_pipeline_batch(0, drawn, planner, replace(cost, capacities=(3600.0,) * 3))


def test_tails_stay_alone_where_short_sequences_do_not_fit_beside_them() -> None:
    """Two stages hold 105 tokens, recomputed, and keys and values take nothing.

    100 and 70 are cut at 64. The tail of 70 has time for 40 tokens more, but then its
    two chunks hold 110.
    """
    cost = replace(cost_of(2, tokens=10.5), key_value_bytes=0.0)
    planner = _planner(most_slices=2, most_over_mean=None)
    batch = plan_pipeline_batch(0, drawn_batch([100, 70, 40]), planner, cost)
    tokens = [[chunk.tokens for chunk in one.chunks] for one in batch.pipelines]
    assert tokens == [[64, 36], [64, 6], [40]]


def test_a_chunk_holds_what_its_smallest_stage_holds() -> None:
    cost = replace(cost_of(2), capacities=(8000.0, 2000.0))
    assert _most_chunk_tokens(_planner(), cost) == 50
    assert _most_chunk_tokens(_planner(checkpointing="none"), cost) == 5


def test_best_chunks_are_taken_by_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of even chunks is less than 5 % slower, which balance is worth else."""
    # No chunks of other planners.
    monkeypatch.setattr(infinipipe, "every_rule", lambda *_: [])
    drawn = SampledBatch(np.arange(6), np.array([617, 549, 46, 42, 25, 28]))
    cost, planner = cost_of(2, tokens=200), _planner(most_slices=6)
    free, even, best = (
        infinipipe._planned(0, drawn, replace(planner, **changes), cost, 0)
        for changes in ({"most_over_mean": None}, {}, {"chunking": "best"})
    )
    assert free is not None
    assert even is not None
    assert best is not None
    assert free.predicted_ms < even.predicted_ms < free.predicted_ms / 0.95
    assert best.predicted_ms == free.predicted_ms


def test_what_the_exact_programme_leaves_open_is_in_the_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search ended with a bound of half of what it found."""

    def ended(problem: CheckpointProblem, **_: Any) -> Solution:
        counts = checkpoints.quick(problem)
        assert counts is not None
        return Solution(counts, counts.sum() / 2)

    monkeypatch.setattr(checkpoints, "exact", ended)
    cost, drawn = cost_of(2, tokens=100), drawn_batch([100, 90, 80, 70, 60])
    batch = plan_pipeline_batch(0, drawn, _planner(checkpointing="exact", most_slices=1), cost)
    assert batch.solver["recomputed_diagonals"][0] > 0
    assert batch.solver["checkpoint_gap"] == [1.0]


def test_recomputation_of_another_planner_stays_where_ours_is_slower() -> None:
    cost = cost_of(2, tokens=100, layers=3, constant_ms=0.0)
    chunks = []
    for row, (tokens, layers) in enumerate(((77, (3, 1)), (74, (0, 1)))):
        time = cost.chunk_time_ms([(0, tokens)])
        chunks.append(
            Chunk(
                (Slice(row, 0, tokens, tokens),),
                time.forward_ms,
                time.backward_ms,
                checkpoint_layers=layers,
                predicted_layer_forward_ms=cost.layer_forward_ms(time.forward_ms),
            )
        )
    given_ones = Pipeline(2, 0, tuple(chunks))
    assert _recomputing(given_ones, _planner(), cost) == given_ones
    every = tuple(replace(chunk, checkpoint_layers=(3, 3)) for chunk in chunks)
    less = _recomputing(replace(given_ones, chunks=every), _planner(), cost)
    assert pipeline_ms(less) < pipeline_ms(replace(given_ones, chunks=every))
    assert sum(sum(chunk.checkpoint_layers) for chunk in less.chunks) < 12


def test_memory_given_in_tokens_is_named_in_tokens() -> None:
    """As above: 2000 bytes are 5 tokens, the 3600 that it takes are 9."""
    cost, drawn = cost_of(3, tokens=5), drawn_batch([30] * 12)
    planner = _planner(stages=3, most_slices=1)
    with pytest.raises(
        PlanError,
        match=(
            r"^cluster\.tokens_per_device: got 5; allowed: at least 9, what the chunks of this"
            r" batch need on stage 0 with every layer recomputed$"
        ),
    ):
        plan_pipeline_batch(0, drawn, planner, replace(cost, given_tokens=5))


def test_replicas_without_a_sequence_are_named() -> None:
    with pytest.raises(
        PlanError, match=r"^planner\.replicas: got 2; allowed: at most 1, the sequences"
    ):
        plan_pipeline_batch(0, drawn_batch([5]), _planner("pipeline"), cost_of())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 5}, r"^planner\.stages: got 5; allowed: at most 4, the layers of"),
        ({"replicas": 8}, r"^planner\.stages: 2 stages x 8 replicas x degree 1 need 16 devices"),
        (
            {"sequence_parallel_degree": 32, "stages": 1, "replicas": 1},
            r"^planner\.s",
        ),
    ],
)
def test_impossible_shapes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((PlanError, SettingsError), match=message):
        make_plan(
            _planner("pipeline", **changes),
            [30, 20, 10, 10],
            checked("cluster", "cpu_4"),
            checked("model", "tiny"),
            checked("cost_model", "analytic"),
            BatchSettings(4, 1, None, "truncate"),
            1,
        )
