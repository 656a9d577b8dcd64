"""RailX set to a 2D HyperX: every row and column of nodes is an all-to-all.

The all-to-all consists of rail rings (RailX, theorem 3.1), each through all nodes of a
line. Any c positions of a line keep two links per pair, which make 2 (c - 1) directed
rings.

Routing takes a rail along the row, a rail along the column and a walk to the chip.
Every ordered pair of nodes of a line has two links, which start at different chips; the
routings differ in how packets choose between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from railx.families import railx_split
from railx.families.family import check_radix, shared_fields, size_check
from railx.families.node_grids import RailXSettings, in_node_lanes_per_chip, node_grid_family
from railx.families.railx_lines import ALL_TO_ALLS, PartedSettings, ports
from railx.families.railx_split import RailXSplitSettings
from railx.settings import SettingsError
from railx.vocabulary.circuit_checks import check_ports
from railx.vocabulary.counts import Bill
from railx.vocabulary.grid import build_lines, line_wiring, ring_arcs
from railx.vocabulary.grid_rings import Arc, GridRings
from railx.vocabulary.hamiltonian import hamiltonian_cycles, undirected_rings
from railx.vocabulary.line_parts import LinePart
from railx.vocabulary.topology import Circuits, Topology

__all__ = ["FAMILY", "RailXHyperXSettings", "square"]


@dataclass(frozen=True)
class RailXHyperXSettings(PartedSettings):
    """RailX set to a 2D HyperX: (r + 1)^2 nodes of m x m chips with r = m * n rails a
    side.
    """

    family: Literal["railx_hyperx"]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rails + 1, self.rails + 1

    @property
    def parts(self) -> tuple[tuple[LinePart, ...], tuple[LinePart, ...]]:
        """A row and a column, each an all-to-all on all rails."""
        line = LinePart("all_to_all", self.rails, self.rails + 1, 1)
        return (line,), (line,)

    def __post_init__(self) -> None:
        super().__post_init__()
        rails = self.rails
        if rails < 2:
            raise SettingsError(
                "n",
                f"m * n = {rails} rail cannot close a ring over its 2 nodes; allowed: m * n of at"
                " least 2",
            )
        if rails in (3, 5) and self.rings == "directed":
            raise SettingsError(
                "n",
                f"m * n = {rails} rails make lines of N = {rails + 1} nodes, and K*_{rails + 1} has"
                f" no directed Hamiltonian decomposition (nor has K*_{10 - rails - 1}); allowed: m"
                " * n = 2, 4 or at least 6, or rings=undirected",
            )
        fits = ((self.ocs_radix or 0) // 2 - 1) // self.m
        fit = f"or n = {fits} for this radix"
        fit = fit if fits * self.m >= 2 else "no n fits this radix with this m"
        check_radix(self.ocs_radix, rails + 1, fit=fit)


# Graph


def build(settings: RailXHyperXSettings) -> Topology:
    """Build the topology, two full-duplex links for every pair of nodes of a line."""
    decompose = hamiltonian_cycles if settings.rings == "directed" else undirected_rings
    grid = settings.grid
    arcs = ring_arcs(decompose(grid.columns), grid.rows)
    return build_lines(settings, grid, arcs, arcs)


def check_circuits(settings: RailXHyperXSettings, circuits: Circuits) -> None:
    """Check the circuits of the all-to-alls; ValueError names the first fault.

    Every port belongs to its node. With directed rings exactly one rail joins every
    ordered pair of nodes of a line, with undirected rings exactly two join every
    unordered pair.
    """
    nodes, directed = settings.grid.nodes, settings.rings == "directed"
    check_ports(circuits, settings.grid, paired=False)
    a, b = circuits.node_a.astype(np.int64), circuits.node_b.astype(np.int64)
    if not directed:
        a, b = np.minimum(a, b), np.maximum(a, b)
    side = int(circuits.port_a.max()) // 2 + 1
    expected = 1 if directed else 2
    pairs, joined = np.unique(a * nodes + b, return_counts=True)
    expected_pairs = 2 * side * side * (side - 1) // expected
    if len(pairs) != expected_pairs or (joined != expected).any():
        worst = int(np.abs(joined - expected).argmax())
        node_a, node_b = divmod(int(pairs[worst]), nodes)
        raise ValueError(
            f"circuits: {len(pairs)} pairs of nodes are joined instead of {expected_pairs}; nodes"
            f" {node_a} and {node_b} by {int(joined[worst])} rails; allowed: each"
            f" {'ordered' if directed else 'unordered'} pair of a line by {expected}"
        )


def longest_path_ns(settings: RailXHyperXSettings) -> float:
    """Bound of the latency of any path: two rails and three longest walks."""
    return 2 * settings.external_latency_ns + 6 * (settings.m - 1) * settings.internal_latency_ns


class AllToAllLineRings(GridRings):
    """Rings of any part of a line over the links among its nodes."""

    joined: ClassVar[bool] = True
    full_lines_only: ClassVar[bool] = True

    def arcs(self, positions: Sequence[int], dimension: int) -> tuple[list[list[Arc]], bool]:
        """The directed rings through positions of a line, always closed."""
        if len(positions) < self.length(dimension):
            return _part_rings(self.topology, positions, dimension), True
        return super().arcs(positions, dimension)


def _part_rings(topology: Topology, positions: Sequence[int], dimension: int) -> list[list[Arc]]:
    """Both directions of the undirected rings over some positions of an all-to-all
    line.

    Each ring set uses each of a pair's two links once.
    """
    wiring = line_wiring(topology, dimension)

    def arc(a: int, b: int, link: int) -> Arc:
        low, high = min(a, b), max(a, b)
        return Arc(
            a, b, int(wiring.rail[low, high, link]), bool(wiring.plus[low, high, link]) == (a < b)
        )

    if len(positions) == 2:
        a, b = positions
        return [[arc(a, b, link), arc(b, a, link)] for link in (0, 1)]
    used: Counter[tuple[int, int]] = Counter()
    rings = []
    for order in undirected_rings(len(positions)).tolist():
        nodes = [positions[index] for index in order]
        up = []
        for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            pair = (min(a, b), max(a, b))
            up.append(arc(a, b, used[pair]))
            used[pair] += 1
        rings += [up, [arc_up.back for arc_up in reversed(up)]]
    return rings


# Bill of materials


def resize(settings: RailXHyperXSettings, chips: int) -> RailXHyperXSettings | RailXSplitSettings:
    """The smallest grid of complete all-to-alls with at least ``chips`` chips.

    Where that is no full square, a ``railx_split`` of one size per line.
    """
    side, rails = settings.rails + 1, settings.rails
    sized = railx_split.resize(
        RailXSplitSettings(
            family="railx_split",
            sizes_x=(side,),
            split_x=(rails,),
            sizes_y=(side,),
            split_y=(rails,),
            rings="undirected",
            **shared_fields(settings, RailXSettings),
        ),
        chips,
    )
    return settings if sized.sizes_x == sized.sizes_y == (side,) else sized


def square(settings: RailXHyperXSettings, m: int | None, n: int | None) -> RailXHyperXSettings:
    """The largest square all-to-all of nodes of ``m`` x ``m`` chips, ``n`` ports a
    side.

    None: as in ``settings``. Optical switches have just the ports for r + 1 nodes.
    """
    m, n = settings.m if m is None else m, settings.n if n is None else n
    rings = "undirected" if m * n in (3, 5) else settings.rings
    return replace(settings, m=m, n=n, rings=rings, ocs_radix=2 * (m * n + 1))


FAMILY = node_grid_family(
    "railx_hyperx",
    RailXHyperXSettings,
    **ALL_TO_ALLS,
    build=build,
    check=size_check("n", lambda of: of.grid.link_rows),
    check_circuits=check_circuits,
    longest_path_ns=longest_path_ns,
    grid_rings=lambda settings, topology: AllToAllLineRings(topology, settings.grid),
    bill=Bill(ports=ports, resize=resize, in_node_lanes=in_node_lanes_per_chip, square=square),
)
