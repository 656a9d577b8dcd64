"""Programs of ranks as a GOAL schedule, for LogGOPSim and ATLAHS.

GOAL has computation, messages and dependencies. So collectives become messages: an
all-to-all one from each member to each other, a barrier rounds of single bytes, all
others those of a ring (a broadcast and a reduce as an all-reduce, a gather as an
all-gather, a scatter as a reduce-scatter: traces name no root). Computation is on cpu 0
of a rank, messages on cpu 1, so that neither delays the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railx.exchange.programs import ProgramWalk, kinds_of, steps_of_ranks
from railx.io import atomic_path
from railx.replay.graph_pricing import TRANSFERS
from railx.replay.programs import Programs

_COMPUTE, _NETWORK = 0, 1


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
        peers = [((here + step) % count, here - step) for step in range(1, count)]
        return [[Message(members[to], part[to], members[of], part[here]) for to, of in peers]]
    if kind == "barrier":
        distances = [1 << turn for turn in range((count - 1).bit_length())]
        return [
            [Message(members[(here + far) % count], 1, members[here - far], 1)] for far in distances
        ]
    rounds = []
    transfer = TRANSFERS[kind]
    for piece in ("reduce_scatter", "all_gather") if transfer == "all_reduce" else (transfer,):
        # A rank ends a reduce-scatter with its own part; an all-gather begins with it.
        shift = 1 if piece == "reduce_scatter" else 0
        for turn in range(count - 1):
            sent, received = (here - shift - turn) % count, (here - shift - turn - 1) % count
            rounds.append([Message(following, part[sent], before, part[received])])
    return rounds


class _Rank(ProgramWalk):
    """Writes a rank's program as lines; ``sizes``: the bytes of each operation."""

    def __init__(self, programs: Programs, rank: int, sizes: Mapping[tuple[int, int], int]) -> None:
        super().__init__(programs, rank)
        self._sizes = sizes
        self._labels = 0
        self.lines: list[str] = []

    def _add(self, what: str, after: Iterable[int]) -> int:
        label = self._labels
        self._labels += 1
        self.lines.append(f"l{label}: {what}")
        self.lines += [f"l{label} requires l{earlier}" for earlier in dict.fromkeys(after)]
        return label

    def compute(self, name: str, lasts_ns: int, iteration: int | None = None) -> None:
        """A line of computation, where it takes time."""
        if lasts_ns:
            self.tail = [self._add(f"calc {lasts_ns} cpu {_COMPUTE}", self.tail)]

    def issue(self, kind: str, members: tuple[int, ...], step: Mapping[str, Any]) -> list[int]:
        """The messages of an operation."""
        channel, size_bytes = step["channel"], self._sizes[step["channel"], step["sequence"]]
        after = [*self.tail, *self.last.get(channel, ())]
        how = f"tag {channel} cpu {_NETWORK} nic 0"
        if kind in ("send", "recv"):
            to = f"{'to' if kind == 'send' else 'from'} {self.peer(members)}"
            return [self._add(f"{kind} {size_bytes}b {to} {how}", after)]
        for turn in messages(kind, size_bytes, members, self.rank):
            ended = []
            for sent in turn:
                ended.append(self._add(f"send {sent.sent_bytes}b to {sent.to} {how}", after))
                received = f"recv {sent.received_bytes}b from {sent.source} {how}"
                ended.append(self._add(received, after))
            after = ended
        return after


def write_goal(path: Path, programs: Programs) -> list[str]:
    """Write the schedule; returns the losses."""
    sizes = _sizes(programs)
    with atomic_path(path) as beside, beside.open("w", encoding="ascii") as file:
        file.write(f"num_ranks {programs.ranks}\n")
        for rank, steps in steps_of_ranks(programs):
            file.write(f"\nrank {rank} {{\n")
            program = _Rank(programs, rank, sizes)
            for step in steps:
                program.take(step)
                file.writelines(f"{line}\n" for line in program.lines)
                program.lines.clear()
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
