"""Times of collectives: in closed form, and with the messages of their steps on the links.

A ring reduce-scatter or all-gather over P participants takes P - 1 steps; in every step each participant passes on 1/P of the
ring's share of the payload. An all-reduce is a reduce-scatter and an all-gather. On two dimensions, half of the payload goes along
the rows first and the other half along the columns first. Sources: the ring algorithm (Patarasuk and Yuan 2009); RailX (abstract):
the rails of a line are r independent rings, 2 r with both directions, in the torus and in the all-to-all setting alike.

* ``analytic``: latency along the slowest chain of P - 1 messages, plus the serialisation at the ports of the rings.
* ``flow``: the messages of a step share all links they cross max-min fairly; a step of a dimension starts when its last step has
  ended everywhere, while the other dimension goes through its own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.network.all_to_all import Messages, all_to_all
from railx.network.flows import FlowPaths, fair_rates, finish_times, fixed_paths, join_paths, link_gb_s, route_flows
from railx.network.rail_rings import LineRings, SubGrid, chip_rings, grid_of, mesh_rings, node_rings, sub_grid
from railx.network.routing import routings_of
from railx.network.settings import CollectiveName, CollectiveSettings
from railx.topology import FatTreeSettings, Topology, settings_of
from railx.topology.railx_grid import Grid

__all__ = ["ring_all_reduce", "simulate_collectives"]

FloatArray = NDArray[np.float64]

#: Reduce-scatters and all-gathers of a collective: an all-reduce is one of each.
_HALVES: dict[CollectiveName, int] = {"ring_all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "hierarchical_all_reduce": 2}


@dataclass(frozen=True, eq=False)
class _Rings:
    """Rings of one dimension: ``participants`` on each, ``rings`` at once (both directions counted), ``gb_s`` each.

    ``chain_latency_ns``: latency along the slowest participants - 1 messages in a row. ``paths``: the messages of one step, None
    where only the closed form is wanted or known; ``sent_rings`` is how many rings they make up in a line.
    """

    participants: int
    rings: int
    gb_s: float
    chain_latency_ns: float
    sent_rings: int
    paths: FlowPaths | None


@dataclass(frozen=True, eq=False)
class _Scope:
    """Who takes part: rings of one dimension or of two, for each level from the inside out (the mesh of a node, the nodes).

    A level works on what the level inside it has reduced; its payload is that of all its rings together.
    """

    name: str
    algorithm: str
    levels: tuple[tuple[_Rings, ...], ...]
    participants: int

    @property
    def rings(self) -> int:
        """Rings at once through a participant of the outermost level."""
        return sum(rings.rings for rings in self.levels[-1])


def ring_all_reduce(topology: Topology, collective: CollectiveSettings, name: str) -> list[dict[str, Any]]:
    """:func:`simulate_collectives` for ring all-reduce alone."""
    return simulate_collectives(topology, replace(collective, collectives=("ring_all_reduce",)), name)


def simulate_collectives(topology: Topology, collective: CollectiveSettings, name: str) -> list[dict[str, Any]]:
    """Time of every collective, scope, payload and fidelity, one row each.

    Scopes: ``row`` and ``column`` (one line), ``nodes`` (RailX: all nodes, rows and columns at once), ``chips`` (all chips; rings
    run through the chips of each line, two dimensions at once; one ring over the chips in order elsewhere). A
    participant is a node in the scopes row, column and nodes of RailX (the payload is the node's) and a chip elsewhere.
    ``rings``: rings at once through a participant, both directions counted. Over P participants with all ports of rate b busy, the
    time of an all-reduce tends to 2 D (P - 1)/P / (ports * b). Families without rings and routing have no rows. SettingsError for
    nodes that do not exist or are not joined.
    """
    nodes = sub_grid(topology, collective)
    timed = []
    for scope in _ring_scopes(topology, nodes, collective, "flow" in collective.fidelities):
        for fidelity in collective.fidelities:
            phases = _phases(topology, scope, fidelity)
            if phases is not None:
                times = [_reduce_scatter_ns(scope, phases, payload) for payload in collective.payload_bytes]
                timed.append((scope, fidelity, times))
    rows = []
    for kind in collective.collectives:
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


def _all_to_all_rows(topology: Topology, nodes: SubGrid | None, collective: CollectiveSettings, name: str) -> list[dict[str, Any]]:
    grid = grid_of(topology)
    chips = np.arange(topology.chips) if grid is None or nodes is None else nodes.chips(grid)
    if not _is_routed(topology):
        return []
    found = all_to_all(topology, chips, collective.routing)
    if found is None:
        return []
    size = ("chips", "direct", len(chips), 0)
    times: dict[str, Callable[[float], float]] = {}
    if "analytic" in collective.fidelities:
        times["analytic"] = found.analytic_ns
    if "flow" in collective.fidelities and len(chips) * (len(chips) - 1) <= collective.most_messages:
        times["flow"] = Messages(topology, chips, collective.routing).time_ns
    return [
        _row(topology, name, "all_to_all", size, payload, time_ns(payload), fidelity)
        for fidelity, time_ns in times.items()
        for payload in collective.payload_bytes
    ]


# Time of a reduce-scatter (an all-gather mirrors it) ------------------------------------------------------------------------------


#: Time in ns when each dimension of a level works on its payload, all at the same time.
_Phase = Callable[[Sequence[float]], float]


def _phases(topology: Topology, scope: _Scope, fidelity: str) -> list[_Phase] | None:
    """How long a phase of each level takes; None where the flow model has no messages."""
    if fidelity == "analytic":
        return [_analytic_phase(level) for level in scope.levels]
    if any(rings.paths is None for level in scope.levels for rings in level):
        return None
    return [_flow_phase(topology, level) for level in scope.levels]


def _reduce_scatter_ns(scope: _Scope, phases: list[_Phase], payload: float) -> float:
    """Over all levels; the shards of an inner level make up the whole payload of the level around it."""
    return sum(_level_ns(level, phase, payload) for level, phase in zip(scope.levels, phases, strict=True))


def _level_ns(level: tuple[_Rings, ...], phase: _Phase, payload: float) -> float:
    if len(level) == 1:
        return phase([payload])
    first, second = level
    half = payload / 2
    # Half the payload goes x then y, the other half y then x; a phase ends when both halves have ended it.
    return phase([half, half]) + phase([half / second.participants, half / first.participants])


def _analytic_phase(level: tuple[_Rings, ...]) -> _Phase:
    """Bytes over GB/s are ns."""

    def slowest(payloads: Sequence[float]) -> float:
        return max(
            rings.chain_latency_ns + (rings.participants - 1) / rings.participants * payload / (rings.rings * rings.gb_s)
            for rings, payload in zip(level, payloads, strict=True)
        )

    return slowest


def _flow_phase(topology: Topology, level: tuple[_Rings, ...]) -> _Phase:
    """All messages of one step of every dimension at once; how long they send grows in proportion to the payload."""
    parts = [rings.paths for rings in level if rings.paths is not None]
    paths = join_paths(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    sending: dict[tuple[float, ...], FloatArray] = {}

    def slowest(payloads: Sequence[float]) -> float:
        shares = tuple(payload / payloads[0] for payload in payloads)
        if shares not in sending:
            chunk = np.array([share / (rings.sent_rings * rings.participants) for rings, share in zip(level, shares, strict=True)])
            sending[shares] = finish_times(paths, link_gb_s(topology), chunk[owner]) - paths.latency_ns
        arrival = sending[shares] * payloads[0] + paths.latency_ns
        return max(float(arrival[owner == k].max()) * (rings.participants - 1) for k, rings in enumerate(level))

    return slowest


# Who sends to whom ----------------------------------------------------------------------------------------------------------------


def _ring_scopes(topology: Topology, nodes: SubGrid | None, collective: CollectiveSettings, wants_flow: bool) -> list[_Scope]:
    if all(kind == "all_to_all" for kind in collective.collectives):
        return []
    grid = grid_of(topology)
    if grid is None or nodes is None:
        scope = _chip_order_scope(topology, collective, wants_flow)
        return [] if scope is None else [scope]
    most = collective.most_messages if wants_flow else 0
    index = _LinkIndex(topology)
    dimensions = [dimension for dimension in (0, 1) if len(nodes.positions(dimension)) > 1]
    lines = {
        dimension: _rings(
            index,
            node_rings(topology, nodes.positions(dimension), dimension, nodes.lines(dimension)[0]),
            nodes.lines(dimension),
            grid.port_gbps / 8,
            most,
        )
        for dimension in dimensions
    }
    scopes = [_Scope(("row", "column")[dimension], "ring", ((rings,),), rings.participants) for dimension, rings in lines.items()]
    level = tuple(lines.values())
    is_torus_of_chips = topology.circuits is None
    if level:
        algorithm = "ring_2d" if len(level) > 1 else "ring"
        scopes.append(_Scope("chips" if is_torus_of_chips else "nodes", algorithm, (level,), nodes.nodes))
    if not is_torus_of_chips:
        scopes += _chip_scopes(index, grid, nodes, level, most)
    return scopes


def _chip_scopes(index: _LinkIndex, grid: Grid, nodes: SubGrid, level: tuple[_Rings, ...], most: int) -> list[_Scope]:
    """RailX: one ring level over all chips, and the hierarchy of the meshes inside the nodes and the nodes."""
    topology, scopes = index.topology, []
    chips = nodes.nodes * grid.m**2
    flat = [
        chip_rings(topology, nodes.positions(dimension), dimension, nodes.lines(dimension)[0])
        for dimension in (0, 1)
        if len(nodes.positions(dimension)) > 1
    ]
    if len(flat) == 2 and all(rings is not None for rings in flat):
        # One chip row stands for the m of its line; all are alike and share no links.
        flat_level = tuple(
            _rings(index, rings, nodes.lines(dimension), grid.port_gbps / 8, most)
            for dimension, rings in enumerate(flat)
            if rings is not None
        )
        scopes.append(_Scope("chips", "ring_2d", (flat_level,), chips))
    lane_gb_s = grid.port_gbps * grid.internal_width / 8
    mesh = tuple(
        _rings(index, rings, (0,), grid.n * lane_gb_s, most)
        for rings in (mesh_rings(grid, dimension) for dimension in (0, 1))
        if rings is not None
    )
    scopes.append(_Scope("chips", "hierarchical", tuple(part for part in (mesh, level) if part), chips))
    return scopes


def _rings(index: _LinkIndex, line: LineRings, lines: Sequence[int], gb_s: float, most_messages: int) -> _Rings:
    """``lines``: all lines of the job in this dimension; one stands for all where their messages are too many."""
    messages = line.participants * line.rings
    one = _line_paths(index, line, 0)
    hops = one.latency_ns.reshape(line.rings, line.participants)
    paths = None
    if messages <= most_messages:
        every = lines if messages * len(lines) <= most_messages else lines[:1]
        paths = join_paths([_line_paths(index, line, number - line.line) for number in every])
    chain = float((hops.sum(axis=1) - hops.min(axis=1)).max())
    return _Rings(line.participants, line.rings, gb_s, chain, line.rings, paths)


def _line_paths(index: _LinkIndex, line: LineRings, lines_further: int) -> FlowPaths:
    shift = line.stride * lines_further
    rows = index.rows(line.src + shift, line.dst + shift, line.rail, line.copy)
    return fixed_paths(index.topology, line.message, rows, line.participants * line.rings)


class _LinkIndex:
    """Finds link rows by their chips and rail."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        links = topology.links
        key = self._key(links.src, links.dst, links.rail)
        self._order = np.argsort(key, kind="stable")
        self._sorted = key[self._order]

    def rows(
        self, src: NDArray[np.int64], dst: NDArray[np.int64], rail: NDArray[np.int64], copy: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        at = np.searchsorted(self._sorted, self._key(src, dst, rail)) + copy
        rows: NDArray[np.int64] = self._order[at]
        return rows

    def _key(self, src: NDArray[Any], dst: NDArray[Any], rail: NDArray[Any]) -> NDArray[np.int64]:
        vertices, rails = self.topology.vertices, int(self.topology.links.rail.max()) + 2
        key: NDArray[np.int64] = (src.astype(np.int64) * vertices + dst) * rails + rail + 1
        return key


def _chip_order_scope(topology: Topology, collective: CollectiveSettings, wants_flow: bool) -> _Scope | None:
    """One ring over all chips in order, both directions at once, on the routing's paths.

    The closed form of a fat tree is a ring in every plane; elsewhere the rate is that of the slowest message of a step.
    """
    settings = settings_of(topology)
    paths = None
    if _is_routed(topology) and 2 * topology.chips <= collective.most_messages:
        chip = np.arange(topology.chips)
        src = np.concatenate([chip, chip])
        dst = np.concatenate([np.roll(chip, -1), np.roll(chip, 1)])
        paths = route_flows(topology, collective.routing, src, dst)
    if isinstance(settings, FatTreeSettings):
        count, gb_s, chain = settings.planes, settings.port_gbps / 8, _fat_tree_chain_ns(settings)
    elif paths is not None:
        hops = paths.latency_ns.reshape(2, topology.chips)
        count, gb_s = 2, float(fair_rates(paths, link_gb_s(topology)).min())
        chain = float((hops.sum(axis=1) - hops.min(axis=1)).max())
    else:
        return None
    rings = _Rings(topology.chips, count, gb_s, chain, 2, paths if wants_flow else None)
    return _Scope("chips", "ring", ((rings,),), topology.chips)


def _fat_tree_chain_ns(settings: FatTreeSettings) -> float:
    """Around the chips in order all hops but the fastest: one hop a leaf leaves it, one a pod of three tiers leaves the pod."""
    in_leaf, up = 2 * settings.leaf_latency_ns, 2 * settings.global_latency_ns
    changes = settings.leaves + (settings.pods if settings.tiers == 3 else 0)
    fastest = in_leaf + (up if settings.leaf_down == 1 else 0)
    return settings.chips * in_leaf + changes * up - fastest


def _is_routed(topology: Topology) -> bool:
    try:
        return bool(routings_of(topology.family))
    except KeyError:
        return False
