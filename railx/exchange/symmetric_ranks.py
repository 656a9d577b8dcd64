"""A symmetric job's graphs from one rank's, with the groups and peers of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from math import prod

import numpy as np

from railx.errors import UserError
from railx.exchange.rank_nodes import ImportedGraphs
from railx.replay.graphs import RankGraphs


@dataclass(frozen=True)
class Axes:
    """The degrees of a job by axis (``dp``, ``tp``); the first axis varies fastest."""

    degrees: Mapping[str, int]

    @classmethod
    def of_text(cls, text: str) -> Axes:
        """Of ``dp=8,tp=4``; UserError for another form."""
        degrees: dict[str, int] = {}
        for word in text.split(","):
            name, _, degree = word.partition("=")
            if not name or name in degrees or not degree.isdecimal() or int(degree) < 1:
                raise UserError(
                    f"--symmetric: got {text!r}; allowed: axes with their degrees, e.g. dp=8,tp=4"
                )
            degrees[name] = int(degree)
        return cls(degrees)

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return prod(self.degrees.values())

    @cached_property
    def grid(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """The ranks by their positions on the axes, the last axis first."""
        return np.arange(self.ranks).reshape(tuple(self.degrees.values())[::-1])

    def lines(self, names: Sequence[str]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """The group of each rank along some axes: int[ranks, members]."""
        order = list(self.degrees)[::-1]
        along = [number for number, name in enumerate(order) if name in names]
        moved = np.moveaxis(self.grid, along, range(len(along)))
        width = prod(self.degrees[name] for name in names)
        groups = moved.reshape(width, -1).T
        of_rank = np.empty((self.ranks, width), np.int64)
        for group in groups:
            of_rank[group] = group
        return of_rank


def symmetric_graphs(imported: ImportedGraphs, axes: Axes) -> ImportedGraphs:
    """The graph of rank 0 on all ranks.

    A group of rank 0 has to lie along one or more axes, in the given order of the axes
    or in another; every other rank has the group along the same axes. A peer is as far
    along an axis from every rank as from rank 0. UserError naming the node otherwise.
    """
    graphs = imported.graphs
    if not len(graphs) or graphs.ranks > 1:
        raise UserError(
            f"--symmetric: got {imported.files[0]} without nodes; allowed: a trace of rank 0"
        )
    used = np.unique(graphs.columns["group"][graphs.columns["group"] >= 0]).tolist()
    ordered, along = _axes_of_groups(imported, axes, used)
    count, nodes = axes.ranks, len(graphs)
    numbers: dict[tuple[int, ...], int] = {}
    group_of = np.full((count, len(graphs.groups) + 1), -1, np.int64)
    for group in used:
        for rank, members in enumerate(ordered.lines(along[group])):
            key = tuple(members.tolist())
            group_of[rank, group] = numbers.setdefault(key, len(numbers))
    columns = {name: np.tile(values, count) for name, values in graphs.columns.items()}
    ranks = np.repeat(np.arange(count), nodes)
    columns["rank"] = ranks.astype(columns["rank"].dtype)
    columns["group"] = group_of[ranks, columns["group"]].astype(columns["group"].dtype)
    columns["peer"] = _peers(imported, ordered).astype(columns["peer"].dtype)
    shift = np.repeat(np.arange(count) * nodes, len(graphs.dependencies))
    ends = graphs.offsets[1:] + (np.arange(count) * len(graphs.dependencies))[:, None]
    repeated = RankGraphs(
        columns,
        np.concatenate([[0], ends.ravel()]),
        np.tile(graphs.dependencies, count) + shift,
        tuple(numbers),
        graphs.names * count,
    )
    return replace(imported, graphs=repeated, files=imported.files * count)


def _axes_of_groups(
    imported: ImportedGraphs, axes: Axes, used: Sequence[int]
) -> tuple[Axes, dict[int, tuple[str, ...]]]:
    """The order of the axes that the groups fit, and the axes of each group."""
    groups, failed = imported.graphs.groups, used[:1]
    for names in permutations(axes.degrees):
        ordered = Axes({name: axes.degrees[name] for name in names})
        along: dict[int, tuple[str, ...]] = {}
        for count in range(1, len(names) + 1):
            for chosen in combinations(names, count):
                line = tuple(ordered.lines(chosen)[0].tolist())
                along |= {g: chosen for g in used if g not in along and groups[g] == line}
        if len(along) == len(used):
            return ordered, along
        failed = [group for group in used if group not in along]
    row = int(np.flatnonzero(imported.graphs.columns["group"] == failed[0])[0])
    text = ",".join(f"{name}={degree}" for name, degree in axes.degrees.items())
    raise UserError(
        f"got {imported.files[0]}, rank 0, node {imported.graphs.columns['number'][row]} in a group"
        f" of ranks {list(groups[failed[0]])}; allowed with --symmetric {text}: groups along its"
        " axes"
    )


def _peers(imported: ImportedGraphs, axes: Axes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The peer of each node on each rank; -1 for nodes without one."""
    peer = imported.graphs.columns["peer"]
    result = np.full((axes.ranks, len(peer)), -1, np.int64)
    shape = axes.grid.shape
    positions = np.array(np.unravel_index(np.arange(axes.ranks), shape))
    for row in np.flatnonzero(peer >= 0).tolist():
        steps = np.array(np.unravel_index(int(peer[row]), shape))
        moved = (positions + steps[:, None]) % np.array(shape)[:, None]
        result[:, row] = np.ravel_multi_index(tuple(moved), shape)
    return result.ravel()
