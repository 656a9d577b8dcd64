"""Graphs of published steps, against traces of the public generator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.errors import UserError
from railx.exchange.graph_files import read_graphs
from railx.replay.graphs import COMPUTE, RankGraphs
from railx.steps.published_graphs import PublishedStep, published_graphs
from tests.exchange.traces import unpacked

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
