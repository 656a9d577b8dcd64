"""GOAL schedules as graphs: the text form that LogGOPSim and ATLAHS read.

``calc`` takes nanoseconds on a cpu, which is a stream here. ``requires`` waits for the
end of a line. ``irequires`` waits for its start, which a graph cannot say: the line
waits for the same lines instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from railx.errors import UserError
from railx.exchange.rank_nodes import RankNodes
from railx.replay.graphs import COMPUTE, NODE_KINDS

__all__ = ["goal_nodes"]

_COMMENT = re.compile(r"/\*.*?\*/|//.*")
_RANK = re.compile(r"rank\s+(\d+)\s*\{$")
_TASK = re.compile(
    r"(?:(?P<label>\w+):\s*)?(?P<what>calc|send|recv)\s+(?P<size>\d+)b?"
    r"(?:\s+(?:to|from)\s+(?P<peer>\d+))?(?P<options>(?:\s+\w+\s+\d+)*)$"
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
    head = re.match(r"num_ranks\s+(\d+)$", lines[0][1]) if lines else None
    if head is None:
        raise UserError(f"got {path} without num_ranks; allowed: a GOAL schedule")
    ranks = [RankNodes(path, rank) for rank in range(int(head.group(1)))]
    block: list[tuple[int, str]] = []
    current, starts = None, 0
    for number, line in lines[1:]:
        opened = _RANK.match(line)
        if opened is not None and current is None and int(opened.group(1)) < len(ranks):
            current, block = ranks[int(opened.group(1))], []
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
    starts: list[tuple[int, int]] = []
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
        if task["label"]:
            labels[task["label"]] = number
        after[number] = []
        size = int(task["size"])
        if what == "calc":
            values = {"kind": COMPUTE, "duration_ns": size, "stream": options.get("cpu", 0)}
        else:
            values = {"kind": NODE_KINDS.index(what), "bytes": size, "peer": int(peer)}
            values["tag"] = options.get("tag", 0)
        nodes.add(number, task["label"] or line, values.pop("kind"), after[number], **values)
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
            starts.append((child, parent))
    for child, parent in starts:
        after[child] += after[parent]
    return len(starts)


def _refused(path: Path, number: int, line: str) -> UserError:
    return UserError(
        f"got {path}, line {number}: {line[:60]!r}; allowed: rank R {{, calc, send, recv, requires,"
        " irequires, }"
    )
