"""Graphs of the published simulation: those of the public generator, node by node."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import pytest

from railx.exchange.graph_files import read_graphs
from railx.replay.graphs import NODE_KINDS, RankGraphs
from railx.settings import SettingsError
from railx.steps.published_graphs import PublishedJob, published_graphs

DATA = Path(__file__).parents[1] / "exchange" / "data"
#: The given traces, and the settings that the generator made them with.
JOBS = {
    "stg_smoke_8": PublishedJob(data=2, tensor=2, pipeline=2),
    "stg_h200_128_llama": PublishedJob(data=4, tensor=8, pipeline=4, layer="gated"),
}


def structure(graph: RankGraphs) -> Counter[int]:
    """How often each node stands in the graph: its counts, its members, and the same of
    all that it depends on.
    """
    columns = {name: values.tolist() for name, values in graph.columns.items()}
    hashes: list[int | None] = [None] * len(graph)
    offsets, dependencies = graph.offsets.tolist(), graph.dependencies.tolist()
    for root in range(len(graph)):
        stack = [root]
        while stack:
            node = stack[-1]
            before = dependencies[offsets[node] : offsets[node + 1]]
            missing = [other for other in before if hashes[other] is None]
            if missing:
                stack += missing
                continue
            stack.pop()
            group = columns["group"][node]
            hashes[node] = hash(
                (
                    columns["rank"][node],
                    NODE_KINDS[columns["kind"][node]],
                    columns["operations"][node],
                    columns["memory_bytes"][node],
                    columns["bytes"][node],
                    graph.groups[group] if group >= 0 else (),
                    columns["peer"][node],
                    tuple(sorted(hash(hashes[other]) for other in before)),
                )
            )
    return Counter(hash(value) for value in hashes)


@pytest.mark.parametrize("name", JOBS)
def test_graphs_are_those_of_the_public_generator(name: str, tmp_path: Path) -> None:
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    [groups] = tmp_path.rglob("*.json")
    given = read_graphs(groups.with_suffix(""), groups).graphs
    made = published_graphs(JOBS[name])
    assert len(made) == len(given)
    assert structure(made) == structure(given)


@pytest.mark.parametrize(("layer", "weights"), [("plain", 11), ("gated", 12.75)])
def test_a_layer_has_the_weights_of_its_model(layer: str, weights: float) -> None:
    job = PublishedJob(data=2, tensor=4, pipeline=2, layer=layer, layers=4)  # type: ignore[arg-type]
    graph = published_graphs(job)
    reductions = graph.columns["bytes"][[name == "0.gradient" for name in graph.names]]
    assert set(reductions.tolist()) == {weights * job.hidden**2 / job.tensor}


def test_products_count_three_operations_for_each_token_and_weight() -> None:
    """Forward, gradient of the input, gradient of the weights: one each."""
    job = PublishedJob(data=2, tensor=4, pipeline=2, layers=4, vocabulary=1000)
    graph = published_graphs(job)
    names = "qkv o1 dattention dwo dwqkv dx1 y dw dx"
    feed_forward = "gate down1 dwdown dgate dwgate dx.gate"
    wanted = {f"ffn.{name}" for name in feed_forward.split()} | set(names.split())
    products = [
        part in wanted and (at.endswith("emb") or part not in ("y", "dw", "dx"))
        for at, _, part in (name.partition(".") for name in graph.names)
    ]
    total = sum(graph.columns["operations"][products].tolist())
    tokens = job.batch * job.sequence
    tables = 2 * job.vocabulary * job.hidden
    assert total == 3 * tokens * (11 * job.layers * job.hidden**2 + tables)


def test_degrees_that_divide_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"got 3; allowed: a divisor of 256"):
        PublishedJob(data=3, tensor=2, pipeline=2)
