"""Elastic pipelines that may take chunks of fixed rules: never slower than planners of
those, nor than that of neighbours in length.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.planning.format.schedule import pipeline_ms
from railx.planning.pipeline.checkpoint_problem import CheckpointProblem
from railx.planning.pipeline.fixed_chunks import every_rule
from railx.planning.pipeline.infinipipe import PIPELINE, PipelineSettings, _static
from railx.planning.pipeline.kernels import Divisible, pipelines_ms
from railx.planning.planner import PlanningTask
from railx.planning.planners import planner_of
from tests.builders import checked, drawn_batch
from tests.planning.pipeline_rules import cost_of, task_of
from tests.planning.pipelines import pipeline_of

ALIGNMENT, PARTS = 16, 4
#: What a planner of fixed chunks or neighbours is told beside its shape.
BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "dapple": ("dapple", {}),
    "seq1f1b": ("seq1f1b", {"alignment_tokens": ALIGNMENT}),
    "even": ("seq1f1b", {"alignment_tokens": ALIGNMENT, "splitting": "even"}),
    "equal work": ("seq1f1b", {"alignment_tokens": ALIGNMENT, "splitting": "equal_work"}),
    "chunk_flow": ("chunk_flow", {"alignment_tokens": ALIGNMENT}),
    "slim_pipe": ("slim_pipe", {"alignment_tokens": ALIGNMENT, "context_exchange": False}),
    "dyna_pipe": ("dyna_pipe", {}),
}


def test_static_chunks_of_chunk_flow_recompute_all_but_the_last() -> None:
    drawn, cost = drawn_batch([700, 300, 90, 20]), cost_of()
    seen = 0
    for rule in every_rule(700, PARTS, ALIGNMENT, cost):
        chunked = rule.chunked(drawn, cost)
        made = _static(rule, chunked, _best(2, 1), cost)
        assert made is not None
        assert made.bounds == (0, chunked.chunks)
        place = 0
        for count in [len(list(own)) for _, own in groupby(chunked.run_start.tolist())]:
            kept = count if rule.kept_chunks is None else rule.kept_chunks
            expected = [4] * max(0, count - kept) + [0] * min(kept, count)
            for stage in range(2):
                recomputed = made.layers[stage, place : place + count]
                assert recomputed.tolist() == expected, rule.name
            seen += sum(expected)
            place += count
    assert seen


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.3]),
)
def test_the_compiled_simulation_is_the_simulation(
    counts: list[int], stages: int, random: Any, send_ms: float
) -> None:
    from railx.planning.format.schedule import shape_of

    counts = sorted(counts, reverse=True)
    pipeline = pipeline_of(counts, stages, [7] * sum(counts))
    chunks = tuple(
        replace(
            chunk,
            predicted_forward_ms=random.uniform(0.1, 3),
            predicted_backward_ms=random.uniform(0.1, 5),
            predicted_send_ms=send_ms if stages > 1 else 0.0,
            checkpoint_layers=tuple(random.randrange(3) for _ in range(stages)),
            predicted_layer_forward_ms=random.uniform(0.1, 1),
        )
        for chunk in pipeline.chunks
    )
    pipeline = replace(pipeline, chunks=chunks)
    names = ("forward", "backward", "layer_forward", "send")
    forward, backward, layer, sends = (
        np.array([getattr(chunk, f"predicted_{name}_ms") for chunk in chunks]) for name in names
    )
    order, capacity = np.array(shape_of(pipeline).backward), np.full(stages, 1e9)
    kept = np.ones((stages, len(chunks)))
    problem = CheckpointProblem(kept, kept[0], capacity, 3, order, max(counts))
    of_chunks, layer_counts = np.repeat(counts, counts), np.full(stages, 3)
    divisible = Divisible(problem, layer_counts, forward, backward, layer, sends, of_chunks)
    layers = np.array([chunk.checkpoint_layers for chunk in chunks]).T.copy()
    time_ms = pipelines_ms(divisible, np.array([0, len(chunks)]), layers)
    assert time_ms == pipeline_ms(pipeline)


def _best(stages: int, replicas: int, **changes: Any) -> PipelineSettings:
    made: PipelineSettings = checked(
        "planner", "pipeline_4x8_best", stages=stages, replicas=replicas,
        sequence_parallel_degree=1, alignment_tokens=ALIGNMENT, most_slices=PARTS, **changes,
    )  # fmt: skip
    return made


def _total_ms(settings_of: Any, task: PlanningTask) -> float:
    return sum(batch.predicted_ms for batch in planner_of(settings_of).plan(settings_of, task))


@pytest.mark.parametrize(
    ("lengths", "shape", "tokens"),
    [([900, 900, 890, 20, 10, 5], (4, 1), 250), ([900, 60, 60, 60, 60, 60, 60], (2, 2), 1000)],
)
def test_not_slower_where_memory_is_short_or_replicas_share(
    lengths: list[int], shape: tuple[int, int], tokens: int
) -> None:
    _check_never_slower([lengths], shape, tokens)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(1, 900), min_size=3, max_size=16), min_size=1, max_size=2),
    st.sampled_from([(4, 1), (2, 2)]),
    st.sampled_from([250, 330, 1000]),
)
def test_never_slower_than_the_planners_it_is_compared_with(
    batches: list[list[int]], shape: tuple[int, int], tokens: int
) -> None:
    _check_never_slower(batches, shape, tokens)


def _check_never_slower(batches: list[list[int]], shape: tuple[int, int], tokens: int) -> None:
    """At each shape, memory ample or short, whatever these choose to recompute."""
    task = task_of(*batches, tokens=tokens)
    stages, replicas = shape
    baselines, feasible = {}, True
    for name, (kind, changes) in BASELINES.items():
        parts = {} if kind == "dyna_pipe" else {"most_parts": PARTS}
        own = checked(
            "planner", f"{kind}_4x8", stages=stages, replicas=replicas,
            sequence_parallel_degree=1, **parts, **changes,
        )  # fmt: skip
        try:
            baselines[name] = _total_ms(own, task)
        except ValueError:
            continue
    try:
        plain = _total_ms(_best(stages, replicas, schedule="1f1b"), task)
        fastest = _total_ms(_best(stages, replicas), task)
    except ValueError:
        feasible = False
    assert feasible or not baselines
    for name, time_ms in baselines.items():
        assert plain <= time_ms * (1 + 1e-9), name
    if feasible:
        assert fastest <= plain * (1 + 1e-9)
        balanced = _best(stages, replicas, schedule="1f1b", chunking="balanced")
        with suppress(ValueError):
            assert plain <= _total_ms(balanced, task) * (1 + 1e-9)


def test_chunks_of_another_planner_are_taken_and_named() -> None:
    """Slices of fixed size let all tails share chunks; equal time cuts 600 unevenly."""
    task = task_of([100, 600, 300], tokens=250)
    own = _best(2, 1, schedule="1f1b")
    [batch] = PIPELINE.plan(own, task)
    [plain] = PIPELINE.plan(replace(own, chunking="balanced"), task)
    assert batch.solver["chunking"] == ["seq1f1b 160"]
    assert plain.solver["chunking"] == ["balanced"]
    assert batch.predicted_ms < 0.99 * plain.predicted_ms


@pytest.mark.parametrize(
    ("lengths", "tokens", "taken"),
    [
        # Nothing is cut: neighbours in length make the most even micro-batches.
        ([150, 300, 200, 150, 300, 150, 100, 150], 330, "dyna_pipe"),
        # A third of the longest context, aligned upwards, and not of this batch's 600.
        ([300, 200, 150, 600, 300, 200, 200, 400], 200, "seq1f1b equal_work 272"),
    ],
)
def test_what_is_taken_by_name(lengths: list[int], tokens: int, taken: str) -> None:
    task = replace(task_of(lengths, tokens=tokens), max_length_tokens=800)
    [batch] = PIPELINE.plan(_best(2, 1, schedule="1f1b"), task)
    assert batch.solver["chunking"] == [taken]
