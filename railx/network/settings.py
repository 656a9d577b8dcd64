"""Settings of the network stage: traffic, network model, sweeps and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    NotEmpty,
    Positive,
    SettingsError,
)

__all__ = [
    "AgreementSettings",
    "AllToAllTraffic",
    "CollectiveName",
    "CollectiveSettings",
    "HotSpotTraffic",
    "MatrixTraffic",
    "NeighbourTraffic",
    "NetworkSettings",
    "PacketNetworkSettings",
    "PermutationTraffic",
    "StaticNetworkSettings",
    "SweepSettings",
    "TrafficSettings",
    "UniformTraffic",
]

#: Offered load in flits/chip/cycle; static models take it as 1.
Load: TypeAlias = Annotated[float, Positive()]
#: How packets find their path; which of them a family offers, its ``routings`` say.
RoutingName: TypeAlias = Literal["min", "balanced", "adaptive", "valiant"]


@dataclass(frozen=True)
class UniformTraffic:
    """Every chip sends the same share to every other chip at random, itself excluded."""

    pattern: Literal["uniform"]
    load: Load


@dataclass(frozen=True)
class PermutationTraffic:
    """Every chip sends to one other chip.

    ``random``: a random permutation without fixed points (seeded); ``transpose``: chip
    (x, y) of the largest square grid to (y, x); ``complement``: chip i to N - 1 - i;
    ``tornado``: chip i to i + N / 2 - 1; ``shift``: chip i to i + ``offset``.
    """

    pattern: Literal["permutation"]
    load: Load
    permutation: Literal["random", "transpose", "complement", "tornado", "shift"]
    offset: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class HotSpotTraffic:
    """Uniform, but ``hot_share`` of every chip's traffic goes to ``hot_chips`` chips,
    drawn by the seed.
    """

    pattern: Literal["hot_spot"]
    load: Load
    hot_chips: Annotated[int, AtLeast(1)]
    hot_share: Annotated[float, Fraction()]


@dataclass(frozen=True)
class NeighbourTraffic:
    """Every chip sends in equal shares to the chips it is directly linked to (through a
    switch: of the same first switch).
    """

    pattern: Literal["neighbour"]
    load: Load


@dataclass(frozen=True)
class AllToAllTraffic:
    """Every chip sends one packet to each other chip in turn, in the order i + 1, i +
    2, ... (a scheduled all-to-all).
    """

    pattern: Literal["all_to_all"]
    load: Load


@dataclass(frozen=True)
class MatrixTraffic:
    """A given traffic matrix: ``path`` is a CSV or .npy file of chips x chips shares,
    row = source; scaled to mean row sum 1.
    """

    pattern: Literal["matrix"]
    load: Load
    path: Annotated[str, NotEmpty()]


#: The traffic patterns, told apart by ``pattern``.
TrafficSettings: TypeAlias = (
    UniformTraffic
    | PermutationTraffic
    | HotSpotTraffic
    | NeighbourTraffic
    | AllToAllTraffic
    | MatrixTraffic
)


@dataclass(frozen=True)
class StaticNetworkSettings:
    """Exact static channel loads, no queues.

    ``routing``: ``min`` is the minimal routing of the RailX simulator, where equal
    distances to both rails go to the minus side; ``balanced`` loads both rails of a
    pair alike. Tori and fat trees split ties evenly in both.
    """

    model: Literal["static"]
    routing: Literal["min", "balanced"]


@dataclass(frozen=True)
class PacketNetworkSettings:
    """Packet by packet, cycle by cycle: virtual cut-through with the cycle model of the
    RailX simulator.

    A cycle of ``cycle_ns`` moves one flit over one external port. ``packet_flits``:
    flits of a packet; ``buffer_flits``: room of a virtual channel at each input;
    ``source_cycles``: before a new packet may be routed; ``injection_ports`` and
    ``ejection_ports`` of width 1 at every chip (null: no limit, as in the RailX
    simulator). Measures ``measured_cycles`` after ``warmup_cycles``; ``batches``: the
    window is cut in as many for the confidence intervals.
    """

    model: Literal["packet"]
    routing: RoutingName
    cycle_ns: Annotated[float, Positive()]
    packet_flits: Annotated[int, Between(1, 4096)]
    buffer_flits: Annotated[int, AtLeast(1)]
    source_cycles: Annotated[int, NonNegative()]
    injection_ports: Annotated[int, AtLeast(1)] | None
    ejection_ports: Annotated[int, AtLeast(1)] | None
    warmup_cycles: Annotated[int, NonNegative()]
    measured_cycles: Annotated[int, AtLeast(10)]
    batches: Annotated[int, Between(2, 1000)]

    def __post_init__(self) -> None:
        if self.buffer_flits < self.packet_flits:
            raise SettingsError(
                "buffer_flits",
                f"got {self.buffer_flits}; allowed: at least {self.packet_flits}, one packet of"
                " packet_flits",
            )


#: The network models, told apart by ``model``.
NetworkSettings: TypeAlias = StaticNetworkSettings | PacketNetworkSettings


@dataclass(frozen=True)
class SweepSettings:
    """Latency against offered load on one topology, with a search for the saturation
    point.

    ``topology`` names one of the experiment's. ``loads``: offered loads in
    flits/chip/cycle, beside those that the search tries; saturated is a load whose
    accepted rate stays below ``accepted_share`` of it; the search ends when the point
    is known to ``precision`` of itself.
    """

    topology: Annotated[str, NotEmpty()]
    traffic: TrafficSettings
    network: PacketNetworkSettings
    loads: tuple[Annotated[float, Positive()], ...]
    accepted_share: Annotated[float, Fraction()]
    precision: Annotated[float, Fraction()]


@dataclass(frozen=True)
class AgreementSettings:
    """The flow model and the packet simulator side by side on some of the experiment's
    ``topologies``.

    Every routing of ``routings`` that a family offers, with every pattern of
    ``traffics`` (their own ``load`` is not used) at ``loads_over_bound``: offered load
    over the load at which the busiest link is full. ``network`` (its own ``routing`` is
    not used) says how packets are simulated.
    """

    topologies: Annotated[tuple[str, ...], NotEmpty()]
    routings: Annotated[tuple[Literal["min", "balanced"], ...], NotEmpty()]
    traffics: Annotated[dict[str, TrafficSettings], NotEmpty()]
    loads_over_bound: Annotated[tuple[Annotated[float, Positive()], ...], NotEmpty()]
    network: PacketNetworkSettings


#: Collectives that are timed; ``hierarchical_all_reduce`` reduces inside the nodes
#: first, over all links of their meshes.
CollectiveName: TypeAlias = Literal[
    "ring_all_reduce", "reduce_scatter", "all_gather", "hierarchical_all_reduce", "all_to_all"
]


@dataclass(frozen=True)
class CollectiveSettings:
    """Which collectives are timed, over which payloads, on which nodes, and how.

    ``payload_bytes``: bytes that each participant holds, before a reduce-scatter, after
    an all-gather, before and after an all-reduce or all-to-all. ``rows`` and
    ``columns``: the nodes or boards at their crossings take part (null: all rows and
    columns). ``fidelities``: ``analytic`` adds up the latency of the longest chain and
    the serialisation at the bottleneck; ``flow`` sends the messages of the steps over
    the links with max-min fair rates, up to ``most_messages`` at a time. ``routing``:
    of messages that do not follow rings.
    """

    collectives: Annotated[tuple[CollectiveName, ...], NotEmpty()]
    payload_bytes: Annotated[tuple[Annotated[int, AtLeast(1)], ...], NotEmpty()]
    rows: tuple[Annotated[int, NonNegative()], ...] | None
    columns: tuple[Annotated[int, NonNegative()], ...] | None
    fidelities: Annotated[tuple[Literal["analytic", "flow"], ...], NotEmpty()]
    routing: RoutingName
    most_messages: Annotated[int, AtLeast(1)]

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
