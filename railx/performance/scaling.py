"""Settings of the studies of scale: published plans, sweeps, sharded replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from railx.settings import AtLeast, Between, NotEmpty

Devices = Annotated[int, Between(1, 10_000_000)]


@dataclass(frozen=True)
class ScalingSettings:
    """How much of the studies of scale is computed."""

    published_every: Annotated[int, AtLeast(1)] = 4
    """Every how many of the published best plans are searched again; 1: all of them."""
    searched_devices: Annotated[tuple[Devices, ...], NotEmpty()] = (1024,)
    """Devices of the jobs whose plans are searched whole; the largest is that of the
    sweeps over the fast domain and over resources."""
    fsdp_devices: Annotated[tuple[Devices, ...], NotEmpty()] = (128, 2048)
    """Devices among which Llama 2 7B is sharded."""
