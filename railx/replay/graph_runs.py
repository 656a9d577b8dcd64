"""Graphs replayed on networks, by mode and reconfiguration latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from railx.errors import UserError
from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.families import build_topology, family_of
from railx.performance.networks import TwoLevelRing
from railx.performance.topologies import ExactLoads
from railx.replay.graph_networks import (
    GroupsAlone,
    LoadedGroups,
    OwnRings,
    placed,
    places_by_traffic,
)
from railx.replay.graph_pricing import Counts, DeviceRates, GroupNetwork, node_ns
from railx.replay.graph_report import StepTimes, step_times, window_count
from railx.replay.graph_run import replay_graphs
from railx.replay.graphs import RankGraphs
from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings

__all__ = ["FamilyNetwork", "GraphRow", "ReplayedNetwork", "TwoRates", "graph_rows"]

IntArray = npt.NDArray[np.int64]
_ROUTING = "min"


class PricedNetwork(GroupNetwork, Protocol):
    """A network that says how it counts groups that communicate at once."""

    contention: str


class ReplayedNetwork(Protocol):
    """A network by name, for graphs of any number of ranks."""

    name: str

    def server(self, ranks: int) -> int:
        """Ranks of a server."""
        ...

    def chips(self, ranks: int) -> int:
        """Chips of the network."""
        ...

    def priced(self, graphs: RankGraphs) -> PricedNetwork:
        """The prices of the operations of graphs whose ranks fill servers in order."""
        ...

    @property
    def switched(self) -> bool:
        """Whether circuits can be switched in the step."""
        ...


@dataclass(frozen=True)
class TwoRates:
    """Rings at one rate inside servers and at another between them, GB/s of a rank in
    one direction; ``latency_ns``: of each hop of a ring.
    """

    name: str
    ranks_per_server: int
    scale_up_gb_s: float
    scale_out_gb_s: float
    latency_ns: float = 0.0
    switched = True

    def server(self, ranks: int) -> int:
        """Ranks of a server."""
        return self.ranks_per_server

    def chips(self, ranks: int) -> int:
        """As many as there are ranks."""
        return ranks

    def priced(self, graphs: RankGraphs) -> PricedNetwork:
        """Groups alone."""
        latency_s = self.latency_ns * 1e-9
        rates = self.scale_up_gb_s, self.scale_out_gb_s
        return GroupsAlone(
            TwoLevelRing(self.ranks_per_server, *rates, latency_s, latency_s, 1.0, 1.0)
        )


@dataclass(frozen=True)
class FamilyNetwork:
    """A network family, with as many chips as there are ranks or more.

    Where ``settings`` have fewer, the family's next larger network takes their place,
    or the smallest of ``others`` that has enough.

    Rails with one kind of line are switched in the step: every operation has circuits
    to itself. Other networks, RailX among them, keep the circuits of the whole job.
    """

    name: str
    settings: FamilySettings
    others: tuple[FamilySettings, ...] = ()

    @property
    def switched(self) -> bool:
        """Whether circuits can be switched in the step."""
        family = family_of(self.settings)
        return family.switched and family.lines is not None and len(family.lines.axes) == 1

    def sized(self, ranks: int) -> FamilySettings:
        """The settings, of a larger network where there are more ranks than chips."""
        chips = _chips(self.settings)
        bill = family_of(self.settings).bill
        if ranks <= chips:
            return self.settings
        if bill is not None:
            with suppress(SettingsError):
                return bill.resize(self.settings, ranks)
        larger = [other for other in self.others if _chips(other) >= ranks]
        if not larger:
            raise UserError(
                f"--network: got {self.name} of {chips} chips for {ranks} ranks; allowed: a network"
                " of as many chips"
            )
        return min(larger, key=_chips)

    def server(self, ranks: int) -> int:
        """Chips of a node."""
        topology = build_topology(self.sized(ranks))
        return topology.chips // topology.nodes

    def chips(self, ranks: int) -> int:
        """Chips of the network."""
        return _chips(self.sized(ranks))

    def priced(self, graphs: RankGraphs) -> PricedNetwork:
        """Exact loads of all groups at once; of rails those of each ring."""
        settings = self.sized(graphs.ranks)
        if self.switched:
            return OwnRings(settings, (_ROUTING,))
        return LoadedGroups(ExactLoads(build_topology(settings), (_ROUTING,), graphs.ranks), graphs)


def _chips(settings: FamilySettings) -> int:
    bill = family_of(settings).bill
    return build_topology(settings).chips if bill is None else bill.ports(settings).chips


@dataclass(frozen=True, eq=False)
class GraphRow:
    """One replay. ``graphs`` are those of ``network``, with ranks by their places;
    ``rank_of``: the rank of the trace at each place.
    """

    network: str
    chips: int
    mode: Mode
    latency_ms: float
    times: StepTimes
    switches: int
    windows: int
    contention: str
    graphs: RankGraphs
    rank_of: IntArray
    placement: str
    node_ns: IntArray
    ended_ns: IntArray

    def as_dict(self) -> dict[str, Any]:
        """The figures, times in ms."""
        return {
            "network": self.network,
            "chips": self.chips,
            "mode": self.mode,
            "latency_ms": self.latency_ms,
            "step_ms": self.times.step_ns / 1e6,
            "compute_ms": self.times.compute_ns / 1e6,
            "exposed_ms": {kind: ns / 1e6 for kind, ns in self.times.exposed_ns.items()},
            "waiting_ms": self.times.waiting_ns / 1e6,
            "rank": int(self.rank_of[self.times.rank]),
            "switches": self.switches,
            "windows": self.windows,
            "contention": self.contention,
            "placement": self.placement,
            "fidelity": "replay",
        }


def graph_rows(
    graphs: RankGraphs,
    networks: Sequence[ReplayedNetwork],
    modes: Sequence[Mode],
    latencies_ms: Sequence[float],
    *,
    device: DeviceRates,
    counts: Counts,
    server: int | None = None,
    by_traffic: bool = False,
) -> Iterator[GraphRow]:
    """A row for each network, mode and latency.

    A network whose circuits are not switched in the step has one row, in mode
    ``electrical``; that mode has no latency. ``by_traffic``: ranks are placed so that
    the busiest groups lie in servers; ``server``: ranks of one where a network has
    nodes of one chip.
    """
    for network in networks:
        alone = network.server(graphs.ranks)
        places = np.arange(graphs.ranks)
        if by_traffic:
            places = places_by_traffic(graphs, alone if alone > 1 else server or 1)
        there = placed(graphs, places)
        priced = network.priced(there)
        taken_ns = node_ns(there, device, priced, counts)
        layout = Layout(alone if alone > 1 else server or 1)
        for mode, latency_ms in _settings(network, modes, latencies_ms):
            replayed = replay_graphs(there, taken_ns, layout, mode, round(latency_ms * 1e6))
            times = step_times(there, taken_ns, replayed.ended_ns)
            yield GraphRow(
                network.name,
                network.chips(graphs.ranks),
                mode,
                latency_ms,
                times,
                replayed.commands,
                window_count(there, replayed.ended_ns, times.rank, layout.is_scale_up),
                priced.contention,
                there,
                np.argsort(places),
                "traffic" if by_traffic else "consecutive",
                taken_ns,
                replayed.ended_ns,
            )


def _settings(
    network: ReplayedNetwork, modes: Sequence[Mode], latencies_ms: Sequence[float]
) -> list[tuple[Mode, float]]:
    if not network.switched:
        return [("electrical", 0.0)]
    pairs = product(modes, latencies_ms)
    return list(dict.fromkeys((m, 0.0 if m == "electrical" else ms) for m, ms in pairs))
