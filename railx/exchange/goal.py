"""Programs of ranks as a GOAL schedule, for LogGOPSim and ATLAHS.

GOAL has computation, messages and dependencies. So collectives become messages: an
all-to-all one from each member to each other, a barrier rounds of single bytes, all
others those of a ring (a broadcast and a reduce as an all-reduce, a gather as an
all-gather, a scatter as a reduce-scatter: traces name no root). Computation is on cpu 0
of a rank, messages on cpu 1, so that neither delays the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railx.exchange.sources import ISSUE, WAIT, kinds_of, steps_of_ranks
from railx.io import atomic_path
from railx.replay.programs import KINDS, Programs

_COMPUTE, _NETWORK = 0, 1
#: The parts of each kind of collective.
_PARTS = {
    "all_reduce": ("reduce_scatter", "all_gather"),
    "broadcast": ("reduce_scatter", "all_gather"),
    "reduce": ("reduce_scatter", "all_gather"),
    "all_gather": ("all_gather",),
    "gather": ("all_gather",),
    "reduce_scatter": ("reduce_scatter",),
    "scatter": ("reduce_scatter",),
}


@dataclass(frozen=True)
class Message:
    """A member's messages in one round of a collective: bytes and peers."""

    to: int
    sent_bytes: int
    source: int
    received_bytes: int


def messages(
    kind: str, size_bytes: int, members: tuple[int, ...], rank: int
) -> list[list[Message]]:
    """The rounds of a collective for one member; messages of a round go at once.

    ``size_bytes`` are those of the whole tensor, which is cut in as many parts as there
    are members, the first ones larger by a byte where it does not divide.
    """
    count, here = len(members), members.index(rank)
    part = [size_bytes // count + (number < size_bytes % count) for number in range(count)]
    following, before = members[(here + 1) % count], members[here - 1]
    if kind == "all_to_all":
        return [
            [
                Message(
                    members[(here + step) % count],
                    part[(here + step) % count],
                    members[here - step],
                    part[here],
                )
                for step in range(1, count)
            ]
        ]
    if kind == "barrier":
        distances = [1 << turn for turn in range((count - 1).bit_length())]
        return [
            [Message(members[(here + far) % count], 1, members[here - far], 1)] for far in distances
        ]
    rounds = []
    for piece in _PARTS[kind]:
        # A rank ends a reduce-scatter with its own part; an all-gather begins with it.
        shift = 1 if piece == "reduce_scatter" else 0
        for turn in range(count - 1):
            sent, received = (here - shift - turn) % count, (here - shift - turn - 1) % count
            rounds.append([Message(following, part[sent], before, part[received])])
    return rounds


@dataclass
class _Rank:
    """The lines of one rank."""

    lines: list[str] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    #: Last round of each channel, and of each operation.
    last: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    labels: int = 0

    def add(self, what: str, after: Iterable[int]) -> int:
        label = self.labels
        self.labels += 1
        self.lines.append(f"l{label}: {what}")
        self.lines += [f"l{label} requires l{earlier}" for earlier in dict.fromkeys(after)]
        return label

    def compute(self, lasts_ns: int) -> None:
        if lasts_ns:
            self.tail = [self.add(f"calc {lasts_ns} cpu {_COMPUTE}", self.tail)]


def write_goal(path: Path, programs: Programs) -> list[str]:
    """Write the schedule; returns the losses."""
    sizes = _sizes(programs)
    with atomic_path(path) as beside, beside.open("w", encoding="ascii") as file:
        file.write(f"num_ranks {programs.ranks}\n")
        for rank, steps in steps_of_ranks(programs):
            file.write(f"\nrank {rank} {{\n")
            for line in _lines(programs, sizes, rank, steps):
                file.write(f"{line}\n")
            file.write("}\n")
    lost = ["that ranks begin an iteration together", "how long operations took"]
    if kinds_of(programs) - {"send", "recv"}:
        lost.append("collectives: they are messages, of rings but for an all-to-all")
    return lost


def _sizes(programs: Programs) -> dict[tuple[int, int], int]:
    """The bytes of each operation, the maximum over its members."""
    columns = {name: programs.columns[name].tolist() for name in ("channel", "sequence", "bytes")}
    sizes: dict[tuple[int, int], int] = {}
    for channel, sequence, size_bytes in zip(*columns.values(), strict=True):
        key = channel, sequence
        sizes[key] = max(size_bytes, sizes.get(key, 0))
    return sizes


def _lines(
    programs: Programs,
    sizes: Mapping[tuple[int, int], int],
    rank: int,
    steps: Iterable[Mapping[str, Any]],
) -> Iterator[str]:
    state = _Rank()
    for step in steps:
        key = step["channel"], step["sequence"]
        state.compute(step["gap_ns"])
        if step["does"] == WAIT:
            state.tail += state.ended[key]
            state.compute(step["resume_ns"])
        elif step["does"] == ISSUE:
            members = programs.configurations[step["configuration"]].members
            kind = KINDS[step["kind"]]
            after = [*state.tail, *state.last.get(key[0], ())]
            ended = _operation(state, rank, kind, sizes[key], members, key[0], after)
            state.ended[key] = state.last[key[0]] = ended
        yield from state.lines
        state.lines.clear()


def _operation(
    state: _Rank,
    rank: int,
    kind: str,
    size_bytes: int,
    members: tuple[int, ...],
    tag: int,
    after: list[int],
) -> list[int]:
    """The lines of an operation; returns the labels that it ends with."""
    how = f"tag {tag} cpu {_NETWORK} nic 0"
    if kind in ("send", "recv"):
        (peer,) = (member for member in members if member != rank)
        to = f"to {peer}" if kind == "send" else f"from {peer}"
        return [state.add(f"{kind} {size_bytes}b {to} {how}", after)]
    for turn in messages(kind, size_bytes, members, rank):
        ended = []
        for message in turn:
            ended.append(state.add(f"send {message.sent_bytes}b to {message.to} {how}", after))
            ended.append(
                state.add(f"recv {message.received_bytes}b from {message.source} {how}", after)
            )
        after = ended
    return after
