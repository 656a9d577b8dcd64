"""Programs of ranks, taken step by step by formats whose nodes depend on one another.

A node waits for the computation of its rank before it and for the operations that the
program has waited for; an operation also for the one before it on its channel.

Programs come from a file of programs (``railx steps --out``) or from the trace of a
run, whose electrical events become programs with the durations of the wall clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.io import read_metadata, read_rows
from railx.replay.programs import DOES, KINDS, Programs, read_programs
from railx.replay.recording import recorded_programs

BEGIN, ISSUE, WAIT, END = map(DOES.index, ("begin", "issue", "wait", "end"))


class ProgramWalk(ABC):
    """The program of a rank, taken step by step.

    ``tail``: nodes that the next one waits for. ``last``: the nodes that the last
    operation of a channel ends with; ``operations``: those of each operation, by its
    channel and its number there.
    """

    def __init__(self, programs: Programs, rank: int) -> None:
        self.programs, self.rank = programs, rank
        self.tail: list[int] = []
        self.last: dict[int, list[int]] = {}
        self.operations: dict[tuple[int, int], list[int]] = {}

    def take(self, step: Mapping[str, Any]) -> None:
        """Add the nodes of a step."""
        does, channel = step["does"], step["channel"]
        key = channel, step["sequence"]
        if does in (BEGIN, END):
            self.compute(DOES[does], step["gap_ns"], step["iteration"])
        elif step["gap_ns"]:
            self.compute("compute", step["gap_ns"])
        if does == WAIT:
            if key not in self.operations:
                raise UserError(
                    f"got rank {self.rank}, which waits for operation {step['sequence']} of"
                    f" {self.programs.channels[channel]} and has not begun it; allowed: whole"
                    " programs"
                )
            self.wait(self.operations[key])
            if step["resume_ns"]:
                self.compute("resume", step["resume_ns"])
        elif does == ISSUE:
            members = self.programs.configurations[step["configuration"]].members
            if self.rank not in members:
                raise UserError(
                    f"got rank {self.rank} in operation {step['sequence']} of"
                    f" {self.programs.channels[channel]}; allowed: ranks {members}"
                )
            ends = self.issue(KINDS[step["kind"]], members, step)
            self.operations[key] = self.last[channel] = ends

    def peer(self, members: tuple[int, ...]) -> int:
        """The other end of a message."""
        (peer,) = (member for member in members if member != self.rank)
        return peer

    @abstractmethod
    def compute(self, name: str, lasts_ns: int, iteration: int | None = None) -> None:
        """Add computation; ``iteration``: where it begins or ends one."""

    def wait(self, operation: list[int]) -> None:
        """Let further nodes wait for an operation."""
        self.tail += operation

    @abstractmethod
    def issue(self, kind: str, members: tuple[int, ...], step: Mapping[str, Any]) -> list[int]:
        """Add an operation; returns the nodes that it ends with."""


def steps_of_ranks(programs: Programs) -> Iterator[tuple[int, Iterator[dict[str, Any]]]]:
    """The steps of each rank, each step as its columns by name."""
    bounds = np.searchsorted(programs.columns["rank"], np.arange(programs.ranks + 1))
    for rank, (first, stop) in enumerate(pairwise(bounds.tolist())):
        columns = [values[first:stop].tolist() for values in programs.columns.values()]
        rows = zip(*columns, strict=True)
        yield rank, (dict(zip(programs.columns, row, strict=True)) for row in rows)


def kinds_of(programs: Programs) -> set[str]:
    """The kinds of operations that occur."""
    return {KINDS[number] for number in np.unique(programs.columns["kind"]) if number >= 0}


def read_source(path: Path) -> Programs | list[dict[str, Any]]:
    """The programs or the events that a file holds; ValueError where it is neither."""
    try:
        metadata = read_metadata(path)
    except FileNotFoundError:
        raise UserError(f"got {path}: no such file; allowed: a trace or programs") from None
    except (OSError, ValueError):
        metadata = None
    if metadata is not None:
        if "configurations" in metadata:
            return read_programs(path)
        rows = read_rows(path)
        if rows and {"rank", "kind", "group", "channel", "sequence", "issued_ns"} <= set(rows[0]):
            return rows
    raise UserError(
        f"got {path}, which is neither; allowed: a trace (trace.parquet of a run) or programs"
        " (railx steps --out)"
    )


def programs_of(path: Path) -> Programs:
    """The programs of a file, or those of the electrical part of the trace in it."""
    source = read_source(path)
    if isinstance(source, list):
        electrical = [event for event in source if event.get("mode", "electrical") == "electrical"]
        if not electrical:
            raise UserError(f"got {path} with no electrical events; allowed: a trace that has some")
        source = recorded_programs(electrical, kinds=True)
    issues = source.columns["does"] == ISSUE
    if (source.columns["kind"][issues] < 0).any():
        raise UserError(f"got {path} with operations of no kind; allowed: {', '.join(KINDS)}")
    return source
