"""Estimates of work, so that an endless run is refused before any job.

A settings class whose values make work has a method ``costs()``: the estimate behind
each of its fields, by the field's name. Estimates are rough, of one slow core: they
refuse endless or oversized work, not long work. Waiting (a timeout) and drawing have
no cost. :class:`LimitSettings` holds the limits, so that a larger
machine can lift them. :func:`gathered` collects the costs of checks, so that a command
says the estimate before it begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from railx.settings import Positive, SettingsError

#: From this work on a command says its estimate first.
_LONG_S, _LARGE_BYTES = 60.0, 2**31


@dataclass(frozen=True)
class Cost:
    """Seconds on one core and bytes of memory."""

    seconds: float = 0.0
    bytes: float = 0.0

    def __mul__(self, count: float | None) -> Cost:
        """The cost of ``count`` of them; None, which is not known, costs nothing."""
        return Cost(self.seconds * (count or 0), self.bytes * (count or 0))


_GATHERED: list[Cost] = []


@contextlib.contextmanager
def gathered() -> Iterator[list[Cost]]:
    """The costs that checks in the block estimate, in their order."""
    _GATHERED.clear()
    costs: list[Cost] = []
    yield costs
    costs += _GATHERED


def note(cost: Cost) -> Cost:
    """Gather a cost that is checked elsewhere; it is returned."""
    _GATHERED.append(cost)
    return cost


def estimate(costs: list[Cost]) -> str:
    """The largest of gathered costs, often of one work, in words; "" for small ones."""
    seconds = max((cost.seconds for cost in costs), default=0.0)
    size = max((cost.bytes for cost in costs), default=0.0)
    words = []
    if seconds >= _LONG_S:
        words.append(f"{rough(seconds / 60)} min on one core")
    if size >= _LARGE_BYTES:
        words.append(f"{rough(size / 2**30)} GiB of memory")
    return f"a rough estimate is at most {' and '.join(words)}" if words else ""


@cache
def machine_memory_bytes() -> float:
    """Memory of this machine, or of the container it is; infinite where unknown."""
    try:
        physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        physical = math.inf
    try:
        container = float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        container = math.inf
    return min(physical, container)


#: Costs by field; a dotted name is a field of a field.
Costs: TypeAlias = dict[str, Cost]


@dataclass(frozen=True)
class LimitSettings:
    """The most work that settings may ask for, as estimated before any job."""

    core_days: Annotated[float, Positive()] = 2.0
    """Days on one core for one setting; experiments of conf/ take less altogether."""
    memory_gib: Annotated[float, Positive()] | None = None
    """Memory for one setting; null: that of this machine."""

    @property
    def memory_bytes(self) -> float:
        """The limit of memory."""
        return machine_memory_bytes() if self.memory_gib is None else self.memory_gib * 2**30

    def excess(self, cost: Cost) -> float:
        """A cost over the limits, the larger of both ratios."""
        return max(cost.seconds / (self.core_days * 86_400), cost.bytes / self.memory_bytes)


def check_costs(settings: Any, limits: LimitSettings, key: str = "") -> None:
    """Refuse settings, or containers of settings, whose estimated costs exceed limits.

    SettingsError names the key below ``key``, the estimate and what is allowed.
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        for name, cost in getattr(settings, "costs", dict)().items():
            check_cost(_below(key, name), _value(settings, name), cost, limits)
        for field in dataclasses.fields(settings):
            check_costs(getattr(settings, field.name), limits, _below(key, field.name))
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            check_costs(value, limits, _below(key, str(name)))
    elif isinstance(settings, (tuple, list)):
        for index, value in enumerate(settings):
            check_costs(value, limits, f"{key}[{index}]")


def check_cost(key: str, got: float, cost: Cost, limits: LimitSettings) -> None:
    """Refuse the value ``got`` of a key whose cost, linear in it, exceeds limits."""
    excess = limits.excess(note(cost))
    if excess <= 1:
        return
    largest = got / excess
    allowed = f"at most {math.floor(largest):,}" if largest >= 1 and isinstance(got, int) else ""
    if not allowed and largest > 0:
        allowed = f"at most {largest:.3g}"
    shown = f"{got:,}" if isinstance(got, int) else f"{got:g}"
    raise SettingsError(
        key,
        f"got {shown}; allowed: {allowed or 'less'}, as this would take {in_words(cost, limits)}",
    )


def in_words(cost: Cost, limits: LimitSettings) -> str:
    """The estimate that exceeds its limit most, and the limit's key."""
    if limits.excess(Cost(bytes=cost.bytes)) >= limits.excess(Cost(seconds=cost.seconds)):
        words = f"about {rough(cost.bytes / 2**30)} GiB of memory (limits.memory_gib)"
        if limits.memory_gib is not None:
            return words
        return f"{words[:-1]}: {rough(limits.memory_bytes / 2**30)}, as this machine has)"
    days = cost.seconds / 86_400
    length = f"{rough(days / 365)} years" if days > 730 else f"{rough(days)} days"
    return f"about {length} on one core (limits.core_days)"


def _value(settings: Any, path: str) -> Any:
    """The value of a dotted field, the largest of a tuple."""
    for name in path.split("."):
        settings = settings[name] if isinstance(settings, Mapping) else getattr(settings, name)
    return max(settings, default=0) if isinstance(settings, tuple) else settings


def rough(value: float) -> str:
    """A number with three significant digits, from 1,000 up whole."""
    return f"{value:,.0f}" if 1e3 <= value < 1e9 else f"{value:.3g}"


def _below(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
