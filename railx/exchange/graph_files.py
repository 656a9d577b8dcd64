"""Traces in files as graphs, whatever their format.

A trace is PREFIX.RANK.et or PREFIX.RANK.json for each rank (Chakra), PREFIX.RANK.json
with PREFIX.RANK.kineto.json (PyTorch), one GOAL schedule, or one Parquet table: of
graphs, of programs (``railx steps``) or of a recorded run.

In the graph of a program a node waits for the computation of its rank before it and for
the operations that the program has waited for; an operation also for the one before it
on its channel, which is a group. Delays of threads have no node.

GOAL is the text form that LogGOPSim and ATLAHS read. ``calc`` takes nanoseconds on a
cpu, which is a stream here. ``requires`` waits for the end of a line. ``irequires``
waits for its start, which a graph cannot say: the line waits for the same lines
instead.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from glob import escape
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.exchange.chakra_graphs import GENERATED, GroupNumbers, chakra_nodes
from railx.exchange.programs import ProgramWalk, programs_of, steps_of_ranks
from railx.exchange.rank_nodes import (
    Axes,
    ImportedGraphs,
    RankNodes,
    check_matches,
    graphs_of,
    symmetric_graphs,
)
from railx.exchange.torch_traces import is_torch_trace, shortest_times, torch_groups, torch_nodes
from railx.replay.graph_pricing import OF_A_MEMBER, DeviceRates, unpriced_node
from railx.replay.graphs import COMPUTE, NODE_KINDS, is_graph_table, read_graph_table
from railx.replay.programs import Programs

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
    check_matches(imported)
    return imported


def check_times(imported: ImportedGraphs, device: DeviceRates) -> None:
    """UserError naming the first node without a time or a rate to derive one.

    Also where there are no nodes at all.
    """
    if not len(imported.graphs):
        raise UserError(f"got {imported.files[0]} without nodes; allowed: a trace with some")
    row = unpriced_node(imported.graphs, device)
    if row is not None:
        raise UserError(
            f"{imported.where(row)} with {imported.graphs.columns['operations'][row]} operations"
            " and no duration; allowed: durations, or --tflops to turn operations into time"
        )


def _read(source: Path, groups: Path | None, symmetric: Axes | None) -> ImportedGraphs:
    if source.suffix == ".goal":
        of_ranks, left_out = goal_nodes(source)
        return _imported(source, of_ranks, (), left_out)
    if source.suffix == ".parquet":
        if is_graph_table(source):
            graphs, notes = read_graph_table(source)
            by_parallelism = bool(notes.get("by_parallelism"))
            return ImportedGraphs(graphs, (source,) * graphs.ranks, (), by_parallelism)
        return replace(_imported(source, *program_nodes(source, programs_of(source))), issued=True)
    files = _files(source, symmetric is not None)
    ranks = len(files)
    if symmetric:
        files, ranks = files[:1], symmetric.ranks
    torch = files[0].suffix == ".json" and is_torch_trace(files[0])
    stated = torch and groups is None
    named = torch_groups(files, ranks) if stated else _groups(source, groups, ranks)
    numbers = GroupNumbers(named, ranks)
    lost: Counter[str] = Counter()
    nodes = []
    read = torch_nodes if torch else chakra_nodes
    for rank, path in enumerate(files):
        of_rank, left_out = read(path, rank, numbers, ranks)
        nodes.append(of_rank)
        lost.update(left_out)
    imported = _imported(source, nodes, numbers.members, lost)
    if torch:
        imported = replace(imported, graphs=shortest_times(imported.graphs), issued=True)
    return imported


def _imported(
    source: Path,
    nodes: Sequence[RankNodes],
    groups: Sequence[tuple[int, ...]],
    lost: Mapping[str, int],
) -> ImportedGraphs:
    if not nodes:
        raise UserError(f"got {source} without ranks; allowed: a trace of one or more")
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


def program_nodes(
    path: Path, programs: Programs
) -> tuple[list[RankNodes], list[tuple[int, ...]], dict[str, int]]:
    """The nodes of all ranks, the members of each channel, and how many delays of
    threads are left out. The number of a node is its own on the rank.
    """
    members = [
        programs.configurations[number].members if number >= 0 else ()
        for number in programs.configuration_of.tolist()
    ]
    ranks = []
    for rank, steps in steps_of_ranks(programs):
        nodes = RankNodes(path, rank)
        program = _Program(programs, nodes)
        for step in steps:
            program.take(step)
        ranks.append(nodes)
    return ranks, members, {"delays": int((programs.columns["pickup_ns"] > 0).sum())}


class _Program(ProgramWalk):
    """Adds the nodes of the program of a rank."""

    def __init__(self, programs: Programs, nodes: RankNodes) -> None:
        super().__init__(programs, nodes.rank)
        self._nodes = nodes

    def _add(self, name: str, kind: int, after: Sequence[int], **values: int) -> int:
        number = len(self._nodes.numbers)
        self._nodes.add(number, name, kind, after, **values)
        return number

    def compute(self, name: str, lasts_ns: int, iteration: int | None = None) -> None:
        """A node of computation."""
        self.tail = [self._add(name, COMPUTE, tuple(self.tail), duration_ns=lasts_ns)]

    def issue(self, kind: str, members: tuple[int, ...], step: Mapping[str, Any]) -> list[int]:
        """A node of an operation."""
        channel = step["channel"]
        values = {"bytes": step["bytes"], "duration_ns": step["lasts_ns"]}
        if kind in ("send", "recv"):
            values |= {"peer": self.peer(members), "tag": channel}
        else:
            values["group"] = channel
            if kind in OF_A_MEMBER:
                values["bytes"] = -(-step["bytes"] // len(members))
        after = [*self.tail, *self.last.get(channel, ())]
        return [self._add(kind, NODE_KINDS.index(kind), after, **values)]


_COMMENT = re.compile(r"/\*.*?\*/|//.*")
_RANK = re.compile(r"rank\s+(\d{1,18})\s*\{$")
_TASK = re.compile(
    r"(?:(?P<label>\w+):\s*)?(?P<what>calc|send|recv)\s+(?P<size>\d{1,18})b?"
    r"(?:\s+(?:to|from)\s+(?P<peer>\d{1,18}))?(?P<options>(?:\s+\w+\s+\d{1,18})*)$"
)
_AFTER = re.compile(r"(?P<label>\w+)\s+(?P<how>i?requires)\s+(?P<before>\w+)$")


def goal_nodes(path: Path) -> tuple[list[RankNodes], dict[str, int]]:
    """The nodes of all ranks, and how often ``irequires`` is replaced.

    The number of a node is that of its line. UserError naming the line of a fault.
    """
    lines = [
        (number, _COMMENT.sub("", line).strip().rstrip(";").strip())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    lines = [(number, line) for number, line in lines if line]
    head = re.match(r"num_ranks\s+(\d{1,18})$", lines[0][1]) if lines else None
    if head is None:
        raise UserError(f"got {path} without num_ranks; allowed: a GOAL schedule")
    if int(head.group(1)) > len(lines):
        raise UserError(
            f"num_ranks: got {head.group(1)} in {path}; allowed: at most its {len(lines)} lines"
        )
    ranks = [RankNodes(path, rank) for rank in range(int(head.group(1)))]
    block: list[tuple[int, str]] = []
    current, starts, left = None, 0, set(range(len(ranks)))
    for number, line in lines[1:]:
        opened = _RANK.match(line)
        if opened is not None and current is None and int(opened.group(1)) in left:
            current, block = ranks[int(opened.group(1))], []
            left.remove(current.rank)
        elif line == "}" and current is not None:
            starts += _rank(path, current, block, len(ranks))
            current = None
        elif current is not None:
            block.append((number, line))
        else:
            raise _refused(path, number, line)
    if current is not None:
        raise UserError(
            f"got {path}, which ends or breaks off in rank {current.rank}; allowed: a whole GOAL"
            " schedule; write it again"
        )
    return ranks, {"starts": starts}


def _rank(path: Path, nodes: RankNodes, block: Sequence[tuple[int, str]], ranks: int) -> int:
    """Add the lines of a rank; returns how many wait for a start."""
    labels: dict[str, int] = {}
    after: dict[int, list[int]] = {}
    starts: dict[int, list[int]] = {}
    for number, line in block:
        task = _TASK.match(line)
        if task is None:
            continue
        what, peer = task["what"], task["peer"]
        if (peer is None) != (what == "calc") or peer == str(nodes.rank):
            raise _refused(path, number, line)
        if peer is not None and not int(peer) < ranks:
            raise UserError(
                f"got {path}, rank {nodes.rank}, line {number}: {line!r}; allowed: ranks below"
                f" {ranks}"
            )
        words = task["options"].split()
        options = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        if task["label"] in labels:
            raise UserError(
                f"got {path}, rank {nodes.rank}, line {number}: {line!r} with the label of line"
                f" {labels[task['label']]}; allowed: each label once in a rank"
            )
        if task["label"]:
            labels[task["label"]] = number
        after[number], size = [], int(task["size"])
        kind = COMPUTE if what == "calc" else NODE_KINDS.index(what)
        values = {"bytes": size, "peer": int(peer or 0), "tag": options.get("tag", 0)}
        if what == "calc":
            values = {"duration_ns": size, "stream": options.get("cpu", 0)}
        nodes.add(number, task["label"] or line, kind, after[number], **values)
    for number, line in block:
        edge = _AFTER.match(line)
        if edge is None:
            if _TASK.match(line) is None:
                raise _refused(path, number, line)
            continue
        missing = next((edge[n] for n in ("label", "before") if edge[n] not in labels), None)
        if missing is not None:
            raise UserError(
                f"got {path}, rank {nodes.rank}, line {number}: {line!r} with label {missing},"
                " which is not there; allowed: labels of the rank; write the schedule again"
            )
        child, parent = labels[edge["label"]], labels[edge["before"]]
        if edge["how"] == "requires":
            after[child].append(parent)
        else:
            starts.setdefault(child, []).append(parent)
    try:
        # A line whose start is waited for may itself wait for the start of another.
        for child in TopologicalSorter(starts).static_order():
            for parent in starts.get(child, ()):
                after[child] += after[parent]
    except CycleError as error:
        raise UserError(
            f"got {path}, rank {nodes.rank}, line {error.args[1][0]}, which waits for its own"
            " start; allowed: no circle of irequires; write the schedule again"
        ) from None
    return sum(map(len, starts.values()))


def _refused(path: Path, number: int, line: str) -> UserError:
    return UserError(
        f"got {path}, line {number}: {line[:60]!r}; allowed: rank R {{ once, calc, send, recv,"
        " requires, irequires, }, numbers of at most 18 digits"
    )
