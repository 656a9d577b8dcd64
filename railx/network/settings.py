"""Settings of the network stage: traffic, network model, sweeps and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from railx.effort import Cost, Costs
from railx.families import routing_names, static_routing_names
from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    OneOf,
    Positive,
    PowerOfTwo,
    SettingsError,
)

#: Offered load in flits/chip/cycle; static models take it as 1.
Load: TypeAlias = Annotated[float, Positive()]
#: Routings of any family; a family's ``routings`` lists the ones it offers.
RoutingName: TypeAlias = Annotated[str, OneOf(routing_names)]
#: Routings that do not depend on queues.
StaticRoutingName: TypeAlias = Annotated[str, OneOf(static_routing_names)]


@dataclass(frozen=True)
class _Traffic:
    """The fields that every pattern begins with."""

    pattern: str
    """Name of the pattern."""
    load: Load
    """Offered load in flits per chip and cycle; static models take it as 1."""


@dataclass(frozen=True)
class UniformTraffic(_Traffic):
    """Every chip sends the same share to every other chip, itself excluded."""

    pattern: Literal["uniform"]
    """Which pattern: uniform."""


@dataclass(frozen=True)
class PermutationTraffic(_Traffic):
    """Every chip sends to one other chip."""

    pattern: Literal["permutation"]
    """Which pattern: a permutation."""
    permutation: Literal["random", "transpose", "complement", "tornado", "shift"]
    """``random``: a random permutation without fixed points (seeded). ``transpose``:
    chip (x, y) of the largest square grid to (y, x). ``complement``: chip i to N - 1 -
    i. ``tornado``: chip i to i + N / 2 - 1. ``shift``: chip i to i + offset.
    """
    offset: Annotated[int, AtLeast(1)]
    """How far permutation ``shift`` sends; the others do not use it."""


@dataclass(frozen=True)
class HotSpotTraffic(_Traffic):
    """Uniform traffic, but a share of it goes to a few chips, which the seed draws."""

    pattern: Literal["hot_spot"]
    """Which pattern: hot spots."""
    hot_chips: Annotated[int, AtLeast(1)]
    """How many chips are hot spots."""
    hot_share: Annotated[float, Fraction()]
    """Share of every chip's traffic that goes to them."""


@dataclass(frozen=True)
class ExpertTraffic(_Traffic):
    """Tokens to experts: all-to-all within groups of chips, more of it to some.

    A chip has one expert. Popularities in a group fall as k^-skew (Zipf), in an order
    that the seed draws.
    """

    pattern: Literal["experts"]
    """Which pattern: experts."""
    group: Annotated[int, AtLeast(2)]
    """Consecutive chips of a group, the expert degree; the last may have fewer."""
    skew: Annotated[float, NonNegative()]
    """Exponent of the popularities; 0: an all-to-all in each group."""


@dataclass(frozen=True)
class NeighbourTraffic(_Traffic):
    """Every chip sends in equal shares to its direct neighbours.

    Chips below the same first switch are neighbours.
    """

    pattern: Literal["neighbour"]
    """Which pattern: neighbours."""


@dataclass(frozen=True)
class AllToAllTraffic(_Traffic):
    """A scheduled all-to-all: chip i sends a packet to i + 1, i + 2, ... in turn."""

    pattern: Literal["all_to_all"]
    """Which pattern: a scheduled all-to-all."""


@dataclass(frozen=True)
class MatrixTraffic(_Traffic):
    """A given traffic matrix, scaled to a mean row sum of 1."""

    pattern: Literal["matrix"]
    """Which pattern: a matrix."""
    path: Annotated[str, NotEmpty()]
    """CSV or .npy file of chips x chips shares, row = source."""


#: The traffic patterns, selected by ``pattern``.
TrafficSettings: TypeAlias = (
    UniformTraffic
    | PermutationTraffic
    | HotSpotTraffic
    | ExpertTraffic
    | NeighbourTraffic
    | AllToAllTraffic
    | MatrixTraffic
)


@dataclass(frozen=True)
class StaticNetworkSettings:
    """Exact static channel loads, no queues."""

    model: Literal["static"]
    """Which model: static loads."""
    routing: StaticRoutingName
    """``min`` is the minimal routing of the RailX simulator, where equal distances to
    both rails go to the minus side; ``balanced`` loads both rails of a pair alike. Tori
    of single chips send ties up under ``min``; RailX' torus and fat trees split ties
    evenly in both. Other names are routings that some families offer.
    """


@dataclass(frozen=True)
class PacketNetworkSettings:
    """Packet by packet, cycle by cycle: virtual cut-through as in the RailX simulator.

    A cycle moves one flit over one external port.
    """

    model: Literal["packet"]
    """Which model: the packet simulator."""
    routing: RoutingName = "min"
    """How packets find their path; which of them a family offers, its routing says."""
    cycle_ns: Annotated[float, Positive()] = 10.0
    """Length of a cycle."""
    packet_flits: Annotated[int, Between(1, 4096)] = 4
    """Flits of a packet."""
    buffer_flits: Annotated[int, AtLeast(1)] = 64
    """Room of each virtual channel at each input, so that more channels are more room;
    at least one packet.
    """
    virtual_channels: Annotated[int, AtLeast(1)] | None = None
    """Virtual channels of every link; null: the published number of each routing, one
    for each of its classes. Spare ones go to the classes with most traffic per channel,
    and a packet takes any of its class. Each has ``buffer_flits``.
    """
    source_cycles: Annotated[int, NonNegative()] = 2
    """Cycles before a new packet may be routed."""
    injection_ports: Annotated[int, AtLeast(1)] | None = None
    """Ports of width 1 that a chip injects through; null sets no limit, as in the RailX
    simulator.
    """
    ejection_ports: Annotated[int, AtLeast(1)] | None = None
    """Ports of width 1 that a chip takes packets through; null sets no limit, as in the
    RailX simulator.
    """
    warmup_cycles: Annotated[int, NonNegative()] = 2500
    """Cycles before the measured window."""
    measured_cycles: Annotated[int, AtLeast(10)] = 5000
    """Length of the measured window."""
    batches: Annotated[int, Between(2, 1000)] = 20
    """Parts that the window is cut into for the confidence intervals."""
    router: Literal["in_order", "railx_simulator"] = "in_order"
    """``in_order``: a buffer is a queue for all its packets, and counts as empty where
    no packet has a place in it. ``railx_simulator``: packet for packet as in the RailX
    simulator, where a packet at its destination passes those before it, and a buffer
    counts as empty until a packet that goes on has left for it.
    """
    parallel_channels: Literal["first", "most_room"] = "first"
    """Of parallel channels without an empty buffer a packet takes the ``first`` with
    room, as in the RailX simulator, so that the first fill before the others; or that
    with ``most_room``, so that all carry alike, as exact loads have it.
    """
    threads: Annotated[int, Between(1, 64)] = 1
    """Threads that simulate a run, each a part of the network; the result is the same
    for any number. Two pay on idle cores from about 1,000 chips on.
    """

    def __post_init__(self) -> None:
        if self.buffer_flits < self.packet_flits:
            raise SettingsError(
                "buffer_flits",
                f"got {self.buffer_flits}; allowed: at least {self.packet_flits}, one packet of"
                " packet_flits",
            )
        common = {
            "injection_ports": (self.injection_ports is None, "null"),
            "ejection_ports": (self.ejection_ports is None, "null"),
            "routing": (self.routing.split("_")[0] != "adaptive", "a routing that is not adaptive"),
            "parallel_channels": (self.parallel_channels == "first", "first"),
        }
        if self.router == "railx_simulator":
            self._require("router railx_simulator", common)
        if self.threads > 1:
            router = (self.router == "in_order", "in_order")
            delay = (self.source_cycles > 0, "at least 1")
            self._require("threads above 1", common | {"router": router, "source_cycles": delay})

    def _require(self, setting: str, required: dict[str, tuple[bool, str]]) -> None:
        """SettingsError for the first key that ``setting`` does not allow as it is."""
        for key, (fits, allowed) in required.items():
            if not fits:
                raise SettingsError(
                    key, f"got {getattr(self, key)}; allowed with {setting}: {allowed}"
                )

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {
            "buffer_flits": Cost(bytes=1e4) * self.buffer_flits,
            "virtual_channels": Cost(bytes=1e6) * self.virtual_channels,
            "source_cycles": Cost(1e-3, 1e3) * self.source_cycles,
            "injection_ports": Cost(bytes=1e5) * self.injection_ports,
            "ejection_ports": Cost(bytes=1e5) * self.ejection_ports,
        }


#: The network models, selected by ``model``.
NetworkSettings: TypeAlias = StaticNetworkSettings | PacketNetworkSettings


@dataclass(frozen=True)
class SweepSettings:
    """Latency against offered load on one topology, with a search for the saturation
    point.
    """

    topology: Annotated[str, NotEmpty()]
    """Name of one of the experiment's topologies."""
    traffic: TrafficSettings
    """The pattern; its own load is not used."""
    network: PacketNetworkSettings
    """How packets are simulated."""
    loads: tuple[Annotated[float, Positive()], ...]
    """Offered loads in flits per chip and cycle, beside those that the search tries."""
    accepted_share: Annotated[float, Fraction()] = 0.98
    """Saturated is a load whose accepted rate stays below this share of it."""
    precision: Annotated[float, Fraction()] = 0.05
    """The search ends when the saturation point is known to this share of itself."""
    repeats: Annotated[int, AtLeast(1)] = 3
    """Seeds, each with a separate search: the experiment's and others drawn from it."""
    shards: Annotated[int, AtLeast(1)] = 1
    """Jobs that the seeds are divided among, so that they run side by side; the result
    is the same for any number.
    """

    def __post_init__(self) -> None:
        if self.shards > self.repeats:
            raise SettingsError(
                "shards", f"got {self.shards}; allowed: 1 to {self.repeats}, the seeds of repeats"
            )


@dataclass(frozen=True)
class AgreementSettings:
    """The flow model and the packet simulator side by side on some topologies."""

    topologies: Annotated[tuple[str, ...], NotEmpty()]
    """Names of the experiment's topologies."""
    routings: Annotated[tuple[StaticRoutingName, ...], NotEmpty()]
    """Routings to compare; those of them that a family offers."""
    traffics: Annotated[dict[str, TrafficSettings], NotEmpty()]
    """Patterns by name; their own load is not used."""
    loads_over_bound: Annotated[tuple[Annotated[float, Positive()], ...], NotEmpty()]
    """Offered loads over the load at which the busiest link is full."""
    network: PacketNetworkSettings
    """How packets are simulated; its own routing is not used."""
    repeats: Annotated[int, AtLeast(1)]
    """Seeds of each comparison: the experiment's and others drawn from it."""


#: Timed collectives; ``hierarchical_all_reduce`` first reduces inside the nodes, over
#: all links of their meshes.
CollectiveName: TypeAlias = Literal[
    "ring_all_reduce", "reduce_scatter", "all_gather", "hierarchical_all_reduce", "all_to_all"
]


@dataclass(frozen=True)
class CollectiveSettings:
    """Collectives to time: payloads, nodes and fidelities."""

    collectives: Annotated[tuple[CollectiveName, ...], NotEmpty()]
    """Collectives to time; ``hierarchical_all_reduce`` reduces inside the nodes first,
    over all links of their meshes.
    """
    payload_bytes: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()]
    """Bytes of each participant: before a reduce-scatter, after an all-gather, before
    and after an all-reduce or all-to-all.
    """
    rows: tuple[Annotated[int, NonNegative()], ...] | None
    """Rows of nodes or boards; those where they cross the columns take part. Null takes
    all rows.
    """
    columns: tuple[Annotated[int, NonNegative()], ...] | None
    """Columns of nodes or boards that take part; null takes all."""
    fidelities: Annotated[tuple[Literal["analytic", "flow"], ...], NotEmpty()]
    """``analytic`` adds up the latency of the longest chain and the serialisation at
    the bottleneck; ``flow`` sends the messages of the steps over the links with max-min
    fair rates.
    """
    routing: RoutingName
    """Routing of the messages that do not follow rings."""
    most_messages: Annotated[int, AtLeast(1)]
    """Most messages of one step at the flow level. With more, one line represents all,
    or there are no flow rows.
    """

    def __post_init__(self) -> None:
        for key in ("rows", "columns"):
            chosen = getattr(self, key)
            if chosen is not None and not chosen:
                raise SettingsError(
                    key,
                    "got an empty list; allowed: null for all, or at least one position, the"
                    " nearest is [0]",
                )
            if chosen is not None and len(set(chosen)) < len(chosen):
                raise SettingsError(
                    key,
                    f"got {list(chosen)}; allowed: distinct positions, the nearest are"
                    f" {sorted(set(chosen))}",
                )

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {"most_messages": Cost(1e-3, 1e3) * self.most_messages}


@dataclass(frozen=True)
class BandwidthSettings:
    """Bandwidth and latency by group size and placement, topology by topology."""

    topologies: Annotated[dict[str, StaticRoutingName], NotEmpty()]
    """Names of the experiment's topologies, each with its routing."""
    ranks: Annotated[int, PowerOfTwo()]
    """Ranks of the job that is placed; its groups fill it."""
    fidelities: Annotated[tuple[Literal["analytic", "flow"], ...], NotEmpty()]
    """``analytic``: exact channel loads. ``flow``: all messages with fair rates."""
