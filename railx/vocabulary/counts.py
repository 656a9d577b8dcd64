"""What a network is built of and how much bandwidth it gives, in closed form, and the
capability of a family to say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Bill", "NetworkCounts"]

S = TypeVar("S")


@dataclass(frozen=True)
class NetworkCounts:
    """Components of a network and its bandwidths per chip, one direction (None where no
    closed form holds).
    """

    chips: int
    components: dict[str, int]
    injection_gb_s_per_chip: float
    all_to_all_gb_s_per_chip: float | None
    bisection_gb_s_per_chip: float | None


@dataclass(frozen=True)
class Bill(Generic[S]):
    """How a family counts the components of its networks.

    ``counts``: components and bandwidths of a network of these settings. ``resize``:
    the settings of the nearest network of the same kind with so many chips.
    """

    counts: Callable[[S], NetworkCounts]
    resize: Callable[[S, int], S]
