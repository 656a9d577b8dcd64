"""The training graphs that the published simulation of photonic rails replays.

The simulation (Opus, arXiv 2602.12521) runs graphs of a public generator
(astra-sim/symbolic_tensor_graph at 3a7f49c). :func:`published_graphs` makes graphs of
the same nodes, operations, bytes and dependencies from a job's shape. What the
generator's numbers mean is stated where they are used:

* a multiply-add is one operation, where hardware's peaks count two (``ops/einsum.py``);
* a tensor's size is its elements, one byte each (``graph/convert_chakra.py``);
* attention has no term that grows with the square of the sequence: its kernel counts
  its inputs (models: ``attn_kernel``);
* ``mixed_precision`` 1 chooses another layer (grouped heads and a gated feed-forward,
  12.75 h² weights) than 0 (11 h²).

One step has one micro-batch. Ranks are numbered along data, tensor, pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import numpy as np

from railx.replay.graphs import COMPUTE, NODE_COLUMNS, NODE_KINDS, RankGraphs
from railx.settings import AtLeast, SettingsError

__all__ = ["PublishedJob", "published_graphs"]

#: Counts of an element-wise node over its elements: a norm, a loss (models).
_NORM_OPERATIONS = 5
#: Counts of the attention kernel over the elements of a query: forward, and each of the
#: three gradients.
_ATTENTION_FORWARD, _ATTENTION_GRADIENT = 3, 6


@dataclass(frozen=True)
class PublishedJob:
    """The shape of a job of the published simulation."""

    data: Annotated[int, AtLeast(2)]
    """Replicas."""
    tensor: Annotated[int, AtLeast(2)]
    """Ranks that divide each matrix product."""
    pipeline: Annotated[int, AtLeast(2)]
    """Stages."""
    layer: Literal["plain", "gated"] = "plain"
    """Layers of the two models: 11 h² weights, or 12.75 h² with grouped heads and a
    gated feed-forward."""
    layers: Annotated[int, AtLeast(1)] = 96
    """Layers of the model."""
    hidden: Annotated[int, AtLeast(1)] = 8192
    """Width of the model."""
    feed_forward: Annotated[int, AtLeast(1)] = 28672
    """Width of the feed-forward part."""
    key_value: Annotated[int, AtLeast(1)] = 1024
    """Width of all keys of a ``gated`` layer; ``plain`` ones have the model's."""
    vocabulary: Annotated[int, AtLeast(1)] = 32000
    """Entries of the embedding."""
    batch: Annotated[int, AtLeast(1)] = 256
    """Sequences of a step."""
    sequence: Annotated[int, AtLeast(1)] = 4096
    """Tokens of a sequence."""

    def __post_init__(self) -> None:
        for key, size, divisor in (
            ("data", self.batch, self.data),
            ("tensor", self.sequence, self.tensor),
            ("tensor", self.hidden, self.tensor),
            ("pipeline", self.layers, self.pipeline),
        ):
            if size % divisor:
                raise SettingsError(key, f"got {divisor}; allowed: a divisor of {size}")

    @property
    def ranks(self) -> int:
        """All ranks of the job."""
        return self.data * self.tensor * self.pipeline


class _Node(NamedTuple):
    kind: str
    operations: int = 0
    bytes: int = 0
    group: Literal["data", "tensor", ""] = ""
    after: tuple[str, ...] = ()


@dataclass
class _Stage:
    """The nodes of a stage by name, in the order in which they were added."""

    nodes: dict[str, _Node] = field(default_factory=dict)

    def compute(self, name: str, operations: int, size: int, *after: str) -> str:
        self.nodes[name] = _Node("compute", operations, size, "", after)
        return name

    def over(
        self, group: Literal["data", "tensor"], kind: str, name: str, size: int, *after: str
    ) -> str:
        self.nodes[name] = _Node(kind, 0, size, group, after)
        return name

    def hand(self, kind: str, name: str, size: int, *after: str) -> str:
        self.nodes[name] = _Node(kind, 0, size, "", after)
        return name


def published_graphs(job: PublishedJob) -> RankGraphs:
    """The graphs of all ranks of a job."""
    stages = [_stage(job, number) for number in range(job.pipeline)]
    width = job.data * job.tensor
    columns: dict[str, list[np.ndarray]] = {name: [] for name in NODE_COLUMNS}
    offsets, dependencies, names = [np.zeros(1, np.int64)], [], []
    first = 0
    for rank in range(job.ranks):
        stage, inside = divmod(rank, width)
        nodes = stages[stage]
        position = {name: number for number, name in enumerate(nodes)}
        group = {
            "": -1,
            "data": rank // job.data,
            "tensor": job.ranks // job.data + stage * job.data + inside % job.data,
        }
        peer = {"next": rank + width, "before": rank - width}
        rows = list(nodes.items())
        kinds = np.array([NODE_KINDS.index(node.kind) for _, node in rows])
        values = {
            "rank": np.full(len(rows), rank),
            "number": np.arange(len(rows)),
            "kind": kinds,
            "operations": [node.operations for _, node in rows],
            "memory_bytes": [node.bytes * (node.kind == "compute") for _, node in rows],
            "bytes": [node.bytes * (node.kind != "compute") for _, node in rows],
            "group": [group[node.group] for _, node in rows],
            "peer": [
                peer[name.split()[-1]] if node.kind in ("send", "recv") else -1
                for name, node in rows
            ],
            "tag": np.where(kinds == COMPUTE, -1, 0),
        }
        for name, (kind, default) in NODE_COLUMNS.items():
            filled = values.get(name, np.full(len(rows), default))
            columns[name].append(np.asarray(filled, dtype=kind))
        counts = np.cumsum([len(node.after) for _, node in rows]) + offsets[-1][-1]
        offsets.append(counts)
        dependencies += [first + position[other] for _, node in rows for other in node.after]
        names += [name for name, _ in rows]
        first += len(rows)
    members = np.arange(job.ranks).reshape(job.pipeline, job.tensor, job.data)
    groups = [tuple(row) for row in members.reshape(-1, job.data).tolist()]
    groups += [tuple(row) for row in np.swapaxes(members, 1, 2).reshape(-1, job.tensor).tolist()]
    return RankGraphs(
        {name: np.concatenate(parts) for name, parts in columns.items()},
        np.concatenate(offsets),
        np.array(dependencies, np.int64),
        tuple(groups),
        tuple(names),
    )


def _stage(job: PublishedJob, number: int) -> dict[str, _Node]:
    """The nodes of a stage: forward and backward of its layers, then the optimizer.

    Tokens between matrix products are divided among the tensor ranks; a gather's size
    is a rank's part, that of a reduction the whole.
    """
    stage = _Stage()
    tokens = job.batch // job.data * job.sequence
    part = tokens // job.tensor * job.hidden
    per_stage = job.layers // job.pipeline
    layers = range(number * per_stage, (number + 1) * per_stage)
    last = number == job.pipeline - 1
    table, product = job.vocabulary * job.hidden, part * job.vocabulary
    scores = tokens // job.tensor * job.vocabulary
    if number == 0:
        entry = stage.compute("in_emb.y", product, part)
    else:
        entry = stage.hand("recv", "y from before", part)
    outputs, above = {}, entry
    for layer in layers:
        outputs[layer] = above
        above = _forward(stage, job, f"{layer}.", above, tokens, part)
    if last:
        stage.compute("out_emb.y", product, scores, above)
        stage.compute("loss.loss", _NORM_OPERATIONS * part, part, "out_emb.y")
        stage.compute("loss.dy", _NORM_OPERATIONS * part, part, "loss.loss")
        stage.compute("out_emb.dw", product, table, above, "loss.dy")
        gradient = stage.compute("out_emb.dx", product, part, "loss.dy")
    else:
        stage.hand("send", "y to next", part, above)
        gradient = stage.hand("recv", "dy from next", part)
    for layer in reversed(layers):
        gradient = _backward(stage, job, f"{layer}.", gradient, tokens, part)
    if number == 0:
        stage.compute("in_emb.dw", product, table, gradient)
        stage.compute("in_emb.dx", product, scores, gradient)
    else:
        stage.hand("send", "dy to before", part, gradient)
    _update(stage, job, layers, [*["in_emb"] * (number == 0), *["out_emb"] * last])
    return stage.nodes


def _forward(stage: _Stage, job: PublishedJob, at: str, above: str, tokens: int, part: int) -> str:
    """A layer's forward pass; returns the node of its output."""
    whole, wide = part * job.tensor, tokens * job.feed_forward // job.tensor
    key = _key_elements(job, tokens)
    linear = part * job.hidden
    stage.compute(f"{at}norm.y", _NORM_OPERATIONS * part, part, above)
    gathered = stage.over("tensor", "all_gather", f"{at}qkv.x", part, f"{at}norm.y")
    inputs = part + 2 * key
    stage.compute(f"{at}qkv", inputs * job.hidden, inputs, gathered)
    for name, size in (("q", part), ("k", key), ("v", key)):
        stage.compute(f"{at}{name}", size, size, f"{at}qkv")
    attention = (f"{at}q", f"{at}k", f"{at}v")
    stage.compute(f"{at}attention", _ATTENTION_FORWARD * part, part, *attention)
    stage.compute(f"{at}o1", linear, whole, f"{at}attention")
    stage.over("tensor", "reduce_scatter", f"{at}o", whole, f"{at}o1")
    stage.compute(f"{at}residual", part, part, f"{at}o", above)
    stage.compute(f"{at}norm2.y", _NORM_OPERATIONS * part, part, f"{at}residual")
    x = stage.over("tensor", "all_gather", f"{at}ffn.x", part, f"{at}norm2.y")
    activated = stage.compute(f"{at}ffn.gate", wide * job.hidden, wide, x)
    if job.layer == "gated":
        stage.compute(f"{at}ffn.up", wide * job.hidden, wide, x)
        activated = f"{at}ffn.product"
        stage.compute(activated, wide, wide, f"{at}ffn.up", f"{at}ffn.gate")
    stage.compute(f"{at}ffn.down1", wide * job.hidden, whole, activated)
    stage.over("tensor", "reduce_scatter", f"{at}ffn.down", whole, f"{at}ffn.down1")
    return stage.compute(f"{at}y", part, part, f"{at}ffn.down", f"{at}residual")


def _backward(
    stage: _Stage, job: PublishedJob, at: str, gradient: str, tokens: int, part: int
) -> str:
    """A layer's backward pass; returns the node of its input's gradient."""
    whole, key = part * job.tensor, _key_elements(job, tokens)
    linear, inputs = part * job.hidden, part + 2 * key
    weights = job.hidden // job.tensor
    out = _feed_forward_backward(stage, job, at, gradient, tokens, whole)
    stage.compute(f"{at}norm2.dy", part, part, out, gradient)
    below = stage.compute(f"{at}norm2.dx", _NORM_OPERATIONS * part, part, f"{at}norm2.dy")
    do = stage.over("tensor", "all_gather", f"{at}do", part, below)
    stage.compute(f"{at}dattention", linear, part, do)
    stage.compute(f"{at}dwo", linear, weights * job.hidden, f"{at}attention", do)
    for name in ("dq", "dk", "dv"):
        grouped = job.layer == "gated" and name != "dq"
        whole_heads = f"{at}{name}1" if grouped else f"{at}{name}"
        stage.compute(whole_heads, _ATTENTION_GRADIENT * part, part, f"{at}dattention")
        if grouped:
            stage.compute(f"{at}{name}", key, key, whole_heads)
    stage.compute(f"{at}dkv", 2 * key, 2 * key, f"{at}dv", f"{at}dk")
    stage.compute(f"{at}dqkv", inputs, inputs, f"{at}dkv", f"{at}dq")
    again = stage.over("tensor", "all_gather", f"{at}dwqkv.x", part, f"{at}norm.y")
    columns = inputs // tokens
    stage.compute(f"{at}dwqkv", inputs * job.hidden, columns * job.hidden, again, f"{at}dqkv")
    stage.compute(f"{at}dx1", inputs * job.hidden, whole, f"{at}dqkv")
    stage.over("tensor", "reduce_scatter", f"{at}dx", whole, f"{at}dx1")
    stage.compute(f"{at}norm.dy", part, part, f"{at}dx", below)
    _reduce_gradients(stage, job, at)
    return stage.compute(f"{at}norm.dx", _NORM_OPERATIONS * part, part, f"{at}norm.dy")


def _feed_forward_backward(
    stage: _Stage, job: PublishedJob, at: str, gradient: str, tokens: int, whole: int
) -> str:
    wide, part = tokens * job.feed_forward // job.tensor, whole // job.tensor
    linear, weights = wide * job.hidden, job.feed_forward // job.tensor * job.hidden
    gated = job.layer == "gated"
    dy = stage.over("tensor", "all_gather", f"{at}ffn.dy", part, gradient)
    activated = f"{at}ffn.product" if gated else f"{at}ffn.gate"
    stage.compute(f"{at}ffn.dwdown", linear, weights, activated, dy)
    inner = stage.compute(f"{at}ffn.dproduct" if gated else f"{at}ffn.dgate", linear, wide, dy)
    x = stage.over("tensor", "all_gather", f"{at}ffn.dw.x", part, f"{at}norm2.y")
    inputs = ["gate"]
    if gated:
        inputs = ["up", "gate"]
        stage.compute(f"{at}ffn.dup", wide, wide, inner, f"{at}ffn.gate")
        stage.compute(f"{at}ffn.dgate", wide, wide, inner, f"{at}ffn.up")
    for name in inputs:
        stage.compute(f"{at}ffn.dw{name}", linear, weights, f"{at}ffn.d{name}", x)
        stage.compute(f"{at}ffn.dx.{name}", linear, whole, f"{at}ffn.d{name}")
    dx = f"{at}ffn.dx.gate"
    if gated:
        dx = stage.compute(f"{at}ffn.dx1", whole, whole, f"{at}ffn.dx.up", f"{at}ffn.dx.gate")
    return stage.over("tensor", "reduce_scatter", f"{at}ffn.dx", whole, dx)


def _reduce_gradients(stage: _Stage, job: PublishedJob, at: str) -> None:
    """One all-reduce of a layer's gradients, as soon as it has all of them."""
    names = ["dwqkv", "dwo", *["ffn.dwup"] * (job.layer == "gated"), "ffn.dwgate", "ffn.dwdown"]
    parts = [f"{at}{name}" for name in names]
    size = sum(stage.nodes[name].bytes for name in parts)
    stage.over("data", "all_reduce", f"{at}gradient", size, *parts)


def _update(stage: _Stage, job: PublishedJob, layers: range, tables: list[str]) -> None:
    """The optimizer: a layer's weights after its reduction, a table's before it."""
    for layer in layers:
        size = stage.nodes[f"{layer}.gradient"].bytes
        stage.compute(f"{layer}.summed", size, size, f"{layer}.gradient")
        stage.compute(f"{layer}.weight", size, size, f"{layer}.summed")
    for table in tables:
        size = stage.nodes[f"{table}.dw"].bytes
        stage.compute(f"{table}.summed", size, size, f"{table}.dw")
        stage.over("data", "all_reduce", f"{table}.data", size, f"{table}.summed")
        stage.over("tensor", "all_reduce", f"{table}.tensor", size, f"{table}.data")
        stage.compute(f"{table}.weight", size, size, f"{table}.tensor")


def _key_elements(job: PublishedJob, tokens: int) -> int:
    """Elements of a rank's keys."""
    width = job.key_value if job.layer == "gated" else job.hidden
    return tokens * width // job.tensor
