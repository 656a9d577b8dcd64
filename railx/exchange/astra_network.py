"""Networks for ASTRA-sim.

Its analytical backend takes products of rings, full meshes and switches, described by a
few numbers; :func:`dimensions` decides whether a network is one, exactly and in the
order of its chips. Its ns-3 backend takes any network as a list of links.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from railx.errors import UserError
from railx.exchange.wires import Exported, Joined, decimal, join
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.topology import Topology

#: A gigabyte of the analytical backend, in bytes: 2^30, not 10^9.
_GIGABYTE = 2**30


@dataclass(frozen=True)
class Dimension:
    """Lines of ``length`` chips and how the chips of a line are joined.

    ``gbps`` and ``latency_ns`` are those of a link, in a ``Switch`` of the link to it.
    ``switches`` counts those of a line.
    """

    block: Literal["Ring", "FullyConnected", "Switch"]
    length: int
    gbps: float
    latency_ns: float
    switches: int = 0


@dataclass(frozen=True, eq=False)
class _Links:
    """Links between chips, and the chips, bandwidth and latency of each switch."""

    chips: int
    between: Joined
    stars: tuple[tuple[IntArray, float, float], ...]

    def __bool__(self) -> bool:
        return len(self.between) > 0 or len(self.stars) > 0


def analytical(topology: Topology, name: str) -> Exported:
    """The analytical backend's YAML; ValueError where the network is no product."""
    product = dimensions(topology)
    if product is None:
        raise UserError(
            f"topology: got {name}, which is no product of rings, full meshes and switches with"
            " one bandwidth and latency a dimension; allowed for it: --format astra-ns3"
        )
    columns: dict[str, list[str]] = {
        "topology": [dimension.block for dimension in product],
        "npus_count": [str(dimension.length) for dimension in product],
        "bandwidth": [decimal(dimension.gbps / 8 * 1e9 / _GIGABYTE) for dimension in product],
        "latency": [decimal(dimension.latency_ns) for dimension in product],
    }
    units = {"bandwidth": "  # 2^30 byte/s", "latency": "  # ns"}
    lines = [
        f"{key}: [ {', '.join(values)} ]{units.get(key, '')}" for key, values in columns.items()
    ]
    lost = [*join(topology).lost]
    if any(dimension.switches > 1 for dimension in product):
        lost.append("the switches of a line are one, with their bandwidth together")
    return Exported("\n".join([*lines, ""]), tuple(lost))


def dimensions(topology: Topology) -> list[Dimension] | None:
    """The dimensions whose product the network is, that of neighbouring chips first.

    Chip c has position c // (lengths before) % length in a dimension. None where the
    network is no such product.
    """
    joined, chips = join(topology), topology.chips
    between = joined.high < chips
    if (joined.low >= chips).any():
        return None
    stars = []
    for switch in range(chips, topology.vertices):
        at_switch = joined.high == switch
        measures = joined.capacity_gbps[at_switch], joined.latency_ns[at_switch]
        kinds = [np.unique(values).tolist() for values in measures]
        if any(len(values) != 1 for values in kinds):
            return None
        ((gbps,), (latency_ns,)) = kinds
        stars.append((np.sort(joined.low[at_switch]), gbps, latency_ns))
    return _split(_Links(chips, joined.where(between), tuple(stars)), 1)


def _split(links: _Links, stride: int) -> list[Dimension] | None:
    """The dimensions from a stride on; links of smaller strides are removed."""
    if stride == links.chips:
        return None if links else []
    left = links.chips // stride
    for length in range(left, 1, -1):
        if left % length == 0:
            for dimension, rest in _dimension(links, stride, length):
                further = _split(rest, stride * length)
                if further is not None:
                    return [dimension, *further]
    return None


def _dimension(links: _Links, stride: int, length: int) -> Iterator[tuple[Dimension, _Links]]:
    """The dimension of this stride and length, if any, and the remaining links."""
    chips, between = np.arange(links.chips), links.between
    # Of each chip the position in its line, and the number of the line.
    positions = chips // stride % length
    line = chips // (stride * length) * stride + chips % stride
    inside = line[between.low] == line[between.high]
    rest = between.where(~inside)
    stars = [star for star in links.stars if len(np.unique(line[star[0]])) == 1]
    if inside.any() == bool(stars):  # neither, or both
        return
    if stars:
        per_line = np.bincount([line[chips[0]] for chips, _, _ in stars], minlength=line.max() + 1)
        kinds = {(len(chips), gbps, latency_ns) for chips, gbps, latency_ns in stars}
        if len(kinds) != 1 or per_line.min() != per_line.max():
            return
        ((size, gbps, latency_ns),) = kinds
        count = int(per_line[0])
        if size == length and count:
            others = tuple(star for star in links.stars if len(np.unique(line[star[0]])) > 1)
            dimension = Dimension("Switch", length, gbps * count, latency_ns, count)
            yield dimension, _Links(links.chips, rest, others)
        return
    lines = between.where(inside)
    if len(np.unique(lines.capacity_gbps)) > 1 or len(np.unique(lines.latency_ns)) > 1:
        return
    low, high = positions[lines.low], positions[lines.high]
    apart = np.minimum((low - high) % length, (high - low) % length)
    full = links.chips * (length - 1) // 2
    block: Literal["Ring", "FullyConnected"]
    # Every pair occurs at most once, so the number of links decides.
    if len(low) == full:
        block = "FullyConnected"
    elif len(low) == links.chips and (apart == 1).all():
        block = "Ring"
    else:
        return
    gbps, latency_ns = float(lines.capacity_gbps[0]), float(lines.latency_ns[0])
    yield Dimension(block, length, gbps, latency_ns), _Links(links.chips, rest, links.stars)


def ns3(topology: Topology, name: str) -> Exported:
    """The network as the physical topology of the ns-3 backend, and its logical one.

    Hosts of that backend do not forward. Where chips are joined to chips, each gets a
    router behind a link without latency, with the bandwidth of all the chip's links.
    """
    joined, chips = join(topology), topology.chips
    ends = np.stack([joined.low, joined.high])
    rows: list[tuple[Any, ...]] = []
    switches = list(range(chips, topology.vertices))
    lost = list(joined.lost)
    if (joined.high < chips).any():
        routers = topology.vertices
        rate = np.bincount(joined.low, joined.capacity_gbps, minlength=routers)
        rate += np.bincount(joined.high, joined.capacity_gbps, minlength=routers)
        rows = [(chip, routers + chip, float(rate[chip]), 0.0) for chip in range(chips)]
        ends[ends < chips] += routers
        switches += range(routers, routers + chips)
        lost.append(
            f"chips that forward: each has a router, {routers} higher in number, as hosts of"
            " ns-3 forward nothing"
        )
    columns = (*ends, joined.capacity_gbps, joined.latency_ns)
    rows += zip(*(values.tolist() for values in columns), strict=True)
    lines = [
        f"{chips + len(switches)} {len(switches)} {len(rows)}",
        " ".join(map(str, switches)),
        *(
            f"{low} {high} {decimal(gbps)}Gbps {decimal(latency_ns / 1e6)}ms 0"
            for low, high, gbps, latency_ns in rows
        ),
    ]
    product = dimensions(topology)
    lengths = [chips] if product is None else [dimension.length for dimension in product]
    assert prod(lengths) == chips
    logical = json.dumps({"logical-dims": [str(length) for length in lengths]}) + "\n"
    return Exported("\n".join([*lines, ""]), tuple(lost), ((".logical.json", logical),))
