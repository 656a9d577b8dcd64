"""Settings of the bills of materials: which networks, at which prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, Fraction, NonNegative, NotEmpty, Positive, SettingsError

__all__ = [
    "EconomicsSettings",
    "FatTreeSettings",
    "NetworkDesign",
    "OpusRailsSettings",
    "RailOptimisedSettings",
    "RailXSettings",
    "SensitivitySettings",
]


@dataclass(frozen=True)
class RailXSettings:
    """RailX wired as a 2D HyperX: nodes of m x m chips with n ports a side, R/2 x R/2 nodes around OCSes of R ports.

    ``price_set`` null takes the experiment's. ``in_node_width`` is the width of a link inside the node in external ports; these
    links are priced nowhere (no source has a price), it only serves the break-even price of the sensitivity table.
    """

    design: Literal["railx"]
    m: Annotated[int, AtLeast(1)]
    n: Annotated[int, AtLeast(1)]
    optical_switch_radix: Annotated[int, AtLeast(4)]
    port_gbps: Annotated[float, Positive()]
    in_node_width: Annotated[float, Positive()]
    price_set: str | None

    def __post_init__(self) -> None:
        allowed = 2 * (self.m * self.n + 1)
        if self.optical_switch_radix != allowed:
            raise SettingsError(
                "optical_switch_radix",
                f"got {self.optical_switch_radix}; allowed: 2 (m n + 1) = {allowed}, so that the {self.m * self.n} rails of a line "
                "make the all-to-all of its R/2 nodes",
            )


@dataclass(frozen=True)
class FatTreeSettings:
    """Non-blocking fat tree; each of the ports of a chip is an end port of it.

    ``copper_to_leaf`` replaces the two transceivers between chip and leaf by one copper cable. ``copper_price_set`` is the set that
    gives its price (null where there is no copper); ``price_set`` null takes the experiment's.
    """

    design: Literal["fat_tree"]
    chips: Annotated[int, AtLeast(2)]
    ports_per_chip: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    tiers: Annotated[int, Between(1, 5)]
    switch_radix: Annotated[int, AtLeast(2)]
    copper_to_leaf: bool
    price_set: str | None
    copper_price_set: str | None

    def __post_init__(self) -> None:
        if self.switch_radix % 2:
            raise SettingsError("switch_radix", f"got {self.switch_radix}; allowed: an even number (half of the ports face up)")
        largest = 2 * (self.switch_radix // 2) ** self.tiers
        if self.chips > largest:
            raise SettingsError(
                "chips",
                f"got {self.chips}; allowed: at most {largest} with {self.tiers} tiers of {self.switch_radix}-port switches "
                "(every port of a chip has a plane of its own)",
            )
        if self.copper_to_leaf and self.copper_price_set is None:
            raise SettingsError("copper_price_set", "is null; allowed: a price set with a copper_cable when copper_to_leaf is true")


@dataclass(frozen=True)
class RailOptimisedSettings:
    """Electrical rail-optimised network as counted by the Opus artifact: a two-level tree per rail, joined by a common spine."""

    design: Literal["rail_optimised"]
    servers: Annotated[int, AtLeast(2)]
    gpus_per_server: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    switch_side_transceivers: bool
    price_set: str | None


@dataclass(frozen=True)
class OpusRailsSettings:
    """Photonic rails as counted by the Opus artifact: one OCS per rail, two OCS ports and one transceiver per GPU."""

    design: Literal["opus_rails"]
    servers: Annotated[int, AtLeast(2)]
    gpus_per_server: Annotated[int, AtLeast(1)]
    port_gbps: Annotated[float, Positive()]
    ocs_ports_per_gpu: Annotated[int, AtLeast(1)]
    transceivers_per_gpu: Annotated[int, AtLeast(1)]
    price_set: str | None


NetworkDesign = RailXSettings | FatTreeSettings | RailOptimisedSettings | OpusRailsSettings


@dataclass(frozen=True)
class SensitivitySettings:
    """Under which prices the three cost claims of RailX hold.

    ``railx`` and ``fat_trees`` name entries of ``networks``. The price sets are compared as they are; the two lists of ratios
    span a grid of prices relative to the transceiver of the default set. ``routed_over_ideal`` is the share of the ideal all-to-all
    throughput that the published minimal routing reaches. The limits are the abstract's.
    """

    railx: str
    fat_trees: Annotated[tuple[str, ...], NotEmpty()]
    price_sets: Annotated[tuple[str, ...], NotEmpty()]
    ocs_port_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    switch_port_over_transceiver: tuple[Annotated[float, Positive()], ...]
    routed_over_ideal: Annotated[float, Fraction()]
    injection_cost_limit: Annotated[float, Fraction()]
    all_to_all_cost_limit: Annotated[float, Fraction()]
    absolute_cost_usd: Annotated[float, Positive()]
    absolute_cost_tolerance: Annotated[float, Fraction()]


@dataclass(frozen=True)
class EconomicsSettings:
    """Bills of materials: the catalogue file (CSV), the price set that holds unless a network names its own, the networks."""

    catalogue: Annotated[str, NotEmpty()]
    price_set: Annotated[str, NotEmpty()]
    networks: Annotated[dict[str, NetworkDesign], NotEmpty()]
    sensitivity: SensitivitySettings

    def __post_init__(self) -> None:
        names = ", ".join(self.networks)
        if not isinstance(self.networks.get(self.sensitivity.railx), RailXSettings):
            railx = ", ".join(name for name, design in self.networks.items() if isinstance(design, RailXSettings))
            raise SettingsError("sensitivity.railx", f"got {self.sensitivity.railx!r}; allowed: {railx or f'a railx of {names}'}")
        trees = [name for name, design in self.networks.items() if isinstance(design, FatTreeSettings)]
        for name in self.sensitivity.fat_trees:
            if name not in trees:
                raise SettingsError(
                    "sensitivity.fat_trees", f"got {name!r}; allowed: {', '.join(trees) or f'a fat_tree of {names}'}"
                )
