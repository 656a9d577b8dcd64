"""Graphs from the nodes that a reader takes from the file of each rank.

Readers of formats hand over nodes with the numbers of their files. Here numbers become
positions, the order of issue is derived, and faults are named by file, rank and node. A
symmetric job's graphs come from one rank's, with the groups and peers of each.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, permutations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.replay.graphs import COMPUTE, NODE_COLUMNS, NODE_KINDS, RankGraphs
from railx.vocabulary.arrays import IntArray

_SEND, _RECV = NODE_KINDS.index("send"), NODE_KINDS.index("recv")
#: Collectives whose members may state different bytes.
_UNEVEN = tuple(NODE_KINDS.index(kind) for kind in ("all_to_all", "gather", "scatter", "barrier"))


#: Columns that the other ones do not hold.
_GIVEN = ("rank", "number")


@dataclass
class RankNodes:
    """The nodes of a rank as lists of one entry per node, in any order.

    ``numbers``: of the nodes in the file; ``after``: numbers of the nodes that must end
    before; ``columns``: those of :class:`railx.replay.graphs.RankGraphs` without
    ``rank`` and ``number``.
    """

    path: Path
    rank: int
    numbers: list[int] = field(default_factory=list)
    after: list[Sequence[int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    columns: dict[str, list[int]] = field(
        default_factory=lambda: {name: [] for name in NODE_COLUMNS if name not in _GIVEN}
    )

    def add(self, number: int, name: str, kind: int, after: Sequence[int], **values: int) -> None:
        """Add a node; columns without a value have their default."""
        self.numbers.append(number)
        self.names.append(name)
        self.after.append(after)
        for column, entries in self.columns.items():
            default = NODE_COLUMNS[column][1]
            entries.append(kind if column == "kind" else values.get(column, default or 0))

    def where(self, number: int) -> str:
        """The file, rank and node for a message."""
        return _where(self.path, self.rank, number)


@dataclass(frozen=True, eq=False)
class ImportedGraphs:
    """Graphs from files, the file of each rank, and the losses.

    ``by_parallelism``: whether ranks are numbered by parallelism and not by server.
    ``issued``: whether the files say in which order ranks issue nodes.
    """

    graphs: RankGraphs
    files: tuple[Path, ...]
    lost: tuple[str, ...] = ()
    by_parallelism: bool = False
    issued: bool = False

    def where(self, row: int) -> str:
        """The file, rank and number of a node for a message."""
        rank, number = (int(self.graphs.columns[key][row]) for key in ("rank", "number"))
        return _where(self.files[rank], rank, number)


def _where(path: Path, rank: int, number: int) -> str:
    """A node for a message; in a GOAL schedule its number is that of its line."""
    return f"got {path}, rank {rank}, {'line' if path.suffix == '.goal' else 'node'} {number}"


def graphs_of(ranks: Sequence[RankNodes], groups: Sequence[tuple[int, ...]]) -> RankGraphs:
    """The graphs of all ranks, in the order of their numbers.

    The nodes of a rank are in the order of their dependencies, of several the one with
    the lowest number first. UserError for dependencies on missing nodes and circles.
    """
    columns: dict[str, list[Any]] = {name: [] for name in NODE_COLUMNS}
    offsets, dependencies, names = [np.zeros(1, np.int64)], [], []
    orders: dict[tuple[int, bytes, bytes], IntArray] = {}
    first = waits = 0
    for nodes in ranks:
        numbers = np.array(nodes.numbers, np.int64)
        counts = np.array([len(after) for after in nodes.after], np.int64)
        flat = np.array([number for after in nodes.after for number in after], np.int64)
        by_number = np.argsort(numbers, kind="stable")
        positions = _positions(nodes, numbers[by_number], flat, counts)
        owner = np.repeat(np.argsort(by_number), counts)
        key = len(numbers), owner.tobytes(), positions.tobytes()
        if key not in orders:
            orders[key] = _order(nodes, numbers[by_number], owner, positions)
        rank_of, order = np.argsort(orders[key]), by_number[orders[key]]
        child, parent = rank_of[owner], rank_of[positions]
        pairs = np.unique(np.stack([child, parent], axis=1), axis=0)
        counts = np.bincount(pairs[:, 0], minlength=len(numbers))
        offsets.append(waits + np.cumsum(counts))
        waits += len(pairs)
        dependencies.append(pairs[:, 1] + first)
        first += len(numbers)
        columns["rank"].append(np.full(len(numbers), nodes.rank))
        columns["number"].append(numbers[order])
        for name, values in nodes.columns.items():
            columns[name].append(np.array(values, np.int64)[order])
        names += [nodes.names[position] for position in order.tolist()]
    typed = {
        name: np.concatenate(columns[name]).astype(kind) for name, (kind, _) in NODE_COLUMNS.items()
    }
    after = np.concatenate(offsets), np.concatenate(dependencies)
    return RankGraphs(typed, *after, tuple(groups), tuple(names))


def _positions(nodes: RankNodes, numbers: IntArray, flat: IntArray, counts: IntArray) -> IntArray:
    """The positions of dependencies among ascending numbers."""
    twice = np.flatnonzero(np.diff(numbers) == 0)
    if len(twice):
        raise UserError(
            f"{nodes.where(int(numbers[twice[0]]))}, which is there twice; allowed: a number for"
            " each node; convert the trace again"
        )
    positions = np.searchsorted(numbers, flat)
    missing = numbers[np.minimum(positions, len(numbers) - 1)] != flat
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        owner = nodes.numbers[int(np.searchsorted(np.cumsum(counts), row, side="right"))]
        raise UserError(
            f"{nodes.where(owner)} after node {flat[row]}, which is not there; allowed: nodes of"
            " the file; record or convert the trace again"
        )
    return positions


def _order(nodes: RankNodes, numbers: IntArray, owner: IntArray, before: IntArray) -> IntArray:
    """The order of issue: node ``owner[i]`` comes after node ``before[i]``."""
    left = np.bincount(owner, minlength=len(numbers)).tolist()
    by_parent = np.argsort(before, kind="stable")
    ends = np.cumsum(np.bincount(before, minlength=len(numbers))).tolist()
    followers = owner[by_parent].tolist()
    ready = [node for node, count in enumerate(left) if not count]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for follower in followers[ends[node - 1] if node else 0 : ends[node]]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
    if len(order) < len(numbers):
        circle = _circle(owner, before, {n for n, count in enumerate(left) if count})
        named = ", ".join(str(numbers[node]) for node in circle[:8])
        raise UserError(
            f"{nodes.where(int(numbers[circle[0]]))}, which depends on itself through nodes"
            f" {named}; allowed: no circle; record or convert the trace again"
        )
    return np.array(order, np.int64)


def _circle(owner: IntArray, before: IntArray, stuck: set[int]) -> list[int]:
    """Nodes of a circle, each after the next one."""
    parent = {
        child: ancestor
        for child, ancestor in zip(owner.tolist(), before.tolist(), strict=True)
        if child in stuck and ancestor in stuck
    }
    path, node = [], min(parent)
    while node not in path:
        path.append(node)
        node = parent[node]
    return path[path.index(node) :]


def check_matches(imported: ImportedGraphs) -> None:
    """UserError where members disagree on a collective, or both ends on a message.

    The n-th collective of a group on a member has to be of one kind, and of the same
    bytes, on all members; the n-th send of a tag has to have the bytes of the n-th
    receive. Simulators match messages by rank and tag alone, but a replay gives each
    end the time of its own bytes.
    """
    columns = imported.graphs.columns
    collective = (columns["kind"] != COMPUTE) & (columns["group"] >= 0)
    for group in np.unique(columns["group"][collective]).tolist():
        _check_group(imported, group, np.flatnonzero(columns["group"] == group))
    _check_messages(imported)


def _check_group(imported: ImportedGraphs, group: int, rows: IntArray) -> None:
    columns, members = imported.graphs.columns, imported.graphs.groups[group]
    by_rank = {rank: rows[columns["rank"][rows] == rank] for rank in members}
    first, *others = members
    for other in others:
        ours, theirs = by_rank[first], by_rank[other]
        shared = min(len(ours), len(theirs))
        kinds = columns["kind"][ours[:shared]] != columns["kind"][theirs[:shared]]
        sizes = columns["bytes"][ours[:shared]] != columns["bytes"][theirs[:shared]]
        sizes &= ~np.isin(columns["kind"][ours[:shared]], _UNEVEN)
        unlike = np.flatnonzero(kinds | sizes)
        if not len(unlike) and len(ours) == len(theirs):
            continue
        number = int(unlike[0]) if len(unlike) else shared
        words = [
            f"{NODE_KINDS[columns['kind'][of[number]]]} of {columns['bytes'][of[number]]} bytes"
            if number < len(of)
            else "none"
            for of in (ours, theirs)
        ]
        longer = ours if number < len(ours) else theirs
        raise UserError(
            f"{imported.where(int(longer[number]))}, operation {number} of the group of ranks"
            f" {_shown(members)}: {words[0]} on rank {first}, {words[1]} on rank {other}; allowed:"
            " the same operations on all members; check --groups, or record all ranks in one run"
        )


def _check_messages(imported: ImportedGraphs) -> None:
    columns = imported.graphs.columns
    ends: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
    for row in np.flatnonzero(np.isin(columns["kind"], (_SEND, _RECV))).tolist():
        rank, peer = int(columns["rank"][row]), int(columns["peer"][row])
        sends = columns["kind"][row] == _SEND
        key = (rank, peer) if sends else (peer, rank)
        both = ends.setdefault((*key, int(columns["tag"][row])), ([], []))
        both[0 if sends else 1].append(row)
    for (source, target, tag), (sent, received) in ends.items():
        shared = min(len(sent), len(received))
        for row in (*sent[shared:], *received[shared:]):
            raise UserError(
                f"{imported.where(row)}, a {NODE_KINDS[columns['kind'][row]]} of rank {source} to"
                f" rank {target}, tag {tag}, with {len(sent)} sends for {len(received)} receives;"
                " allowed: as many; record all ranks in one run"
            )
        for here, there in zip(sent, received, strict=True):
            sizes = columns["bytes"][here], columns["bytes"][there]
            if sizes[0] != sizes[1]:
                raise UserError(
                    f"{imported.where(here)}, a send of {sizes[0]} bytes to rank {target}, tag"
                    f" {tag}, of which {imported.where(there).removeprefix('got ')} receives"
                    f" {sizes[1]}; allowed: the same bytes at both ends"
                )


def _shown(members: Sequence[int]) -> str:
    return ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")


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
    waits = np.concatenate([[0], ends.ravel()]), np.tile(graphs.dependencies, count) + shift
    repeated = RankGraphs(columns, *waits, tuple(numbers), graphs.names * count)
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
        f"{imported.where(row)} in a group of ranks {list(groups[failed[0]])}; allowed with"
        f" --symmetric {text}: groups along its axes"
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
