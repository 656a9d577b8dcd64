"""Settings of the family ``opus_rails``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError

__all__ = ["OpusRailsSettings"]


@dataclass(frozen=True)
class OpusRailsSettings:
    """Servers whose chips of equal rank are joined in rings by optical switches.

    Chip i of server a is number a * chips_per_server + i.
    """

    family: Literal["opus_rails"]
    """Which network family this is."""

    chips_per_server: Annotated[int, AtLeast(1)]
    """Chips of a server."""

    servers: Annotated[int, AtLeast(2)]
    """Servers."""

    ocs_ports: Annotated[int, AtLeast(2)]
    """Optical ports of a chip, two on each of ocs_ports / 2 switches of its rank."""

    ocs_radix: Annotated[int, AtLeast(2)] | None
    """Ports of an optical switch; null: just enough, 2 servers."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    scale_up_width: Annotated[float, Positive()]
    """Rate of a chip's link to its scale-up switch over the rate of all its ports
    together.
    """

    scale_up_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a chip and its scale-up switch, in nanoseconds."""

    external_latency_ns: Annotated[float, NonNegative()]
    """Time of flight of an optical circuit, in nanoseconds."""

    ocs_ports_per_transceiver: Annotated[int, AtLeast(1)] = 2
    """Optical ports of a chip that share a transceiver, whose rate is theirs together;
    2 in the released cost script of Opus.
    """

    def __post_init__(self) -> None:
        if self.ocs_ports % 2:
            raise SettingsError(
                "ocs_ports",
                f"got {self.ocs_ports}; allowed: an even number, two for each ring; the nearest are"
                f" {self.ocs_ports - 1} and {self.ocs_ports + 1}",
            )
        if self.ocs_ports % self.ocs_ports_per_transceiver:
            raise SettingsError(
                "ocs_ports_per_transceiver",
                f"got {self.ocs_ports_per_transceiver}; allowed: a divisor of ocs_ports ="
                f" {self.ocs_ports}",
            )
        if self.ocs_radix is not None and self.ocs_radix < 2 * self.servers:
            raise SettingsError(
                "ocs_radix",
                f"got {self.ocs_radix}; allowed: at least {2 * self.servers}, two ports for each of"
                f" {self.servers} servers (or at most {self.ocs_radix // 2} servers for this"
                " radix)",
            )

    @property
    def chips(self) -> int:
        return self.servers * self.chips_per_server

    @property
    def rings_per_chip(self) -> int:
        """Optical switches, and so rings, that a chip is plugged into."""
        return self.ocs_ports // 2
