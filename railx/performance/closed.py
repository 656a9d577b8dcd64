"""The time of a training step in closed form, for many plans at once.

Passes of layers (:mod:`railx.performance.layers`) add up to stages, stages to a
pipeline by its schedule, and what replicas exchange is added where it does not hide
behind computation. :mod:`railx.steps.referee` replays the same plan on the virtual
clock; tests hold the two together. Times are seconds, arrays float[plans].
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from railx.performance.layers import Layers, Setting
from railx.performance.models import Model
from railx.performance.plans import SCHEDULES, Array, Plans

__all__ = ["PARTS", "StepTimes", "step_times"]

#: What a step's time is made of, in order.
PARTS = (
    "compute",
    "recompute",
    "tensor",
    "context",
    "expert",
    "pipeline",
    "bubble",
    "data",
    "optimizer",
    "fixed",
)
#: The parts that a layer has.
_OF_LAYERS = ("compute", "recompute", "tensor", "context", "expert", "data")
_GPIPE, _INTERLEAVED = SCHEDULES.index("gpipe"), SCHEDULES.index("interleaved")


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds of a training step by part, and of the passes that it is made of.

    ``parts``: float[plans] by ``PARTS``; they add up to ``total_s``.
    """

    parts: Mapping[str, Array]

    @cached_property
    def total_s(self) -> Array:
        """Seconds of the step."""
        return _sum(self.parts[name] for name in PARTS)


@dataclass(frozen=True, eq=False)
class _Work:
    """One micro-batch in some layers, forward and backward: seconds by part.

    ``forward``: those of them that are of the forward pass. ``tail``: the last of them,
    in which a message is on its way already.
    """

    parts: Mapping[str, Array]
    forward: Array
    tail: Array

    @property
    def total(self) -> Array:
        return _sum(self.parts.values())

    @property
    def backward(self) -> Array:
        return self.total - self.forward

    def plus(self, compute: Array) -> _Work:
        """With the work at an end of the model, a third of it forward."""
        parts = {**self.parts, "compute": self.parts["compute"] + compute}
        return _Work(parts, self.forward + compute / 3, self.tail)


class _Passes:
    """The passes and exchanges of each kind of layers under a table of plans."""

    def __init__(self, layers: Layers) -> None:
        kinds = layers.setting.model.kinds
        self.layers = layers
        self.kinds = [(layers.passes(kind), layers.exchange(kind)) for kind in kinds]

    def work(self, counts: Sequence[Array], chunks: Array) -> _Work:
        """One micro-batch in layers of each kind, ``chunks`` runs of them."""
        parts = dict.fromkeys(_OF_LAYERS, np.zeros(len(self.layers.plans)))
        forward, tail = np.zeros((2, len(self.layers.plans)))
        for count, share, (passes, exchange) in zip(
            counts, _shares(counts), self.kinds, strict=True
        ):
            exposed = exchange.pass_s(passes, count, chunks * share)
            seconds = {
                "compute": count * (passes.forward + passes.backward),
                "recompute": count * passes.again,
                "tensor": count * (passes.tensor_forward + passes.tensor_backward),
                "context": count * (passes.context_forward + passes.context_backward),
                "expert": count * (passes.expert_forward + passes.expert_backward),
                "data": exposed[0] + exposed[1],
            }
            parts = {name: parts[name] + seconds[name] for name in _OF_LAYERS}
            forward = forward + count * passes.forward_s + exposed[0]
            tail = tail + exchange.tail_s(chunks * share)
        return _Work(parts, forward, tail)

    def by_layer(self) -> list[Array]:
        """One micro-batch in a layer of each kind among others like it."""
        return [
            passes.forward_s + passes.backward_s + _sum(exchange.pass_s(passes, 1.0, 0.0))
            for passes, exchange in self.kinds
        ]

    def after(self, counts: Sequence[Array], number: Array) -> tuple[Array, Array]:
        """What a stage of some layers exchanges after its passes, exposed; and the
        update of its parameters. Stages at both ends have a table.
        """
        end = (number == 0) | (number == self.layers.plans["pipeline"] - 1)
        tables, seconds = (np.where(end, value, 0.0) for value in self.layers.tables())
        for count, share, (passes, exchange) in zip(
            counts, _shares(counts), self.kinds, strict=True
        ):
            seconds = seconds + exchange.step_s(passes, count, share)
            tables = tables + count * exchange.parameters
        return seconds, self.layers.update(tables)


def _shares(counts: Sequence[Array]) -> list[Array]:
    total = np.maximum(_sum(counts), 1e-9)
    return [count / total for count in counts]


@dataclass(frozen=True, eq=False)
class _Account:
    """How a stage spends a step: its passes, other stages' passes and messages.

    ``hidden``: of a micro-batch's last scatter, what the next backward pass hides.
    ``exchanged`` and ``updated``: seconds after the last pass of the first stage, which
    is the last of the step.
    """

    work: _Work
    idle: Array
    messages: Array
    hidden: Array
    exchanged: Array
    updated: Array


def step_times(setting: Setting, plans: Plans) -> StepTimes:
    """Seconds of one training step of every plan, by part.

    A stage is busy or waits from the first pass to the last. The longest account of a
    stage is the step's time; ``bubble`` is its wait for passes of other stages.
    """
    pipelines = _Pipelines(Layers(setting, plans))
    batches, gpipe = pipelines.batches, pipelines.gpipe
    accounts = [pipelines.account(stage) for stage in _stages(setting.model, plans)]

    def most(of_account: Callable[[_Account], Array]) -> Array:
        return np.asarray(np.max([of_account(one) for one in accounts], axis=0))

    # All forward passes of GPipe precede the others: either may be slowest elsewhere.
    repeated = most(lambda one: one.work.forward)
    repeated = repeated + most(lambda one: one.work.backward - one.hidden)
    waits = [
        one.idle + np.where(gpipe, (batches - 1) * (repeated - one.work.total), 0.0)
        for one in accounts
    ]
    times = [
        one.work.total * batches + wait + one.messages
        for one, wait in zip(accounts, waits, strict=True)
    ]
    slowest = np.argmax([one.work.total for one in accounts], axis=0)
    longest = np.where(gpipe, slowest, np.argmax(times, axis=0))

    def chosen(values: Sequence[Array], index: Array = longest) -> Array:
        return np.asarray(np.choose(index, values))

    latest = np.argmax([one.exchanged + one.updated for one in accounts], axis=0)
    parts = {name: chosen([one.work.parts[name] for one in accounts]) for name in _OF_LAYERS}
    parts = {name: seconds * batches for name, seconds in parts.items()}
    parts["data"] = parts["data"] + chosen([one.exchanged for one in accounts], latest)
    return StepTimes(
        {
            **parts,
            "pipeline": chosen([one.messages for one in accounts]),
            "bubble": chosen(waits),
            "optimizer": chosen([one.updated for one in accounts], latest),
            "fixed": np.full(len(plans), setting.constants.step_s),
        }
    )


class _Pipelines:
    """Prices the stages of pipelines, and how long each waits for the others."""

    def __init__(self, layers: Layers) -> None:
        plans = layers.plans
        self.passes = _Passes(layers)
        self.stages, self.virtual, self.batches = (
            plans[name].astype(float) for name in ("pipeline", "virtual", "micro_batches")
        )
        self.gpipe = plans["schedule"] == _GPIPE
        self.interleaved = plans["schedule"] == _INTERLEAVED
        self.alone = bool((self.stages == 1).all())
        self.hop, self.head, self.lookup = layers.hop(), layers.head(), layers.lookup()
        self.by_layer = self.passes.by_layer()
        counts = [np.full(len(plans), float(kind.count)) for kind in layers.setting.model.kinds]
        total = self.passes.work(counts, self.stages * self.virtual)
        self.total = total.plus(self.head + self.lookup)

    def account(self, stage: _StageLayers) -> _Account:
        """How a stage of every plan spends the step.

        A stage of 1F1B with w stages after it runs w forward passes before its first
        backward pass, and w backward passes after its last forward pass, while the
        stages after it do both passes of a micro-batch. Virtual stages divide the wait
        (Narayanan 2021).
        """
        ends = np.where(stage.number == self.stages - 1, self.head, 0.0)
        work = self.passes.work(stage.counts, self.virtual)
        work = work.plus(ends + np.where(stage.number == 0, self.lookup, 0.0))
        before = self.passes.work(stage.before, stage.number)
        before = before.plus(np.where(stage.number > 0, self.lookup, 0.0))
        # Stages end one after another, the first one last.
        exchanged, updated = self.passes.after(stage.counts, stage.number)
        exchanged = exchanged - (before.backward - before.tail) / self.virtual
        idle = messages = np.zeros(len(self.stages))
        if not self.alone:
            above = before.total - before.tail
            others = self.total.total - self.total.tail - (work.total - work.tail)
            below = np.maximum(others - above, 0.0)
            behind = self.stages - 1 - stage.number
            ahead = np.maximum(below - behind * work.forward, 0.0)
            full = ahead + np.maximum(below - behind * work.backward, 0.0)
            few = below - (self.batches - 1) * np.minimum(work.forward, work.backward)
            enough = self.batches - 1 >= behind
            idle = above + np.where(enough, full, np.maximum(few, 0.0))
            idle = np.select(
                [self.gpipe, self.interleaved], [above + below, others / self.virtual], idle
            )
            # Waiting for slower stages at both ends of a step is not counted again.
            counted = np.where(enough, np.maximum(full - below, 0.0), 0.0)
            stalls = np.maximum(self._round_trips(stage, work, ends) - counted, 0.0)
            stalls = np.select(
                [self.gpipe, self.interleaved],
                [self._late_messages(work), self._turns(work, ends)],
                stalls,
            )
            messages = 2 * self.hop * (self.stages - 1) + stalls
        hidden = np.minimum(work.tail, ends * 2 / 3)
        return _Account(work, idle, messages, hidden, exchanged, updated)

    def _round_trips(self, stage: _StageLayers, work: _Work, ends: Array) -> Array:
        """Stalls of 1F1B: n stages in a row have n micro-batches in flight, whose round
        trip may take longer than the work of the slowest of them.
        """

        def of_layers(counts: Sequence[Array]) -> Array:
            return _sum(n * one for n, one in zip(counts, self.by_layer, strict=True))

        # What a stage has besides its layers, on average: the ends of its exchanges.
        besides = work.total - ends - of_layers(stage.counts)
        stall = np.zeros(len(self.stages))
        for size, counts, to_end in stage.chains:
            chain = size * besides + of_layers(counts) + np.where(to_end, self.head, 0.0)
            over = chain - size * work.total
            # A stage with less work than those around it does not wait longest.
            waits = np.where(over <= 1e-9 * chain, over + 2 * self.hop * (size - 1), 0.0)
            stall = np.maximum(stall, np.floor((self.batches - 1) / size) * waits)
        return stall

    def _late_messages(self, work: _Work) -> Array:
        """Stalls of GPipe: a message may take longer than the pass that hides it."""
        late = [np.maximum(self.hop - one, 0.0) for one in (work.forward, work.backward)]
        return np.asarray((self.batches - 1) * _sum(late))

    def _turns(self, work: _Work, ends: Array) -> Array:
        """Stalls of virtual stages, whose last stage sends to the first one.

        Between two parts of a stage lie a pass and a message of each stage, where the
        slowest stage has a pass for each of them; later messages hide behind the
        shorter of two passes.
        """
        both_ends = self.head + self.lookup
        turns = [
            np.maximum(
                ((every - part * both_ends) / self.stages - one + part * ends) / self.virtual
                + self.hop,
                0.0,
            )
            for every, one, part in (
                (self.total.forward, work.forward, 1 / 3),
                (self.total.backward - self.total.tail, work.backward, 2 / 3),
            )
        ]
        late = np.maximum(self.hop - np.minimum(work.forward, work.backward) / self.virtual, 0.0)
        late = np.maximum(self.batches - self.stages, 0.0) * self.virtual * late
        return np.asarray(late + self.stages * (self.virtual - 1) * _sum(turns))


@dataclass(frozen=True, eq=False)
class _StageLayers:
    """Layers of each kind in a stage of every plan, and around it.

    ``before``: in the stages before it. ``chains``: runs of stages that begin or end
    with it: how many, layers of each kind in them, whether the last stage is one.
    """

    number: Array
    counts: Sequence[Array]
    before: Sequence[Array]
    chains: Sequence[tuple[Array, Sequence[Array], Array]]


#: Stages that are looked at: both ends, and others with other layers.
_STAGES = 8
#: Lengths of runs of stages that are looked at, besides the longest.
_CHAINS = (2, 3, 4, 5, 6, 8)


def _stages(model: Model, plans: Plans) -> list[_StageLayers]:
    """Stages of which one may be the slowest: the ends, and those with other layers.

    Layers left over go to the first stages, dense layers are the first of the model.
    """
    of_kinds = np.arange(len(model.kinds)) == np.array(model.layer_order)[:, None]
    total = np.concatenate([np.zeros((1, len(model.kinds))), np.cumsum(of_kinds, axis=0)])
    shapes, inverse = np.unique(
        np.stack([plans["pipeline"], plans["virtual"]]), axis=1, return_inverse=True
    )
    found = [_stages_of(total, int(stages), int(virtual)) for stages, virtual in shapes.T]
    columns = [np.stack(column)[inverse.ravel()] for column in zip(*found, strict=True)]

    def kinds(column: Array, stage: int) -> list[Array]:
        return list(column[:, stage].T)

    number, counts, before, sizes, of_chains, ends = columns
    return [
        _StageLayers(
            number=number[:, stage],
            counts=kinds(counts, stage),
            before=kinds(before, stage),
            chains=[
                (sizes[:, stage, n], list(of_chains[:, stage, n].T), ends[:, stage, n])
                for n in range(sizes.shape[2])
            ],
        )
        for stage in range(min(_STAGES, int(plans["pipeline"].max(initial=1))))
    ]


def _stages_of(total: Array, stages: int, virtual: int) -> tuple[Array, ...]:
    """The fields of :class:`_StageLayers` for one shape of pipeline.

    ``total``: float[layers + 1, kinds], layers of each kind before every layer.
    """
    few, left = divmod(len(total) - 1, stages * virtual)
    model_stages = np.arange(stages * virtual + 1)
    starts = model_stages * few + np.minimum(model_stages, left)
    counts = np.diff(total[starts], axis=0).reshape(virtual, stages, -1).sum(axis=0)
    before = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    sizes = counts.sum(axis=1)
    # The first and the last of those with the same layers, the largest ones before.
    first, last = (np.unique(rows, axis=0, return_index=True)[1] for rows in (counts, counts[::-1]))
    ranked = sorted({*first, *(stages - 1 - last)}, key=lambda n: (-sizes[n], *(-counts[n]), n))
    number = np.array([0, stages - 1, *ranked, *[0] * _STAGES])[:_STAGES]
    lengths = np.maximum([*_CHAINS, stages - 2, stages - 1, stages], 1)
    first = np.concatenate(
        [np.repeat(number[:, None], len(lengths), 1), number[:, None] - lengths + 1], axis=1
    )
    last = np.concatenate(
        [number[:, None] + lengths, np.repeat(number[:, None] + 1, len(lengths), 1)], axis=1
    )
    first, last = np.maximum(first, 0), np.minimum(last, stages)
    return (
        number,
        counts[number],
        before[number],
        last - first,
        before[last] - before[first],
        last == stages,
    )


def _sum(arrays: Iterable[Array]) -> Array:
    """In order, so that a plan has the same time alone and in a table."""
    return np.asarray(functools.reduce(operator.add, arrays))
