"""Jobs on a RailX grid: their nodes, their circuits, and a check of both.

Rails of X leave a node only along its row and rails of Y only along its column, and an
optical switch joins any two of its ports. A job can therefore take any set of rows
times any set of columns, and jobs with disjoint nodes share no port (RailX, abstract:
jobs of different shape and scale; the product rule follows from the wiring).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from railx.errors import UserError
from railx.tenancy.settings import GridJobSettings, Wiring, check_job
from railx.vocabulary.arrays import BoolArray, Int32Array, IntArray
from railx.vocabulary.hamiltonian import hamiltonian_cycles, undirected_rings
from railx.vocabulary.topology import Circuits, join_rows, plus_to_minus_circuits


@dataclass(frozen=True)
class NodeGrid:
    """``side`` x ``side`` nodes with ``rails`` rails per side.

    Switch i of row Y is number Y r + i, of column X (side + X) r + i. The node at
    position p of a line owns the ports 2p (plus side) and 2p + 1 (minus side) of every
    switch of that line.
    """

    side: int
    rails: int

    @property
    def nodes(self) -> int:
        return self.side**2

    @property
    def switches(self) -> int:
        return 2 * self.side * self.rails


@dataclass(frozen=True)
class Faults:
    """Failed parts of the grid.

    ``nodes`` as (row, column), ``switches`` as (dimension, line, rail), ``rails`` as
    (row, column, dimension, rail). A failed rail is both ports of that rail of one
    node. Dimension 0 is X (lines are rows), 1 is Y (lines are columns).
    """

    nodes: frozenset[tuple[int, int]] = frozenset()
    rails: frozenset[tuple[int, int, int, int]] = frozenset()
    switches: frozenset[tuple[int, int, int]] = frozenset()

    def check(self, grid: NodeGrid) -> None:
        """Raises ValueError for a failure that lies outside the grid."""
        side, rails = grid.side, grid.rails
        nodes, switches = (side, side), (2, side, rails)
        limits = {"nodes": nodes, "rails": (*nodes, 2, rails), "switches": switches}
        for name, most in limits.items():
            for fault in sorted(getattr(self, name)):
                if len(fault) != len(most) or not all(
                    0 <= value < limit for value, limit in zip(fault, most, strict=True)
                ):
                    allowed = ", ".join(f"0 to {limit - 1}" for limit in most)
                    raise UserError(
                        f"faults.{name}: {fault} lies outside the grid; allowed: ({allowed})"
                    )

    def healthy(self, grid: NodeGrid) -> BoolArray:
        """Working nodes, bool[side, side]: those that have not failed themselves."""
        mask = np.ones((grid.side, grid.side), dtype=np.bool_)
        for row, column in self.nodes:
            mask[row, column] = False
        return mask


@dataclass(frozen=True)
class PlacedJob:
    """A job on every node of ``rows`` x ``columns``, positions in ascending order."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    setting: Wiring

    @property
    def nodes(self) -> int:
        return len(self.rows) * len(self.columns)

    def mask(self, grid: NodeGrid) -> BoolArray:
        """The job's nodes, bool[side, side]."""
        mask = np.zeros((grid.side, grid.side), dtype=np.bool_)
        mask[np.ix_(self.rows, self.columns)] = True
        return mask

    def check(self, grid: NodeGrid) -> None:
        """ValueError for lines outside or repeated, or an unwirable shape."""
        for key, lines in (("rows", self.rows), ("columns", self.columns)):
            ascend = sorted(set(lines)) == list(lines)
            if not lines or not ascend or lines[0] < 0 or lines[-1] >= grid.side:
                raise UserError(
                    f"{key}: got {list(lines)}; allowed: distinct positions from 0 to"
                    f" {grid.side - 1} in ascending order"
                )
        job = GridJobSettings(len(self.rows), len(self.columns), self.setting)
        check_job(job, grid.side, grid.rails)


def position_rings(length: int, rails: int, setting: Wiring) -> IntArray:
    """The ring of positions 0..length-1 on each of ``rails`` rails: shape (rails,
    length).

    A single node has no rows. torus and ring: the same ring on all rails. hyperx: the
    length - 1 rings of a Hamiltonian decomposition (undirected for 4 and 6 nodes),
    repeated for further rails. Raises ValueError where an all-to-all lacks rails.
    """
    if length == 1:
        return np.zeros((0, 1), dtype=np.int64)
    if setting != "hyperx" or length == 2:
        return np.tile(np.arange(length, dtype=np.int64), (rails, 1))
    if length > rails + 1:
        raise UserError(
            f"hyperx: an all-to-all of {length} nodes needs {length - 1} rails and {rails} are"
            f" usable; allowed: at most {rails + 1} nodes, or setting torus or ring"
        )
    rings = undirected_rings(length) if length in (4, 6) else hamiltonian_cycles(length)
    return rings[np.arange(rails) % len(rings)]


def usable_rails(
    grid: NodeGrid, faults: Faults, dimension: int, line: int, positions: Sequence[int]
) -> IntArray:
    """The rails of a line whose switch and ports at ``positions`` work, ascending."""
    usable = np.ones(grid.rails, dtype=np.bool_)
    for d, at, rail in faults.switches:
        if (d, at) == (dimension, line):
            usable[rail] = False
    job_positions = set(positions)
    for row, column, d, rail in faults.rails:
        at, position = (row, column) if dimension == 0 else (column, row)
        if d == dimension and at == line and position in job_positions:
            usable[rail] = False
    return np.flatnonzero(usable)


def placement_circuits(
    grid: NodeGrid, placement: PlacedJob, faults: Faults | None = None
) -> Circuits:
    """The circuits that wire a placed job.

    In each of its lines they are the rings of :func:`position_rings` on the usable
    rails. Raises ValueError, naming the line, where an all-to-all lacks rails or no
    rail is left.
    """
    placement.check(grid)
    faults = Faults() if faults is None else faults
    faults.check(grid)
    parts = []
    sides = placement.rows, placement.columns
    for dimension, (lines, positions) in enumerate((sides, sides[::-1])):
        if len(positions) == 1:
            continue
        for line in lines:
            rails = usable_rails(grid, faults, dimension, line, positions)
            where = f"{'row' if dimension == 0 else 'column'} {line}"
            if not len(rails):
                raise UserError(
                    f"{where}: no rail of its {len(positions)} nodes is usable; allowed: nodes with"
                    " a rail in common"
                )
            try:
                rings = position_rings(len(positions), len(rails), placement.setting)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            positions_of_ring = np.asarray(positions, dtype=np.int64)[rings]
            parts.append(_line(grid, dimension, line, rails, positions_of_ring))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return plus_to_minus_circuits(empty, empty, ocs=empty, rail=empty, dimension=0, line=0)
    return join_rows(parts)


def _line(grid: NodeGrid, dimension: int, line: int, rails: IntArray, rings: IntArray) -> Circuits:
    """The circuits of one line; ``rings``: its positions, int[rails, nodes]."""
    a, b = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
    rail = np.repeat(rails, rings.shape[1])
    node_a, node_b = (
        line * grid.side + p if dimension == 0 else p * grid.side + line for p in (a, b)
    )
    ocs = ((grid.side if dimension else 0) + line) * grid.rails + rail
    return plus_to_minus_circuits(
        a, b, ocs=ocs, rail=rail, dimension=dimension, line=line, node_a=node_a, node_b=node_b
    )


def check_placements(
    grid: NodeGrid, faults: Faults, placed: Sequence[tuple[PlacedJob, Circuits]]
) -> dict[str, int]:
    """Check jobs against each other and against the failures; returns counts.

    The check uses only their circuits. Every circuit must join two nodes of its job
    through the switch of their common line and rail, no port of a switch may be used
    twice, and no failed node, rail or switch may be touched. Raises ValueError that
    names the first offence.
    """
    faults.check(grid)
    owner = np.full(grid.nodes, -1, dtype=np.int64)
    node_down = ~faults.healthy(grid).ravel()
    rail_down = np.zeros((grid.nodes, 2, grid.rails), dtype=np.bool_)
    for row, column, dimension, rail in faults.rails:
        rail_down[row * grid.side + column, dimension, rail] = True
    switch_down = np.zeros(grid.switches, dtype=np.bool_)
    for dimension, line, rail in faults.switches:
        switch_down[(dimension * grid.side + line) * grid.rails + rail] = True
    used = np.zeros(grid.switches * 2 * grid.side, dtype=np.int64)
    for job, (placement, circuits) in enumerate(placed):
        nodes = np.flatnonzero(placement.mask(grid).ravel())
        _refuse(job, "takes a failed node", node_down[nodes], nodes)
        _refuse(job, "takes a node of another job", owner[nodes] >= 0, nodes)
        owner[nodes] = job
        _check_ends(grid, job, owner, circuits)
        for node in (circuits.node_a, circuits.node_b):
            down = rail_down[node, circuits.dimension, circuits.rail]
            _refuse(job, "uses a failed rail of a node", down, node)
        _refuse(job, "uses a failed switch", switch_down[circuits.ocs], circuits.ocs)
        for port in (circuits.port_a, circuits.port_b):
            ports = circuits.ocs.astype(np.int64) * 2 * grid.side + port
            used += np.bincount(ports, minlength=len(used))
        _refuse(job, "uses a port of a switch that is in use", used > 1, np.arange(len(used)))
    return {
        "jobs": len(placed),
        "nodes": int((owner >= 0).sum()),
        "circuits": int(used.sum()) // 2,
        "ports": int(used.sum()),
    }


def _check_ends(grid: NodeGrid, job: int, owner: IntArray, circuits: Circuits) -> None:
    side = grid.side
    for node, port, minus in (
        (circuits.node_a, circuits.port_a, 0),
        (circuits.node_b, circuits.port_b, 1),
    ):
        _refuse(job, "has a circuit to a node that is not its own", owner[node] != job, node)
        row, column = node // side, node % side
        line, position = np.where(circuits.dimension == 0, (row, column), (column, row))
        switch = (circuits.dimension.astype(np.int64) * side + line) * grid.rails + circuits.rail
        wrong = (switch != circuits.ocs) | (port != 2 * position + minus) | (line != circuits.line)
        _refuse(job, "has a circuit on a port that its node does not own", wrong, circuits.ocs)


def _refuse(job: int, what: str, wrong: BoolArray, where: Int32Array | IntArray) -> None:
    if wrong.any():
        raise ValueError(
            f"job {job}: {what} ({int(where[int(np.argmax(wrong))])}); allowed: healthy parts of"
            " its own alone"
        )


def random_faults(
    grid: NodeGrid, nodes: int, rails: int, switches: int, rng: np.random.Generator
) -> Faults:
    """Failures of each kind in the given number, drawn uniformly without repetition."""

    def draw(count: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        chosen = rng.choice(int(np.prod(shape)), size=count, replace=False)
        return [tuple(int(v) for v in np.unravel_index(int(item), shape)) for item in chosen]

    side = grid.side
    return Faults(
        nodes=frozenset((a, b) for a, b in draw(nodes, (side, side))),
        rails=frozenset((a, b, c, d) for a, b, c, d in draw(rails, (side, side, 2, grid.rails))),
        switches=frozenset((a, b, c) for a, b, c in draw(switches, (2, side, grid.rails))),
    )
