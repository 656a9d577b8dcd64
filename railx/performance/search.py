"""Every plan of a job, priced at once: which is best, what the next ones cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import numpy as np

from railx.effort import rough
from railx.errors import UserError
from railx.performance.closed import StepTimes, step_lower_bound_s, step_times
from railx.performance.layers import Layers, Setting
from railx.performance.memory import StepMemory, step_memory
from railx.performance.models import Model
from railx.performance.networks import Network
from railx.performance.plans import (
    ALL_INNERMOST,
    ORDERS,
    RECOMPUTATIONS,
    SCHEDULES,
    SHARDINGS,
    Array,
    Plans,
    distinct,
)
from railx.settings import AtLeast, Fraction

_INTERLEAVED = SCHEDULES.index("interleaved")
_OPTIMIZER, _PARAMETERS = SHARDINGS.index("optimizer"), SHARDINGS.index("parameters")
#: Degrees that tell two plans apart.
DEGREES = ("data", "tensor", "context", "pipeline", "expert")
#: Plans that a network which is slow to ask prices first; then as many as before.
_FEW = 16
#: Plans that any search prices first.
_MANY = 1024
#: Plans that are priced at a time where a network is slow to ask.
_AT_ONCE = 8
#: By how much a time that bounds another may be longer by rounding.
_ROUNDING = 1e-9
#: Numbers of replicas tried for each shape: the largest that divide the batch.
_REPLICAS = 3
#: Parts of a step that no network changes.
_WITHOUT_NETWORK = ("compute", "recompute", "optimizer", "fixed")


@dataclass(frozen=True)
class Job:
    """What has to be trained: the batch, and the devices that there are."""

    devices: Annotated[int, AtLeast(1)]
    """Devices; a plan may leave some idle."""
    global_batch: Annotated[int, AtLeast(1)]
    """Sequences of a step."""
    sequence_tokens: Annotated[int, AtLeast(1)]
    """Tokens of a sequence."""
    memory_share: Annotated[float, Fraction()] = 0.9
    """Share of a device's memory that a plan may fill; the rest is for libraries."""


@dataclass(frozen=True, eq=False)
class Priced:
    """Plans with their times and memory; rows go together."""

    setting: Setting
    plans: Plans
    times: StepTimes
    memory: StepMemory

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def tokens_per_s(self) -> Array:
        """Tokens of a step over its time, float[plans]."""
        return self.plans.tokens / self.times.total_s

    @property
    def utilisation(self) -> Array:
        """Model operations over the peak of the devices in use (MFU), float[plans]."""
        model, device = self.setting.model, self.setting.device
        lengths, inverse = np.unique(self.plans["sequence_tokens"], return_inverse=True)
        flops = np.array([model.flops_per_token(int(length)) for length in lengths])[inverse]
        peak = device.peak_flops(self.setting.precision) * self.plans.devices
        return 3 * flops * self.tokens_per_s / peak

    def take(self, rows: Array) -> Priced:
        """Some of the plans: int[n] or bool[plans]."""
        return self._merged(self, lambda ours, _: ours[rows])

    def joined(self, others: Priced) -> Priced:
        """These plans, then others."""
        return self._merged(others, lambda ours, theirs: np.concatenate([ours, theirs]))

    def replaced(self, rows: Array, others: Priced) -> Priced:
        """These plans with others in some rows, int[others]."""

        def column(ours: Array, theirs: Array) -> Array:
            ours = ours.copy()
            ours[rows] = theirs
            return ours

        return self._merged(others, column)

    def _merged(self, others: Priced, column: Callable[[Array, Array], Array]) -> Priced:
        """Each column made of the same one of both."""
        plans, times, memory = (
            {name: column(ours[name], theirs[name]) for name in ours}
            for ours, theirs in zip(self._tables, others._tables, strict=True)
        )
        return Priced(self.setting, Plans(plans), StepTimes(times), StepMemory(memory))

    @property
    def _tables(self) -> tuple[Mapping[str, Array], ...]:
        return self.plans.columns, self.times.parts, self.memory.parts


#: Which plans another way to plan would take: bool[plans].
Rival: TypeAlias = Callable[[Setting, Plans], Array]


def price(setting: Setting, plans: Plans) -> Priced:
    """Times and memory of plans."""
    return Priced(setting, plans, step_times(setting, plans), step_memory(setting, plans))


def candidates(model: Model, job: Job, node_devices: int) -> Plans:
    """Every plan that can be meant for a job.

    Tensor degrees divide the heads, context degrees the sequence, experts' degrees the
    experts, all powers of two. Any number of stages up to the layers; virtual stages
    divide the layers evenly; micro-batches divide the batch. Placement: the usual one.
    """
    tensor = [n for n in _powers(min(2 * node_devices, job.devices)) if model.heads % n == 0]
    context = [n for n in _powers(min(64, job.devices)) if job.sequence_tokens % (2 * n) == 0]
    experts = [n for n in _powers(model.experts) if model.experts % n == 0] or [1]
    flat = {"pipeline": [1], "virtual": [1], "sharding": [_OPTIMIZER, _PARAMETERS]}
    several = range(2, min(model.layers, job.devices) + 1)
    stages = {"pipeline": several, "virtual": [1], "sharding": [_OPTIMIZER]}
    even = [n for n in several if model.layers % n == 0]
    interleaved = stages | {"pipeline": even, "virtual": [2, 3, 4, 6, 8]}
    tables = [
        _product(
            tensor=tensor,
            context=context or [1],
            expert=experts,
            micro_batch=_powers(16),
            recompute=range(len(RECOMPUTATIONS)),
            replicas=range(_REPLICAS),
            **pipelines,
        )
        for pipelines in (flat, stages, interleaved)
    ]
    shapes = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    inside = shapes["tensor"] * shapes["context"] * shapes["pipeline"]
    shapes["data"] = _replicas(job, job.devices // inside, shapes.pop("replicas"))
    data, stages_of = shapes["data"], shapes["pipeline"]
    per_replica = job.global_batch // np.maximum(data, 1)
    shapes["micro_batches"] = per_replica // shapes["micro_batch"]
    chunks = stages_of * shapes["virtual"]
    rounds = shapes["micro_batches"] % stages_of == 0
    possible = (
        (data > 0)
        & (shapes["micro_batches"] * shapes["micro_batch"] == per_replica)
        & ((shapes["virtual"] == 1) | ((model.layers % chunks == 0) & rounds))
        & (data * shapes["context"] % shapes["expert"] == 0)
    )
    columns = {name: values[possible] for name, values in shapes.items()}
    columns["schedule"] = np.where(columns["virtual"] > 1, _INTERLEAVED, 0)
    columns["sequence_parallel"] = columns["tensor"] > 1
    columns["sequence_tokens"] = np.full(len(columns["data"]), job.sequence_tokens)
    return Plans.table(columns)


def _powers(most: int) -> list[int]:
    return [2**n for n in range(max(most, 0).bit_length())]


def _product(**values: Sequence[int]) -> dict[str, Array]:
    """All combinations, as columns."""
    grids = np.meshgrid(*map(np.array, values.values()), indexing="ij")
    return {name: grid.ravel() for name, grid in zip(values, grids, strict=True)}


def _replicas(job: Job, most: Array, rank: Array) -> Array:
    """The largest divisors of the batch up to ``most``; rank 0 is the largest."""
    batch = job.global_batch
    small = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    divisors = np.unique([*small, *(batch // n for n in small)])
    position = np.searchsorted(divisors, most, side="right") - 1 - rank
    return np.where(position >= 0, divisors[np.maximum(position, 0)], 0)


class _Ranking:
    """The plans that fit into memory, the fastest first, priced as far as needed.

    ``plans``: all that fit; ``priced``: some of them, in order, ``rows`` their numbers.
    Every other plan takes at least ``complete_s``.

    Of all candidates, each that may become the fastest is in its best placement where
    :meth:`find_placements` asked for it. It stays in the usual one where it is slower
    than the fastest even with all groups inside nodes, and of equals. Placements move
    no bytes of memory, so that all fit.
    """

    def __init__(self, setting: Setting, job: Job, plans: Plans | None) -> None:
        node = setting.network.node_devices
        everything = candidates(setting.model, job, node) if plans is None else plans
        memory = step_memory(setting, everything).total_bytes
        room = setting.device.capacity_gb * 1e9 * job.memory_share
        fits = memory <= room
        if not fits.any():
            nearest = nearest_devices(setting, job)
            least = memory.min(initial=math.inf) / 1e9
            raise UserError(
                f"gpus: got {job.devices}; {setting.model.name} fits no plan"
                f" ({rough(least)} GB on a device of {rough(room / 1e9)}); allowed: "
                + (f"{nearest} or more" if nearest else "no number, a smaller batch or model")
            )
        self.setting, self.plans = setting, everything.take(fits)
        self._lower_bound_s = step_lower_bound_s(setting, self.plans)
        self._left = np.argsort(self._lower_bound_s, kind="stable")
        self._usual_s = np.zeros(len(self.plans))
        self.rows, self._left = np.split(self._left, [_MANY])
        self.priced = self._price(self.rows)
        self._sort()
        while self.complete_s <= (fastest_s := self.priced.times.total_s[0]):
            self.extend(fastest_s)
        #: Of plans that may be placed better, seconds with all groups inside nodes.
        self._inside_s = np.full(len(self.plans), math.inf)
        if plans is None:
            fastest_s = self.priced.times.total_s[0]
            alone_s = sum(self.priced.times.parts[name] for name in _WITHOUT_NETWORK)
            rows = np.flatnonzero(alone_s < fastest_s)
            # None where the fastest plan exchanges nothing.
            if len(rows):
                inside = price(setting, self.priced.plans.take(rows).placed(ALL_INNERMOST))
                inside_s = inside.times.total_s
                self._inside_s[self.rows[rows]] = np.where(inside_s < fastest_s, inside_s, math.inf)

    @property
    def complete_s(self) -> float:
        """Seconds that every plan takes at least that is not priced yet."""
        return float(self._lower_bound_s[self._left[0]]) if len(self._left) else math.inf

    def extend(self, until_s: float) -> None:
        """Price as many plans again, of those that may take at most ``until_s``."""
        rows = self._left[: len(self.rows)]
        self._extend(rows[self._lower_bound_s[rows] <= until_s])

    def _extend(self, rows: Array) -> None:
        self._left = self._left[~np.isin(self._left, rows)]
        self.priced = self.priced.joined(self._price(rows))
        self.rows = np.concatenate([self.rows, rows])
        self._sort()

    def extend_to_first(self, rival: Rival) -> None:
        """Price the first plan of a rival, however slow."""
        wanted = rival(self.setting, self.plans)

        def first_s() -> float:
            return float(self.priced.times.total_s[wanted[self.rows]][:1].min(initial=math.inf))

        self.find_placements(wanted, first_s)
        while True:
            rows = self._left[wanted[self._left]][:_MANY]
            if not len(rows) or first_s() < self._lower_bound_s[rows[0]]:
                return
            self._extend(rows)

    def _price(self, rows: Array) -> Priced:
        priced = price(self.setting, self.plans.take(rows))
        self._usual_s[rows] = priced.times.total_s
        return priced

    def _sort(self) -> None:
        order = np.lexsort((self.rows, self._usual_s[self.rows], self.priced.times.total_s))
        self.rows, self.priced = self.rows[order], self.priced.take(order)

    def find_placements(self, some: Array, last_s: Callable[[], float]) -> None:
        """Place those of ``some``, bool[plans], best that may take below ``last_s``."""
        number = _MANY
        while True:
            inside_s = np.where(some, self._inside_s, math.inf)[self.rows]
            rows = np.flatnonzero(inside_s < last_s())
            if not len(rows):
                return
            rows = rows[np.argsort(inside_s[rows], kind="stable")][:number]
            number *= 2
            self._inside_s[self.rows[rows]] = math.inf
            order, row = np.indices((len(ORDERS), len(rows))).reshape(2, -1)
            plans = self.priced.plans.take(rows[row]).placed(order)
            first, numbers = distinct([row, *Layers(self.setting, plans).neighbours()])
            placed = price(self.setting, plans.take(first))
            numbers = numbers.reshape(len(ORDERS), -1)
            best = placed.times.total_s[numbers].argmin(axis=0)
            chosen = numbers[best, np.arange(len(rows))]
            self.priced = self.priced.replaced(rows, placed.take(chosen))
            self._sort()


def search(
    setting: Setting,
    job: Job,
    plans: Plans | None = None,
    shown: int | None = None,
    rivals: Sequence[Rival] = (),
) -> Priced:
    """The plans that fit into memory, the fastest first.

    ``plans``: those that are searched, as they are placed; None: all candidates, each
    that may become the fastest in its best placement. ``shown``: plans are left out or
    not placed that cannot be among the first so many that differ in a degree, but for
    the first of each of ``rivals``; None: none is left out.

    Raises :class:`UserError` where none fits, naming the nearest number of devices for
    which one does.
    """
    ranking = _Ranking(setting, job, plans)
    ranking.find_placements(
        np.ones(len(ranking.plans), bool), lambda: _last_s(ranking.priced, shown)
    )
    for rival in rivals:
        ranking.extend_to_first(rival)
    while ranking.complete_s <= (last_s := _last_s(ranking.priced, shown)):
        ranking.extend(last_s)
    return ranking.priced


def search_below(
    setting: Setting,
    job: Job,
    bound: Network,
    shown: int,
    rivals: Sequence[Rival] = (),
    answered: Network | None = None,
    nearer: Network | None = None,
) -> Priced:
    """As :func:`search` on a network that takes long to price a plan.

    ``bound``: a network that makes every transfer at least as fast. Plans are compared
    in its order, until none that is left could be among the first ``shown`` that differ
    in a degree; of each of ``rivals``, the first is compared as well. ``answered``: a
    network that takes the exact time of transfers that the setting's was asked before,
    and the bound's of others; None: the bound. ``nearer``: a slower network, which also
    makes every transfer at least as fast and prices a plan before the setting's does;
    None: none. Of the plans that are compared those are priced that could be shown, or
    be the fastest of a rival, even on these. The plans that were priced, the fastest
    first.
    """
    ideal = _Ranking(replace(setting, network=bound), job, None)
    ideal.find_placements(np.ones(len(ideal.plans), bool), lambda: _last_s(ideal.priced, None))
    for rival in rivals:
        ideal.extend_to_first(rival)
    left = np.ones(len(ideal.plans), bool)

    def fastest_left(number: int, below_s: float) -> Array:
        """The next rows of the ranking that were not compared here."""
        while True:
            total_s, waiting = ideal.priced.times.total_s, left[ideal.rows]
            rows = np.flatnonzero(waiting & (total_s < below_s))[:number]
            until_s = total_s[rows[-1]] if len(rows) == number else below_s
            if until_s < ideal.complete_s:
                return rows
            ideal.extend(until_s)

    rows = fastest_left(_FEW, _last_s(ideal.priced, None))
    firsts = [np.flatnonzero(rival(setting, ideal.priced.plans))[:1] for rival in rivals]
    rows = np.unique(np.concatenate([rows, *firsts]))
    answered = bound if answered is None else answered
    compared = _Compared(setting, answered, ideal.priced.take(rows[:0]), nearer)
    while len(rows):
        left[ideal.rows[rows]] = False
        compared.add(ideal.priced.take(rows))
        rows = fastest_left(len(compared.plans), compared.last_s(shown))
    for rival in rivals:
        compared.price_first(rival)
    return compared.priced


class _Compared:
    """Plans in the order that they came, priced as far as needed.

    ``priced``: some of ``plans``, the fastest first, of equal ones that which came
    first. Every other takes at least ``_bound_s`` seconds, float[plans].
    """

    def __init__(
        self, setting: Setting, answered: Network, none: Priced, nearer: Network | None = None
    ) -> None:
        self.priced, self.plans = replace(none, setting=setting), none.plans
        self._answered = replace(setting, network=answered)
        self._nearer = None if nearer is None else replace(setting, network=nearer)
        self._rows, self._bound_s = np.zeros(0, int), np.zeros(0)
        #: Whether the bound of a plan is that of the nearer network.
        self._near = np.zeros(0, bool)

    def add(self, plans: Priced) -> None:
        """More plans, priced on a network that bounds them."""
        columns = plans.plans.columns.items()
        self.plans = Plans({n: np.concatenate([self.plans[n], more]) for n, more in columns})
        self._bound_s = np.append(self._bound_s, plans.times.total_s)
        self._near = np.append(self._near, np.zeros(len(plans), bool))

    def last_s(self, shown: int) -> float:
        """Seconds of the last of all plans that is shown."""

        def last_s() -> float:
            enough = len(self.priced) and len(first_plans(self.priced, shown)) == shown
            return _last_s(self.priced, shown) if enough else math.inf

        self._price_below(np.ones(len(self.plans), bool), last_s)
        return _last_s(self.priced, shown)

    def price_first(self, rival: Rival) -> None:
        selected = rival(self.priced.setting, self.plans)

        def first_s() -> float:
            return float(self.priced.times.total_s[selected[self._rows]].min(initial=math.inf))

        self._price_below(selected, first_s)

    def _price_below(self, selected: Array, last_s: Callable[[], float]) -> None:
        """Price those of some plans, bool[plans], that may take at most ``last_s``."""
        waiting = selected.copy()
        waiting[self._rows] = False
        newest = np.zeros(len(waiting), bool)
        while True:
            rows = np.flatnonzero(waiting & (self._bound_s * (1 - _ROUNDING) <= last_s()))
            if not len(rows):
                return
            if not newest[rows].all():
                # What was answered since the last time may rule them out.
                self._bound(rows, self._answered)
                newest[rows] = True
                continue
            rows = rows[np.argsort(self._bound_s[rows], kind="stable")][:_AT_ONCE]
            if self._nearer is not None and not self._near[rows].all():
                self._bound(rows, self._nearer)
                self._near[rows], newest[:] = True, False
                continue
            self.priced = self.priced.joined(price(self.priced.setting, self.plans.take(rows)))
            self._rows = np.append(self._rows, rows)
            order = np.lexsort((self._rows, self.priced.times.total_s))
            self.priced, self._rows = self.priced.take(order), self._rows[order]
            waiting[rows], newest[:] = False, False

    def _bound(self, rows: Array, setting: Setting) -> None:
        total_s = step_times(setting, self.plans.take(rows)).total_s
        self._bound_s[rows] = np.maximum(self._bound_s[rows], total_s)


def _last_s(priced: Priced, shown: int | None) -> float:
    """Seconds of the last plan that is shown."""
    if shown is None:
        return float(np.finfo(float).max)
    return float(priced.times.total_s[first_plans(priced, shown)[-1]])


def first_plans(priced: Priced, number: int) -> list[int]:
    """The first rows that differ in a degree, so many or fewer."""
    degrees = np.stack([priced.plans[name] for name in DEGREES], axis=1)
    rows = _MANY
    while True:
        _, first = np.unique(degrees[:rows], axis=0, return_index=True)
        if len(first) >= number or rows >= len(degrees):
            return sorted(int(row) for row in first)[:number]
        rows *= 8


def nearest_devices(setting: Setting, job: Job) -> int | None:
    """A number of devices above the job's for which some plan fits, at most a 64th
    larger than the least.
    """
    room = setting.device.capacity_gb * 1e9 * job.memory_share

    def fits(devices: int) -> bool:
        larger = Job(devices, job.global_batch, job.sequence_tokens, job.memory_share)
        plans = candidates(setting.model, larger, setting.network.node_devices)
        return bool((step_memory(setting, plans).total_bytes <= room).any())

    low, high = job.devices, job.devices
    while not fits(high):
        low, high = high, high * 2
        if high > job.devices * 4096:
            return None
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
