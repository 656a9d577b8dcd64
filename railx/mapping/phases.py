"""The phases of a training step, and the cost of switching circuits between them.

A step is a programme of one chip: it computes, or uses circuits (:class:`Use`). Uses of
different parallelisms need different circuits. Those on one kind of line use the same
ports, so that they either divide its rails or take turns; a :class:`Plan` decides.
Turns change circuits, which takes the latency of the switch. The window of a change is
the time since the ports were last used.

* ``on_demand``: asked for when the use is about to begin, a change costs the latency.
* ``provisioned``: asked for when the ports fall silent, it costs latency less window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import prod
from typing import TypeAlias

from railx.mapping.layout import compute_flops, step_transfers
from railx.mapping.settings import JobSettings, LayoutSettings
from railx.performance.volumes import Transfer

RULES = ("on_demand", "provisioned")


@dataclass(frozen=True)
class Use:
    """Parallelisms whose groups lie on one kind of line, and need circuits there."""

    axes: tuple[str, ...]
    """Axes of the layout that the line holds."""
    over: tuple[str, ...]
    """The parallelisms of more than one member on them, in the layout's order."""
    nodes: int
    """Nodes of a group on the line."""


#: Uses that divide a line's rails between them during their turn, and rails of each.
Turn: TypeAlias = Mapping[Use, int]


@dataclass(frozen=True)
class Plan:
    """The division of every kind of line's ports among the uses."""

    turns: tuple[Turn, ...]
    """Each use is in one of them."""

    def turn(self, use: Use) -> int:
        """Which turn a use is in."""
        return next(number for number, turn in enumerate(self.turns) if use in turn)

    def rails(self, use: Use) -> int:
        return self.turns[self.turn(use)][use]


#: A pause in what the network does (None), or the use of circuits: with its time.
Step = tuple[Use | None, float]


@dataclass(frozen=True)
class Programme:
    """A chip's pauses and uses in a training step, in nanoseconds."""

    micro_batch: tuple[Step, ...]
    """Forward and backward of one micro-batch."""
    end: tuple[Step, ...]
    """The steps after all micro-batches."""
    micro_batches: int
    """Micro-batches of a step."""
    waits: int
    """Micro-batches that a stage waits for others: stages - 1 (1F1B)."""
    compute_ns: float
    """Computation of a micro-batch; the network pauses meanwhile."""

    @property
    def ns(self) -> float:
        """The whole step without any stall."""
        once = sum(time for _, time in self.micro_batch)
        return once * (self.micro_batches + self.waits) + sum(time for _, time in self.end)


@dataclass(frozen=True)
class Windows:
    """Changes of circuits in a step: how many have each window, in nanoseconds."""

    count: Mapping[float, int]
    """Changes that the step pays for, those of waits included."""
    changes: int
    """Changes of a chip in its own micro-batches and at the end."""


def uses_of(
    layout: LayoutSettings, transfer: Transfer, axes: tuple[tuple[str, ...], ...]
) -> list[Use]:
    """The uses of a transfer, one for each kind of line that it spans."""
    uses = []
    for line in axes:
        on_line = [name for axis in line for name in getattr(layout, axis)]
        over = tuple(
            name
            for name in dict.fromkeys(on_line)
            if name in transfer.over and layout.degree(name, line) > 1
        )
        if over:
            uses.append(Use(line, over, prod(layout.degree(name, line) for name in over)))
    return uses


def programme_of(job: JobSettings, times: Mapping[Transfer, Sequence[Step]]) -> Programme:
    """The programme of a chip; ``times`` has the steps that each transfer takes once.

    A layer: attention between two gathers of tensor parallelism and after the keys and
    values of a sequence, then the feed-forward network between two gathers and between
    the two exchanges of experts. Backward goes the other way round, with the keys and
    values twice, after what is computed again. A stage hands on after either. At the
    end gradients are reduced, then parameters gathered.
    """
    layers = job.model.layers // job.layout.degree("pipeline")
    compute_ns = job.chip.compute_ns(compute_flops(job))
    model, length = job.decoder, job.sequence_tokens
    (layer,) = model.kinds
    in_attention, rest = model.layer_flops_per_token(layer, length)
    attention, flops = in_attention / (in_attention + rest), model.pass_flops(length, job.recompute)
    shares = {name: operations / sum(flops.values()) for name, operations in flops.items()}

    def passes(name: str, part: float) -> list[Step]:
        return [(None, compute_ns * shares[name] * part / layers)]

    transfers = step_transfers(job)

    def steps_of(name: str) -> list[list[Step]]:
        return [
            list(times[transfer])
            for transfer in transfers
            if transfer.name == name and not transfer.per_step
        ]

    inside = steps_of("tensor") or [[], []]
    keys, tokens, hand_on = (
        [step for steps in steps_of(name) for step in steps]
        for name in ("sequence", "expert", "pipeline")
    )

    def forward(name: str) -> list[Step]:
        return [
            *(inside[0] + keys + passes(name, attention) + inside[0]),
            *(inside[1] + tokens + passes(name, 1 - attention) + tokens + inside[1]),
        ]

    backward = [
        *(inside[1] + tokens + passes("backward", 1 - attention) + tokens + inside[1]),
        *(passes("again", 1.0) if job.recompute == "selective" else []),
        *(inside[0] + passes("backward", attention) + 2 * keys + inside[0]),
    ]
    if job.recompute == "full":
        backward = forward("again") + backward
    data = [transfer for transfer in transfers if transfer.per_step]
    # Gradients of either kind of parameters, and parameters in the opposite order: the
    # circuits of the second serve both.
    ends = data[::2] + data[1::2][::-1]
    there, back = forward("forward") * layers, backward * layers
    return Programme(
        micro_batch=_merged([*there, *hand_on, *back, *hand_on]),
        end=_merged(
            [step for transfer in ends for _ in range(transfer.times) for step in times[transfer]]
        ),
        micro_batches=job.micro_batches,
        waits=job.layout.degree("pipeline") - 1,
        compute_ns=compute_ns,
    )


def _merged(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Neighbours of the same use as one; pauses too."""
    merged: list[Step] = []
    for use, time in steps:
        if merged and merged[-1][0] == use:
            merged[-1] = (use, merged[-1][1] + time)
        else:
            merged.append((use, time))
    return tuple(merged)


def plans(uses: Sequence[Use], rails: int, fewest: Mapping[Use, int]) -> Iterator[Plan]:
    """Every way to give ``rails`` rails of each kind of line to the uses on it.

    Uses of one turn divide the rails, at least ``fewest`` for each; every rail has an
    owner. A network of packet switches has one rail, which all uses have together.
    """
    kinds = list(dict.fromkeys(use.axes for use in uses))
    choices = []
    for kind in kinds:
        uses_of_kind = [use for use in uses if use.axes == kind]
        ways: list[tuple[Turn, ...]] = []
        for blocks in _partitions(uses_of_kind):
            shared = [list(_shares(block, rails, fewest)) for block in blocks]
            ways += [tuple(turns) for turns in product(*shared)]
        choices.append(ways)
    for chosen in product(*choices):
        yield Plan(tuple(turn for turns in chosen for turn in turns))


def _partitions(uses: Sequence[Use]) -> Iterator[list[list[Use]]]:
    if not uses:
        yield []
        return
    first, *others = uses
    for blocks in _partitions(others):
        yield [[first], *blocks]
        for index, block in enumerate(blocks):
            yield [*blocks[:index], [first, *block], *blocks[index + 1 :]]


def _shares(block: Sequence[Use], rails: int, fewest: Mapping[Use, int]) -> Iterator[Turn]:
    if rails == 1:
        yield dict.fromkeys(block, 1)
        return
    for cuts in combinations(range(1, rails), len(block) - 1):
        shares = [after - before for before, after in pairwise((0, *cuts, rails))]
        if all(share >= fewest[use] for use, share in zip(block, shares, strict=True)):
            yield dict(zip(block, shares, strict=True))


def windows_of(programme: Programme, plan: Plan) -> Windows:
    """The windows of all changes of circuits in a step that is one of many.

    The first micro-batch follows the end of the step before; all further ones, and
    those that a stage waits for, are alike.
    """
    turns = {use: plan.turn(use) for use, _ in (*programme.micro_batch, *programme.end) if use}
    chip = _Chip(turns)
    # A step before, so that what follows is one of many.
    chip.carry_out(programme.micro_batch)
    chip.carry_out(programme.end)
    first = chip.carry_out(programme.micro_batch)
    again = programme.micro_batches - 1
    further = (chip if again else chip.copy()).carry_out(programme.micro_batch)
    if again:
        chip.repeat(programme.micro_batch, again - 1)
    end = chip.carry_out(programme.end)
    count: Counter[float] = Counter(first)
    for window, number in further.items():
        count[window] += number * (again + programme.waits)
    count.update(end)
    return Windows(
        {window: number for window, number in count.items() if number},
        first.total() + further.total() * again + end.total(),
    )


class _Chip:
    """A clock, and for each kind of line its turn and the end of its last use."""

    def __init__(self, turns: Mapping[Use, int]) -> None:
        self.turns = turns
        self.clock = 0.0
        self.turn: dict[tuple[str, ...], int] = {}
        self.silent: dict[tuple[str, ...], float] = {}

    def copy(self) -> _Chip:
        other = _Chip(self.turns)
        other.clock, other.turn, other.silent = self.clock, dict(self.turn), dict(self.silent)
        return other

    def carry_out(self, steps: Sequence[Step]) -> Counter[float]:
        """Go through the steps; the windows of the changes on the way."""
        windows: Counter[float] = Counter()
        for use, time in steps:
            if use is not None:
                turn = self.turns[use]
                if self.turn.get(use.axes, turn) != turn:
                    windows[self.clock - self.silent[use.axes]] += 1
                self.turn[use.axes] = turn
                self.silent[use.axes] = self.clock + time
            self.clock += time
        return windows

    def repeat(self, steps: Sequence[Step], times: int) -> None:
        """Repeat the steps; they end as before."""
        passed = times * sum(time for _, time in steps)
        self.clock += passed
        for axes in {use.axes for use, _ in steps if use is not None}:
            self.silent[axes] += passed


def stall_ns(windows: Windows, latency_ns: float, rule: str) -> float:
    """The time that a step waits for switches of a latency, under one of ``RULES``."""
    if rule == "on_demand":
        return latency_ns * sum(windows.count.values())
    return sum(number * max(0.0, latency_ns - window) for window, number in windows.count.items())
