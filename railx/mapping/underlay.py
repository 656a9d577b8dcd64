"""Networks under the same devices: rates of groups of sequence parallelism on each.

Networks are compared at an equal rate out of a node per device (all links of a device's
node to others, over its devices), or at an equal cost of them. Links inside a node (a
mesh, or a server's switch) have the same rate per device everywhere, and no bill has
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from railx.economics import PricedNetwork
from railx.families import TopologySettings, build_topology, family_of
from railx.mapping.cost import network_price
from railx.mapping.settings import PriceSettings
from railx.network.group_bandwidth import group_shapes
from railx.network.settings import StaticRoutingName
from railx.performance.topologies import ExactLoads, at_rates, node_rates_gb_s
from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, PowerOfTwo, SettingsError
from railx.vocabulary.topology import Topology


@dataclass(frozen=True)
class UnderlyingNetwork:
    """A network on which plans are priced and planned again."""

    label: Annotated[str, NotEmpty()]
    """Name in figures."""
    topology: TopologySettings | None
    """A network of as many chips as the plans have devices, or more; its rates are set
    by what networks are compared at. null: the bandwidths that the plans' own cluster
    lists, as they are."""
    routing: StaticRoutingName
    """The routing of its messages."""
    groups: dict[str, TopologySettings]
    """Networks that its switches are set to for groups of a size, by the size: a power
    of two below the devices of the plans. Other sizes take ``topology``."""
    switch_ms: Annotated[float, NonNegative()] = field(default=0.0, kw_only=True)
    """Time of setting the switches, added to every micro-batch."""
    priced: TopologySettings | None
    """A network of the same kind whose bill says what a device's links cost; null: not
    compared at equal cost."""


@dataclass(frozen=True)
class UnderlaySettings(PriceSettings):
    """Plans of the experiment on several networks."""

    plans: tuple[str, ...]
    """Plans of the experiment, all of one corpus and for one cluster, whose own
    bandwidths are one more network."""
    networks: dict[str, UnderlyingNetwork]
    """Networks by name."""
    outside_gb_s: tuple[Annotated[float, Positive()], ...]
    """Rates that leave a node per device, one direction: comparisons at equal rate."""
    inside_gb_s: Annotated[float, Positive()]
    """Rate of the links inside a node per device, one direction."""
    reference: str | None
    """Network whose cost at the first rate all have at equal cost; null: not compared.
    """
    ranks: Annotated[int, AtLeast(2), PowerOfTwo()]
    """Devices of the plans."""

    def __post_init__(self) -> None:
        if self.reference is not None and self.reference not in self.networks:
            allowed = f"{', '.join(self.networks)}, or null"
            raise SettingsError("reference", f"got {self.reference!r}; allowed: {allowed}")
        if self.networks and not (self.plans and self.outside_gb_s):
            key = "outside_gb_s" if self.plans else "plans"
            raise SettingsError(key, "is empty; allowed: at least one where there are networks")
        sizes = [str(2**power) for power in range(1, self.ranks.bit_length() - 1)]
        for name, network in self.networks.items():
            if network.topology is None:
                continue
            routings = family_of(network.topology).routings
            if network.routing not in routings:
                raise SettingsError(
                    f"networks.{name}.routing",
                    f"got {network.routing!r}; allowed: {', '.join(routings)}",
                )
            for size in network.groups:
                if size not in sizes:
                    raise SettingsError(
                        f"networks.{name}.groups.{size}",
                        f"unknown size; allowed: {', '.join(sizes) or 'none'}",
                    )
        if self.reference is not None and self.networks[self.reference].priced is None:
            raise SettingsError("reference", f"got {self.reference!r}; allowed: a priced network")


@dataclass(frozen=True)
class Underlay:
    """A network at one rate: ``all_to_all_gb_s`` by group size.

    ``basis`` is ``equal_rate`` or ``equal_cost``; ``usd_per_device`` what the links
    that leave nodes cost, None where nothing is priced.
    """

    basis: str
    outside_gb_s: float
    inside_gb_s: float
    usd_per_device: float | None
    all_to_all_gb_s: Mapping[int, float]


def underlays(settings: UnderlaySettings, name: str) -> list[Underlay]:
    """A network at every rate, and at the reference's cost of the first of them.

    Nothing for the bandwidths of the plans' own cluster. SettingsError where a network
    has no room for the ranks, or no price.
    """
    network = settings.networks[name]
    if network.topology is None:
        return []
    graphs = {
        int(size): build_topology(group_topology) for size, group_topology in network.groups.items()
    }
    graphs[settings.ranks] = build_topology(network.topology)
    for size, graph in graphs.items():
        if graph.chips < size:
            key = "topology" if size == settings.ranks else f"groups.{size}"
            raise SettingsError(
                f"underlay.networks.{name}.{key}",
                f"has {graph.chips} chips; allowed: {size} or more",
            )
    costs = None if network.priced is None else _usd_per_gb_s(settings, name)
    rates = [("equal_rate", rate) for rate in settings.outside_gb_s]
    if settings.reference is not None and costs is not None:
        first = settings.outside_gb_s[0]
        rates.append(("equal_cost", first * _usd_per_gb_s(settings, settings.reference) / costs))
    return [
        Underlay(
            basis,
            outside,
            settings.inside_gb_s,
            None if costs is None else outside * costs,
            _rates(graphs, network.routing, outside, settings),
        )
        for basis, outside in rates
    ]


def _rates(
    graphs: Mapping[int, Topology], routing: str, outside_gb_s: float, settings: UnderlaySettings
) -> dict[int, float]:
    """The all-to-all of every size, of those set for a group from their own graph."""
    rates: dict[int, float] = {}
    for ranks in sorted(graphs, reverse=True):
        graph = at_rates(graphs[ranks], outside_gb_s, settings.inside_gb_s)
        network = ExactLoads(graph, [routing], ranks)
        sizes = {size for size, _ in group_shapes(ranks)} if ranks == settings.ranks else {ranks}
        for size in sizes:
            (way,) = network.job_ways("all_to_all", size, size)
            rates[size] = way.gb_s
    return dict(sorted(rates.items()))


def _usd_per_gb_s(settings: UnderlaySettings, name: str) -> float:
    """The cost of a network for a device, per GB/s out of its node."""
    topology = settings.networks[name].priced
    assert topology is not None
    network = PricedNetwork(topology)
    outside, _ = node_rates_gb_s(build_topology(topology))
    bill = network_price(settings, "underlay", f"underlay.networks.{name}.priced", network)
    return bill.per_chip.usd / outside
