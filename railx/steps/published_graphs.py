"""Graphs of training steps as the published simulation of Opus has them.

They equal the traces of the public generator astra-sim/symbolic_tensor_graph (MIT) at
3a7f49c, from which only facts come: tests compare them with given traces node by node.
Shapes and dependencies stand in its sharding_spreadsheets/module3/tpsp_gpt and /tpsp,
stages and options in its main.py. What its numbers mean is said by
:data:`railx.replay.graph_pricing.COUNTS`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import TopologicalSorter
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from railx.planning.format.schedule import stage_layers
from railx.replay.graphs import NODE_COLUMNS, NODE_KINDS, RankGraphs
from railx.settings import AtLeast, SettingsError
from railx.vocabulary.arrays import IntArray

#: ``dense``: four products of attention with as many keys as heads and two of the
#: feed-forward network (models/stage1/gpt_model.py, 11 h^2 weights at f = 3.5 h).
#: ``llama``: ``kv_heads`` keys and three products (models/stage1/llama_model.py,
#: 12.75 h^2), which ``--mixed_precision 1`` chooses (main.py, "if mixprecision").
Layer = Literal["dense", "llama"]
#: What joins the ranks of an operation.
Links = Literal["data", "tensor", "pipeline"]
_AXES = (None, "data", "tensor", "pipeline")


@dataclass(frozen=True)
class PublishedStep:
    """A step of the public generator: one micro-batch, weights not sharded.

    All published steps have these settings (``--micro_batch -1 --weight_sharded 0``).
    The generator also has micro-batches and sharded weights (grad_updater.py). They are
    not made here, as no published number rests on them. Defaults are the generator's
    (main.py, its arguments) with the batch, length and layers of the Opus artifact.
    """

    data: Annotated[int, AtLeast(1)]
    """Replicas (``--dp``)."""
    tensor: Annotated[int, AtLeast(1)]
    """Ranks that share every layer (``--tp``)."""
    pipeline: Annotated[int, AtLeast(1)]
    """Stages (``--pp``)."""
    layer: Layer = "dense"
    """The model of a layer."""
    batch: Annotated[int, AtLeast(1)] = 256
    """Sequences of all replicas."""
    length: Annotated[int, AtLeast(1)] = 4096
    """Tokens of a sequence."""
    layers: Annotated[int, AtLeast(1)] = 96
    """Layers of all stages; early stages have one more where they do not divide."""
    hidden: Annotated[int, AtLeast(1)] = 8192
    """Width of a token."""
    feed_forward: Annotated[int, AtLeast(1)] = 28672
    """Width between the products of the feed-forward network."""
    vocabulary: Annotated[int, AtLeast(1)] = 32000
    """Tokens that there are."""
    heads: Annotated[int, AtLeast(1)] = 64
    """Heads of attention."""
    kv_heads: Annotated[int, AtLeast(1)] = 8
    """Heads of keys and values of layer ``llama``."""
    attention_scores: bool = False
    """Whether products with scores count, which grow with the square of the length: two
    of the width forward and four backward. The generator has none
    (module3/*/group_query_attention_kernel_fused.csv)."""

    def __post_init__(self) -> None:
        divided = {
            "batch": (self.batch, self.data),
            "length": (self.length, self.tensor),
            "hidden": (self.hidden, self.heads),
            "heads": (self.heads, self.tensor),
            "kv_heads": (self.kv_heads * self.hidden // self.heads, self.tensor),
            "feed_forward": (self.feed_forward, self.tensor),
        }
        for key, (number, parts) in divided.items():
            if number % parts:
                raise SettingsError(key, f"got {number}; allowed: a multiple of {parts}")
        if self.layers < self.pipeline:
            allowed = f"at least {self.pipeline}, one a stage"
            raise SettingsError("layers", f"got {self.layers}; allowed: {allowed}")
        # The generator puts its last product on stage (layers - 1) % pipeline.
        if self.layer == "dense" and self.layers % self.pipeline:
            allowed = f"a multiple of {self.pipeline}, the stages"
            raise SettingsError("layers", f"got {self.layers} of layer dense; allowed: {allowed}")

    @property
    def ranks(self) -> int:
        """All ranks, numbered by replica, tensor rank and stage, replicas fastest."""
        return self.data * self.tensor * self.pipeline

    def stages(self) -> list[range]:
        """The layers of each stage."""
        return stage_layers(self.layers, self.pipeline)


@dataclass(frozen=True)
class StageNodes:
    """The nodes of a rank of a stage, in an order that their dependencies allow.

    ``numbers``: of the generator. ``links``: what joins the ranks of an operation, None
    for computations; ``stages``: how many stages later a message comes from or goes to.
    ``after``: the nodes that end before.
    """

    numbers: Sequence[int]
    kinds: Sequence[str]
    operations: Sequence[int]
    memory: Sequence[int]
    sizes: Sequence[int]
    links: Sequence[Links | None]
    stages: Sequence[int]
    after: Sequence[Sequence[int]]

    @cached_property
    def followers(self) -> list[list[int]]:
        """The nodes that wait for each node."""
        followers: list[list[int]] = [[] for _ in self.after]
        for node, parents in enumerate(self.after):
            for parent in parents:
                followers[parent].append(node)
        return followers


#: Kind, operations, memory bytes, bytes, and axis or step to another stage.
_Row: TypeAlias = tuple[str, int, int, int, Any]


class _Nodes(dict[str, tuple[_Row, tuple[str, ...]]]):
    """The nodes of a stage by name, as numbered, and those that each waits for."""

    def compute(self, name: str, operations: int, size: int, *after: str) -> None:
        """A computation that writes ``size`` elements."""
        self[name] = ("compute", operations, size, 0, None), after

    def exchange(self, name: str, kind: str, where: Links | int, size: int, *after: str) -> None:
        """A collective along an axis, or a message to or from a stage so far later."""
        self[name] = (kind, 0, 0, size, where), after

    def without(self, axes: Iterable[Links]) -> _Nodes:
        """Without collectives of some axes; followers wait for what they waited for."""
        dropped = {name for name, (row, _) in self.items() if row[4] in axes}

        def resolved(names: tuple[str, ...]) -> Iterator[str]:
            for name in names:
                yield from resolved(self[name][1]) if name in dropped else (name,)

        return _Nodes(
            {
                name: (row, tuple(resolved(after)))
                for name, (row, after) in self.items()
                if name not in dropped
            }
        )

    def order(self) -> list[int]:
        """Positions by dependencies, of several the lowest first."""
        at = {name: position for position, name in enumerate(self)}
        waits = {at[name]: [at[other] for other in after] for name, (_, after) in self.items()}
        sorter = TopologicalSorter(waits)
        sorter.prepare()
        ready, order = sorted(sorter.get_ready()), []
        while ready:
            order.append(heapq.heappop(ready))
            sorter.done(order[-1])
            for position in sorter.get_ready():
                heapq.heappush(ready, position)
        return order


def published_graphs(step: PublishedStep) -> RankGraphs:
    """The graphs of all ranks of a step.

    The nodes of a rank are in the order of their dependencies, of several the one with
    the lowest number in the generator's traces first.
    """
    data, tensor = step.data, step.tensor
    plane = data * tensor
    data_groups = [
        tuple(range(first, first + data)) for first in range(0, step.ranks, data) if data > 1
    ]
    tensor_groups = [
        tuple(range(stage * plane + replica, (stage + 1) * plane, data))
        for stage in range(step.pipeline)
        for replica in range(data)
        if tensor > 1
    ]
    columns: dict[str, list[IntArray]] = {name: [] for name in NODE_COLUMNS}
    offsets, dependencies = [np.zeros(1, np.int64)], []
    nodes = waits = 0
    for stage in range(step.pipeline):
        rank_nodes, ranks = stage_nodes(step, stage), np.arange(stage * plane, (stage + 1) * plane)
        axis = np.array([_AXES.index(links) for links in rank_nodes.links])
        stages = np.array(rank_nodes.stages)
        counts = np.array([len(parents) for parents in rank_nodes.after])
        parents = np.array([node for after in rank_nodes.after for node in after], np.int64)
        alone, per_rank = np.full(plane, -1), len(counts) * np.arange(plane)
        joined = [alone, ranks // data, len(data_groups) + stage * data + ranks % data, alone]
        by_rank = {
            "rank": ranks[:, None],
            "number": rank_nodes.numbers,
            "kind": [NODE_KINDS.index(kind) for kind in rank_nodes.kinds],
            "operations": rank_nodes.operations,
            "memory_bytes": rank_nodes.memory,
            "bytes": rank_nodes.sizes,
            "group": np.stack(joined, axis=1)[:, axis],
            "peer": np.where(stages, ranks[:, None] + stages * plane, -1),
            "tag": np.where(stages, 0, -1),
            **{name: NODE_COLUMNS[name][1] for name in ("stream", "duration_ns")},
        }
        for name, values in by_rank.items():
            shape = (plane, len(counts))
            columns[name].append(np.broadcast_to(np.array(values), shape).ravel())
        offsets.append(waits + np.cumsum(np.tile(counts, plane)))
        dependencies.append((parents + nodes + per_rank[:, None]).ravel())
        waits += len(parents) * plane
        nodes += len(counts) * plane
    typed = {
        name: np.concatenate(columns[name]).astype(kind) for name, (kind, _) in NODE_COLUMNS.items()
    }
    groups = tuple(data_groups + tensor_groups)
    return RankGraphs(typed, np.concatenate(offsets), np.concatenate(dependencies), groups)


@lru_cache(maxsize=8)
def stage_nodes(step: PublishedStep, stage: int) -> StageNodes:
    """The nodes of a rank of a stage."""
    rows = _stage(step, stage)
    order = rows.order()
    listed = list(rows)
    names = [listed[position] for position in order]
    at = {name: new for new, name in enumerate(names)}
    kinds, operations, memory, sizes, where = zip(*(rows[name][0] for name in names), strict=True)
    return StageNodes(
        order,
        kinds,
        operations,
        memory,
        sizes,
        ["pipeline" if isinstance(joins, int) else joins for joins in where],
        [joins if isinstance(joins, int) else 0 for joins in where],
        [sorted({at[other] for other in rows[name][1]}) for name in names],
    )


def _stage(step: PublishedStep, stage: int) -> _Nodes:
    rows = _Nodes()
    layers = step.stages()[stage]
    first, last = stage == 0, stage == step.pipeline - 1
    shard = step.batch // step.data * step.length // step.tensor * step.hidden
    begin = "embed.y" if first else "input"
    end = "head.dx" if last else "gradient"
    for layer in layers:
        x = begin if layer == layers[0] else f"{layer - 1}.y"
        dy = end if layer == layers[-1] else f"{layer + 1}.dx"
        _layer(step, rows, f"{layer}.", x, dy)
    ends = f"{layers[0]}.dx", f"{layers[-1]}.y"
    weights = _layer_weights(step)
    embedded = [name for name, there in (("embed", first), ("head", last)) if there]
    _ends(step, rows, first, last, *ends)
    for layer in layers:
        rows.compute(f"{layer}.gradient", weights, weights, f"{layer}.reduced")
    table = step.vocabulary * step.hidden
    for name in embedded:
        rows.compute(f"{name}.gradient", table, table, f"{name}.dw")
    for layer in layers:
        rows.compute(f"{layer}.update", weights, weights, f"{layer}.gradient")
    for name in embedded:
        rows.compute(f"{name}.update", table, table, f"{name}.shared")
        rows.exchange(f"{name}.reduced", "all_reduce", "data", table, f"{name}.gradient")
        rows.exchange(f"{name}.shared", "all_reduce", "tensor", table, f"{name}.reduced")
    if stage:
        rows.exchange("sent_back", "send", -1, shard, ends[0])
        rows.exchange("input", "recv", -1, shard)
    if stage < step.pipeline - 1:
        rows.exchange("gradient", "recv", 1, shard)
        rows.exchange("sent_on", "send", 1, shard, ends[1])
    degrees: dict[Links, int] = {"data": step.data, "tensor": step.tensor}
    return rows.without([axis for axis, ranks in degrees.items() if ranks == 1])


def _ends(step: PublishedStep, rows: _Nodes, first: bool, last: bool, dx: str, y: str) -> None:
    """Both tables of tokens and the loss, whichever a stage has."""
    tokens = step.batch // step.data * step.length // step.tensor
    table = step.vocabulary * step.hidden
    shard, words = tokens * step.hidden, tokens * step.vocabulary
    if first:
        rows.compute("embed.y", tokens * table, shard)
        rows.compute("embed.dw", tokens * table, table, dx)
        rows.compute("embed.dx", tokens * table, words, dx)
    if last:
        rows.compute("head.y", tokens * table, words, y)
        rows.compute("head.dw", tokens * table, table, y, "loss.dy")
        rows.compute("head.dx", tokens * table, shard, "loss.dy")
        rows.compute("loss", 5 * shard, shard, "head.y")
        rows.compute("loss.dy", 5 * shard, shard, "loss")


def _keys(step: PublishedStep) -> int:
    """The width of keys of a tensor rank."""
    heads = step.kv_heads if step.layer == "llama" else step.heads
    return heads * step.hidden // step.heads // step.tensor


def _layer_weights(step: PublishedStep) -> int:
    """Weights of a layer on a tensor rank."""
    products = 3 if step.layer == "llama" else 2
    across = 2 * (step.hidden // step.tensor + _keys(step))
    return step.hidden * (across + products * step.feed_forward // step.tensor)


def _layer(step: PublishedStep, rows: _Nodes, at: str, x: str, dy: str) -> None:
    """A layer after ``x``, and its gradients after ``dy``."""
    full = step.batch // step.data * step.length * step.hidden
    shard = full // step.tensor

    def gathered(name: str, after: str) -> None:
        rows.exchange(at + name, "all_gather", "tensor", shard, after)

    def scattered(name: str, after: str) -> None:
        rows.exchange(at + name, "reduce_scatter", "tensor", full, at + after)

    rows.compute(at + "norm1", 5 * shard, shard, x)
    rows.compute(at + "dx.sum", shard, shard, at + "norm2.dx", at + "attention.dx")
    rows.compute(at + "dx", 5 * shard, shard, at + "dx.sum")
    _attention(step, rows, at, gathered, scattered)
    rows.compute(at + "sum1", shard, shard, x, at + "attention.o")
    rows.compute(at + "norm2", 5 * shard, shard, at + "sum1")
    rows.compute(at + "norm2.sum", shard, shard, dy, at + "forward.dx")
    rows.compute(at + "norm2.dx", 5 * shard, shard, at + "norm2.sum")
    _feed_forward(step, rows, at, dy, gathered, scattered)
    rows.compute(at + "y", shard, shard, at + "sum1", at + "forward.o")
    gradients = ("down.dw", *(f"{name}.dw" for name in _ups(step)), "o.dw", "qkv.dw")
    rows.exchange(
        at + "reduced",
        "all_reduce",
        "data",
        _layer_weights(step),
        *(at + name for name in gradients),
    )


_Moves = Callable[[str, str], None]


def _attention(
    step: PublishedStep, rows: _Nodes, at: str, gathered: _Moves, scattered: _Moves
) -> None:
    tokens = step.batch // step.data * step.length
    full, shard = tokens * step.hidden, tokens * step.hidden // step.tensor
    keys = _keys(step)
    across = step.hidden // step.tensor + 2 * keys
    projected, square = tokens * across * step.hidden, shard * step.hidden
    rows.compute(at + "qkv", projected, tokens * across, at + "qkv.x")
    gathered("qkv.x", at + "norm1")
    rows.compute(at + "q", shard, shard, at + "qkv")
    for name in ("k", "v"):
        rows.compute(at + name, tokens * keys, tokens * keys, at + "qkv")
    rows.compute(at + "o1", square, full, at + "scores")
    scattered("attention.o", "o1")
    gathered("o.dy", at + "norm2.dx")
    rows.compute(at + "scores.dy", square, shard, at + "o.dy")
    rows.compute(
        at + "o.dw", square, step.hidden * step.hidden // step.tensor, at + "scores", at + "o.dy"
    )
    rows.compute(at + "dkv", 2 * tokens * keys, 2 * tokens * keys, at + "dk", at + "dv")
    rows.compute(at + "dqkv", tokens * across, tokens * across, at + "dq", at + "dkv")
    rows.compute(at + "qkv.dw", projected, across * step.hidden, at + "qkv.dw.x", at + "dqkv")
    gathered("qkv.dw.x", at + "norm1")
    rows.compute(at + "dx1", projected, full, at + "dqkv")
    scattered("attention.dx", "dx1")
    scored = shard * step.length * step.attention_scores
    rows.compute(at + "scores", 3 * shard + 2 * scored, shard, at + "q", at + "k", at + "v")
    grouped = step.layer == "llama"
    for name, products in (("dq", 2), ("dk", 1), ("dv", 1)):
        wide = f"{name}.heads" if grouped and name != "dq" else name
        rows.compute(at + wide, 6 * shard + products * scored, shard, at + "scores.dy")
    if grouped:
        for name in ("dk", "dv"):
            rows.compute(at + name, tokens * keys, tokens * keys, f"{at}{name}.heads")


def _ups(step: PublishedStep) -> tuple[str, ...]:
    """The products before the last of the feed-forward network."""
    return ("up", "gate") if step.layer == "llama" else ("gate",)


def _feed_forward(
    step: PublishedStep, rows: _Nodes, at: str, dy: str, gathered: _Moves, scattered: _Moves
) -> None:
    tokens = step.batch // step.data * step.length
    full, wide = tokens * step.hidden, tokens * step.feed_forward // step.tensor
    product, weights = wide * step.hidden, step.hidden * step.feed_forward // step.tensor
    ups = _ups(step)
    gated = len(ups) > 1
    gathered("forward.x", at + "norm2")
    for name in ups:
        rows.compute(at + name, product, wide, at + "forward.x")
    middle = at + ("gated" if gated else "gate")
    if gated:
        rows.compute(middle, wide, wide, at + "up", at + "gate")
    rows.compute(at + "down", product, full, middle)
    scattered("forward.o", "down")
    gathered("down.dy", dy)
    rows.compute(at + "down.dw", product, weights, middle, at + "down.dy")
    rows.compute(middle + ".dx", product, wide, at + "down.dy")
    if gated:
        for name, other in (("up", "gate"), ("gate", "up")):
            rows.compute(f"{at}{name}.dx", wide, wide, at + other, middle + ".dx")
    gathered("forward.dw.x", at + "norm2")
    for name in ups:
        rows.compute(f"{at}{name}.dw", product, weights, at + "forward.dw.x", f"{at}{name}.dx")
    if gated:
        for name in ups:
            rows.compute(f"{at}{name}.dy", product, full, f"{at}{name}.dx")
        rows.compute(at + "dx0", full, full, at + "up.dy", at + "gate.dy")
    else:
        rows.compute(at + "dx0", product, full, at + "gate.dx")
    scattered("forward.dx", "dx0")
