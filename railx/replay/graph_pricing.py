"""How long the nodes of graphs take: measured times, or counts over rates.

A computation without a measured time takes the longer of its operations at the peak and
its bytes at the rate of the memory (a roofline). An operation takes what a network says
for its bytes and group. Traces state counts in units of their own, so a setting says
what a unit means (:class:`Counts`).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from railx.errors import UserError
from railx.performance.networks import Kind
from railx.replay.graphs import COMPUTE, NODE_KINDS, RankGraphs
from railx.replay.recording import Price
from railx.vocabulary.arrays import FloatArray, IntArray

#: The transfer that stands for each kind. A broadcast of a large tensor is a scatter
#: and an all-gather, a reduce the same backwards; a barrier is one without bytes.
_LONGEST_NS = 2.0**62  # of all nodes together: their ends have 64 bits
_KINDS_OF: Mapping[Kind, tuple[str, ...]] = {
    "all_reduce": ("all_reduce", "broadcast", "reduce", "barrier"),
    "all_gather": ("all_gather", "gather"),
    "reduce_scatter": ("reduce_scatter", "scatter"),
    "all_to_all": ("all_to_all",),
    "send": ("send", "recv"),
}
TRANSFERS = {kind: transfer for transfer, kinds in _KINDS_OF.items() for kind in kinds}
#: Kinds whose bytes are those that each member gives, not those of the tensor.
OF_A_MEMBER = ("all_gather", "gather")


@dataclass(frozen=True)
class Counts:
    """What the numbers of a trace mean.

    ``operations_per_multiply_add``: operations of a device's peak for each that the
    trace counts. ``bytes_per_element``: bytes for each that it counts, in memory and on
    links.
    """

    operations_per_multiply_add: float
    bytes_per_element: float


#: ``published``: numbers as they stand. The public generator
#: astra-sim/symbolic_tensor_graph counts a multiply-add as one operation and an element
#: as one byte (ops/einsum.py, graph/convert_chakra.py at 3a7f49c). ``hardware``: its
#: numbers as peaks are stated, two operations and elements of two bytes.
COUNTS: Mapping[str, Counts] = {"published": Counts(1, 1), "hardware": Counts(2, 2)}


@dataclass(frozen=True)
class DeviceRates:
    """Peaks of a device; None: not said."""

    tflops: float | None = None
    memory_gb_s: float | None = None


class GroupNetwork(Protocol):
    """The time of transfers within groups of given ranks."""

    def transfer_ns(self, kind: Kind, size_bytes: FloatArray, members: tuple[int, ...]) -> Any:
        """Nanoseconds of one transfer of each size, float[transfers].

        ``members``: the ranks of the group; of a send the sender and the receiver.
        ``size_bytes`` as in :mod:`railx.performance.networks`.
        """
        ...


def node_ns(
    graphs: RankGraphs, device: DeviceRates, network: GroupNetwork | None, counts: Counts
) -> IntArray:
    """How long each node takes, int[nodes].

    ``network`` None: operations take their measured times, and none without one.
    UserError naming rank and node where a computation has counts and ``device`` lacks
    the rate.
    """
    result = _compute_ns(graphs, device, counts)
    if network is None:
        operations = graphs.columns["kind"] != COMPUTE
        result[operations] = np.maximum(graphs.columns["duration_ns"][operations], 0)
    for kind, members, rows in _transfers(graphs) if network is not None else ():
        size_bytes = graphs.columns["bytes"][rows] * float(counts.bytes_per_element)
        if NODE_KINDS[kind] in OF_A_MEMBER:
            size_bytes *= len(members)
        sizes, inverse = np.unique(size_bytes, return_inverse=True)
        word = TRANSFERS[NODE_KINDS[kind]]
        if network is not None and len(members) > 1:
            times = np.asarray(network.transfer_ns(word, sizes, members), float)
            result[rows] = np.rint(times)[inverse]
        else:
            result[rows] = 0
    if not result.sum() < _LONGEST_NS:
        raise UserError(
            f"got nodes of {result.sum():.3g} ns together; allowed: less than {_LONGEST_NS:.3g} ns"
        )
    return result.astype(np.int64)


def unpriced_node(graphs: RankGraphs, device: DeviceRates) -> int | None:
    """The first computation with operations that has no duration and no peak."""
    if device.tflops is not None:
        return None
    columns = graphs.columns
    counted = (columns["kind"] == COMPUTE) & (columns["duration_ns"] < 0)
    rows = np.flatnonzero(counted & (columns["operations"] > 0))
    return int(rows[0]) if len(rows) else None


def _compute_ns(graphs: RankGraphs, device: DeviceRates, counts: Counts) -> FloatArray:
    columns = graphs.columns
    row = unpriced_node(graphs, device)
    if row is not None:
        raise UserError(
            f"got rank {columns['rank'][row]}, node {columns['number'][row]} with"
            f" {columns['operations'][row]} operations and no duration; allowed: a peak"
        )
    taken = np.zeros(len(graphs))
    if device.tflops is not None:
        # Operations over 10^12/s are 10^-12 s, bytes over 10^9/s nanoseconds.
        operations = columns["operations"] * counts.operations_per_multiply_add
        taken = operations / (device.tflops * 1e3)
    if device.memory_gb_s is not None:
        moved_bytes = columns["memory_bytes"] * counts.bytes_per_element
        taken = np.maximum(taken, moved_bytes / device.memory_gb_s)
    measured = columns["duration_ns"] >= 0
    return np.where(measured, columns["duration_ns"], np.rint(taken))


def _transfers(graphs: RankGraphs) -> Any:
    """Kind, members and nodes of the operations that are alike but for their sizes."""
    columns = graphs.columns
    operations = np.flatnonzero(columns["kind"] != COMPUTE)
    kinds, group = columns["kind"][operations], columns["group"][operations]
    rank, peer = columns["rank"][operations], columns["peer"][operations]
    receives = kinds == NODE_KINDS.index("recv")
    messages = receives | (kinds == NODE_KINDS.index("send"))
    low, high = np.where(receives, peer, rank), np.where(receives, rank, peer)
    keys = np.stack(
        [kinds, np.where(messages, -1, group), np.where(messages, low, -1), high * messages], axis=1
    )
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    by_key = np.argsort(inverse.ravel(), kind="stable")
    bounds = np.searchsorted(inverse.ravel()[by_key], np.arange(len(unique) + 1))
    for number, (kind, of_group, sender, receiver) in enumerate(unique.tolist()):
        rows = operations[by_key[bounds[number] : bounds[number + 1]]]
        members = graphs.groups[of_group] if of_group >= 0 else (sender, receiver)
        yield kind, members, rows


#: The operation of the table that stands for a kind of the trace.
_OPERATIONS = {kind: "message" if word == "send" else word for kind, word in TRANSFERS.items()}

#: Operation, group size and stride.
_Shape = tuple[str, int, int]


def price_of(rows: Iterable[Mapping[str, Any]]) -> Price:
    """The price of operations by the rows of a topology's table, of one fidelity.

    Rows are those of :func:`railx.network.group_bandwidth.group_bandwidth`. Of several
    algorithms an operation takes the fastest. A group of a size or stride that the
    table lacks takes the next larger one, or the largest. ValueError where the table
    has no such operation.
    """
    ways: dict[_Shape, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        shape = (row["operation"], int(row["group_size"]), int(row["stride"]))
        latency_ns, gb_s = row["latency_us"] * 1e3, float(row["gb_s"])
        if not (0 <= latency_ns < _LONGEST_NS and gb_s > 0):
            raise ValueError(f"latency_us {row['latency_us']}, gb_s {row['gb_s']}")
        ways[shape].append((latency_ns, gb_s))
    options: dict[tuple[str, tuple[int, ...]], list[tuple[float, float]]] = {}

    def price(kind: str, size_bytes: int, members: tuple[int, ...]) -> float:
        if (kind, members) not in options:
            options[kind, members] = ways[_shape(ways, _OPERATIONS[kind], members)]
        return min(latency_ns + size_bytes / gb_s for latency_ns, gb_s in options[kind, members])

    return price


def _shape(shapes: Iterable[_Shape], operation: str, members: tuple[int, ...]) -> _Shape:
    """The shape of the table that a group is taken for."""
    sizes = sorted({size for name, size, _ in shapes if name == operation})
    if not sizes:
        raise UserError(f"bandwidth: no rows of {operation}; allowed: a table that has it")
    size = next((size for size in sizes if size >= len(members)), sizes[-1])
    strides = sorted({s for name, other, s in shapes if (name, other) == (operation, size)})
    ordered = sorted(members)
    widest = max(b - a for a, b in itertools.pairwise(ordered))
    stride = next((stride for stride in strides if stride >= widest), strides[-1])
    return operation, size, stride
