"""The time of a training step in closed form, for many plans at once.

Passes of layers (:mod:`railx.performance.layers`) add up to stages, stages to a
pipeline by its schedule, and what replicas exchange is added where it does not hide
behind computation. :mod:`railx.steps.referee` replays the same plan on the virtual
clock; tests hold the two together. Times are seconds, arrays float[plans].
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
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

    ``forward``: those of them that are of the forward pass.
    """

    parts: Mapping[str, Array]
    forward: Array

    @property
    def total(self) -> Array:
        return _sum(self.parts.values())

    def plus(self, compute: Array) -> _Work:
        """With the work at an end of the model, a third of it forward."""
        parts = {**self.parts, "compute": self.parts["compute"] + compute}
        return _Work(parts, self.forward + compute / 3)


class _Passes:
    """The passes and exchanges of each kind of layers under a table of plans."""

    def __init__(self, layers: Layers) -> None:
        kinds = layers.setting.model.kinds
        self.layers = layers
        self.kinds = [(layers.passes(kind), layers.exchange(kind)) for kind in kinds]

    def work(self, counts: Sequence[Array], chunks: Array) -> _Work:
        """One micro-batch in layers of each kind, ``chunks`` runs of them."""
        parts = dict.fromkeys(_OF_LAYERS, np.zeros(len(self.layers.plans)))
        forward = np.zeros(len(self.layers.plans))
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
        return _Work(parts, forward)

    def after(self, counts: Sequence[Array]) -> tuple[Array, Array]:
        """What a stage of some layers and a table exchanges after its passes, exposed;
        and the update of its parameters.
        """
        tables, seconds = self.layers.tables()
        for count, share, (passes, exchange) in zip(
            counts, _shares(counts), self.kinds, strict=True
        ):
            seconds = seconds + exchange.step_s(passes, count, share)
            tables = tables + count * exchange.parameters
        return seconds, self.layers.update(tables)


def _shares(counts: Sequence[Array]) -> list[Array]:
    total = np.maximum(_sum(counts), 1e-9)
    return [count / total for count in counts]


def step_times(setting: Setting, plans: Plans) -> StepTimes:
    """Seconds of one training step of every plan, by part.

    Some stage is busy or waits for what other stages need (``bubble``) from the first
    pass to the last; the longest such account of the first, a middle and the last stage
    is the step's time.
    """
    layers = Layers(setting, plans)
    passes = _Passes(layers)
    stages, virtual = plans["pipeline"].astype(float), plans["virtual"].astype(float)
    batches = plans["micro_batches"].astype(float)
    head, lookup = layers.head(), layers.lookup()
    all_layers = [np.full(len(plans), float(kind.count)) for kind in setting.model.kinds]
    total = passes.work(all_layers, stages * virtual).total + head + lookup
    alone = stages == 1
    first, middle, last = _layers_of_stages(setting.model, plans)
    accounts = []
    for layers_of_stage, ends in ((first, lookup), (middle, 0.0), (last, head)):
        work = passes.work(layers_of_stage.counts, virtual)
        work = work.plus(np.where(alone, head + lookup, ends))
        before = layers_of_stage.number
        above = passes.work(layers_of_stage.counts_before, before).total
        above = above + np.where(before > 0, lookup, 0.0)
        idle, stall = _waits(layers, work, above, total, before)
        accounts.append((work, idle, stall))
    times = [work.total * batches + idle + stall for work, idle, stall in accounts]
    longest = np.argmax(times, axis=0)

    def chosen(values: Sequence[Array]) -> Array:
        return np.asarray(np.choose(longest, values))

    parts = {name: chosen([work.parts[name] for work, _, _ in accounts]) for name in _OF_LAYERS}
    # The first stage ends last: what it exchanges after its last pass ends the step.
    exposed, update = passes.after(first.counts)
    return StepTimes(
        {
            **{name: seconds * batches for name, seconds in parts.items()},
            "pipeline": chosen([stall for _, _, stall in accounts]),
            "bubble": chosen([idle for _, idle, _ in accounts]),
            "data": parts["data"] * batches + exposed,
            "optimizer": update,
            "fixed": np.full(len(plans), setting.constants.step_s),
        }
    )


def _waits(
    layers: Layers, work: _Work, above: Array, total: Array, number: Array
) -> tuple[Array, Array]:
    """How long a stage waits for passes of other stages, and for messages.

    ``above``: a micro-batch in the ``number`` stages before it. A stage of 1F1B with w
    stages after it runs w forward passes before its first backward pass, and w backward
    passes after its last forward pass, while the stages after it do both passes of a
    micro-batch. Virtual stages divide the wait (Narayanan 2021).
    """
    plans = layers.plans
    stages, batches = plans["pipeline"].astype(float), plans["micro_batches"].astype(float)
    virtual = plans["virtual"].astype(float)
    forward, backward = work.forward, work.total - work.forward
    below = np.maximum(total - above - work.total, 0.0)
    behind = stages - 1 - number
    full = np.maximum(below - behind * forward, 0.0) + np.maximum(below - behind * backward, 0.0)
    few = below - (batches - 1) * np.minimum(forward, backward)
    idle = above + np.where(batches - 1 >= behind, full, np.maximum(few, 0.0))
    hop = layers.hop()
    messages = 2 * hop * (stages - 1)
    stalls = [np.zeros(len(plans))]
    for group in (behind + 1, np.clip(batches - 1, 1, behind + 1)):
        share = (group - 1) / np.maximum(behind, 1)
        trip = share * (below + 2 * hop * behind) + work.total
        stalls.append(np.floor((batches - 1) / group) * (trip - group * work.total))
    messages = messages + np.max(stalls, axis=0)
    gpipe, interleaved = plans["schedule"] == _GPIPE, plans["schedule"] == _INTERLEAVED
    idle = np.where(
        gpipe, above + below, np.where(interleaved, (total - work.total) / virtual, idle)
    )
    messages = np.where(gpipe, 2 * hop * (stages - 1), messages)
    messages = np.where(interleaved, 2 * hop * (stages * virtual - 1), messages)
    return idle, messages


@dataclass(frozen=True, eq=False)
class _StageLayers:
    """Layers of each kind in a stage and in the ``number`` stages before it."""

    number: Array
    counts: Sequence[Array]
    counts_before: Sequence[Array]


def _layers_of_stages(model: Model, plans: Plans) -> list[_StageLayers]:
    """The first, a middle and the last stage.

    One of them is the slowest: layers left over go to the first stages, dense layers
    are the first of the model, and the last stage has the output besides. Of layers
    with a window in turn with others, a stage has the more of the others.
    """
    stages, virtual = plans["pipeline"], plans["virtual"]
    few, left = np.divmod(model.layers, stages * virtual)
    with_experts = sum(kind.count for kind in model.kinds if kind.experts)
    dense = model.layers - with_experts

    def in_blocks(stop: Array) -> list[Array]:
        """Layers of each kind among the first ones up to ``stop``."""
        blocks = {False: np.minimum(stop, dense), True: np.maximum(stop - dense, 0)}
        sizes = {False: dense, True: with_experts}
        return [blocks[k.experts] * (k.count / sizes[k.experts]) for k in model.kinds]

    def counts(number: Array) -> list[Array]:
        totals = [np.zeros(len(plans)) for _ in model.kinds]
        for chunk in range(int(virtual.max(initial=1))):
            model_stage = chunk * stages + number
            start = model_stage * few + np.minimum(model_stage, left)
            stop = start + few + (model_stage < left)
            both = zip(in_blocks(start), in_blocks(stop), strict=True)
            for kind, (before, after) in enumerate(both):
                totals[kind] += np.where(chunk < virtual, after - before, 0.0)
        return [
            np.floor(total + 1e-9) if kind.window else np.ceil(total - 1e-9)
            for kind, total in zip(model.kinds, totals, strict=True)
        ]

    middle = np.maximum(left - 1, 0) % stages
    return [
        _StageLayers(number, counts(number), in_blocks(number * few + np.minimum(number, left)))
        for number in (0 * stages, middle, stages - 1)
    ]


def _sum(arrays: Iterable[Array]) -> Array:
    """In order, so that a plan has the same time alone and in a table."""
    return np.asarray(functools.reduce(operator.add, arrays))
