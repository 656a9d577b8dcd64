"""Published steps: graphs against traces of the public generator; windows, volumes and
traffic against the published tables, to the last digit.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.errors import UserError
from railx.exchange.graph_files import read_graphs
from railx.replay.graphs import COMPUTE, RankGraphs
from railx.steps.programs import templates
from railx.steps.published_graphs import PublishedStep, published_graphs
from railx.steps.sweep import all_phases, per_pipeline, phases, traffic, window_statistics
from tests.builders import PUBLISHED
from tests.exchange.traces import unpacked
from tests.steps.jobs import EXPERTS, chosen, small

GIVEN = {
    "stg_smoke_8": PublishedStep(data=2, tensor=2, pipeline=2),
    "stg_h200_128_llama": PublishedStep(data=4, tensor=8, pipeline=4, layer="llama"),
}
EQUAL = ("rank", "kind", "stream", "operations", "memory_bytes", "duration_ns", "bytes", "peer")


def members(graphs: RankGraphs) -> list[tuple[int, ...]]:
    return [graphs.groups[group] if group >= 0 else () for group in graphs.columns["group"]]


@pytest.mark.parametrize("name", GIVEN)
def test_graphs_equal_the_given_traces_node_by_node(name: str, tmp_path: Path) -> None:
    given = read_graphs(unpacked(name, tmp_path)).graphs
    ours = published_graphs(GIVEN[name])
    for column in EQUAL:
        np.testing.assert_array_equal(ours.columns[column], given.columns[column], column)
    assert members(ours) == members(given)
    np.testing.assert_array_equal(ours.offsets, given.offsets)
    np.testing.assert_array_equal(ours.dependencies, given.dependencies)


def test_a_rank_alone_has_no_collectives_and_the_same_dependencies() -> None:
    alone = published_graphs(PublishedStep(data=1, tensor=1, pipeline=1, batch=4, layers=2))
    assert set(alone.columns["kind"].tolist()) == {COMPUTE}
    begins = [row for row in range(len(alone)) if alone.offsets[row] == alone.offsets[row + 1]]
    assert begins == [0]


def test_layers_that_stages_do_not_divide_go_to_the_first() -> None:
    step = PublishedStep(data=1, tensor=1, pipeline=3, batch=4, layers=8, layer="llama")
    assert [len(layers) for layers in step.stages()] == [3, 3, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 3}, "batch: got 3; allowed: a multiple of 2"),
        ({"length": 3}, "length: got 3; allowed: a multiple of 2"),
        ({"layers": 1}, "layers: got 1; allowed: at least 2"),
        ({"layers": 3}, "layers: got 3 of layer dense; allowed: a multiple of 2"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        PublishedStep(data=2, tensor=2, pipeline=2, **changes)


def test_scores_of_attention_are_six_products_of_the_square_of_the_length() -> None:
    step = PublishedStep(data=1, tensor=2, pipeline=1, batch=4, length=64, layers=3)
    without, scored = (
        int(published_graphs(each).columns["operations"].sum())
        for each in (step, replace(step, attention_scores=True))
    )
    assert scored - without == 3 * 6 * 4 * 64 * 64 * step.hidden


def test_windows_of_deepseek_are_the_published_ones() -> None:
    (job,) = chosen("deepseek_236b").jobs().values()
    found = {
        (row["transition"], row["direction"]): row
        for row in window_statistics(job)
        if not row["within_layer"]
    }
    names = {"fwd": "forward", "bwd": "backward", "": ""}
    with (PUBLISHED / "opus_deepseek236b_windows.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "all" not in row["transition"]]
    assert len(rows) == len(found) == 8
    for row in rows:
        transition, _, direction = row["transition"].removesuffix(" (same type)").partition(" ")
        own = found[transition, names[direction]]
        assert own["count"] == int(row["count_per_step"])
        for key in ("mean_ms", "min_ms", "max_ms"):
            if row[key.replace("ms", "window_ms")]:
                assert own[key] == pytest.approx(
                    float(row[key.replace("ms", "window_ms")]), abs=6e-5
                )


def test_volumes_of_deepseek_are_the_published_ones() -> None:
    (job,) = chosen("deepseek_236b").jobs().values()
    assert per_pipeline(job) == {
        "EP": 1_900_523_028_480,
        "PP": 2_684_354_560,
        "DP": 10_437_611_520,
    }


def test_traffic_of_the_smoke_run_is_the_logged_one() -> None:
    """GB of 2-byte weights; the log says 8,248 of TP, 2 parts in 10,000 more."""
    for job in chosen("smoke").jobs().values():
        found = {name: round(size / 1e9, 2) for name, size in traffic(job).items()}
        assert found == {"DP": 143.83, "PP": 17.18, "TP": 8246.34}


def test_phases_of_fsdp_over_two_stages() -> None:
    """Sixteen layers and a table are 17 units, as in the published runs."""
    for job in chosen("perlmutter_llama").jobs().values():
        first, _ = all_phases(job)
        assert first == [
            ("DP", 54), ("PP", 1), ("DP", 17), ("PP", 2), ("DP", 17), ("PP", 1)
        ]  # fmt: skip
    (alone,) = chosen("perlmutter_pipeline").jobs().values()
    assert [len(runs) for runs in all_phases(alone)] == [1, 1, 1, 1]


def test_a_job_of_one_stage_has_no_pipeline_traffic() -> None:
    job = small(data=4, tensor=2)
    assert set(traffic(job)) == {"DP", "TP"}
    # Every weight once, in both directions of an all-reduce over four.
    assert traffic(job)["DP"] == 4 * 2 * 3 / 4 * (4 * 30 / 2) * 2


@pytest.mark.parametrize("context_in_server", [False, True])
def test_context_ranks_of_a_server_are_on_other_rails(context_in_server: bool) -> None:
    """All rails together send the gradients of all ranks, wherever those ranks sit."""
    job = small(data=2, context=2, tensor=2, context_in_server=context_in_server)
    rank_bytes = 2 * 1 / 2 * (4 * 30 / 2) * 2
    assert job.degrees.server * traffic(job)["DP"] == job.degrees.ranks * rank_bytes


def test_experts_inside_the_server_have_no_windows() -> None:
    inside = small(model=EXPERTS, data=2, tensor=4, expert=4)
    across = small(model=EXPERTS, data=2, tensor=4, expert=8)
    assert not any("EP" in row["transition"] for row in window_statistics(inside))
    rows = [row for row in window_statistics(across) if row["transition"] == "EP->EP"]
    # Three layers with experts: one window inside each, one between neighbours.
    assert {(row["within_layer"], row["count"]) for row in rows} == {(True, 6), (False, 4)}


def test_phases_join_over_the_end_of_a_step() -> None:
    job = small(data=2, pipeline=2, parameters="sharded")
    (first, last) = templates(job, electrical=True)
    assert phases(first)[0][0] == "DP"
    assert [name for name, _ in phases(last)] == ["PP", "DP", "PP", "DP"]
