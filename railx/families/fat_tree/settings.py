"""Settings of the family ``fat_tree``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, Fraction, NonNegative, Positive, SettingsError
from railx.vocabulary.counts import largest_tree

__all__ = ["FatTreeSettings"]


@dataclass(frozen=True)
class FatTreeSettings:
    """A fat tree of switches."""

    family: Literal["fat_tree"]
    """Which network family this is."""

    tiers: Annotated[int, Between(1, 5)]
    """Tiers of switches; the graph has 2 or 3."""

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

    taper: Annotated[float, Fraction()] | None = None
    """Uplinks per downlink of a leaf, exactly, in the place of ``leaf_down_ports``;
    null: what the ports of a leaf give. The graph needs whole ports.
    """

    populated_chips: Annotated[int, AtLeast(2)] | None = None
    """Chips that are plugged in; null: as many as the tree has room for, which is what
    the graph has.
    """

    def __post_init__(self) -> None:
        k = self.switch_radix
        self._check_leaf()
        if k % 2 and (self.tiers != 2 or (self.leaf_down_ports is None and self.taper is None)):
            way = ", or leaf_down_ports given" if self.tiers == 2 else ""
            raise SettingsError(
                "switch_radix",
                f"got {k}; allowed: an even number{way}, half of the ports face up; the nearest are"
                f" {k - 1} and {k + 1}",
            )
        if self.populated_chips is not None and self.populated_chips > self.room:
            raise SettingsError(
                "populated_chips",
                f"got {self.populated_chips}; allowed: at most {self.room} with {self.tiers} tiers"
                f" of {k}-port switches (every port of a chip has a plane of its own); the nearest"
                f" is {self.room}",
            )

    def _check_leaf(self) -> None:
        k = self.switch_radix
        if self.leaf_down_ports is not None and self.taper is not None:
            raise SettingsError(
                "taper",
                f"got {self.taper:g} beside leaf_down_ports = {self.leaf_down_ports}; allowed: null"
                " in one of them",
            )
        if self.leaf_down_ports is not None and self.leaf_down_ports >= k:
            raise SettingsError(
                "leaf_down_ports",
                f"got {self.leaf_down_ports}; allowed: 1 to {k - 1} of {k} ports, one at least"
                f" faces up; the nearest is {k - 1}",
            )

    @property
    def leaf_down(self) -> int:
        """Chips below a leaf switch."""
        if self.taper is not None:
            return int(self.switch_radix / (1 + self.taper) + 1e-9)
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
    def uplinks_per_downlink(self) -> float:
        """Uplinks per downlink of a leaf.

        1 for a non-blocking tree and a single switch.
        """
        if self.tiers == 1:
            return 1.0
        return self.leaf_up / self.leaf_down if self.taper is None else self.taper

    @property
    def room(self) -> int:
        """Chips that the tree has room for."""
        return largest_tree(self.tiers, self.switch_radix, self.leaf_down)

    @property
    def chips(self) -> int:
        return self.room if self.populated_chips is None else self.populated_chips
