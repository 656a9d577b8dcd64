"""Plans of 'Comprehensive Performance Modeling' (arXiv 2410.00273), priced at once.

The paper times a layer operator by operator: launch, then operations at a share of the
matrix or vector peak or bytes at the memory's bandwidth, whichever takes longer, then
collectives. A layer's products are divided in one of three ways (:data:`Division`):

* ``1d``: n1 ranks divide heads and widths, and tokens between products (Megatron);
* ``2d``: n1 x n2 ranks hold a block of each matrix (SUMMA); blocks are broadcast while
  others compute;
* ``2d-seqp``: n1 ranks as in ``1d``, n2 ranks divide the sequence and gather keys and
  values.

All formulas are those of the authors' public code (ShashankSubramanian/
transformer-perf-estimates 54278b0), its oddities included, each marked where it stands.
The ring is :class:`~railx.performance.networks.TwoLevelRing` with latencies added up.
Sizes count elements of 2 bytes, times are seconds, arrays float[plans].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np

from railx.errors import UserError
from railx.performance.devices import Device
from railx.performance.networks import Kind, TwoLevelRing, ring_bytes
from railx.performance.plans import Array
from railx.performance.resources import entry
from railx.settings import AtLeast, Fraction, NonNegative, NotEmpty, Positive

Division: TypeAlias = Literal["1d", "2d", "2d-seqp"]
DIVISIONS: tuple[Division, ...] = get_args(Division)
#: Axes of a plan; n1 is ``tensor``, n2 is ``sequence``.
_AXES = ("tensor", "sequence", "data", "pipeline")
_ELEMENT_BYTES = 2.0
#: Elements that the optimizer stores for each weight: exact copy and two moments.
_OPTIMIZER_ELEMENTS = 6
#: No rank has fewer rows or columns of a product, no SUMMA block fewer columns.
_SMALLEST_SHARD, _SMALLEST_BLOCK = 128, 512


@dataclass(frozen=True, kw_only=True)
class PaperDevice(Device):
    """A device with the shares of its peaks that the paper assumes."""

    vector_tflops: Annotated[float, Positive()]
    """Peak of everything but products (10¹² operations/s)."""
    compute_share: Annotated[float, Fraction()]
    """Share of both peaks that is reached."""
    launch_s: Annotated[float, NonNegative()]
    """Time to launch an operator."""
    network_share: Annotated[float, Fraction()]
    """Share of both bandwidths of the network that is reached."""


@dataclass(frozen=True)
class LayersOnly:
    """A transformer without its tables; the feed-forward part is 4 x hidden wide."""

    name: Annotated[str, NotEmpty()]
    tokens: Annotated[int, AtLeast(1)]
    """Tokens of a sequence."""
    hidden: Annotated[int, AtLeast(1)]
    heads: Annotated[int, AtLeast(1)]
    layers: Annotated[int, AtLeast(1)]


class _SummedLatencyRing(TwoLevelRing):
    """A two-level ring whose hops inside and between nodes follow one another.

    Its bandwidth is the narrower of both levels, and an all-reduce pays its latency
    once (the paper's equations).
    """

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        if kind == "send":
            return super().time_s(kind, size_bytes, members, inside)
        fast = self.fast_gb_s * 1e9 * self.fast_share
        slow = self.slow_gb_s * 1e9 * self.slow_share
        nodes = members // inside
        rate = np.where(nodes <= 1, fast, np.minimum(inside * slow, fast))
        latency = (nodes - 1) * self.slow_latency_s + (members - nodes) * self.fast_latency_s
        return np.where(members > 1, ring_bytes(kind, size_bytes, members) / rate + latency, 0.0)


@dataclass(frozen=True, eq=False)
class PaperJob:
    """What is trained on what, and how products are divided."""

    model: LayersOnly
    device: PaperDevice
    division: Division
    devices: int
    global_batch: int = 4096
    """Sequences of a step."""

    @cached_property
    def network(self) -> TwoLevelRing:
        """The ring over fast domains of ``device.node_devices``."""
        share = self.device.network_share
        return _SummedLatencyRing.of(self.device, fast_share=share, slow_share=share)


def job_named(
    model: str, device: str, domain_devices: int, division: Division, devices: int
) -> PaperJob:
    """A job of the paper's models and devices, on fast domains of so many devices.

    Raises :class:`UserError` for a name that is not in the catalogue.
    """
    if division not in DIVISIONS:
        raise UserError(f"division: got {division}; allowed: {', '.join(DIVISIONS)}")
    chip = entry("device", device, "subramanian_devices.yaml", PaperDevice)
    shape = entry("model", model, "subramanian_models.yaml", LayersOnly)
    return PaperJob(shape, replace(chip, node_devices=domain_devices), division, devices)


@dataclass(frozen=True, eq=False)
class PricedPlans:
    """Plans of a job with their times and memory.

    ``plans``: int[plans] by axis (``tensor``, ``sequence``, ``data``, ``pipeline``),
    how many ranks of each share a fast domain (``tensor_near``, ...), ``micro_batch``
    and ``blocks`` (of SUMMA). ``parts``: seconds of a step by part.
    """

    job: PaperJob
    plans: Mapping[str, Array]
    parts: Mapping[str, Array]
    memory_gb: Array

    @cached_property
    def total_s(self) -> Array:
        """Seconds of a step."""
        return np.asarray(sum(self.parts.values()))

    @property
    def sequences_per_s(self) -> Array:
        """Sequences of a step over its time."""
        return self.job.global_batch / self.total_s

    @property
    def fastest(self) -> int:
        """Row of the fastest plan that fits into memory.

        Raises :class:`UserError` where none fits.
        """
        fits = self.memory_gb <= self.job.device.capacity_gb
        if not fits.any():
            raise UserError(
                f"devices: got {self.job.devices}; {self.job.model.name} fits no plan on"
                f" {self.job.device.name}; allowed: more devices"
            )
        return int(np.argmin(np.where(fits, self.total_s, np.inf)))


def search(job: PaperJob) -> PricedPlans:
    """Every plan of a job that fits into memory, priced."""
    return price(job, candidates(job))


class _Layer:
    """Sums over a layer's operators: seconds of both passes, weights, activations."""

    def __init__(self, job: PaperJob, plans: Mapping[str, Array]) -> None:
        self.job, self.plans = job, plans
        self.weights, self.stored = np.zeros((2, len(plans["data"])))
        #: Of the forward and of the backward pass.
        self.computed = np.zeros((2, len(plans["data"])))
        self.memory_bound = np.zeros_like(self.computed)
        self.sent = np.zeros_like(self.computed)
        #: What a stage hands on to the next one.
        self.message = np.zeros(len(plans["data"]))

    @property
    def passes(self) -> Array:
        """Seconds of both passes, float[2, plans]."""
        return np.asarray(self.computed + self.memory_bound + self.sent)

    def collective(self, kind: Kind, size: Array, axis: str) -> Array:
        """Seconds of a collective over the ranks of an axis."""
        near = self.plans[f"{axis}_near"]
        return self.job.network.time_s(kind, size * _ELEMENT_BYTES, self.plans[axis], near)

    def broadcast(self, size: Array, axis: str) -> Array:
        """Seconds of a pipelined broadcast or reduction: a rank passes on all of it."""
        members = self.plans[axis]
        return self.collective("all_gather", size * members / np.maximum(members - 1, 1), axis)

    def add(
        self,
        operations: tuple[Array, Array],
        moved: tuple[Array, Array],
        sent: tuple[Array, Array] | None = None,
        *,
        weights: Array | float = 0.0,
        stored: Array | float = 0.0,
        vector: bool = True,
        overlapped: Array | None = None,
    ) -> None:
        """Add an operator by its forward and its backward pass.

        ``moved`` in elements, ``sent`` in seconds. ``overlapped``: blocks of SUMMA, of
        each of which ``sent`` are the seconds; all but one travel behind computation.
        """
        device = self.job.device
        peak = device.vector_tflops * 1e12 if vector else device.peak_flops("fp16")
        for number in range(2):
            computed = device.launch_s + operations[number] / (peak * device.compute_share)
            memory = moved[number] * _ELEMENT_BYTES / (device.memory_gb_s * 1e9)
            self.computed[number] += computed
            self.memory_bound[number] += np.maximum(memory - computed, 0.0)
            if sent is not None:
                exposed = sent[number]
                if overlapped is not None:
                    late = sent[number] * overlapped - np.maximum(computed, memory)
                    exposed = exposed + np.maximum(late, 0.0)
                self.sent[number] += exposed
        self.weights = self.weights + weights
        self.stored = self.stored + stored

    def product(
        self, rows: Array, inputs: Array, outputs: Array, sent: tuple[Array, Array] | None = None
    ) -> None:
        """A product [rows, inputs] x [inputs, outputs] of a rank."""
        matrix = inputs * outputs
        backward = rows * inputs * (2 * outputs - 1) + matrix * (2 * rows - 1)
        self.add(
            (rows * outputs * (2 * inputs - 1), backward),
            (rows * (inputs + outputs) + matrix, 2 * matrix + 2 * rows * (inputs + outputs)),
            sent,
            weights=matrix,
            stored=rows * inputs,
            vector=False,
        )

    def summa(self, batch: Array, inputs: int, outputs: int) -> None:
        """A product whose blocks both kinds of ranks broadcast to one another."""
        plans, tokens = self.plans, self.job.model.tokens
        rows, columns = batch * (tokens // plans["sequence"]), outputs // plans["tensor"]
        blocks = plans["blocks"]
        one = self.broadcast(rows * inputs / blocks, "tensor") + self.broadcast(
            inputs * columns / blocks, "sequence"
        )
        moved = rows * inputs + inputs * columns + rows * columns * blocks
        backward = rows * inputs * (2 * columns - 1) + inputs * columns * (2 * rows - 1)
        self.add(
            (2 * rows * columns * inputs, backward),
            (moved, 2 * moved),
            (one, 2 * one),
            weights=inputs // plans["sequence"] * columns,
            stored=rows * (inputs // plans["tensor"]),
            vector=False,
            overlapped=blocks,
        )

    def bias(self, rows: Array, width: Array) -> None:
        operations, moved = rows * width, (rows + 1) * width
        self.add((operations, operations), (moved, moved), weights=width)

    def activation(self, size: Array) -> None:
        """GELU: 8 operations a value forward, 13 backward."""
        self.add((8 * size, 13 * size), (2 * size, 3 * size), stored=size)

    def dropout(self, size: Array) -> None:
        """Dropout with a mask of a byte a value."""
        self.add((size, size), (2.5 * size, 2.5 * size), stored=0.5 * size)

    def norm(self, rows: Array, width: Array, sent: tuple[Array, Array]) -> None:
        """A layer norm of a rank's rows and columns."""
        size = rows * width
        self.add(
            (9 * size, 12 * size - 4 * rows),
            (2 * size + 2 * rows + 2 * width, 5 * size + 2 * width),
            sent,
            weights=2 * width,
            stored=size,
        )
        self.message = size

    def attention(self, batch: Array) -> None:
        """Fused attention, whose scores a backward pass computes again.

        Operations of the softmax and of dropout run at the vector peak. Ranks of the
        sequence gather keys and values.
        """
        model, plans, device = self.job.model, self.plans, self.job.device
        tokens, width = model.tokens, model.hidden // model.heads
        slower = device.peak_tflops["fp16"] / device.vector_tflops
        heads = batch * (model.heads // plans["tensor"])
        rows = heads * (tokens // plans["sequence"])
        scores, own, every = rows * tokens, rows * width, heads * tokens * width
        products = scores * (2 * width - 1)
        values = own * (2 * tokens - 1)
        keys = every * (2 * (tokens // plans["sequence"]) - 1)
        pointwise = slower * (3 * scores + rows * (tokens - 1))
        again = slower * (4 * scores + rows * (tokens - 1))
        stored = 4 * own + 2 * rows
        gather = self.collective("all_gather", 2 * every, "sequence")
        self.add(
            (products + pointwise + values, 2 * products + values + 2 * keys + again + pointwise),
            (2 * own + 2 * every + rows, 2 * every + 2 * own + stored),
            (gather, 2 * gather),
            stored=stored,
            vector=False,
        )


def _layer(job: PaperJob, plans: Mapping[str, Array]) -> _Layer:
    return (_summa_layer if job.division == "2d" else _row_column_layer)(job, plans)


def _row_column_layer(job: PaperJob, plans: Mapping[str, Array]) -> _Layer:
    """Column and row products after one another, with a gather and a scatter each.

    Tokens between the products are divided among n1 ranks too. In ``1d`` the biases of
    row products are added to all tokens of a rank before they are scattered.
    """
    layer, model = _Layer(job, plans), job.model
    tensor, batch = plans["tensor"], plans["micro_batch"]
    tokens, wide = model.tokens // plans["sequence"], 4 * model.hidden // tensor
    hidden, narrow = np.full_like(tensor, model.hidden), model.hidden // tensor
    rows, between = batch * tokens, batch * (tokens // tensor)
    divided = batch * (model.tokens // (tensor * plans["sequence"]))
    whole = job.division == "1d"
    moved = layer.collective("all_gather", rows * hidden, "tensor")
    none = np.zeros_like(moved)

    def close() -> None:
        layer.dropout(divided * hidden)
        layer.norm(between, hidden, (moved, moved))

    layer.product(rows, hidden, wide, (none, moved))
    layer.bias(rows, wide)
    layer.activation(rows * wide)
    layer.dropout(rows * wide)
    layer.product(rows, wide, hidden, (moved, none))
    layer.bias(rows if whole else between, hidden)
    close()
    layer.product(rows, hidden, 3 * model.hidden // tensor, (none, moved))
    layer.attention(batch)
    layer.product(rows, narrow, hidden, (moved, none))
    layer.bias(rows, hidden if whole else narrow)
    close()
    return layer


def _summa_layer(job: PaperJob, plans: Mapping[str, Array]) -> _Layer:
    """Products in blocks; norms reduce their sums over n1 ranks.

    The public code divides the tokens, not the width, in the columns of a norm; its
    outputs rest on that, and so does this.
    """
    layer, model = _Layer(job, plans), job.model
    tensor, batch = plans["tensor"], plans["micro_batch"]
    hidden, wide = model.hidden, 4 * model.hidden
    rows, columns = batch * (model.tokens // plans["sequence"]), model.tokens // tensor
    # Sums of the rows forward; backward also those of the weights' gradients.
    sums = 2 * hidden // tensor + 2 * batch * model.tokens // plans["sequence"]
    forward, backward = (
        layer.collective("all_reduce", size, "tensor") for size in (2 * rows, sums)
    )

    def close() -> None:
        layer.bias(rows, hidden // tensor)
        layer.dropout(rows * (hidden // tensor))
        layer.norm(rows, columns, (forward, backward))

    layer.summa(batch, hidden, wide)
    layer.bias(rows, wide // tensor)
    layer.activation(rows * (wide // tensor))
    layer.dropout(rows * (wide // tensor))
    layer.summa(batch, wide, hidden)
    close()
    layer.summa(batch, hidden, 3 * hidden)
    layer.attention(batch)
    layer.summa(batch, hidden, hidden)
    close()
    return layer


def price(job: PaperJob, plans: Mapping[str, Array]) -> PricedPlans:
    """Times and memory of plans: columns as in :class:`PricedPlans`."""
    # Many plans share a layer: only what its operators see tells them apart.
    seen = ["tensor", "sequence", "micro_batch", "blocks", "tensor_near", "sequence_near"]
    key = np.zeros(len(plans["data"]), np.int64)
    for name in seen:
        key = key * (int(plans[name].max(initial=0)) + 1) + plans[name]
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    layer = _layer(job, {name: column[first] for name, column in plans.items()})

    def of_plans(values: Array) -> Array:
        return np.asarray(values[..., inverse])

    stages, layers = plans["pipeline"], job.model.layers // plans["pipeline"]
    batches = job.global_batch // plans["data"] // plans["micro_batch"]
    work = batches * layers
    parts = {
        "compute": work * of_plans(layer.computed.sum(axis=0)),
        "memory": work * of_plans(layer.memory_bound.sum(axis=0)),
        "tensor": work * of_plans(layer.sent.sum(axis=0)),
        "pipeline": batches * 2 * _hop(job, plans, of_plans(layer.message)),
    }
    parts["bubble"] = (stages - 1) * sum(parts.values()) / batches
    parts["data"] = _exchange(job, plans, of_plans(layer.weights), of_plans(layer.passes), layers)
    memory_gb = _memory_gb(job, plans, of_plans(layer.weights), of_plans(layer.stored))
    return PricedPlans(job, plans, parts, memory_gb)


def _hop(job: PaperJob, plans: Mapping[str, Array], message: Array) -> Array:
    """Seconds to hand a micro-batch on, on average over the boundaries of stages.

    Where some stages share a fast domain, the public code counts the boundaries between
    domains with no time.
    """
    stages, near = plans["pipeline"], plans["pipeline_near"]
    pair = np.full_like(near, 2)
    time = job.network.time_s("send", message * _ELEMENT_BYTES, pair, np.minimum(near, pair))
    fast = 1 - (stages // near - 1) / np.maximum(stages - 1, 1)
    return np.where(stages > 1, time * np.where(near > 1, fast, 1.0), 0.0)


def _exchange(
    job: PaperJob, plans: Mapping[str, Array], weights: Array, passes: Array, layers: Array
) -> Array:
    """Exposed seconds of the replicas: one scatter and one gather of a layer, and of
    the other layers what a pass does not hide. Ranks of a sequence are replicas too.
    """
    ranks, near = plans["data"], plans["data_near"]
    if job.division == "2d-seqp":
        ranks, near = ranks * plans["sequence"], near * plans["sequence_near"]
    one = job.network.time_s("all_gather", weights * _ELEMENT_BYTES, ranks, near)
    return np.asarray(sum(one + np.maximum(one - cover, 0.0) * (layers - 1) for cover in passes))


def _memory_gb(job: PaperJob, plans: Mapping[str, Array], weights: Array, stored: Array) -> Array:
    """Weights, gradients, the optimizer's state divided among replicas, and activations
    of as many micro-batches as 1F1B has in flight, in 10⁹ bytes.
    """
    stages, layers = plans["pipeline"], job.model.layers // plans["pipeline"]
    batches = job.global_batch // plans["data"] // plans["micro_batch"]
    replicas = plans["data"] * (plans["sequence"] if job.division == "2d-seqp" else 1)
    elements = weights * (2 + _OPTIMIZER_ELEMENTS / replicas)
    elements = elements + stored * np.minimum(stages, batches)
    return np.asarray(elements * layers * _ELEMENT_BYTES / 1e9)


def candidates(job: PaperJob) -> dict[str, Array]:
    """Every plan that the paper tries and that fits into memory, as columns."""
    names = ("tensor", "sequence", "data", "pipeline", "micro_batch", "blocks")
    table = np.array(list(_shapes(job)), np.int64).reshape(-1, len(names))
    shapes = dict(zip(names, table.T, strict=True))
    alone = {f"{axis}_near": np.ones(len(table), np.int64) for axis in _AXES}
    layer = _layer(job, shapes | alone)
    fits = _memory_gb(job, shapes, layer.weights, layer.stored) <= job.device.capacity_gb
    shapes = {name: column[fits] for name, column in shapes.items()}
    domain = job.device.node_devices
    axes = np.stack([shapes[axis] for axis in _AXES])
    if job.devices <= domain:
        return shapes | {f"{axis}_near": shapes[axis] for axis in _AXES}
    placements = np.array(
        [near for near in product(_divisors(domain), repeat=len(_AXES)) if np.prod(near) == domain]
    )
    possible = (axes.T[:, None, :] % placements == 0).all(axis=-1)
    rows, places = np.nonzero(possible)
    columns = {name: column[rows] for name, column in shapes.items()}
    near = placements[places].T
    return columns | {f"{axis}_near": near[number] for number, axis in enumerate(_AXES)}


def _shapes(job: PaperJob) -> Iterator[tuple[int, ...]]:
    """Degrees, micro-batches and blocks: tensor, sequence, data, pipeline, ..."""
    model = job.model
    for tensor, sequence in _tensor_degrees(job):
        ranks = tensor * sequence
        divided = {"1d": tensor, "2d": sequence, "2d-seqp": ranks}[job.division]
        blocks = _blocks(tensor, sequence, model.hidden) if job.division == "2d" else [1]
        for stages in _divisors(min(job.devices // ranks, model.layers)):
            if job.devices % (ranks * stages) or model.layers % stages:
                continue
            data = job.devices // (ranks * stages)
            if job.global_batch % data:
                continue
            for micro_batch in _divisors(job.global_batch // data):
                if micro_batch * model.tokens % divided == 0:
                    for count in blocks:
                        yield tensor, sequence, data, stages, micro_batch, count


def _tensor_degrees(job: PaperJob) -> Iterator[tuple[int, int]]:
    model, one = job.model, job.division == "1d"
    for tensor in _divisors(job.devices):
        width = (3 if one else 1) * model.hidden
        if model.heads % tensor or model.hidden % tensor or width // tensor < _SMALLEST_SHARD:
            continue
        for sequence in [1] if one else _divisors(job.devices // tensor):
            even = job.division != "2d" or model.hidden % sequence == 0
            if even and (one or model.tokens // sequence >= _SMALLEST_SHARD):
                yield tensor, sequence


def _blocks(tensor: int, sequence: int, hidden: int) -> Sequence[int]:
    """Blocks of SUMMA tried: doublings from the larger degree on, of 512 columns or
    more; where already the first are narrower, these.
    """
    first = max(tensor, sequence)
    if hidden / first < _SMALLEST_BLOCK:
        return [first]
    doublings = range(int(np.ceil(np.log2(hidden // first))))
    counts = [first * 2**n for n in doublings]
    return [n for n in counts if hidden % n == 0 and hidden // n >= _SMALLEST_BLOCK]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
