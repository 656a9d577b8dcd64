"""The time of an operation on a topology, by its table of bandwidth and latency."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from railx.errors import UserError
from railx.replay.graph_pricing import TRANSFERS
from railx.replay.recording import Price

__all__ = ["price_of"]

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
        shape = (row["operation"], row["group_size"], row["stride"])
        ways[shape].append((row["latency_us"] * 1e3, row["gb_s"]))
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
