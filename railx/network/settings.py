"""Settings of the network stage: traffic, network model and collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from railx.settings import AtLeast, NotEmpty

__all__ = ["CollectiveSettings", "NetworkSettings", "StaticNetworkSettings", "TrafficSettings"]


@dataclass(frozen=True)
class TrafficSettings:
    """``uniform``: every chip sends the same share to every other chip, itself excluded (uniform all-to-all)."""

    pattern: Literal["uniform"]


@dataclass(frozen=True)
class StaticNetworkSettings:
    """Exact static channel loads, no queues.

    ``routing``: ``min`` is the minimal routing of the RailX simulator, where equal distances to both rails go to the minus side;
    ``balanced`` splits them evenly. Tori and fat trees split ties evenly in both.
    """

    model: Literal["static"]
    routing: Literal["min", "balanced"]


#: The network models, told apart by ``model``.
NetworkSettings: TypeAlias = StaticNetworkSettings


@dataclass(frozen=True)
class CollectiveSettings:
    """``payload_bytes``: bytes that each participant holds before and after the collective."""

    collective: Literal["ring_all_reduce"]
    payload_bytes: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()]
