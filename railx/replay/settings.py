"""Settings of the replay stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import NonNegative, SettingsError

_LATENCIES_MS = (0.0, 10.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0)


@dataclass(frozen=True)
class ReplaySettings:
    """How each training run is replayed on the topologies of the bandwidth settings."""

    fidelity: Literal["analytic", "flow"] = "analytic"
    """Which rows of their tables price communication."""
    compute: Literal["measured", "profile"] = "measured"
    """How long ranks compute: as long as each was busy in its run, or forward and
    backward passes as long as a profile of a layer says and the rest as measured."""
    profile: str | None = None
    """Profile of the experiment, of the model of every run; null where it is not used.
    """
    on_demand_latencies_ms: tuple[Annotated[float, NonNegative()], ...] = _LATENCIES_MS
    """Reconfiguration latencies of the on-demand mode."""
    provisioned_latencies_ms: tuple[Annotated[float, NonNegative()], ...] = _LATENCIES_MS
    """Reconfiguration latencies of the provisioned mode."""
    leases: Literal["held", "returned"] = "held"
    """Whether a grant leaves the circuits with its members until others need them, as
    in a run, or every operation asks for them and gives them back."""
    message_ms: Annotated[float, NonNegative()] = 0.0
    """How long a message takes between a rank and the controller, one way, with the
    threads that wake up for it. 0 where nobody has measured it."""

    def __post_init__(self) -> None:
        if (self.compute == "profile") != (self.profile is not None):
            allowed = "the name of one" if self.compute == "profile" else "null"
            raise SettingsError(
                "profile", f"got {self.profile!r}; allowed with {self.compute} times: {allowed}"
            )
