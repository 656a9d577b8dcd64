"""Settings of the switches' drivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from railx.effort import Cost, Costs
from railx.settings import (
    MAX_TIMEOUT_S,
    AtLeast,
    Between,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
)

__all__ = [
    "DAY_MS",
    "EmulatedSwitchSettings",
    "NetconfSwitchSettings",
    "PortFailureSettings",
    "SwitchSettings",
]

#: Milliseconds of a day, the longest latency.
DAY_MS = 86_400_000


@dataclass(frozen=True)
class PortFailureSettings:
    """An injected failure of the emulated switch."""

    ports: Annotated[tuple[str, ...], NotEmpty()]
    """Ports that are lost, as GPU.left or GPU.right."""
    after_s: Annotated[float, NonNegative()]
    """Seconds from the start of the controller to the loss."""
    for_s: Annotated[float, Positive()] | None
    """Seconds until the ports are back. None: they stay lost."""
    reason: Annotated[str, NotEmpty()]
    """Reason in the errors of ranks."""


@dataclass(frozen=True)
class EmulatedSwitchSettings:
    """An emulated switch on each rail: circuits in memory, latency by a timer."""

    driver: Literal["emulated"] = "emulated"
    """Emulated: no light is switched."""
    technology: str | None = None
    """Row of resources/published/opus_ocs_technologies.csv of the numbers.
    None: no particular switch.
    """
    ports: Annotated[int, AtLeast(2)] | None = None
    """Ports of a switch; a GPU takes two. None: as many as the run needs."""
    switching_ms: Annotated[float, Between(0, DAY_MS)] | None = None
    """Milliseconds from a command for one circuit to light. None: the latency of the
    run (reconfiguration_latency_ms).
    """
    per_port_ms: Annotated[float, Between(0, DAY_MS)] = 0.0
    """Milliseconds more for each port that moves beyond the first two of a command."""
    state_file: Annotated[str, NotEmpty()] | None = None
    """File that keeps the light, so that a controller that starts anew reads it. None:
    the switch is dark at every start.
    """
    failures: tuple[PortFailureSettings, ...] = ()
    """Injected failures."""

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {
            "ports": Cost(1e-6, 1e2) * self.ports,
        }


@dataclass(frozen=True)
class NetconfSwitchSettings:
    """A real switch on each rail, by NETCONF over SSH.

    It has to speak resources/yang/railx-cross-connect.yang, a model of our own.
    """

    driver: Literal["netconf"]
    """Real switches with NETCONF."""
    addresses: Annotated[tuple[str, ...], NotEmpty()]
    """host:port of the switch of each rail, rails in order."""
    host_keys: tuple[str, ...]
    """Public host key of each switch in base64, as ssh-keyscan prints it. No other key
    is accepted.
    """
    username: Annotated[str, NotEmpty()]
    """User name. The password is in the environment: RAILX_SWITCH_PASSWORD."""
    key_file: Annotated[str, NotEmpty()] | None
    """File with the private key that logs in. None: the password does."""
    reply_timeout_s: Annotated[float, Positive(), Between(0, MAX_TIMEOUT_S)]
    """Seconds without an answer after which a switch counts as lost."""
    poll_s: Annotated[float, Between(0.01, 3600)]
    """Seconds between two questions for failed ports."""

    def __post_init__(self) -> None:
        if len(self.host_keys) != len(self.addresses):
            raise SettingsError(
                "host_keys",
                f"got {len(self.host_keys)} of them; allowed: {len(self.addresses)}, one for each"
                " address",
            )


SwitchSettings: TypeAlias = EmulatedSwitchSettings | NetconfSwitchSettings
