"""The largest job and many small ones on any network with failed chips.

A family says where its jobs may lie (:class:`railx.families.family.JobPlaces`); there
is one search for each rule. All are exact, but for small jobs on the lines of a grid,
and in blocks of a torus or mesh: there all lie along the dimension which holds most.
"""

from __future__ import annotations

import math

import numpy as np

from railx.settings import SettingsError
from railx.tenancy.largest import largest_block, largest_box, largest_product
from railx.tenancy.settings import job_places
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.line_rings import arcs
from railx.vocabulary.topology import FamilySettings


class NetworkPlaces:
    """A network and its rule of places; SettingsError where its family has none."""

    def __init__(self, settings: FamilySettings) -> None:
        self.places = places = job_places(settings)
        self.shape = places.shape(settings)
        self.unit_chips = places.unit_chips(settings)
        self.units = math.prod(self.shape)
        self.chips = self.units * self.unit_chips
        self._reach = places.reach(settings)
        self._domain_chips = places.domain_chips(settings)

    def working(self, healthy: BoolArray) -> BoolArray:
        """Units that have all their chips; ``healthy`` is bool[chips]."""
        return np.asarray(healthy.reshape(self.units, self.unit_chips).all(axis=1))

    def largest(self, healthy: BoolArray) -> int:
        """Chips of the largest job on the network with these chips."""
        working = self.working(healthy)
        rule = self.places.rule
        if rule == "any":
            units = int(working.sum())
        elif rule == "lines":
            units = largest_product(working.reshape(self.shape)).nodes
        elif rule in ("blocks", "boxes"):
            grid = self._grid(working)
            units = largest_block(grid) if grid.ndim == 2 else largest_box(grid)
        else:
            units = max(self._runs(working), default=0)
        return units * self.unit_chips

    def usable(self, healthy: BoolArray, job_chips: int) -> int:
        """Chips of the jobs of ``job_chips`` each that fit at once.

        A job larger than a unit takes whole units, and one no larger than a domain
        stays in one. SettingsError for more than a row and a column have.
        """
        working = self.working(healthy)
        if job_chips <= self.unit_chips and self._domain_chips is None:
            return int(working.sum()) * (self.unit_chips // job_chips) * job_chips
        units = -(-job_chips // self.unit_chips)
        if self.places.rule == "any":
            domain = self._domain_chips
            if domain is None or job_chips > domain:
                domain = self.chips
            groups = working.reshape(-1, max(1, domain // self.unit_chips))
            taken = job_chips if units == 1 else units * self.unit_chips
            return int((groups.sum(axis=1) * self.unit_chips // taken).sum()) * job_chips
        if self.places.rule == "runs":
            return sum(length // units for length in self._runs(working)) * job_chips
        if units > max(self.shape):
            most = max(self.shape) * self.unit_chips
            message = f"got {job_chips}; allowed: at most {most}, the chips of a line"
            raise SettingsError("job_chips", f"{message}; the nearest is {most}")
        grid = self._grid(working)
        lines = (np.moveaxis(grid, axis, -1) for axis in range(grid.ndim))
        jobs = (self._on_lines(rows.reshape(-1, rows.shape[-1]), units) for rows in lines)
        return max(jobs) * job_chips

    def _grid(self, working: BoolArray) -> BoolArray:
        """Units by position; a mesh has a failed layer beyond its rim."""
        return np.pad(working.reshape(self.shape), (0, int(self.places.rule == "boxes")))

    def _on_lines(self, lines: BoolArray, units: int) -> int:
        """Jobs of so many units in the rows of a grid: any of a row, or neighbours."""
        if self.places.rule == "lines":
            return int((lines.sum(axis=1) // units).sum())
        failed = (np.flatnonzero(~row).tolist() for row in lines)
        return sum(len(run) // units for row in failed for run in arcs(lines.shape[1], 1, row))

    def _runs(self, working: BoolArray) -> list[int]:
        """Lengths of the runs of a ring that its links join."""
        failed = np.flatnonzero(~working).tolist()
        return [len(run) for run in arcs(self.units, self._reach, failed)]
