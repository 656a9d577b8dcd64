"""The time of a training step in closed form, for many plans at once.

Passes of layers (:mod:`railx.performance.layers`) add up to stages, stages to a
pipeline by its schedule, and what replicas exchange is added where it does not hide
behind computation. Virtual stages of unlike layers have no closed form; their passes
are run in order. :mod:`railx.steps.referee` replays the same plan on the virtual
clock; tests hold the two together. Times are seconds, arrays float[plans].
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from railx.performance.layers import Layers, Setting
from railx.performance.models import Model
from railx.performance.plans import ALL_INNERMOST, SCHEDULES, Array, Plans, distinct

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
#: The parts that a stage is busy with.
_OF_LAYERS = ("compute", "recompute", "tensor", "context", "expert", "data", "pipeline")
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

    def plus(self, compute: Array, sends: tuple[Array, Array]) -> _Work:
        """With the work at an end of the model, a third of it forward, and seconds of
        messages that a stage is busy with after forward and after backward passes.
        """
        parts = {
            **self.parts,
            "compute": self.parts["compute"] + compute,
            "pipeline": _sum(sends),
        }
        return _Work(parts, self.forward + compute / 3 + sends[0], self.tail)


class _Passes:
    """The passes and exchanges of each kind of layers under a table of plans."""

    def __init__(self, layers: Layers) -> None:
        kinds = layers.setting.model.kinds
        self.layers = layers
        self.kinds = [(layers.passes(kind), layers.exchange(kind)) for kind in kinds]

    def work(self, layers: _Layers) -> _Work:
        parts = dict.fromkeys(_OF_LAYERS, np.zeros(len(self.layers.plans)))
        forward, tail = np.zeros((2, len(self.layers.plans)))
        for count, first, (passes, exchange) in zip(
            layers.number, layers.first, self.kinds, strict=True
        ):
            seconds = {
                "compute": count * (passes.forward + passes.backward),
                "recompute": count * passes.again,
                **{axis: count * (there + back) for axis, (there, back) in passes.sent.items()},
            }
            parts |= {name: parts[name] + value for name, value in seconds.items()}
            forward = forward + count * passes.forward_s
            tail = tail + exchange.tail_s(first)
        for index in np.ndindex(layers.runs.shape[:3]):
            if not layers.runs[index].any():
                continue
            there, back = self._exposed(*index)
            parts["data"] = parts["data"] + layers.runs[index] * (there + back)
            forward = forward + layers.runs[index] * there
        begins = _sum(layers.first) * self.layers.setting.constants.begin_s
        parts["compute"], forward = parts["compute"] + begins, forward + begins
        return _Work(parts, forward, tail)

    def _exposed(self, before: int, kind: int, after: int) -> tuple[Array, Array]:
        """Exposed seconds of a layer of a kind between two others, or at an end."""
        around = [*self.kinds, None]
        passes, exchange = self.kinds[kind]
        return exchange.pass_s(passes, around[before], around[after])

    def by_layer(self) -> list[Array]:
        """One micro-batch in a layer of each kind among others like it."""
        return [
            passes.forward_s + passes.backward_s + _sum(self._exposed(kind, kind, kind))
            for kind, (passes, _) in enumerate(self.kinds)
        ]

    def around(self, counts: Sequence[Array], number: Array) -> tuple[Array, Array, Array]:
        """Exposed seconds of what a stage of some layers exchanges before and after its
        passes, and the update of its parameters. Stages at both ends have a table.
        """
        end = (number == 0) | (number == self.layers.plans["pipeline"] - 1)
        tables, seconds = (np.where(end, value, 0.0) for value in self.layers.tables())
        layers, (before, after) = np.maximum(_sum(counts), 1e-9), np.zeros((2, len(end)))
        kinds = list(zip(counts, self.kinds, strict=True))[::-1]
        behind = _sum(sent.left_s(passes, count, count / layers) for count, (passes, sent) in kinds)
        for count, (passes, sent) in kinds:
            gather, scatter = sent.of_step
            before = sent.queued(count, gather, passes.forward_s, before)
            behind = sent.queued(count, scatter, passes.backward_s, behind)
            later = ~(sent.by_pass | sent.once | sent.reduced)
            after = after + np.where(later, count * sent.gather, 0.0)
            tables = tables + count * sent.parameters
        return before, seconds + (behind + after), self.layers.update(tables)


@dataclass(frozen=True, eq=False)
class _Stage:
    """A stage of every plan: its work, and the passes of the stages before it.

    ``above``: seconds of one micro-batch in the stages before it. ``hidden``: of a
    micro-batch's last scatter, the seconds that the next backward pass hides.
    ``begun``: seconds that its first pass is late for shards. ``exchanged`` and
    ``updated``: after the last pass of the first stage, which is the last of the step.
    """

    layers: _StageLayers
    work: _Work
    head: Array
    above: Array
    hidden: Array
    begun: Array
    exchanged: Array
    updated: Array

    @property
    def number(self) -> Array:
        return self.layers.number


def step_times(setting: Setting, plans: Plans) -> StepTimes:
    """Seconds of one training step of every plan, by part.

    A stage is busy, waits for passes of others (``bubble``) or for messages
    (``pipeline``) from the first pass to the last. The stage for which this is longest
    gives the step's time.
    """
    pipelines = _Pipelines(Layers(setting, plans))
    stages = pipelines.of_stages
    idle, messages = pipelines.waits()
    times = [
        one.work.total * pipelines.batches + wait + late
        for one, wait, late in zip(stages, idle, messages, strict=True)
    ]
    slowest = np.argmax([one.work.total for one in stages], axis=0)
    alike = pipelines.gpipe | pipelines.uneven
    longest = np.where(alike, slowest, np.argmax(times, axis=0))

    def chosen(values: Sequence[Array], index: Array = longest) -> Array:
        return np.asarray(np.choose(index, values))

    latest = np.argmax([one.exchanged + one.updated for one in stages], axis=0)
    parts = {name: chosen([one.work.parts[name] for one in stages]) for name in _OF_LAYERS}
    parts = {name: seconds * pipelines.batches for name, seconds in parts.items()}
    exchanged, bubble = chosen([one.exchanged for one in stages], latest), chosen(idle)
    # An update that begins before the first stage's last pass ends is hidden in part; a
    # scatter that the next pass hides shortens the wait.
    around = _most(one.begun for one in stages) + np.maximum(exchanged, 0.0)
    parts["data"] = parts["data"] + around + np.minimum(bubble, 0.0)
    updated = chosen([one.updated for one in stages], latest)
    return StepTimes(
        {
            **parts,
            "pipeline": parts["pipeline"] + chosen(messages),
            "bubble": np.maximum(bubble, 0.0),
            "optimizer": updated + np.minimum(exchanged, 0.0),
            "fixed": np.full(len(plans), setting.constants.step_s),
        }
    )


#: Columns of plans that the computation of a layer depends on.
_OF_COMPUTATION = (
    *("tensor", "context", "micro_batch", "sequence_tokens", "sequence_parallel"),
    *("recompute", "recompute_layers", "expert"),
)


def step_lower_bound_s(setting: Setting, plans: Plans) -> Array:
    """Seconds that the step of a plan takes at least in any placement: float[plans].

    The larger of what the first stage takes for its layers, as if each were of the
    fastest kind, and what the last stage takes and one micro-batch in all layers before
    it. Their ranks communicate as if they were neighbours. A hundredth of the time to
    price a plan.
    """
    first, inverse = distinct(plans[name] for name in _OF_COMPUTATION)
    layers = Layers(setting, plans.take(first).placed(ALL_INNERMOST))
    passes = [layers.passes(kind) for kind in setting.model.kinds]
    by_kind = np.array([one.forward_s + one.backward_s for one in passes])[:, inverse]
    fastest, micro_batches, virtual = by_kind.min(axis=0), plans["micro_batches"], plans["virtual"]
    parts = (plans["pipeline"] * virtual).astype(int)
    few, left = np.divmod(setting.model.layers, parts)
    first_s = (few * virtual + np.ceil(left / plans["pipeline"])) * micro_batches * fastest
    # int[kinds, layers + 1]: kinds of so many last layers of the model.
    kinds = np.eye(len(passes))[list(setting.model.layer_order[::-1])].cumsum(axis=0).T
    kinds = np.pad(kinds, ((0, 0), (1, 0)))
    last_s = (kinds[:, few] * by_kind).sum(axis=0) + (virtual - 1) * few * fastest
    others_s = (kinds[:, -1] @ by_kind - last_s) / virtual
    # Of unequal virtual stages, those before the last stage's first one.
    alike = (virtual == 1) | (left == 0)
    others_s = np.where(alike, others_s, (plans["pipeline"] - 1) * few * fastest)
    through_s = micro_batches * last_s + others_s
    # The sum of a step's parts may round to less.
    return np.asarray(np.maximum(first_s, through_s) * (1 - 1e-9))


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
        self.uneven, self.ends = _uneven_ends(layers)
        hop, waits = layers.hop(), layers.setting.program.waits_for_sends
        #: Seconds of a message that a stage is busy with, and of one under way.
        self.send, self.hop = (hop, np.zeros_like(hop)) if waits else (np.zeros_like(hop), hop)
        self.head, self.lookup = layers.head(), layers.lookup()
        self.by_layer = self.passes.by_layer()
        model_stages = _stages(layers.setting.model, plans)
        total = self.passes.work(model_stages[0].all)
        sends = self.stages * self.virtual - 1
        self.total = total.plus(self.head + self.lookup, self._sends(sends, sends))
        self.of_stages = [self._stage(one) for one in model_stages]
        #: Of each stage and those before it, the longest passes: forward and backward.
        self.slowest = [self._slowest_until(stage) for stage in self.of_stages]

    def _stage(self, layers: _StageLayers) -> _Stage:
        head = np.where(layers.number == self.stages - 1, self.head, 0.0)
        work = self.passes.work(layers.inside)
        is_first, is_last = layers.number == 0, layers.number == self.stages - 1
        sends = self._sends(self.virtual - is_last, self.virtual - is_first)
        work = work.plus(head + np.where(is_first, self.lookup, 0.0), sends)
        before = self.passes.work(layers.before)
        sent = layers.number * self.virtual
        before = before.plus(
            np.where(is_first, 0.0, self.lookup), self._sends(sent, sent - ~is_first)
        )
        gathered, exchanged, updated = self.passes.around(layers.inside.number, layers.number)
        # Stages end one after another, the first one last.
        since = (before.backward - before.tail) / self.virtual
        if self.uneven.any():
            ended = self.ends[1, layers.number, np.arange(len(self.stages))]
            since = np.where(self.uneven, self.ends[1, 0] - ended, since)
        return _Stage(
            layers,
            work,
            head,
            above=before.total - before.tail,
            hidden=np.minimum(work.tail, head * 2 / 3),
            begun=gathered - before.forward / self.virtual - layers.number * self.hop,
            exchanged=exchanged - since,
            updated=updated,
        )

    def _sends(self, forward: Array, backward: Array) -> tuple[Array, Array]:
        return forward * self.send, backward * self.send

    def _slowest_until(self, last: _Stage) -> tuple[Array, Array]:
        until = [(one.number <= last.number, one.work) for one in self.of_stages]
        return (
            _most(np.where(before, work.forward, 0.0) for before, work in until),
            _most(np.where(before, work.backward, 0.0) for before, work in until),
        )

    def waits(self) -> tuple[list[Array], list[Array]]:
        """Seconds that each stage waits for the passes of others, and for messages."""
        stages = self.of_stages
        if self.alone:
            late = (self.batches - 1) * stages[0].hidden
            none = np.zeros(len(self.stages))
            return [np.where(self.gpipe, -late, none)], [none]
        there_and_back = 2 * self.hop * (self.stages - 1)
        # All forward passes of GPipe precede the others; each has its slowest stage.
        repeated = _most(one.work.forward for one in stages)
        repeated = repeated + _most(one.work.backward - one.hidden for one in stages)
        idle, messages = [], []
        for one in stages:
            # Of GPipe, a message may take longer than the pass that hides it.
            over = [np.maximum(self.hop - s, 0.0) for s in (one.work.forward, one.work.backward)]
            others = self.total.total - self.total.tail - (one.work.total - one.work.tail)
            alternating = self._alternating(one, 0.0)
            idle.append(
                np.select(
                    [self.uneven, self.gpipe, self.interleaved],
                    [
                        self.ends[0, 0] - self.batches * one.work.total,
                        others + (self.batches - 1) * (repeated - one.work.total),
                        others / self.virtual,
                    ],
                    alternating,
                )
            )
            messages.append(
                np.select(
                    [self.uneven, self.gpipe, self.interleaved],
                    [
                        self.ends[1, 0] - self.ends[0, 0],
                        there_and_back + (self.batches - 1) * _sum(over),
                        there_and_back + self._turns(one.work, one.head),
                    ],
                    self._alternating(one, self.hop) - alternating + self._round_trips(one),
                )
            )
        return idle, messages

    def _alternating(self, one: _Stage, hop: Array | float) -> Array:
        """Seconds that a stage of 1F1B waits, messages of ``hop`` seconds included.

        A stage with w stages after it runs w forward passes before its first backward
        pass, and w backward passes after its last forward pass. Meanwhile a micro-batch
        goes down to some later stage and back, where the passes that precede the first
        backward pass there (or follow the last forward pass) take as long as those of
        the slowest stage on the way. The longest of these ways binds.
        """
        behind, repeats = self.stages - 1 - one.number, self.batches - 1
        until_one = one.above + one.work.total - one.work.tail
        ahead = after = few = np.zeros(len(self.stages))
        for last, (forward, backward) in zip(self.of_stages, self.slowest, strict=True):
            way = last.above + last.work.total - last.work.tail - until_one
            way = way + 2 * hop * (last.number - one.number)
            passes = self.stages - 1 - last.number
            below = last.number >= one.number
            warm = way + passes * forward - behind * one.work.forward
            cool = way + passes * backward - behind * one.work.backward
            ahead = np.maximum(ahead, np.where(below, warm, 0.0))
            after = np.maximum(after, np.where(below, cool, 0.0))
            # With few micro-batches no pass of the one kind follows one of the other.
            left = behind - repeats
            either = np.maximum(warm + left * one.work.forward, cool + left * one.work.backward)
            few = np.maximum(few, np.where(below & (passes <= repeats), either, 0.0))
        waits = np.where(repeats > behind, ahead + after, few)
        return one.above + 2 * hop * one.number + waits

    def _round_trips(self, one: _Stage) -> Array:
        """Stalls of 1F1B: n stages in a row have n micro-batches in flight, whose round
        trip may take longer than the work of the slowest of them.
        """

        def of_layers(counts: Sequence[Array]) -> Array:
            return _sum(n * one for n, one in zip(counts, self.by_layer, strict=True))

        # What a stage has besides its layers, on average: the ends of its exchanges.
        work, repeats = one.work, np.maximum(self.batches - self.stages + one.number, 0.0)
        besides = work.total - one.head - of_layers(one.layers.inside.number)
        stall = np.zeros(len(self.stages))
        for size, counts, to_end in one.layers.chains:
            chain = size * besides + of_layers(counts) + np.where(to_end, self.head, 0.0)
            over = chain - size * work.total
            # A stage with less work than those around it does not wait longest.
            # Messages do not wait for a pass's last scatter.
            late = (size - 1) * (2 * self.hop - work.tail)
            waits = np.where(over <= 1e-9 * chain, over + late, 0.0)
            stall = np.maximum(stall, np.floor(repeats / size) * waits)
        return stall

    def _turns(self, work: _Work, head: Array) -> Array:
        """Stalls of virtual stages, whose last stage sends to the first one.

        Between two parts of a stage lie a pass and a message of each stage, where the
        slowest stage has a pass for each of them: at both ends of the step passes of
        one direction, in between pairs of both. Pairs with the head are longer.
        """
        every, ends = self.total, self.head + self.lookup
        parts = (
            (every.forward - ends / 3, work.forward - head / 3),
            (every.backward - every.tail - ends * 2 / 3, work.backward - head * 2 / 3),
        )
        waves = [other / self.stages / self.virtual + self.hop for other, _ in parts]
        turns = [
            np.maximum(wave - one / self.virtual, 0.0)
            for wave, (_, one) in zip(waves, parts, strict=True)
        ]
        pair = _sum(one for _, one in parts) / self.virtual
        late = np.maximum(self.batches - self.stages, 0.0) * np.maximum(_most(waves) - pair, 0.0)
        return np.asarray((self.virtual - 1) * (late + self.stages * _sum(turns)))


#: Rounds of micro-batches that are run, one for each stage in a round; further ones
#: take as long as the last of these on average.
_ROUNDS, _LAST_ROUNDS = 8, 2


def _uneven_ends(layers: Layers) -> tuple[Array, Array]:
    """Interleaved plans whose virtual stages have unlike layers: bool[plans].

    No closed form has their time, so their passes are run. With it, when the last pass
    of each stage of theirs ends: float[2, stages, plans], first as if messages took no
    time.
    """
    plans, setting = layers.plans, layers.setting
    shapes = np.stack([plans[name] for name in ("pipeline", "virtual", "micro_batches")])
    stages, virtual, batches = shapes
    uneven = (plans["schedule"] == _INTERLEAVED) & (batches % stages == 0)
    experts = np.array([[kind.experts, not kind.experts] for kind in setting.model.kinds])
    for parts in np.unique((stages * virtual)[uneven]):
        by_kind = _runs_of(setting.model.layer_order, parts).sum(axis=(1, 3))
        # Windows alone make a difference in a single round.
        unlike = np.ptp(by_kind, axis=0).any() & (batches == stages)
        unlike |= np.ptp(by_kind @ experts, axis=0).any()
        uneven &= (stages * virtual != parts) | unlike
    ends = np.zeros((2, int(stages.max(initial=1)), len(plans)))
    for shape in np.unique(shapes[:, uneven], axis=1).astype(int).T:
        rows = np.flatnonzero(uneven & (shapes == shape[:, None]).all(axis=0))
        ends[:, : shape[0], rows] = _ends(Layers(setting, plans.take(rows)), *shape.tolist())
    return uneven, ends


def _ends(layers: Layers, stages: int, virtual: int, batches: int) -> Array:
    """When the last pass of each stage ends: float[2, stages, plans] of one shape."""
    runs = _runs_of(layers.setting.model.layer_order, stages * virtual)
    work = _Passes(layers).work(_Layers(np.moveaxis(runs, 0, -1)[..., None]))
    hop, waits = layers.hop(), layers.setting.program.waits_for_sends
    ends, sends = np.zeros((2, stages * virtual, len(hop)))
    ends[0], ends[-1] = layers.lookup(), layers.head()
    sends[:-1] = hop * waits
    passes = work.forward + ends / 3 + sends, work.backward + ends * 2 / 3 + sends[::-1]
    under_way = np.stack([0 * hop, hop * (not waits)])
    rounds = batches // stages
    few = min(rounds, _ROUNDS)
    ended = _run(passes, work.tail, under_way, stages, few)
    if rounds > few:
        earlier = _run(passes, work.tail, under_way, stages, few - _LAST_ROUNDS)
        ended = ended + (ended - earlier)[0] * (rounds - few) / _LAST_ROUNDS
    return ended.swapaxes(0, 1)


def _run(passes: tuple[Array, Array], tail: Array, hop: Array, stages: int, rounds: int) -> Array:
    """When each stage ends its last pass: float[stages, 2, plans], as ``hop``.

    ``passes``: seconds forward and backward by model stage. A stage runs some forward
    passes, then one of each kind in turn, then the backward passes that are left
    (Narayanan 2021, section 2.2). Pass n of a kind is of part n / stages.
    """
    virtual = len(tail) // stages
    every, lead = rounds * stages * virtual, (virtual + 1) * stages - 2
    clocks = np.zeros((stages, *hop.shape))
    arrived = np.zeros((2, stages, every + stages, *hop.shape))
    # Stages take turns: what a pass waits for is of an earlier step, or of its stage.
    for step in range(every + lead):
        for back, stage in ((0, np.arange(stages)), (1, np.arange(stages))):
            n = step - lead + stage if back else step - stage
            stage, n = stage[(n >= 0) & (n < every)], n[(n >= 0) & (n < every)]
            part = n // stages % virtual
            of_model = (virtual - 1 - part if back else part) * stages + stage
            begins = np.maximum(clocks[stage], arrived[back, stage, n])
            clocks[stage] = begins + passes[back][of_model, None]
            arrives = clocks[stage] + hop - back * tail[of_model, None]
            # After the last stage follows the first one's next part; backward, before.
            turns, to = np.divmod(stage + 1 - 2 * back, stages)
            sends = of_model != (0 if back else len(tail) - 1)
            arrived[back, to[sends], (n + stages * abs(turns))[sends]] = arrives[sends]
    return clocks


@dataclass(frozen=True, eq=False)
class _Layers:
    """Some layers of every plan, in runs, one for each virtual stage.

    ``runs``: float[kinds + 1, kinds, kinds + 1, plans], how many layers of a kind lie
    between one of a first and one of a second kind; the last index is an end of a run.
    """

    runs: Array

    @cached_property
    def number(self) -> Sequence[Array]:
        """Layers by kind."""
        return list(self.runs.sum(axis=(0, 2)))

    @cached_property
    def first(self) -> Sequence[Array]:
        """Runs that begin with a layer of a kind."""
        return list(self.runs[-1].sum(axis=1))


class _StageLayers(NamedTuple):
    """Layers in a stage of every plan, in the stages before it and in all stages.

    ``chains``: runs of stages that begin or end with it: how many, layers of each kind
    in them, whether the last stage is one.
    """

    number: Array
    inside: _Layers
    before: _Layers
    all: _Layers
    chains: Sequence[tuple[Array, Sequence[Array], Array]]


#: Stages that are looked at: both ends, and others with other layers.
_STAGES = 8
#: Lengths of runs of stages that are looked at, besides the longest.
_CHAINS = (2, 3, 4, 5, 6, 8)


def _stages(model: Model, plans: Plans) -> list[_StageLayers]:
    """Stages of which one may be the slowest: the ends, and those with other layers.

    Layers left over go to the first stages, dense layers are the first of the model.
    """
    virtual = plans["virtual"]
    most = int(virtual.max(initial=1)) + 1
    shapes, inverse = np.unique(plans["pipeline"] * most + virtual, return_inverse=True)
    by_shape = [_stages_of(model.layer_order, *divmod(int(shape), most)) for shape in shapes]
    *of_stages, used, every_layer = zip(*by_shape, strict=True)
    most_used = int(max(used))

    def of_plans(column: Sequence[Array]) -> Array:
        # Plans last, so that loops over them run along memory.
        return np.stack(column, axis=-1).take(inverse, axis=-1)

    number, inside, before, sizes, of_chains, ends = (
        of_plans([values[:most_used] for values in column]) for column in of_stages
    )
    every = of_plans(every_layer)
    return [
        _StageLayers(
            number=number[stage],
            inside=_Layers(inside[stage]),
            before=_Layers(before[stage]),
            all=_Layers(every),
            chains=[
                (sizes[stage, n], list(of_chains[stage, n]), ends[stage, n])
                for n in range(sizes.shape[1])
            ],
        )
        for stage in range(most_used)
    ]


@functools.lru_cache(4096)
def _stages_of(order: tuple[int, ...], stages: int, virtual: int) -> tuple[Array, ...]:
    """The fields of :class:`_StageLayers` for one shape of pipeline, ``all`` last.

    ``order``: the kind of every layer. Of each column the stages come first; before
    ``all`` is how many of them count.
    """
    runs = _runs_of(order, stages * virtual)
    inside = runs.reshape(virtual, stages, *runs.shape[1:]).sum(axis=0)
    before = np.concatenate([np.zeros((1, *inside.shape[1:])), np.cumsum(inside, axis=0)])
    counts, counts_before = inside.sum(axis=(1, 3)), before.sum(axis=(1, 3))
    sizes = counts.sum(axis=1)
    # The first and the last of those with the same layers, the largest ones before.
    first, last = (np.unique(rows, axis=0, return_index=True)[1] for rows in (counts, counts[::-1]))
    others = {*first, *(stages - 1 - last)} - {0, stages - 1}
    ranked = sorted(others, key=lambda n: (-sizes[n], *(-counts[n]), n))
    number = np.array([0, stages - 1, *ranked, *[0] * _STAGES])[:_STAGES]
    used = np.array(min(2 + len(ranked), stages, _STAGES))
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
        inside[number],
        before[number],
        last - first,
        counts_before[last] - counts_before[first],
        last == stages,
        used,
        before[-1],
    )


def _runs_of(order: tuple[int, ...], model_stages: int) -> Array:
    """Layers of each model stage: float[stages, kinds + 1, kinds, kinds + 1]."""
    end, (few, left) = max(order) + 1, divmod(len(order), model_stages)
    stage = np.repeat(np.arange(model_stages), few + (np.arange(model_stages) < left))
    breaks, kind = np.diff(stage) > 0, np.array(order)
    before = np.append(end, np.where(breaks, end, kind[:-1]))
    after = np.append(np.where(breaks, end, kind[1:]), end)
    runs = np.zeros((model_stages, end + 1, end, end + 1))
    np.add.at(runs, (stage, before, kind, after), 1.0)
    return runs


def _most(arrays: Iterable[Array]) -> Array:
    return np.asarray(functools.reduce(np.maximum, arrays))


def _sum(arrays: Iterable[Array]) -> Array:
    """In order, so that a plan has the same time alone and in a table."""
    return np.asarray(functools.reduce(operator.add, arrays))
