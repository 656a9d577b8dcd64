"""The links of a topology for other tools: one entry for both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.topology import LINK_KINDS, Topology

_COLUMNS = ("kind", "gbps", "latency_ns", "rail", "lanes")


@dataclass(frozen=True)
class Exported:
    """An exported file, its losses, and files beside it.

    ``lost`` has a line for each property that the format cannot express. ``beside`` are
    texts by the ending that replaces the file's.
    """

    text: str
    lost: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Wires:
    """Full-duplex links in the order of the topology, ``low`` below ``high``.

    The other arrays are as in :class:`railx.vocabulary.topology.Links`.
    """

    low: IntArray
    high: IntArray
    kind: IntArray
    gbps: FloatArray
    latency_ns: FloatArray
    rail: IntArray
    lanes: IntArray

    def __len__(self) -> int:
        return len(self.low)

    def rows(self) -> Iterator[tuple[int, int, dict[str, object]]]:
        """Both ends of each link, and its properties in the words of files."""
        for number in range(len(self)):
            values = {
                "gbps": decimal(self.gbps[number]),
                "lanes": int(self.lanes[number]),
                "latency_ns": decimal(self.latency_ns[number]),
                "kind": LINK_KINDS[self.kind[number]],
                "rail": int(self.rail[number]),
            }
            yield int(self.low[number]), int(self.high[number]), values


@dataclass(frozen=True, eq=False)
class Joined:
    """Neighbours in order, with the total bandwidth of all links between two of them.

    ``latency_ns`` is that of the slowest link. ``lost`` lists the losses of joining.
    """

    low: IntArray
    high: IntArray
    capacity_gbps: FloatArray
    lanes: IntArray
    latency_ns: FloatArray
    kind: IntArray
    lost: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.low)

    def where(self, chosen: NDArray[np.bool_]) -> Joined:
        """Some of the neighbours."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "lost"}
        return replace(self, **{name: values[chosen] for name, values in arrays.items()})


def wires(topology: Topology) -> Wires:
    """One entry for both directions; ValueError where a link has one only."""
    links = topology.links
    up = np.flatnonzero(links.src < links.dst)
    down = np.flatnonzero(links.src > links.dst)
    sort_keys = [getattr(links, name) for name in _COLUMNS]
    there = np.lexsort([*(column[up] for column in sort_keys), links.dst[up], links.src[up]])
    back = np.lexsort([*(column[down] for column in sort_keys), links.src[down], links.dst[down]])
    pairs = zip((links.src, links.dst, *sort_keys), (links.dst, links.src, *sort_keys), strict=True)
    if len(up) != len(down) or any(
        not np.array_equal(forward[up][there], backward[down][back]) for forward, backward in pairs
    ):
        raise UserError(
            f"topology: got a {topology.family} with links that lead one way only; allowed:"
            " links that lead both ways alike"
        )
    columns = {"low": links.src, "high": links.dst} | dict(zip(_COLUMNS, sort_keys, strict=True))
    rates = ("gbps", "latency_ns")
    return Wires(**{n: v[up] if n in rates else v[up].astype(np.int64) for n, v in columns.items()})


def join(topology: Topology) -> Joined:
    """All links between two vertices as one."""
    links = wires(topology)
    key = links.low * topology.vertices + links.high
    pairs, first, where = np.unique(key, return_index=True, return_inverse=True)
    latency_ns = np.zeros(len(pairs))
    np.maximum.at(latency_ns, where, links.latency_ns)
    lost = []
    if len(pairs) < len(links) or (links.lanes > 1).any():
        lost.append("parallel links between two vertices are one, with their bandwidth together")
    if (links.latency_ns < latency_ns[where]).any():
        lost.append("where parallel links differ in latency, the longest one stands for all")
    return Joined(
        low=pairs // topology.vertices,
        high=pairs % topology.vertices,
        capacity_gbps=np.bincount(where, links.gbps * links.lanes).astype(np.float64),
        lanes=np.bincount(where, links.lanes).astype(np.int64),
        latency_ns=latency_ns,
        kind=links.kind[first],
        lost=tuple(lost),
    )


def decimal(value: float) -> str:
    """A number for other tools: exact, without an exponent."""
    return np.format_float_positional(float(value), trim="-")
