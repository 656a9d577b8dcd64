"""Settings of the family ``fat_tree``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.topology import check_size

__all__ = ["FatTreeSettings"]


@dataclass(frozen=True)
class FatTreeSettings:
    """A fat tree of two or three tiers of switches."""

    family: Literal["fat_tree"]
    """Which network family this is."""

    tiers: Literal[2, 3]
    """Tiers of switches."""

    switch_radix: Annotated[int, AtLeast(4)]
    """Ports of a switch; the number of leaves of a plane follows from it."""

    leaf_down_ports: Annotated[int, AtLeast(1)] | None
    """Ports of a leaf switch to chips, the others face up; null: half of them
    (non-blocking).
    """

    planes: Annotated[int, AtLeast(1)]
    """Parallel trees, one port of each chip in every plane."""

    port_gbps: Annotated[float, Positive()]
    """Rate of an external port in one direction, in 10^9 bit/s."""

    leaf_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between a chip and its leaf switch, in nanoseconds."""

    global_latency_ns: Annotated[float, NonNegative()]
    """Time of flight between switches, in nanoseconds."""

    def __post_init__(self) -> None:
        k = self.switch_radix
        if k % 2 and (self.tiers == 3 or self.leaf_down_ports is None):
            way = "" if self.tiers == 3 else ", or leaf_down_ports given"
            raise SettingsError(
                "switch_radix",
                f"got {k}; allowed: an even number{way}, half of the ports face up; the nearest are"
                f" {k - 1} and {k + 1}",
            )
        if self.leaf_down_ports is not None and self.leaf_down_ports >= k:
            raise SettingsError(
                "leaf_down_ports",
                f"got {self.leaf_down_ports}; allowed: 1 to {k - 1} of {k} ports, one at least"
                f" faces up; the nearest is {k - 1}",
            )
        check_size(
            "switch_radix",
            2 * self.planes * (self.chips + self.leaves * self.leaf_up + k * self.core_switches),
        )

    @property
    def leaf_down(self) -> int:
        """Chips below a leaf switch."""
        return self.switch_radix // 2 if self.leaf_down_ports is None else self.leaf_down_ports

    @property
    def leaf_up(self) -> int:
        """Ports of a leaf switch to the tier above, each to another switch."""
        return self.switch_radix - self.leaf_down

    @property
    def pods(self) -> int:
        """Parts that only the top tier joins: pods in three tiers, leaves in two."""
        return self.switch_radix

    @property
    def leaves(self) -> int:
        """Leaf switches of a plane."""
        return self.switch_radix * (self.switch_radix // 2 if self.tiers == 3 else 1)

    @property
    def upper_switches(self) -> int:
        """Switches of a plane in the second tier: spines of a two-tier tree,
        aggregation switches of all pods in three tiers.
        """
        return self.leaf_up * (self.switch_radix if self.tiers == 3 else 1)

    @property
    def core_switches(self) -> int:
        """Switches of a plane in the third tier."""
        return self.leaf_up * (self.switch_radix // 2) if self.tiers == 3 else 0

    @property
    def plane_switches(self) -> int:
        """Switches of a plane, all tiers."""
        return self.leaves + self.upper_switches + self.core_switches

    @property
    def chips(self) -> int:
        return self.leaves * self.leaf_down
