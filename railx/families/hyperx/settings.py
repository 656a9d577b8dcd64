"""Settings of the family ``hyperx``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, SettingsError

__all__ = ["HyperXSettings"]


@dataclass(frozen=True)
class HyperXSettings:
    """Routers in a grid, any two of a line joined."""

    family: Literal["hyperx"]
    """Which network family this is."""

    shape: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]
    """Routers along each dimension; the first runs fastest."""

    lanes: Annotated[int, AtLeast(1)]
    """Parallel links between any two routers of a line."""

    chips_per_switch: Annotated[int, NonNegative()]
    """Chips on a router that is a switch; 0: the chips themselves are the routers."""

    planes: Annotated[int, AtLeast(1)]
    """Identical networks side by side, one port of each chip in every plane; 1 where
    the chips are the routers.
    """

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    leaf_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a chip and its switch, in nanoseconds."""

    latency_ns: Annotated[float, NonNegative()]
    """Time of flight between routers, in nanoseconds."""

    switch_radix: Annotated[int, AtLeast(2)] | None = None
    """Ports of a switch; null: just enough for its chips and its lines."""

    def __post_init__(self) -> None:
        if self.switchless and self.planes != 1:
            raise SettingsError(
                "planes",
                f"got {self.planes}; allowed: 1 where the chips are the routers (chips_per_switch ="
                " 0), parallel links are `lanes`",
            )
        if self.switch_radix is not None and self.radix > self.switch_radix:
            spare = self.switch_radix - self.line_ports
            raise SettingsError(
                "chips_per_switch",
                f"got {self.chips_per_switch}; allowed: at most {spare}, what the"
                f" {len(self.shape)} dimensions leave of a switch of {self.switch_radix} ports",
            )

    @property
    def switchless(self) -> bool:
        return self.chips_per_switch == 0

    @property
    def line_ports(self) -> int:
        """Ports of a router to the others of its lines."""
        return self.lanes * (sum(self.shape) - len(self.shape))

    @property
    def radix(self) -> int:
        """Ports of a router that are used."""
        return self.line_ports + self.chips_per_switch

    @property
    def routers(self) -> int:
        """Routers of one plane."""
        return prod(self.shape)

    @property
    def chips(self) -> int:
        return self.routers * max(1, self.chips_per_switch)
