"""Times of collectives, in closed form and with messages on the links.

A ring reduce-scatter or all-gather over P participants takes P - 1 steps. In every step
each participant sends 1/P of the ring's share of the payload. An all-reduce is a
reduce-scatter and an all-gather. On d dimensions the payload is cut in d equal parts,
each of which starts along another dimension and goes on to the next, so that all
dimensions are busy at once. Sources: the ring algorithm (Patarasuk and Yuan 2009);
RailX (abstract): the rails of a line are r independent rings, 2 r with both directions,
in the torus and in the all-to-all setting alike.

Families with lines run rings on them, on all ports of the chips (``grid_rings`` and
``chip_rings`` of :class:`railx.families.Family`). The other families run a ring over
the chips in order, whose messages spread over all ports that the routing offers.

* ``analytic``: latency along the slowest chain of P - 1 messages, plus the
  serialisation at the ports of the rings.
* ``flow``: the messages of a step share all links they cross max-min fairly. A step of
  a dimension starts when its last step has ended everywhere; dimensions do not wait for
  each other. An all-to-all sends all messages at once at fair rates; its analytic time
  is that at the bottleneck of the routing's exact loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from railx.families import build_routing, family_of
from railx.network.flows.fair import fair_rates, finish_times, link_gb_s
from railx.network.flows.paths import FlowPaths, fixed_paths, join_paths, route_flows
from railx.network.settings import CollectiveName, CollectiveSettings
from railx.network.sub_grid import SubGrid, grid_rings, sub_grid
from railx.progress import counted
from railx.vocabulary.arrays import FloatArray, IntArray
from railx.vocabulary.grid_rings import GridRings
from railx.vocabulary.line_rings import ChannelIndex, LineRings
from railx.vocabulary.routing.analysis import longest_paths, table_lane_loads
from railx.vocabulary.topology import Topology

#: Reduce-scatters and all-gathers of a collective: an all-reduce is one of each.
_HALVES: dict[CollectiveName, int] = {
    "ring_all_reduce": 2,
    "reduce_scatter": 1,
    "all_gather": 1,
    "hierarchical_all_reduce": 2,
}

#: Messages whose loads are summed over a routing table; larger networks need closed
#: forms.
_MOST_ROUTED = 2_000_000
_BLOCK = 1_024


@dataclass(frozen=True)
class AllToAll:
    """The bottleneck and the longest path of an all-to-all.

    ``gb_s``: rate of a chip to all others together while the busiest link is full.
    ``latency_ns``: latency of the longest path, or the family's bound where the network
    is too large to follow every path.
    """

    participants: int
    gb_s: float
    latency_ns: float

    def analytic_ns(self, payload_bytes: float) -> float:
        """Time at the bottleneck: a chip keeps 1 / P of its payload, sends the rest."""
        share = (self.participants - 1) / self.participants
        return self.latency_ns + share * payload_bytes / self.gb_s


def all_to_all(topology: Topology, chips: IntArray, routing: str) -> AllToAll | None:
    """The all-to-all of ``chips``; None: too large, and there is no closed form."""
    if len(chips) * (len(chips) - 1) <= _MOST_ROUTED:
        return _routed(topology, chips, routing)
    family = family_of(topology)
    if (
        family.loads is None
        or family.longest_path_ns is None
        or len(chips) < topology.chips
        or routing not in ("min", "balanced")
    ):
        return None
    loads = family.loads(topology.settings, topology, "min" if routing == "min" else "balanced")
    # A lane's load is relative to an external port, full with one flit per cycle.
    port_gbps = topology.settings.port_gbps
    width = topology.links.gbps / port_gbps
    bound = float((width[loads > 0] / loads[loads > 0]).min())
    latency_ns = family.longest_path_ns(topology.settings)
    return AllToAll(len(chips), bound * port_gbps / 8, latency_ns)


class Messages:
    """All messages of an all-to-all, sent at once; they share links max-min fairly."""

    def __init__(self, topology: Topology, chips: IntArray, routing: str) -> None:
        paths = route_flows(topology, routing, *_pairs(chips))
        self._latency = paths.latency_ns
        self._sending = finish_times(paths, link_gb_s(topology), 1 / len(chips)) - paths.latency_ns

    def time_ns(self, payload_bytes: float) -> float:
        """Arrival of the last message; the time grows in proportion to the payload."""
        return float((self._sending * payload_bytes + self._latency).max())


def _routed(topology: Topology, chips: IntArray, routing: str) -> AllToAll:
    loads, latency = np.zeros(len(topology.links)), 0.0
    for block in np.split(np.sort(chips).astype(np.int32), range(_BLOCK, len(chips), _BLOCK)):
        table = build_routing(topology, routing, block)
        demand = np.zeros((topology.chips, len(block)))
        demand[chips] = 1 / (len(chips) - 1)
        demand[block, np.arange(len(block))] = 0
        loads += table_lane_loads(topology, table, demand) * topology.links.lanes
        latency = max(
            latency, float(longest_paths(topology, table, topology.links.latency_ns)[chips].max())
        )
    used = loads > 0
    return AllToAll(len(chips), float((link_gb_s(topology)[used] / loads[used]).min()), latency)


def _pairs(chips: IntArray) -> tuple[IntArray, IntArray]:
    """All ordered pairs, by destination: a block needs few columns of a table."""
    dst, src = (axis.ravel() for axis in np.meshgrid(chips, chips, indexing="ij"))
    return src[src != dst], dst[src != dst]


@dataclass(frozen=True, eq=False)
class _Rings:
    """Rings of one dimension.

    ``participants`` of each, ``rings`` at once (both directions counted), ``gb_s``
    each. ``chain_latency_ns``: latency along the slowest participants - 1 messages in a
    row. ``paths``: the messages of one step, None for the closed form alone.
    ``sent_rings``: the number of rings of a line in ``paths``.
    """

    participants: int
    rings: int
    gb_s: float
    chain_latency_ns: float
    sent_rings: int
    paths: FlowPaths | None


@dataclass(frozen=True, eq=False)
class _Scope:
    """The participants of a collective: rings of dimensions, level by level.

    Levels go from the inside out (the mesh of a node, the nodes), each on the result of
    the one inside it; its payload is that of all its rings together.
    """

    name: str
    algorithm: str
    levels: tuple[tuple[_Rings, ...], ...]
    participants: int

    @property
    def rings(self) -> int:
        """Rings at once through a participant of the outermost level."""
        return sum(rings.rings for rings in self.levels[-1])


def simulate_collectives(
    topology: Topology, collective: CollectiveSettings, name: str
) -> list[dict[str, Any]]:
    """Time of every collective, scope, payload and fidelity, one row each.

    Scopes:

    * ``row``, ``column`` and in three dimensions ``pillar``: one line of x, y or z.
    * ``nodes`` (RailX, HammingMesh): all nodes or boards, rows and columns at once.
    * ``chips``: all chips. Rings run through the chips of each line, all dimensions at
      once; without lines a single ring runs over the chips in order.

    In the scopes row, column and nodes of RailX (HammingMesh) a participant is a node
    (board) and the payload is the node's; elsewhere a participant is a chip. ``rings``:
    rings at once through a participant, both directions counted. ``algorithm``:
    ``ring`` of a line, ``ring_2d``, ``ring_3d``, ... of as many dimensions at once,
    ``hierarchical`` (the mesh of a node, then the nodes) or
    ``chip_order_ring_K_of_P_ports``, whose messages go at the rate of K of the P ports
    of a chip, all planes of its network together.

    Over P participants with all ports of rate b busy, the time of an all-reduce tends
    to 2 D (P - 1)/P / (ports * b). With lines of different lengths the others wait for
    the longest. SettingsError for nodes that do not exist or are not joined.
    """
    nodes = sub_grid(topology, collective)
    timed = []
    for scope in _ring_scopes(topology, nodes, collective, "flow" in collective.fidelities):
        for fidelity in collective.fidelities:
            phases = _phases(topology, scope, fidelity)
            if phases is not None:
                times = [
                    _reduce_scatter_ns(scope, phases, payload)
                    for payload in collective.payload_bytes
                ]
                timed.append((scope, fidelity, times))
    rows = []
    for kind in counted(collective.collectives, "collectives"):
        if kind == "all_to_all":
            rows += _all_to_all_rows(topology, nodes, collective, name)
            continue
        for scope, fidelity, times in timed:
            if (scope.algorithm == "hierarchical") == (kind == "hierarchical_all_reduce"):
                size = (scope.name, scope.algorithm, scope.participants, scope.rings)
                rows += [
                    _row(topology, name, kind, size, payload, _HALVES[kind] * time_ns, fidelity)
                    for payload, time_ns in zip(collective.payload_bytes, times, strict=True)
                ]
    return rows


def _row(
    topology: Topology,
    name: str,
    kind: str,
    size: tuple[str, str, int, int],
    payload: int,
    time_ns: float,
    fidelity: str,
) -> dict[str, Any]:
    scope, algorithm, participants, rings = size
    return {
        "topology": name,
        "family": topology.family,
        "collective": kind,
        "algorithm": algorithm,
        "scope": scope,
        "participants": participants,
        "rings": rings,
        "payload_bytes": payload,
        "time_ms": time_ns / 1e6,
        "algorithm_gb_s": payload / time_ns,
        "fidelity": fidelity,
    }


def _all_to_all_rows(
    topology: Topology, nodes: SubGrid | None, collective: CollectiveSettings, name: str
) -> list[dict[str, Any]]:
    rings = grid_rings(topology)
    chips = np.arange(topology.chips)
    if rings is not None and nodes is not None:
        chips = nodes.chips(rings.grid)
    exchange = all_to_all(topology, chips, collective.routing)
    if exchange is None:
        return []
    size = ("chips", "direct", len(chips), 0)
    times: dict[str, Callable[[float], float]] = {}
    if "analytic" in collective.fidelities:
        times["analytic"] = exchange.analytic_ns
    messages = len(chips) * (len(chips) - 1)
    if "flow" in collective.fidelities and messages <= collective.most_messages:
        times["flow"] = Messages(topology, chips, collective.routing).time_ns
    return [
        _row(topology, name, "all_to_all", size, payload, time_ns(payload), fidelity)
        for fidelity, time_ns in times.items()
        for payload in collective.payload_bytes
    ]


# Time of a reduce-scatter (an all-gather mirrors it)

#: Time in ns while each dimension of a level works on its payload, all at the same
#: time.
_Phase = Callable[[Sequence[float]], float]


def _phases(topology: Topology, scope: _Scope, fidelity: str) -> list[_Phase] | None:
    """How long a phase of each level takes; None where flows have no messages."""
    if fidelity == "analytic":
        return [_analytic_phase(level) for level in scope.levels]
    if any(rings.paths is None for level in scope.levels for rings in level):
        return None
    return [_flow_phase(topology, level) for level in scope.levels]


def _reduce_scatter_ns(scope: _Scope, phases: list[_Phase], payload: float) -> float:
    """Time over all levels: an inner level's shards are the payload around it."""
    return sum(
        _level_ns(level, phase, payload) for level, phase in zip(scope.levels, phases, strict=True)
    )


def _level_ns(level: tuple[_Rings, ...], phase: _Phase, payload: float) -> float:
    """Time of a level, a phase for each dimension; all parts end one together."""
    # A part for each dimension that works on it.
    total, parts = 0.0, [payload / len(level)] * len(level)
    for _ in level:
        total += phase(parts)
        shards = [part / rings.participants for rings, part in zip(level, parts, strict=True)]
        parts = shards[-1:] + shards[:-1]
    return total


def _analytic_phase(level: tuple[_Rings, ...]) -> _Phase:
    """Bytes over GB/s are ns."""

    def slowest(payloads: Sequence[float]) -> float:
        return max(
            rings.chain_latency_ns
            + (rings.participants - 1) / rings.participants * payload / (rings.rings * rings.gb_s)
            for rings, payload in zip(level, payloads, strict=True)
        )

    return slowest


def _flow_phase(topology: Topology, level: tuple[_Rings, ...]) -> _Phase:
    """The messages of a step of all dimensions at once, linear in the payload."""
    parts = [rings.paths for rings in level if rings.paths is not None]
    paths = join_paths(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    sending: dict[tuple[float, ...], FloatArray] = {}

    def slowest(payloads: Sequence[float]) -> float:
        shares = tuple(payload / payloads[0] for payload in payloads)
        if shares not in sending:
            chunk = np.array(
                [
                    share / (rings.sent_rings * rings.participants)
                    for rings, share in zip(level, shares, strict=True)
                ]
            )
            sending[shares] = (
                finish_times(paths, link_gb_s(topology), chunk[owner]) - paths.latency_ns
            )
        arrival = sending[shares] * payloads[0] + paths.latency_ns
        return max(
            float(arrival[owner == k].max()) * (rings.participants - 1)
            for k, rings in enumerate(level)
        )

    return slowest


# Participants and messages


def _ring_scopes(
    topology: Topology, nodes: SubGrid | None, collective: CollectiveSettings, wants_flow: bool
) -> list[_Scope]:
    if all(kind == "all_to_all" for kind in collective.collectives):
        return []
    most = collective.most_messages if wants_flow else 0
    grid = grid_rings(topology)
    if grid is not None and nodes is not None:
        return _grid_scopes(ChannelIndex(topology), grid, nodes, most)
    chip_rings = family_of(topology).chip_rings
    chip_lines = None if chip_rings is None else chip_rings(topology.settings)
    if chip_lines is not None:
        index = ChannelIndex(topology)
        level = tuple(_rings(index, rings, most) for rings in chip_lines)
        return [*_line_scopes(level), _scope("chips", level, topology.chips)]
    scope = _chip_order_scope(topology, collective, wants_flow)
    return [] if scope is None else [scope]


def _scope(name: str, level: tuple[_Rings, ...], participants: int) -> _Scope:
    return _Scope(name, f"ring_{len(level)}d" if len(level) > 1 else "ring", (level,), participants)


def _line_scopes(
    dimensions: Iterable[_Rings], names: Iterable[str] = ("row", "column", "pillar")
) -> list[_Scope]:
    return [
        _scope(name, (rings,), rings.participants)
        for name, rings in zip(names, dimensions, strict=False)
    ]


def _grid_scopes(index: ChannelIndex, grid: GridRings, nodes: SubGrid, most: int) -> list[_Scope]:
    dimensions = [dimension for dimension in (0, 1) if len(nodes.positions(dimension)) > 1]
    level = tuple(
        _rings(
            index,
            grid.node_rings(nodes.positions(dimension), dimension, nodes.lines(dimension)),
            most,
        )
        for dimension in dimensions
    )
    scopes = _line_scopes(level, [("row", "column")[dimension] for dimension in dimensions])
    if level:
        scopes.append(_scope("chips" if grid.single_chips else "nodes", level, nodes.nodes))
    if not grid.single_chips:
        scopes += _chip_scopes(index, grid, nodes, level, most)
    return scopes


def _chip_scopes(
    index: ChannelIndex, grid: GridRings, nodes: SubGrid, level: tuple[_Rings, ...], most: int
) -> list[_Scope]:
    """Nodes of several chips: rings over all chips, and the meshes, then the nodes."""
    scopes = []
    chips = nodes.nodes * grid.grid.m**2
    flat = [
        grid.chip_rings(nodes.positions(dimension), dimension, nodes.lines(dimension))
        for dimension in (0, 1)
        if len(nodes.positions(dimension)) > 1
    ]
    if len(flat) == 2 and all(rings is not None for rings in flat):
        # One chip row represents the m of its line: all are alike and share no links.
        flat_level = tuple(_rings(index, rings, most) for rings in flat if rings is not None)
        scopes.append(_scope("chips", flat_level, chips))
    meshes = (grid.mesh_rings(dimension) for dimension in (0, 1))
    mesh = tuple(_rings(index, rings, most) for rings in meshes if rings is not None)
    scopes.append(
        _Scope("chips", "hierarchical", tuple(part for part in (mesh, level) if part), chips)
    )
    return scopes


def _rings(index: ChannelIndex, line: LineRings, most_messages: int) -> _Rings:
    """The rings of all lines of a dimension, or of one, with too many messages."""
    first = _line_paths(index, line, 0)
    hops = first.latency_ns.reshape(line.rings, line.participants)
    paths = None
    if line.messages <= most_messages:
        lines = len(line.vertices) if line.messages * len(line.vertices) <= most_messages else 1
        paths = join_paths(
            [first, *(_line_paths(index, line, number) for number in range(1, lines))]
        )
    chain = float((hops.sum(axis=1) - hops.min(axis=1)).max())
    gb_s = line.ports * index.topology.settings.port_gbps / 8
    return _Rings(line.participants, line.rings, gb_s, chain, line.rings, paths)


def _line_paths(index: ChannelIndex, line: LineRings, number: int) -> FlowPaths:
    return fixed_paths(index.topology, line.message, index.rows(line, number), line.messages)


def _chip_order_scope(
    topology: Topology, collective: CollectiveSettings, wants_flow: bool
) -> _Scope | None:
    """A ring over all chips in order, both directions at once, on the routing's paths.

    A message spreads over all planes and ports that the routing offers from one chip to
    the next. Families may have a closed form (a fat tree: a ring in every plane, on all
    ports of a chip). Elsewhere the rate is that of the slowest message of a step, and
    the algorithm's name says how many ports of a chip that fills, at most all of them,
    though chips of a server also send over its scale-up links.
    """
    settings = topology.settings
    paths = None
    if 2 * topology.chips <= collective.most_messages:
        chip = np.arange(topology.chips)
        src = np.concatenate([chip, chip])
        dst = np.concatenate([np.roll(chip, -1), np.roll(chip, 1)])
        paths = route_flows(topology, collective.routing, src, dst)
    family = family_of(topology)
    if family.chip_order_ring is not None:
        ring = family.chip_order_ring(settings)
        count, gb_s, chain = ring.rings, settings.port_gbps / 8, ring.chain_latency_ns
    elif paths is not None:
        hops = paths.latency_ns.reshape(2, topology.chips)
        count, gb_s = 2, float(fair_rates(paths, link_gb_s(topology)).min())
        chain = float((hops.sum(axis=1) - hops.min(axis=1)).max())
    else:
        return None
    rings = _Rings(topology.chips, count, gb_s, chain, 2, paths if wants_flow else None)
    ports = family.ports_per_chip(settings)
    used = min(ports, count * gb_s / (settings.port_gbps / 8))
    return _Scope(
        "chips", f"chip_order_ring_{used:.3g}_of_{ports}_ports", ((rings,),), topology.chips
    )
