"""Resizing a network: the smallest member of its family with at least so many chips and
the same ports per chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, TypeVar, cast

from railx.economics.designs import chips_of, count_network
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
    largest_tree,
)
from railx.settings import SettingsError

__all__ = ["at_scale"]

D = TypeVar("D", bound=NetworkDesign)
#: How far above the smallest size a RailX setting may go for a better shape.
_SLACK = 1.1
#: The sizes of a row and of a column.
_Grid = tuple[tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=4096)
def at_scale(design: D, chips: int) -> D:
    """The smallest size of the design's family with at least ``chips`` chips; ports per
    chip, node and switches are kept.

    Among equal sizes the one with the most all-to-all bandwidth. Trees take as few
    tiers as reach the size, HyperX as few dimensions and then the narrowest, which has
    most chips a switch. A RailX HyperX of one dimension a line takes lines whose
    all-to-all uses every rail; the other RailX settings take the most all-to-all
    bandwidth among sizes up to a tenth above the smallest, so that they are not drawn
    out. Raises SettingsError("chips") with the largest size where the family ends
    earlier.
    """
    if chips < 2:
        raise SettingsError("chips", f"got {chips}; allowed: at least 2; the nearest is 2")
    return cast("D", _RESIZE[type(design)](design, chips))


def _best(options: Iterator[Any]) -> Any:
    """The most all-to-all bandwidth, then the fewest chips."""
    return max(
        options,
        key=lambda option: (
            count_network(option).all_to_all_gb_s_per_chip or 0.0,
            -chips_of(option),
        ),
    )


def _smallest(options: Iterator[Any], chips: int, what: str) -> Any:
    best, best_rank, largest = None, (math.inf, 0.0), 0
    for option in options:
        size = chips_of(option)
        largest = max(largest, size)
        if chips <= size <= best_rank[0]:
            rank = (size, -(count_network(option).all_to_all_gb_s_per_chip or 0.0))
            if rank < best_rank:
                best, best_rank = option, rank
    if best is None:
        raise _too_large(chips, largest, what)
    return best


def _too_large(chips: int, largest: int, what: str) -> SettingsError:
    return SettingsError(
        "chips", f"got {chips}; allowed: at most {largest} ({what}); the nearest is {largest}"
    )


def _railx(design: RailXSettings, chips: int) -> RailXSettings:
    rails, line = design.m * design.n, design.optical_switch_radix // 2
    rows, columns = _lines(design, "row", rails, line), _lines(design, "column", rails, line)
    pairs: list[_Grid]
    if design.setting == "twisted_torus":
        pairs = [((2 * size,), (size,)) for size in range(2, line // 2 + 1)]
    else:
        pairs = [
            (row, column)
            for row in rows
            for column in columns
            if design.setting == "dragonfly" or row >= column
        ]
    node = design.m**2
    sizes = [math.prod(row) * math.prod(column) * node for row, column in pairs]
    if max(sizes) < chips:
        raise _too_large(
            chips,
            max(sizes),
            f"nodes of {design.m} x {design.m} chips, {design.optical_switch_radix}-port switches",
        )
    least = min(size for size in sizes if size >= chips)
    flat = design.setting == "hyperx" and len(design.row) == len(design.column) == 1
    most = least if flat else int(_SLACK * least)
    near = [pair for pair, size in zip(pairs, sizes, strict=True) if least <= size <= most]
    return cast(
        "RailXSettings", _best(replace(design, row=row, column=column) for row, column in near)
    )


def _lines(design: RailXSettings, key: str, rails: int, line: int) -> list[tuple[int, ...]]:
    """The sizes a row (a column) can have in the design's setting, with as many logical
    dimensions as it has now.
    """
    dimensions = len(getattr(design, key))
    all_to_all = design.setting == "hyperx" or (design.setting == "dragonfly" and key == "row")
    if not all_to_all:
        return [(size,) for size in range(2, line + 1)]
    if dimensions == 1:
        return [(size,) for size in range(2, min(rails + 1, line) + 1) if rails % (size - 1) == 0]
    return [
        sizes
        for sizes in combinations_with_replacement(range(line, 1, -1), dimensions)
        if math.prod(sizes) <= line and sum(size - 1 for size in sizes) <= rails
    ]


def _torus(design: TorusSettings, chips: int) -> TorusSettings:
    """As near to a square (cube) as holds the chips: the sizes differ by one at most."""
    nodes = math.ceil(chips / design.m ** len(design.sizes))
    side = max(2, math.ceil(nodes ** (1 / len(design.sizes)) - 1e-9))
    sizes = [side] * len(design.sizes)
    for place in range(len(sizes)):
        if side > 2 and math.prod(sizes) // side * (side - 1) >= nodes:
            sizes[place] = side - 1
    return replace(design, sizes=tuple(sorted(sizes, reverse=True)))


def _cubes(design: CubesSettings, chips: int) -> CubesSettings:
    largest = design.optical_switch_radix // 2
    options = (
        replace(design, sizes=(z, y, x))
        for x in range(1, largest + 1)
        for y in range(x, largest // x + 1)
        for z in range(y, largest // (x * y) + 1)
    )
    return cast(
        "CubesSettings",
        _smallest(
            options, chips, f"all cubes on every switch of {design.optical_switch_radix} ports"
        ),
    )


def _hammingmesh(design: HammingMeshSettings, chips: int) -> HammingMeshSettings:
    largest, boards = design.switch_radix**2 // 4, math.ceil(chips / design.m**2)
    if boards > largest**2:
        raise _too_large(
            chips,
            largest**2 * design.m**2,
            f"two levels of {design.switch_radix}-port switches in a line",
        )
    row = max(2, math.ceil(math.sqrt(boards) - 1e-9))
    return replace(design, row_boards=row, column_boards=max(2, math.ceil(boards / row)))


def _fewest_tiers(ends: int, tiers: int, radix: int, taper: float, chips: int, per_end: int) -> int:
    fitting = [count for count in range(1, tiers + 1) if ends <= largest_tree(count, radix, taper)]
    if not fitting:
        raise _too_large(
            chips,
            largest_tree(tiers, radix, taper) * per_end,
            f"{tiers} tiers of {radix}-port switches",
        )
    return fitting[0]


def _fat_tree(design: FatTreeSettings, chips: int) -> FatTreeSettings:
    return replace(
        design,
        chips=chips,
        tiers=_fewest_tiers(chips, design.tiers, design.switch_radix, design.taper, chips, 1),
    )


def _rails(design: RailsSettings, chips: int) -> RailsSettings:
    nodes = max(2, math.ceil(chips / design.chips_per_node))
    per_end = 1 if design.joined else design.chips_per_node
    ends = nodes * design.chips_per_node // per_end
    tiers = _fewest_tiers(ends, design.tiers, design.switch_radix, 1.0, chips, per_end)
    return replace(design, chips=nodes * design.chips_per_node, tiers=tiers)


def _dragonfly(design: DragonflySettings, chips: int) -> DragonflySettings:
    group = 2 * design.terminals**2
    groups, largest = max(2, math.ceil(chips / group)), group + 1
    if groups > largest:
        raise _too_large(
            chips, largest * group, f"one link between any two groups of {group} chips"
        )
    return replace(design, groups=groups)


def _hyperx(design: HyperXSettings, chips: int) -> HyperXSettings:
    """The narrowest that holds the chips with no more chips than ``size`` a switch, so
    that all-to-all is not cut.
    """
    largest = 0
    for dimensions in range(1, design.dimensions + 1):
        for size in range(2, design.switch_radix):
            room = min(size, design.switch_radix - dimensions * (size - 1))
            if room < 1:
                break
            largest = max(largest, room * size**dimensions)
            terminals = math.ceil(chips / size**dimensions)
            if terminals <= room:
                return replace(design, dimensions=dimensions, size=size, terminals=terminals)
    raise _too_large(
        chips, largest, f"{design.dimensions} dimensions of {design.switch_radix}-port switches"
    )


def _rail_optimised(design: RailOptimisedSettings, chips: int) -> RailOptimisedSettings:
    return replace(design, servers=max(2, math.ceil(chips / design.gpus_per_server)))


def _opus_rails(design: OpusRailsSettings, chips: int) -> OpusRailsSettings:
    servers, largest = (
        max(2, math.ceil(chips / design.gpus_per_server)),
        design.optical_switch_radix // design.ocs_ports_per_gpu,
    )
    if servers > largest:
        raise _too_large(
            chips,
            largest * design.gpus_per_server,
            f"one switch of {design.optical_switch_radix} ports a rail",
        )
    return replace(design, servers=servers)


_RESIZE: dict[type, Callable[[Any, int], Any]] = {
    RailXSettings: _railx,
    TorusSettings: _torus,
    CubesSettings: _cubes,
    HammingMeshSettings: _hammingmesh,
    FatTreeSettings: _fat_tree,
    RailsSettings: _rails,
    DragonflySettings: _dragonfly,
    HyperXSettings: _hyperx,
    RailOptimisedSettings: _rail_optimised,
    OpusRailsSettings: _opus_rails,
}
