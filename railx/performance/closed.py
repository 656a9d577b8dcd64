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
    """

    work: _Work
    idle: Array
    messages: Array
    hidden: Array


def step_times(setting: Setting, plans: Plans) -> StepTimes:
    """Seconds of one training step of every plan, by part.

    A stage is busy or waits from the first pass to the last. The longest account of a
    stage is the step's time; ``bubble`` is its wait for passes of other stages.
    """
    layers = Layers(setting, plans)
    passes = _Passes(layers)
    gpipe = plans["schedule"] == _GPIPE
    stages, virtual = plans["pipeline"].astype(float), plans["virtual"].astype(float)
    batches = plans["micro_batches"].astype(float)
    head, lookup = layers.head(), layers.lookup()
    all_layers = [np.full(len(plans), float(kind.count)) for kind in setting.model.kinds]
    total = passes.work(all_layers, stages * virtual).plus(head + lookup)
    accounts: list[_Account] = []
    after: list[tuple[Array, Array]] = []
    for stage in _stages(setting.model, plans):
        ends = np.where(stage.number == stages - 1, head, 0.0)
        work = passes.work(stage.counts, virtual)
        work = work.plus(ends + np.where(stage.number == 0, lookup, 0.0))
        above = passes.work(stage.before, stage.number)
        above = above.plus(np.where(stage.number > 0, lookup, 0.0))
        alike = passes.work(stage.of_alike, virtual)
        idle, messages = _waits(layers, (work, above, total), stage, alike.total, ends)
        accounts.append(_Account(work, idle, messages, np.minimum(work.tail, ends * 2 / 3)))
        # Stages end one after another, the first one last.
        exchanged, updated = passes.after(stage.counts, stage.number)
        after.append((exchanged - (above.backward - above.tail) / virtual, updated))

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

    latest = np.argmax([_sum(one) for one in after], axis=0)
    parts = {name: chosen([one.work.parts[name] for one in accounts]) for name in _OF_LAYERS}
    parts = {name: seconds * batches for name, seconds in parts.items()}
    parts["data"] = parts["data"] + chosen([exchanged for exchanged, _ in after], latest)
    return StepTimes(
        {
            **parts,
            "pipeline": chosen([one.messages for one in accounts]),
            "bubble": chosen(waits),
            "optimizer": chosen([updated for _, updated in after], latest),
            "fixed": np.full(len(plans), setting.constants.step_s),
        }
    )


def _waits(
    layers: Layers,
    works: tuple[_Work, _Work, _Work],
    stage: _StageLayers,
    alike: Array,
    ends: Array,
) -> tuple[Array, Array]:
    """How long a stage waits for passes of other stages, and for messages.

    ``works``: a micro-batch in the stage, in the stages before it and in all stages.
    ``alike``: in the layers of a stage with as many, ``ends`` in the output.

    A stage of 1F1B with w stages after it runs w forward passes before its first
    backward pass, and w backward passes after its last forward pass, while the stages
    after it do both passes of a micro-batch. Any n stages in a row have n micro-batches
    in flight, whose round trip may take longer than their work. Virtual stages divide
    the wait (Narayanan 2021).
    """
    work, before, total = works
    plans = layers.plans
    stages, batches = plans["pipeline"].astype(float), plans["micro_batches"].astype(float)
    virtual = plans["virtual"].astype(float)
    forward, backward = work.forward, work.backward
    above = before.total - before.tail
    whole = total.total - total.tail
    below = np.maximum(whole - above - (work.total - work.tail), 0.0)
    behind = stages - 1 - stage.number
    full = np.maximum(below - behind * forward, 0.0) + np.maximum(below - behind * backward, 0.0)
    few = below - (batches - 1) * np.minimum(forward, backward)
    idle = above + np.where(batches - 1 >= behind, full, np.maximum(few, 0.0))
    hop = layers.hop()
    messages = 2 * hop * (stages - 1)
    group = behind + 1
    trip = below + 2 * hop * behind + work.total
    stalls = [np.zeros(len(plans))]
    stalls.append(np.floor((batches - 1) / group) * (trip - group * work.total))
    # A stage with less work than those around it is not the one that waits longest.
    alike = np.where(alike <= work.total - ends + 1e-12, alike, 0.0)
    for size in (stage.alike, *range(2, 9)):
        group = np.clip(size, 1, stage.alike)
        trip = group * (alike + 2 * hop) - 2 * hop + ends
        stalls.append(np.floor((batches - 1) / group) * (trip - group * work.total))
    # Waiting for slower stages at both ends of the step is not waited for once more.
    counted = np.where(batches - 1 >= behind, np.maximum(full - below, 0.0), 0.0)
    messages = messages + np.maximum(np.max(stalls, axis=0) - counted, 0.0)
    gpipe, interleaved = plans["schedule"] == _GPIPE, plans["schedule"] == _INTERLEAVED
    idle = np.where(
        gpipe,
        above + below,
        np.where(interleaved, (whole - work.total + work.tail) / virtual, idle),
    )
    # A message may take longer than the pass that hides it.
    late = np.maximum(hop - forward, 0.0) + np.maximum(hop - backward, 0.0)
    messages = np.where(gpipe, 2 * hop * (stages - 1) + (batches - 1) * late, messages)
    # The last stage sends to the first one: between two parts of a stage lie a pass and
    # a message of each stage, where the slowest stage has a pass for each of them.
    both_ends = layers.head() + layers.lookup()
    turns = sum(
        np.maximum(((every - part * both_ends) / stages - one + part * ends) / virtual + hop, 0.0)
        for every, one, part in (
            (total.forward, forward, 1 / 3),
            (total.backward, backward, 2 / 3),
        )
    )
    late = np.maximum(hop - np.minimum(forward, backward) / virtual, 0.0)
    late = np.maximum(batches - stages, 0.0) * virtual * late + stages * (virtual - 1) * turns
    messages = np.where(interleaved, 2 * hop * (stages - 1) + late, messages)
    return idle, messages


@dataclass(frozen=True, eq=False)
class _StageLayers:
    """Layers of each kind in a stage of every plan, and around it.

    ``before``: in the stages before it. ``alike``: how many stages have as many layers,
    one after another; ``of_alike``: layers of each kind in one of them, on average.
    """

    number: Array
    counts: Sequence[Array]
    before: Sequence[Array]
    alike: Array
    of_alike: Sequence[Array]


#: Stages that are looked at: both ends, and others with other layers.
_STAGES = 8


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

    number, counts, before, alike, of_alike = columns
    return [
        _StageLayers(
            number=number[:, stage],
            counts=kinds(counts, stage),
            before=kinds(before, stage),
            alike=alike[:, stage],
            of_alike=kinds(of_alike, stage),
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
    before = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)[:-1]])
    sizes = counts.sum(axis=1)
    # The first and the last of those with the same layers, the largest ones before.
    first, last = (np.unique(rows, axis=0, return_index=True)[1] for rows in (counts, counts[::-1]))
    ranked = sorted({*first, *(stages - 1 - last)}, key=lambda n: (-sizes[n], *(-counts[n]), n))
    number = np.array([0, stages - 1, *ranked, *[0] * _STAGES])[:_STAGES]
    alike = sizes == sizes[number][:, None]
    return (
        number,
        counts[number],
        before[number],
        alike.sum(axis=1),
        (alike @ counts) / alike.sum(axis=1)[:, None],
    )


def _sum(arrays: Iterable[Array]) -> Array:
    """In order, so that a plan has the same time alone and in a table."""
    return np.asarray(functools.reduce(operator.add, arrays))
