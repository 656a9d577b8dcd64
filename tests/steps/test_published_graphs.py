"""Graphs of published steps, against traces of the public generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from railx.exchange.graph_files import read_graphs
from railx.replay.graphs import RankGraphs
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
