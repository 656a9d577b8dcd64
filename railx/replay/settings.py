"""Settings of the replay stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import NonNegative

__all__ = ["ReplaySettings"]


@dataclass(frozen=True)
class ReplaySettings:
    """How each training run is replayed on the topologies of the bandwidth settings."""

    fidelity: Literal["analytic", "flow"]
    """Which rows of their tables price communication."""
    on_demand_latencies_ms: tuple[Annotated[float, NonNegative()], ...]
    """Reconfiguration latencies of the on-demand mode."""
    provisioned_latencies_ms: tuple[Annotated[float, NonNegative()], ...]
    """Reconfiguration latencies of the provisioned mode."""
