"""Components and bandwidths of a network in closed form, the input of its bill.

RailX and its rivals follow the counts per chip port of RailX (m x m chips per node, n
ports per side, r = m n rails). One direction of a port counts as its bandwidth. Only
used ports count: a switch that is not full is charged by the port. Chips, links inside
a node and fibres are in no bill, as no source gives their price.

All-to-all bandwidth is that of uniform traffic, routed minimally with ties spread
evenly. Each kind of link bounds it by the link's ports per chip over the mean number of
such links on a path; the injection bandwidth bounds it too. Bisection is one direction
across the middle of the longest dimension (tori and grids) or of the groups, per chip
of one half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings

S = TypeVar("S")

_BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Ports:
    """The components of a network, and its bandwidths in ports per chip."""

    chips: int
    """Number of chips."""
    port_gbps: float
    """Rate of a port in one direction, the speed at which its parts are priced."""
    cables: Mapping[str, int]
    """Ends of cables by kind of link. An end is a transceiver, two ends are one copper
    cable."""
    injection: float
    """Ports that a chip injects through."""
    all_to_all: float | None
    """Ports per chip that uniform traffic fills at most; None: no closed form."""
    bisection: float | None
    """Ports per chip of one half across the middle; None: no closed form."""
    electrical_switch_ports: int = 0
    """Used ports of electrical switches."""
    ocs_ports: int = 0
    """Used ports of optical circuit switches."""


@dataclass(frozen=True)
class NetworkCounts:
    """Components of a network and its bandwidths per chip, one direction."""

    chips: int
    """Number of chips."""
    components: dict[str, int]
    """How many of each component of the price catalogue, those with none left out."""
    injection_gb_s_per_chip: float
    """Injection bandwidth of a chip."""
    all_to_all_gb_s_per_chip: float | None
    """Bandwidth of a chip under uniform traffic; None: no closed form."""
    bisection_gb_s_per_chip: float | None
    """Bandwidth across the middle per chip of one half; None: no closed form."""
    port_gbps: float
    """Speed at which the components are priced."""


@dataclass(frozen=True)
class TreeBill(Generic[S]):
    """The part of the bill that only trees of switches have."""

    tiers: Callable[[S], int]
    """Tiers of the tree that the settings describe."""
    filled: Callable[[S, int, float], S]
    """The tree with these tiers and this taper (uplinks per downlink of a leaf). It has
    as many of its chips as then fit."""
    leaf: str
    """Kind of the links between chips and leaf switches."""


def no_check(settings: Any) -> None:
    """Accept all settings: every network of the family can be priced."""


@dataclass(frozen=True)
class Bill(Generic[S]):
    """The bill of materials of a network family, from the settings of its graph."""

    ports: Callable[[S], Ports]
    """Components of a network and its bandwidths."""
    resize: Callable[[S, int], FamilySettings]
    """The smallest network with at least so many chips and the same ports per chip.

    It is of another family where only that has the shape. SettingsError("chips") names
    the largest."""
    check: Callable[[S], None] = no_check
    """Refuse settings of networks that cannot be priced."""
    copper: tuple[str, ...] = ()
    """Kinds of links whose cables may be copper."""
    countings: Mapping[str, Callable[[S], Ports]] = field(default_factory=dict)
    """Other ways to count the same network, by name."""
    tree: TreeBill[S] | None = None
    """The part of trees of switches alone."""
    in_node_lanes: Callable[[S], float] | None = None
    """Width of the links inside a node in external ports per chip. They are in no bill;
    it serves break-even prices."""
    square: Callable[[S, int | None, int | None], S] | None = None
    """The largest square all-to-all of nodes of m x m chips with n ports per side
    (None: as they are)."""
    count_chips: Callable[[S], int] | None = None
    """Chips alone, where the bandwidths of ``ports`` take long."""

    def chips(self, settings: S) -> int:
        """Chips of a network."""
        count = self.count_chips
        return self.ports(settings).chips if count is None else count(settings)


def count_ports(ports: Ports, copper: Collection[str] = ()) -> NetworkCounts:
    """Components and bandwidths (GB/s per chip) of a network.

    Cables of the kinds ``copper`` are copper. All others are fibres with a transceiver
    at each end.
    """
    components = {
        "electrical_switch_port": ports.electrical_switch_ports,
        "transceiver": sum(ends for kind, ends in ports.cables.items() if kind not in copper),
        "ocs_port": ports.ocs_ports,
        "copper_cable": sum(ends // 2 for kind, ends in ports.cables.items() if kind in copper),
    }
    port_gb_s = ports.port_gbps / _BITS_PER_BYTE
    all_to_all = None if ports.all_to_all is None else min(ports.all_to_all, ports.injection)
    return NetworkCounts(
        chips=ports.chips,
        components={name: count for name, count in components.items() if count},
        injection_gb_s_per_chip=ports.injection * port_gb_s,
        all_to_all_gb_s_per_chip=None if all_to_all is None else all_to_all * port_gb_s,
        bisection_gb_s_per_chip=None if ports.bisection is None else ports.bisection * port_gb_s,
        port_gbps=ports.port_gbps,
    )


# Shapes that several families share


def torus_all_to_all_ports(chips: tuple[int, ...], n: int) -> float:
    """All-to-all of a torus of single chips in ports per chip.

    It is 2 n ports per dimension over the mean hops of the longest dimension (8 n / K
    in an even torus with K chips per side).
    """
    total = math.prod(chips)
    longest = max(chips)
    return 2 * n / (longest**2 // 4 / longest * total / (total - 1))


def check_boards(side: int, **lengths: int) -> None:
    """Refuse a torus that is not made of whole boards of ``side`` chips per side."""
    for key, length in lengths.items():
        if length % side:
            below, above = max(1, length // side) * side, (length // side + 1) * side
            raise SettingsError(
                key,
                f"got {length}; allowed: whole boards of {side} chips per side (board_side); the"
                f" nearest are {below} and {above}",
            )


def torus_ports(lengths: tuple[int, ...], *, board_side: int, n: int, port_gbps: float) -> Ports:
    """A torus without switches: ``n`` ports on each side of a chip.

    Links between boards of ``board_side`` chips per side have a transceiver at each
    end.
    """
    dimensions = len(lengths)
    faces = 2 * dimensions * board_side ** (dimensions - 1) * n
    boards = math.prod(length // board_side for length in lengths)
    return Ports(
        chips=math.prod(lengths),
        port_gbps=port_gbps,
        cables={"external": faces * boards},
        injection=2 * dimensions * n,
        all_to_all=torus_all_to_all_ports(lengths, n),
        bisection=4 * n / max(lengths),
    )


def torus_boards(chips: int, dimensions: int, board_side: int) -> tuple[int, ...]:
    """Chips per dimension, the largest first, of the torus of boards nearest to a cube.

    It holds ``chips`` chips; the boards per dimension differ by at most one.
    """
    boards = math.ceil(chips / board_side**dimensions)
    side = max(2, math.ceil(boards ** (1 / dimensions) - 1e-9))
    sizes = [side] * dimensions
    for dimension in range(dimensions):
        if side > 2 and math.prod(sizes) // side * (side - 1) >= boards:
            sizes[dimension] = side - 1
    return tuple(board_side * size for size in sorted(sizes, reverse=True))


def dragonfly_hops(group: int, groups: int, chips_per_node: int) -> tuple[float, float]:
    """Mean hops inside and between groups.

    A packet to another group leaves at a random node and arrives at a random node.
    """
    chips = group * groups * chips_per_node
    between = (groups - 1) / groups * chips / (chips - 1)
    inside = (group - 1) / group * chips / (chips - 1)
    return inside / groups + 2 * between * (group - 1) / group, between


def opus_rail_switch_ports(servers: int, rails: int) -> int:
    """Switch ports of rails as the released cost script of Opus counts them (fig. 15).

    Switches have k = round(sqrt(4 S)) ports for S servers. A rail has 2 floor(S /
    floor(k/2)) leaves, and all rails have rails S / k spines. All their ports count.
    """
    radix = round(math.sqrt(4 * servers))
    return radix * (rails * 2 * (servers // (radix // 2)) + rails * servers // radix)


def opus_tree_switch_ports(chips: int) -> int:
    """Switch ports of a fat tree as the released cost script of Opus counts them.

    There are k^2 + floor(k^2 / 4) switches of k = round((4 G)^(1/3)) ports for G chips.
    """
    radix = round(math.pow(4 * chips, 1 / 3))
    return radix * (radix**2 + radix**2 // 4)


def largest_tree(tiers: int, radix: int, leaf_down: int | None = None) -> int:
    """Most end ports of a tree of ``radix``-port switches.

    ``leaf_down`` ports of a leaf lead to chips (None: half of them). A single tier is
    one switch without ports upwards. Two tiers have as many leaves as a switch has
    ports, three and more 2 (k/2)^(T-1).
    """
    if tiers == 1:
        return radix
    leaves = radix if tiers == 2 else 2 * (radix // 2) ** (tiers - 1)
    return leaves * (radix // 2 if leaf_down is None else leaf_down)


def tree_switches(leaves: int, uplinks: int, tiers: int, radix: int) -> int:
    """Switches of a tree with ``uplinks`` between any two tiers, part used or not."""
    if tiers == 1:
        return leaves
    return leaves + (tiers - 2) * math.ceil(2 * uplinks / radix) + math.ceil(uplinks / radix)


def fewest_tiers(
    ends: int, tiers: int, radix: int, leaf_down: int | None, *, chips: int, chips_per_end: int = 1
) -> int:
    """The fewest tiers, at most ``tiers``, of a tree with enough end ports.

    Raises SettingsError("chips") with the largest size where they are too few.
    """
    for count in range(1, tiers + 1):
        if ends <= largest_tree(count, radix, leaf_down):
            return count
    raise too_large(
        chips,
        largest_tree(tiers, radix, leaf_down) * chips_per_end,
        f"{tiers} tiers of {radix}-port switches",
    )


# Resizing


def too_large(chips: int, largest: int, what: str) -> SettingsError:
    """The error for more chips than the ``largest`` size of a family."""
    return SettingsError(
        "chips", f"got {chips}; allowed: at most {largest} ({what}); the nearest is {largest}"
    )


def fewest_units(chips: int, unit: int, most: int, what: str) -> int:
    """The fewest units of ``unit`` chips, at least 2; SettingsError above ``most``."""
    units = max(2, math.ceil(chips / unit))
    if units > most:
        raise too_large(chips, most * unit, what)
    return units


def best_size(options: Iterable[S], ports: Callable[[S], Ports]) -> S:
    """The settings with the most all-to-all bandwidth, then the fewest chips."""

    def rank(option: S) -> tuple[float, int]:
        counts = ports(option)
        return min(counts.all_to_all or 0.0, counts.injection), -counts.chips

    return max(options, key=rank)


def smallest_size(options: Iterable[S], chips: int, ports: Callable[[S], Ports], what: str) -> S:
    """The settings with the fewest chips, at least ``chips``.

    Among equals: the most all-to-all bandwidth. Raises SettingsError("chips") with the
    largest size where none is large enough.
    """
    best: S | None = None
    best_rank, largest = (math.inf, 0.0), 0
    for option in options:
        counts = ports(option)
        largest = max(largest, counts.chips)
        rank = (counts.chips, -min(counts.all_to_all or 0.0, counts.injection))
        if counts.chips >= chips and rank < best_rank:
            best, best_rank = option, rank
    if best is None:
        raise too_large(chips, largest, what)
    return best
