"""What each network is built of and how much bandwidth it gives, in closed form.

RailX and its rivals follow the counts per chip port of RailX (m x m chips a node, n
ports a side, r = m n rails); the electrical rail-optimised network of design
``rail_optimised`` and the photonic rails follow the released cost script of Opus (fig.
15). One direction of a port counts as its bandwidth. Ports are counted as used: a
switch that is not full is charged by the port. Chips, links inside a node and fibres
are in no bill: no source gives their price (``in_node_lanes_per_chip`` counts the links
inside a RailX node, so that a break-even price can be shown).

All-to-all bandwidth is uniform traffic that is routed minimally with ties spread
evenly: for every kind of link, its ports per chip over the mean number of such links on
a path, the least of them, and never more than the injection bandwidth. Bisection is one
direction across the middle of the longest dimension (tori and grids) or of the groups,
per chip of one half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from railx.economics.settings import (
    CubesSettings,
    DragonflySettings,
    FatTreeSettings,
    HammingMeshSettings,
    HyperXSettings,
    NetworkDesign,
    OpusRailsSettings,
    RailOptimisedSettings,
    RailsSettings,
    RailXSettings,
    TorusSettings,
)
from railx.vocabulary.counts import NetworkCounts

__all__ = [
    "NetworkCounts",
    "chips_of",
    "count_network",
    "in_node_lanes_per_chip",
    "optical_switches",
    "railx_all_to_all_ports",
    "railx_external_hops",
]

_BITS_PER_BYTE = 8


@dataclass(frozen=True)
class _Ports:
    """The same in ports per chip."""

    components: dict[str, int]
    injection: float
    all_to_all: float | None
    bisection: float | None


def count_network(design: NetworkDesign) -> NetworkCounts:
    """Component counts and bandwidths (GB/s per chip) of a network design."""
    ports, chips = _FAMILIES[type(design)].ports(design), chips_of(design)
    port_gb_s = design.port_gbps / _BITS_PER_BYTE
    all_to_all = None if ports.all_to_all is None else min(ports.all_to_all, ports.injection)
    return NetworkCounts(
        chips=chips,
        components={name: count for name, count in ports.components.items() if count},
        injection_gb_s_per_chip=ports.injection * port_gb_s,
        all_to_all_gb_s_per_chip=None if all_to_all is None else all_to_all * port_gb_s,
        bisection_gb_s_per_chip=None if ports.bisection is None else ports.bisection * port_gb_s,
    )


def chips_of(design: NetworkDesign) -> int:
    """Number of chips of a network design."""
    return _FAMILIES[type(design)].chips(design)


# RailX


def optical_switches(design: RailXSettings) -> int:
    """Number of OCSes: one per rail in each row and column of the grid; R r where it is
    full (RailX, physical organisation).
    """
    return (math.prod(design.row) + math.prod(design.column)) * design.m * design.n


def railx_external_hops(design: RailXSettings) -> float:
    """Mean optical hops of a packet under uniform traffic, minimally routed.

    In a square HyperX 2 (N - N/(r+1)) / (N-1) with N chips (RailX, bandwidth formulas).
    """
    if design.setting == "dragonfly":
        return sum(_dragonfly_hops(design.row[0], design.column[0], design.m**2))
    if design.setting == "hyperx":
        return _other_chip(design) * sum(
            (size - 1) / size for size in (*design.row, *design.column)
        )
    return _railx_torus_chip_hops(design) / design.m


def railx_all_to_all_ports(design: RailXSettings) -> float:
    """Upper bound of uniform all-to-all per chip in ports; 4 n / (m h) with h external
    hops in a square HyperX.

    A dimension of a split HyperX has as many whole all-to-alls as its line has rails
    for; what is left over is not counted.
    """
    m, n = design.m, design.n
    if design.setting == "hyperx":
        other = _other_chip(design)
        bounds = []
        for sizes in (design.row, design.column):
            copies = (m * n) // sum(size - 1 for size in sizes)
            bounds += [
                2 * copies * (size - 1) / m**2 / ((size - 1) / size * other) for size in sizes
            ]
        return min(bounds)
    if design.setting == "dragonfly":
        return min(
            2 * n / m / hops for hops in _dragonfly_hops(design.row[0], design.column[0], m**2)
        )
    if design.setting == "torus":
        return _torus_all_to_all((m * design.row[0], m * design.column[0]), n)
    return min(
        4 * n / _railx_torus_chip_hops(design),
        16 * n * (1 - 1 / _railx_chips(design)) / (m * design.row[0]),
    )


def in_node_lanes_per_chip(design: RailXSettings) -> float:
    """Width of the links inside a node, in external ports per chip: 2 m (m-1) neighbour
    pairs, n links each, k ports wide.
    """
    return 2 * (design.m - 1) * design.n * design.in_node_width / design.m


def _railx(design: RailXSettings) -> _Ports:
    m, n, rails = design.m, design.n, design.m * design.n
    ports = 4 * rails * math.prod(design.row) * math.prod(design.column)
    return _Ports(
        {"transceiver": ports, "ocs_port": ports},
        4 * n,
        railx_all_to_all_ports(design),
        _railx_bisection(m, rails, design),
    )


def _railx_bisection(m: int, rails: int, design: RailXSettings) -> float:
    """The HyperX has copies x 2 links between any two nodes of a dimension; a torus two
    ends of r rails in every line.
    """
    if design.setting == "hyperx":
        lines = [
            (size, rails // sum(s - 1 for s in sizes))
            for sizes in (design.row, design.column)
            for size in sizes
        ]
        return min(
            4 * copies * (size // 2) * (size - size // 2) / size / m**2 for size, copies in lines
        )
    if design.setting == "dragonfly":
        groups = design.column[0]
        return 4 * rails * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1)) / m**2
    longest = max(design.row[0], design.column[0])
    # The twist makes every wrap link of the short dimension cross the cut as well.
    return (8 if design.setting == "twisted_torus" else 4) * rails / longest / m**2


def _railx_chips(design: RailXSettings) -> int:
    return math.prod(design.row) * math.prod(design.column) * design.m**2


def _other_chip(design: RailXSettings) -> float:
    """N / (N - 1): a destination is never the source itself."""
    chips = _railx_chips(design)
    return chips / (chips - 1)


def _dragonfly_hops(group: int, groups: int, chips_per_node: int) -> tuple[float, float]:
    """Mean hops inside and between groups: a packet to another group leaves by a random
    node and arrives at a random one.
    """
    chips = group * groups * chips_per_node
    between = (groups - 1) / groups * chips / (chips - 1)
    inside = (group - 1) / group * chips / (chips - 1)
    return inside / groups + 2 * between * (group - 1) / group, between


def _railx_torus_chip_hops(design: RailXSettings) -> float:
    """Mean hops of chips over links in and between nodes, counted from one chip (a
    torus looks alike from every chip).
    """
    x, y = (
        np.arange(design.m * design.row[0])[:, None],
        np.arange(design.m * design.column[0])[None, :],
    )
    width, height = x.shape[0], y.shape[1]
    twist = height if design.setting == "twisted_torus" else 0
    distance = np.full((width, height), width + height)
    for up in (-2, -1, 0, 1, 2):
        along = (x + up * twist) % width
        distance = np.minimum(distance, np.minimum(along, width - along) + np.abs(y + up * height))
    return float(distance.sum() / (width * height - 1))


# Tori


def _torus_all_to_all(chips: tuple[int, ...], n: int) -> float:
    """2 n ports per dimension over its mean hops; the longest dimension binds (8 n / K
    in an even torus with K chips a side).
    """
    total = math.prod(chips)
    longest = max(chips)
    return 2 * n / (longest**2 // 4 / longest * total / (total - 1))


def _torus(design: TorusSettings) -> _Ports:
    sizes, m, n = design.sizes, design.m, design.n
    faces = 2 * len(sizes) * m ** (len(sizes) - 1) * n
    longest = m * max(sizes)
    all_to_all = _torus_all_to_all(tuple(m * size for size in sizes), n)
    return _Ports(
        {"transceiver": faces * math.prod(sizes)}, 2 * len(sizes) * n, all_to_all, 4 * n / longest
    )


def _cubes(design: CubesSettings) -> _Ports:
    faces = 6 * design.edge**2 * design.n * math.prod(design.sizes)
    lengths = tuple(design.edge * size for size in design.sizes)
    components = {"transceiver": faces, "ocs_port": faces}
    return _Ports(
        components, 6 * design.n, _torus_all_to_all(lengths, design.n), 4 * design.n / max(lengths)
    )


# Electrical switches


def _hammingmesh(design: HammingMeshSettings) -> _Ports:
    """An end is a port of a board at a switch: 2 n of them per board and line of chips;
    a board has m lines in each dimension.
    """
    m, n, chips = design.m, design.n, _hammingmesh_chips(design)
    switch_ports = transceivers = copper = 0
    bounds, cuts = [], []
    for key in ("row_boards", "column_boards"):
        boards = getattr(design, key)
        ends = 2 * m * n * design.row_boards * design.column_boards
        two_levels = 2 * boards > design.switch_radix
        uplinks = math.ceil(ends * design.taper) if two_levels else 0
        switch_ports += ends + 2 * uplinks
        wired = design.copper_rows and key == "row_boards"
        transceivers += (0 if wired else 2 * ends) + 2 * uplinks
        copper += ends if wired else 0
        across = (boards - 1) / boards * chips / (chips - 1)
        bounds.append(2 * n / m / across)
        cuts.append(2 * n / m * (design.taper if two_levels else 1.0))
        if two_levels:
            under = max(1, int(design.switch_radix / (1 + design.taper)) // 2)
            if under < boards:
                bounds.append(
                    2 * n / m * design.taper / ((boards - under) / boards * chips / (chips - 1))
                )
    components = {
        "electrical_switch_port": switch_ports,
        "transceiver": transceivers,
        "copper_cable": copper,
    }
    return _Ports(components, 4 * n, min(bounds), min(cuts))


def _hammingmesh_chips(design: HammingMeshSettings) -> int:
    return design.row_boards * design.column_boards * design.m**2


def _fat_tree(design: FatTreeSettings) -> _Ports:
    """Per end port of a full tree: 2 T - 1 switch ports and 2 T transceivers in T
    tiers; the top tier has no ports upwards.
    """
    ends = design.chips * design.ports_per_chip
    levels = design.tiers - 1
    uplinks = math.ceil(ends * design.taper) if levels else 0
    components = {
        "electrical_switch_port": ends + 2 * levels * uplinks,
        "transceiver": (0 if design.copper_to_leaf else 2 * ends) + 2 * levels * uplinks,
        "copper_cable": ends if design.copper_to_leaf else 0,
    }
    taper, share = (design.taper if levels else 1.0), 1.0
    if taper < 1:
        under = int(design.switch_radix / (1 + taper))
        share = (
            min(1.0, taper * (design.chips - 1) / (design.chips - under))
            if under < design.chips
            else 1.0
        )
    return _Ports(
        components,
        design.ports_per_chip,
        design.ports_per_chip * share,
        design.ports_per_chip * taper,
    )


def _rails(design: RailsSettings) -> _Ports:
    """Counts of the tree that a rail (or all rails together) makes; between rails a
    packet first moves inside its node.
    """
    ends = design.chips * design.ports_per_chip
    components = {
        "electrical_switch_port": ends * (2 * design.tiers - 1),
        "transceiver": ends * 2 * design.tiers,
    }
    return _Ports(components, design.ports_per_chip, design.ports_per_chip, design.ports_per_chip)


def _dragonfly(design: DragonflySettings) -> _Ports:
    """Switches of 4 p - 1 ports: p to chips, 2 p - 1 to the group, p to other groups."""
    p, planes = design.terminals, design.ports_per_chip
    switches = 2 * p * design.groups * planes
    terminal, local, world = p * switches, (2 * p - 1) * switches, p * switches
    components = {
        "electrical_switch_port": terminal + local + world,
        "transceiver": world if design.copper_in_group else 2 * terminal + local + world,
        "copper_cable": terminal + local // 2 if design.copper_in_group else 0,
    }
    inside, between = _dragonfly_hops(2 * p, design.groups, p)
    share = min((2 * p - 1) / p / inside, 1 / between)
    groups = design.groups
    cut = 2 * (groups // 2) * (groups - groups // 2) / (groups * (groups - 1))
    return _Ports(components, planes, planes * min(share, 1.0), planes * cut)


def _dragonfly_chips(design: DragonflySettings) -> int:
    return 2 * design.terminals**2 * design.groups


def _hyperx(design: HyperXSettings) -> _Ports:
    """Switches with p terminals and D (S - 1) ports to others: all-to-all is S / p of a
    port, capped by the injection.
    """
    p, size, planes, chips = (
        design.terminals,
        design.size,
        design.ports_per_chip,
        _hyperx_chips(design),
    )
    switches = size**design.dimensions * planes
    between = design.dimensions * (size - 1) * switches
    components = {
        "electrical_switch_port": p * switches + between,
        "transceiver": 2 * p * switches + between,
    }
    cut = 2 * (size // 2) * (size - size // 2) / (size * p)
    return _Ports(components, planes, planes * size / p * (chips - 1) / chips, planes * cut)


def _hyperx_chips(design: HyperXSettings) -> int:
    terminals: int = design.terminals * design.size**design.dimensions
    return terminals


# Opus artifact


def _rail_optimised(design: RailOptimisedSettings) -> _Ports:
    """S servers, g rails, k = round(sqrt(4 S)) ports: 2 floor(S / floor(k/2)) leaves a
    rail, g S / k spines (Opus, fig. 15).
    """
    servers, rails = design.servers, design.gpus_per_server
    radix = round(math.sqrt(4 * servers))
    switches = rails * 2 * (servers // (radix // 2)) + rails * servers // radix
    ports, gpus = radix * switches, servers * rails
    transceivers = gpus + (ports if design.switch_side_transceivers else 0)
    return _Ports({"electrical_switch_port": ports, "transceiver": transceivers}, 1, 1, 1)


def _opus_rails(design: OpusRailsSettings) -> _Ports:
    ports = design.servers * design.gpus_per_server * design.ports_per_gpu
    components = {
        "ocs_port": ports * design.ocs_ports_per_gpu,
        "transceiver": ports * design.transceivers_per_gpu,
    }
    # Two circuits per GPU carry no all-to-all directly, and what is left over multiple
    # hops depends on the job.
    return _Ports(components, design.ports_per_gpu, None, None)


@dataclass(frozen=True)
class _Family:
    ports: Callable[[Any], _Ports]
    chips: Callable[[Any], int]


_FAMILIES: dict[type, _Family] = {
    RailXSettings: _Family(_railx, _railx_chips),
    TorusSettings: _Family(
        _torus, lambda design: math.prod(design.sizes) * design.m ** len(design.sizes)
    ),
    CubesSettings: _Family(_cubes, lambda design: math.prod(design.sizes) * design.edge**3),
    HammingMeshSettings: _Family(_hammingmesh, _hammingmesh_chips),
    FatTreeSettings: _Family(_fat_tree, lambda design: design.chips),
    RailsSettings: _Family(_rails, lambda design: design.chips),
    DragonflySettings: _Family(_dragonfly, _dragonfly_chips),
    HyperXSettings: _Family(_hyperx, _hyperx_chips),
    RailOptimisedSettings: _Family(
        _rail_optimised, lambda design: design.servers * design.gpus_per_server
    ),
    OpusRailsSettings: _Family(_opus_rails, lambda design: design.servers * design.gpus_per_server),
}
