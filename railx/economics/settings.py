"""Settings of the bills of materials: networks, prices and sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated

from railx.effort import Cost, Costs
from railx.families import FAMILIES, TopologySettings, check_nodes, family_of
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
)
from railx.vocabulary.counts import Bill, NetworkCounts, Ports, count_ports
from railx.vocabulary.topology import FamilySettings


@dataclass(frozen=True)
class PricedNetwork:
    """A network and the prices of its bill.

    The bill follows the settings of the network's family, which may be too large for a
    graph.
    """

    topology: TopologySettings
    """The network, as in the group ``topology``."""
    price_set: str | None = None
    """Price set of the catalogue; null: the one that holds for all networks."""
    copper_links: tuple[str, ...] = ()
    """Kinds of links whose cables are copper, not a fibre with a transceiver at both
    ends. They are ``leaf`` of a fat tree; ``leaf`` and ``local`` of a Dragonfly;
    ``row`` and ``column`` of a HammingMesh."""
    copper_price_set: str | None = None
    """Price set of the copper cables; null: the network's, which then needs a price
    for them."""
    counting: str | None = None
    """A way of counting, other than by used ports, that the family knows; null: by used
    ports. ``whole_switches`` charges all ports of a switch (fat trees, rail-only).
    ``opus_artifact`` counts a rail-optimised network as the released cost script of
    Opus does (transceivers at the chips), ``opus_artifact_both_ends`` has transceivers
    at the switches too."""

    def __post_init__(self) -> None:
        bill = family_of(self.topology).bill
        if bill is None:
            families = ", ".join(family.name for family in FAMILIES if family.bill is not None)
            raise SettingsError(
                "topology.family",
                f"got {self.topology.family!r}; allowed: {families}, which have a bill",
            )
        for kind in self.copper_links:
            if kind not in bill.copper:
                raise SettingsError(
                    "copper_links",
                    f"got {kind!r}; allowed on {self.topology.family}:"
                    f" {', '.join(bill.copper) or 'none'}",
                )
        if self.copper_links and self.copper_price_set is None:
            raise SettingsError(
                "copper_price_set",
                "is null; allowed: a price set with a copper_cable when copper_links are given",
            )
        if self.counting is not None and self.counting not in bill.countings:
            raise SettingsError(
                "counting",
                f"got {self.counting!r}; allowed on {self.topology.family}:"
                f" {', '.join((*bill.countings, 'null'))}",
            )
        if self.counting is None:
            try:
                check_nodes(self.topology)
                bill.check(self.topology)
            except SettingsError as error:
                raise error.under("topology") from None

    @property
    def bill(self) -> Bill[FamilySettings]:
        """The bill of the network's family."""
        bill = family_of(self.topology).bill
        assert bill is not None  # checked when the settings are read
        return bill

    @property
    def ports(self) -> Ports:
        """The components of the network, in ports."""
        if self.counting is None:
            return self.bill.ports(self.topology)
        return self.bill.countings[self.counting](self.topology)

    @property
    def charges(self) -> str:
        """What its bill charges: used ports, or as its way of counting does."""
        return "used_ports" if self.counting is None else self.counting

    @cached_property
    def counts(self) -> NetworkCounts:
        """Components and bandwidths."""
        return count_ports(self.ports, self.copper_links)

    @property
    def chips(self) -> int:
        return self.counts.chips

    def at_scale(self, chips: int) -> PricedNetwork:
        """The smallest network of the same kind with at least ``chips`` chips.

        Ports per chip, node and switches stay. Raises SettingsError("chips") with the
        largest size where that is too small.
        """
        if chips < 2:
            raise SettingsError("chips", f"got {chips}; allowed: at least 2; the nearest is 2")
        return _at_scale(self, chips)


@lru_cache(maxsize=4096)
def _at_scale(network: PricedNetwork, chips: int) -> PricedNetwork:
    return replace(network, topology=network.bill.resize(network.topology, chips))


@dataclass(frozen=True)
class SensitivitySettings:
    """Prices for which the three cost claims of RailX's abstract are true.

    The price sets are used unchanged; the two lists of ratios span a grid of prices
    relative to the transceiver of the default set.
    """

    railx: str
    """RailX: a square all-to-all of nodes, by its name in ``networks``."""
    fat_trees: Annotated[tuple[str, ...], NotEmpty()]
    """Trees to compare it with, by name; the claim map takes the first."""
    price_sets: Annotated[tuple[str, ...], NotEmpty()]
    """Price sets of the catalogue, inferred ones among them."""
    ocs_port_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    """Price of an optical switch port in transceivers, one axis of the grid."""
    switch_port_over_transceiver: tuple[Annotated[float, Positive()], ...]
    """Price of an electrical switch port in transceivers, the other axis."""
    routed_over_ideal: Annotated[float, Fraction()]
    """Share of the ideal all-to-all throughput that the published minimal routing
    reaches."""
    injection_cost_limit: Annotated[float, Fraction()]
    """Cost per injection bandwidth, over that of a tree, below which the claim holds
    (0.1 in the abstract)."""
    all_to_all_cost_limit: Annotated[float, Fraction()]
    """Cost per all-to-all bandwidth, over that of a tree, below which the claim holds
    (0.5 in the abstract)."""
    absolute_cost_usd: Annotated[float, Positive()]
    """Cost of the whole network in USD (1.3 billion in the abstract)."""
    absolute_cost_tolerance: Annotated[float, Fraction()]
    """Relative distance from ``absolute_cost_usd`` within which that claim holds."""


@dataclass(frozen=True)
class ScaleSettings:
    """Cost and power over the number of chips at equal injection bandwidth."""

    networks: Annotated[tuple[str, ...], NotEmpty()]
    """Networks of ``networks``; each is resized to every number in ``chips`` that its
    family reaches."""
    reference: str
    """The tree of ``networks`` that costs are divided by, resized to the same chips."""
    chips: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]
    """Wanted numbers of chips; a network has at least as many."""
    price_sets: Annotated[tuple[str, ...], NotEmpty()]
    """Price sets of the catalogue, one row each."""
    injection_gb_s_per_chip: Annotated[float, Positive()]
    """Injection bandwidth that all networks of the list have, in GB/s per chip and
    direction."""

    def costs(self) -> Costs:
        return {"chips": Cost(1e-5, 8) * max(self.chips, default=0)}


@dataclass(frozen=True)
class ClaimMapSettings:
    """The range of the cost claims over price ratios, and its sensitivities.

    The base case is ``sensitivity.railx`` against ``sensitivity.fat_trees[0]``. Every
    list but the two axes is changed one value at a time.
    """

    ocs_port_over_transceiver: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Price of an optical switch port in transceivers, one axis of the map."""
    switch_port_over_transceiver: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Price of an electrical switch port in transceivers, the other axis."""
    m: tuple[Annotated[int, AtLeast(1)], ...]
    """Chips on a side of the RailX node."""
    n: tuple[Annotated[int, AtLeast(1)], ...]
    """Ports on a side of a RailX chip."""
    chips: tuple[Annotated[int, AtLeast(2)], ...]
    """Chips of both networks."""
    all_to_all_share: tuple[Annotated[float, Fraction()], ...]
    """Share of the ideal all-to-all that the routing of RailX reaches."""
    in_node_lane_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    """Price of an in-node lane, one external port wide, in transceivers."""
    tiers: tuple[Annotated[int, Between(1, 5)], ...]
    """Tiers of the fat tree."""
    leaf_cable_over_transceiver: tuple[Annotated[float, NonNegative()], ...]
    """Price of a cable between chip and leaf in transceivers; 2: one at both ends."""
    taper: tuple[Annotated[float, Fraction()], ...]
    """Uplinks per downlink of a leaf of the fat tree."""

    def costs(self) -> Costs:
        return {
            "chips": Cost(1e-5, 8) * max(self.chips, default=0),
            "m": Cost(1, 1e6) * max(self.m, default=0),
            "n": Cost(1, 1e6) * max(self.n, default=0),
        }


@dataclass(frozen=True)
class RailPlatform:
    """Servers on rails, one port of each chip, and the prices of their bill."""

    chips_per_server: Annotated[int, AtLeast(1)]
    """Chips of a server, and so rails."""
    port_gbps: Annotated[float, Positive()]
    """Rate of a chip's port in one direction, in 10^9 bit/s."""
    price_set: Annotated[str, NotEmpty()]
    """Price set of the catalogue."""
    switch_transceivers: bool
    """Whether the ports of electrical switches have transceivers, or those of chips
    alone."""
    electrical_switch_radix: Annotated[int, AtLeast(4)]
    """Ports of an electrical switch where used ports are counted."""


@dataclass(frozen=True)
class RailMapSettings:
    """Axes of the map of the cost and power claims of Opus."""

    transceiver_usd: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Price of a transceiver in USD."""
    transceiver_watts: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Power of a transceiver in W."""
    switch_ports_per_gpu: Annotated[tuple[Annotated[float, NonNegative()], ...], NotEmpty()]
    """Ports of electrical switches for each chip."""
    cost_reduction: Annotated[float, Positive()]
    """Cost of electrical over photonic rails that is claimed (4 in the abstract)."""
    power_reduction: Annotated[float, Positive()]
    """Power of electrical over photonic rails that is claimed (23 in the abstract)."""


@dataclass(frozen=True)
class RailsSettings:
    """Bills of electrical and photonic rails by platform and size."""

    platforms: Annotated[dict[str, RailPlatform], NotEmpty()]
    """Platforms by name."""
    gpus: Annotated[tuple[Annotated[int, AtLeast(2)], ...], NotEmpty()]
    """Numbers of GPUs; a platform has those that fill two or more whole servers."""
    transceivers_per_gpu: Annotated[tuple[Annotated[int, Between(1, 2)], ...], NotEmpty()]
    """Transceivers of a GPU on photonic rails; 1: its two optical ports share one."""
    switches: Annotated[dict[str, Annotated[int, AtLeast(2)]], NotEmpty()]
    """Ports of optical switches by device."""
    priced_switch: Annotated[str, NotEmpty()]
    """The one of them whose price per port the catalogue has."""
    ocs_port_price_factors: Annotated[tuple[Annotated[float, Positive()], ...], NotEmpty()]
    """Prices of an optical port over the catalogue's; 1 and others."""
    map: RailMapSettings
    """Where the claims hold."""

    def __post_init__(self) -> None:
        if self.priced_switch not in self.switches:
            raise SettingsError(
                "priced_switch", f"got {self.priced_switch!r}; allowed: {', '.join(self.switches)}"
            )

    def costs(self) -> Costs:
        return {"gpus": Cost(1e-5, 8) * max(self.gpus, default=0)}


@dataclass(frozen=True)
class EconomicsSettings:
    """Bills of materials: the networks and their prices."""

    catalogue: Annotated[str, NotEmpty()]
    """Price catalogue, a CSV file of the repository."""
    price_set: Annotated[str, NotEmpty()]
    """Default price set; a network may name another."""
    networks: Annotated[dict[str, PricedNetwork], NotEmpty()]
    """The networks by name."""
    sensitivity: SensitivitySettings
    """For which prices the cost claims hold."""
    scale: ScaleSettings
    """Cost over the number of chips."""
    claim_map: ClaimMapSettings
    """The range of the cost claims, and its sensitivities."""
    rails: RailsSettings
    """Electrical and photonic rails by platform and size."""
    node_price_set: str | None = None
    """Price set of the links inside nodes and on boards; null: they are free."""

    def __post_init__(self) -> None:
        names = ", ".join(self.networks)
        squares = [name for name, network in self.networks.items() if network.bill.square]
        trees = [name for name, network in self.networks.items() if network.bill.tree]
        no_square = f"a square all-to-all of nodes, none of {names}"
        chosen, scale = self.sensitivity, self.scale
        for key, given, allowed, otherwise in (
            ("sensitivity.railx", (chosen.railx,), squares, no_square),
            ("sensitivity.fat_trees", chosen.fat_trees, trees, f"a tree, none of {names}"),
            ("scale.networks", scale.networks, list(self.networks), ""),
            ("scale.reference", (scale.reference,), trees, ""),
        ):
            for name in given:
                if name not in allowed:
                    words = ", ".join(allowed) or otherwise
                    raise SettingsError(key, f"got {name!r}; allowed: {words}")
