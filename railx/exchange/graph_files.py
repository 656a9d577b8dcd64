"""Traces in files as graphs, whatever their format.

A trace is PREFIX.RANK.et or PREFIX.RANK.json for each rank (Chakra), PREFIX.RANK.json
with PREFIX.RANK.kineto.json (PyTorch), one GOAL schedule, or one Parquet table: of
graphs, of programs (``railx steps``) or of a recorded run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.exchange.chakra_graphs import GENERATED, GroupNumbers, chakra_nodes
from railx.exchange.goal_graphs import goal_nodes
from railx.exchange.program_graphs import program_nodes
from railx.exchange.rank_nodes import ImportedGraphs, RankNodes, check_matches, graphs_of
from railx.exchange.sources import programs_of
from railx.exchange.symmetric_ranks import Axes, symmetric_graphs
from railx.exchange.torch_traces import (
    is_torch_trace,
    shortest_times,
    torch_groups,
    torch_nodes,
)
from railx.replay.graph_pricing import DeviceRates, unpriced_node
from railx.replay.graphs import is_graph_table, read_graph_table

__all__ = ["check_times", "read_graphs"]

_FILE = re.compile(r"\.(\d+)\.(et|json)$")
_LOST = {
    "memory": "{} transfers from or to memory have no price: they take no time",
    "callers": "{} callers of PyTorch's operators, which are no dependencies",
    "delays": "{} operations that threads picked up late",
    "starts": "{} lines that wait for the start of another wait for the same lines instead",
    "untimed_operations": "{} operators have no time in the profile: they take no time",
}


def read_graphs(
    source: Path, groups: Path | None = None, *, symmetric: Axes | None = None
) -> ImportedGraphs:
    """The graphs of a trace; UserError names the first fault by file, rank and node.

    ``groups``: the JSON file of communicator groups; None: PREFIX.groups.json or
    PREFIX.json, where there is one. ``symmetric``: degrees by axis, of a job whose rank
    0 is used for all.
    """
    try:
        imported = _read(source, groups, symmetric)
    except (OSError, UnicodeDecodeError) as error:
        name = getattr(error, "filename", None) or source
        raise UserError(f"got {name} ({error}); allowed: files that can be read") from None
    if symmetric:
        imported = symmetric_graphs(imported, symmetric)
    check_matches(imported.graphs, imported.files)
    return imported


def check_times(imported: ImportedGraphs, device: DeviceRates) -> None:
    """UserError naming the first node without a time or a rate to derive one."""
    row = unpriced_node(imported.graphs, device)
    if row is not None:
        columns = imported.graphs.columns
        rank = int(columns["rank"][row])
        raise UserError(
            f"got {imported.files[rank]}, rank {rank}, node {columns['number'][row]} with"
            f" {columns['operations'][row]} operations and no duration; allowed: durations, or"
            " --tflops to turn operations into time"
        )


def _read(source: Path, groups: Path | None, symmetric: Axes | None) -> ImportedGraphs:
    if source.suffix == ".goal":
        of_ranks, left_out = goal_nodes(source)
        return _imported(of_ranks, (), Counter(left_out))
    if source.suffix == ".parquet":
        if is_graph_table(source):
            graphs, notes = read_graph_table(source)
            by_parallelism = bool(notes.get("by_parallelism"))
            return ImportedGraphs(graphs, (source,) * graphs.ranks, (), by_parallelism)
        of_ranks, channels, left_out = program_nodes(source, programs_of(source))
        return replace(_imported(of_ranks, channels, left_out), issued=True)
    files = _files(source, symmetric is not None)
    ranks = len(files)
    if symmetric:
        files, ranks = files[:1], symmetric.ranks
    torch = files[0].suffix == ".json" and is_torch_trace(files[0])
    named = (
        torch_groups(files, ranks) if torch and groups is None else _groups(source, groups, ranks)
    )
    numbers = GroupNumbers(named, ranks)
    lost: Counter[str] = Counter()
    nodes = []
    for rank, path in enumerate(files):
        read = torch_nodes if torch else chakra_nodes
        of_rank, left_out = read(path, rank, numbers, ranks)
        nodes.append(of_rank)
        lost.update(left_out)
    imported = _imported(nodes, numbers.members, lost)
    if torch:
        imported = replace(imported, graphs=shortest_times(imported.graphs), issued=True)
    return imported


def _imported(
    nodes: Sequence[RankNodes], groups: Sequence[tuple[int, ...]], lost: Mapping[str, int]
) -> ImportedGraphs:
    return ImportedGraphs(
        graphs_of(nodes, groups),
        tuple(of_rank.path for of_rank in nodes),
        tuple(text.format(lost[reason]) for reason, text in _LOST.items() if lost.get(reason)),
        bool(lost.get(GENERATED)),
    )


def _files(prefix: Path, single: bool) -> list[Path]:
    """The files of ranks 0, 1, ..."""
    files: dict[int, Path] = {}
    for path in sorted(prefix.parent.glob(f"{escape(prefix.name)}.*")):
        match = _FILE.match(path.name[len(prefix.name) :])
        if match is not None:
            files.setdefault(int(match.group(1)), path)
    if sorted(files) == list(range(len(files))) and len(files) >= (1 if single else 2):
        return [files[rank] for rank in sorted(files)]
    ranks = ", ".join(map(str, sorted(files))) or "none"
    raise UserError(
        f"got ranks {ranks} of {prefix}; allowed: at least two, in files {prefix.name}.0.et,"
        f" {prefix.name}.1.et and so on, one for each rank, or --symmetric with that of rank 0"
    )


def _groups(prefix: Path, given: Path | None, ranks: int) -> dict[str, list[int]]:
    beside = [prefix.with_name(f"{prefix.name}{ending}") for ending in (".groups.json", ".json")]
    path = given or next((path for path in beside if path.exists()), None)
    if path is None:
        return {}
    try:
        groups = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--groups: got {path} ({error}); allowed: a JSON file") from None
    if not isinstance(groups, dict) or not all(_is_group(members) for members in groups.values()):
        raise UserError(f"--groups: got {path}; allowed: an object of lists of different ranks")
    last = max((max(members) for members in groups.values()), default=0)
    if last >= ranks:
        raise UserError(
            f"--groups: got {path} with rank {last}, of which {prefix.name} has no file; allowed:"
            f" ranks from 0 to {ranks - 1}, or the missing files"
        )
    return groups


def _is_group(members: Any) -> bool:
    return (
        isinstance(members, list)
        and bool(members)
        and all(type(rank) is int and rank >= 0 for rank in members)
        and len(set(members)) == len(members)
    )
