"""The nodes of a collective: all crossings of some columns and rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from railx.families import family_of
from railx.network.settings import CollectiveSettings
from railx.settings import SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.grid import Grid
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.topology import Topology


@dataclass(frozen=True)
class SubGrid:
    """The nodes of a job: all crossings of these columns and rows, in ring order."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return len(self.columns) * len(self.rows)

    def positions(self, dimension: int) -> tuple[int, ...]:
        """The positions on a row (dimension 0) or on a column (1)."""
        return self.columns if dimension == 0 else self.rows

    def lines(self, dimension: int) -> tuple[int, ...]:
        """The rows (dimension 0) or columns (1) of the job."""
        return self.positions(1 - dimension)

    def chips(self, grid: Grid) -> IntArray:
        """The chips of the job, ascending."""
        node = np.sort(
            (np.array(self.rows)[:, None] * grid.columns + np.array(self.columns)).ravel()
        )
        chips: IntArray = (node[:, None] * grid.m**2 + np.arange(grid.m**2)).ravel()
        return chips


def grid_rings(topology: Topology) -> GridRings | None:
    """The rings through the lines of a topology's grid of nodes, or None."""
    rings = family_of(topology).grid_rings
    return None if rings is None else rings(topology.settings, topology)


def sub_grid(topology: Topology, settings: CollectiveSettings) -> SubGrid | None:
    """The nodes of the collective, or None for all chips of a topology without a grid.

    SettingsError names an error in ``rows`` or ``columns`` and the allowed values: they
    must exist, be distinct and be joined by links among themselves.
    """
    rings = grid_rings(topology)
    if rings is None:
        for key in ("rows", "columns"):
            if getattr(settings, key) is not None:
                raise SettingsError(
                    key,
                    f"got a list; allowed: null, {topology.family} is no grid of nodes with lines"
                    " of its own",
                )
        return None
    grid = rings.grid
    columns = _positions("columns", settings.columns, grid.columns, rings.joined)
    rows = _positions("rows", settings.rows, grid.rows, rings.joined)
    if len(columns) * len(rows) * grid.m**2 < 2:
        raise SettingsError(
            "columns",
            "got a single chip; allowed: at least two chips, a collective needs someone to talk to",
        )
    return SubGrid(columns, rows)


def _positions(
    key: str, given: tuple[int, ...] | None, length: int, joined: bool
) -> tuple[int, ...]:
    if given is None:
        return tuple(range(length))
    for position in given:
        if position >= length:
            raise SettingsError(
                key, f"got {position}; allowed: 0 to {length - 1}, the nearest is {length - 1}"
            )
    chosen = sorted(given)
    if joined or len(chosen) == length:
        return tuple(chosen)
    # On a ring the job is what remains without the largest gap.
    gaps = [
        (following - position - 1) % length
        for position, following in zip(chosen, chosen[1:] + chosen[:1], strict=True)
    ]
    widest = max(range(len(chosen)), key=gaps.__getitem__)
    in_order = chosen[widest + 1 :] + chosen[: widest + 1]
    if sum(gaps) > gaps[widest]:
        nearest = [(in_order[0] + k) % length for k in range(length - gaps[widest])]
        raise SettingsError(
            key,
            f"got {list(given)}, which no links of their own join on a ring of {length}; allowed:"
            f" neighbours along the ring, the nearest are {sorted(nearest)}",
        )
    return tuple(in_order)
