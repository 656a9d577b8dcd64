"""The time of a step on a topology, by exact channel loads.

Every kind of communication has one bottleneck. All groups of one kind communicate at
once. Their traffic is routed over the topology as any other, so that contention between
groups and the walk inside the nodes count; the busiest channel sets the rate.

A gather is done in the better of two ways: every member sends its part to every other
(direct), or round a ring in both directions. Over several axes it may also go one axis
after the other (reduce-scatter from the first to the last, all-gather back), each with
what the others left to it. Where a topology has several routings, each transfer takes
the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.families import build_routing
from railx.mapping.layout import Placement, assign_ranks, group_levels, group_members
from railx.mapping.settings import PARALLELISMS, JobSettings, LayoutSettings
from railx.mapping.volumes import Transfer, compute_flops, step_transfers
from railx.progress import counted
from railx.settings import SettingsError
from railx.vocabulary.routing.analysis import longest_paths, table_channel_loads
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, Topology

__all__ = ["FIDELITY", "Basis", "GroupRates", "Way", "step_times"]

FIDELITY = "analytic"

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Basis:
    """A basis of comparison.

    ``ports`` and ``inside`` scale the links between and inside nodes.
    """

    name: str
    ports: float
    inside: float
    cost_per_chip_usd: float | None


@dataclass(frozen=True)
class Way:
    """One way to move data within groups.

    ``sent``: bytes that a chip sends over the bytes of the transfer. The rates are
    those that the busiest channel between nodes and inside one allow each chip.
    """

    name: str
    routing: str
    sent: float
    between_gb_s: float
    inside_gb_s: float
    latency_ns: float

    def time_ns(self, size_bytes: float, basis: Basis) -> float:
        """Bytes over GB/s are nanoseconds.

        A faster port shortens the transmission, not the flight.
        """
        gb_s = min(self.between_gb_s * basis.ports, self.inside_gb_s * basis.inside)
        return self.latency_ns + size_bytes * self.sent / gb_s


class GroupRates:
    """A topology under one routing, and the rates of groups on it.

    It caches its answers, so that layouts share them.
    """

    def __init__(self, topology: Topology, routing: str) -> None:
        self.topology = topology
        self.routing = routing
        self._ways: dict[tuple[bytes, int, str], Way] = {}

    @cached_property
    def table(self) -> RoutingTable:
        return build_routing(self.topology, self.routing)

    def ways(self, groups: IntArray, pattern: str) -> list[Way]:
        """The ways to do ``pattern`` within every group at once.

        ``groups``: int[groups, members].
        """
        members = groups.shape[1]
        share = (members - 1) / members
        if pattern == "next":
            return [self._way("next", groups, 1.0, 1)]
        ways = [self._way("direct", groups, share, 1)]
        if pattern == "gather" and members > 2:
            ways.append(self._way("ring", groups, share, members - 1))
        return ways

    def _way(self, name: str, groups: IntArray, sent: float, rounds: int) -> Way:
        key = (groups.tobytes(), groups.shape[1], name)
        if key not in self._ways:
            demand = np.zeros((self.topology.chips, self.topology.chips))
            demand[groups[:, :, None], groups[:, None, :]] = _SHARES[name](groups.shape[1])
            links = self.topology.links
            load = table_channel_loads(self.topology, self.table, demand)
            flight_ns = longest_paths(self.topology, self.table, links.latency_ns, demand)
            with np.errstate(divide="ignore"):
                gb_s = np.where(load > 0, np.repeat(links.gbps, links.lanes) / 8 / load, np.inf)
            inside = np.repeat(links.kind == INTERNAL, links.lanes)
            self._ways[key] = Way(
                name=name,
                routing=self.routing,
                sent=sent,
                between_gb_s=float(gb_s[~inside].min(initial=np.inf)),
                inside_gb_s=float(gb_s[inside].min(initial=np.inf)),
                latency_ns=float(np.where(demand > 0, flight_ns, 0).max()) * rounds,
            )
        return self._ways[key]


def _everyone(members: int) -> FloatArray:
    """The share of a member's data for each other member: the same to all.

    float[members, members].
    """
    return (1 - np.eye(members)) / (members - 1)


def _round_the_ring(members: int) -> FloatArray:
    following = np.roll(np.eye(members), 1, axis=1)
    return (following + following.T) / 2


def _to_the_next(members: int) -> FloatArray:
    """Each member sends to the next, the last one to none (a pipeline)."""
    return np.eye(members, k=1)


_SHARES = {"direct": _everyone, "ring": _round_the_ring, "next": _to_the_next}


def step_times(
    topology: Topology,
    routings: Sequence[str],
    jobs: Mapping[str, JobSettings],
    bases: Sequence[Basis],
    name: str,
) -> list[dict[str, Any]]:
    """Time of one training step of every job on every basis, one row per part.

    Columns: topology, family, topology_chips, job, chips, placement, basis,
    port_factor, cost_per_chip_usd (of the network), part (compute, bubble and the
    parallelisms), way and routing (how the data moved), ms, step_ms (the whole step),
    tokens_per_s, reason, fidelity. A job without room has one row per basis: no part
    and no times, ``reason`` says why.

    Nothing overlaps except that stages of the pipeline work at the same time: an upper
    bound for schedules that hide communication. ``bubble`` is what the first and last
    stages wait: (stages - 1) micro-batches (1F1B).
    """
    networks = [GroupRates(topology, routing) for routing in routings]
    rows: list[dict[str, Any]] = []
    for job_name, job in counted(jobs.items(), "jobs"):
        try:
            placement = assign_ranks(topology, job.layout.sizes)
        except SettingsError as error:
            if error.key != "layout":
                raise
            rows += [
                _row(topology, name, job_name, job, basis, reason=str(error)) for basis in bases
            ]
            continue
        for basis in counted(bases, "bases"):
            rows += _job_rows(networks, placement, name, job_name, job, basis)
    return rows


def _job_rows(
    networks: Sequence[GroupRates],
    placement: Placement,
    name: str,
    job_name: str,
    job: JobSettings,
    basis: Basis,
) -> list[dict[str, Any]]:
    per_micro = {"compute": compute_flops(job) / (job.chip.peak_tflops * job.chip.efficiency) / 1e3}
    per_micro |= dict.fromkeys(PARALLELISMS, 0.0)
    per_step = dict.fromkeys(per_micro, 0.0)
    chosen: dict[str, list[Way]] = {}
    for transfer in step_transfers(job):
        time_ns, ways = _fastest(networks, placement, transfer, job.layout, basis)
        (per_step if transfer.per_step else per_micro)[transfer.name] += time_ns * transfer.times
        chosen.setdefault(transfer.name, []).extend(ways)
    parts = {part: per_micro[part] * job.micro_batches + per_step[part] for part in per_micro}
    parts["bubble"] = sum(per_micro.values()) * (job.layout.degree("pipeline") - 1)
    step_ns = sum(parts.values())
    tokens = (
        job.sequence_tokens
        * job.micro_batches
        * job.layout.degree("data")
        * job.layout.degree("expert")
    )
    times = {
        "placement": placement.kind,
        "step_ms": step_ns / 1e6,
        "tokens_per_s": tokens / step_ns * 1e9,
    }
    return [
        _row(
            networks[0].topology,
            name,
            job_name,
            job,
            basis,
            part=part,
            way="+".join(dict.fromkeys(way.name for way in chosen.get(part, ()))),
            routing="+".join(dict.fromkeys(way.routing for way in chosen.get(part, ()))),
            ms=time_ns / 1e6,
            **times,
        )
        for part, time_ns in parts.items()
    ]


def _row(
    topology: Topology, name: str, job_name: str, job: JobSettings, basis: Basis, **values: Any
) -> dict[str, Any]:
    return {
        "topology": name,
        "family": topology.family,
        "topology_chips": topology.chips,
        "job": job_name,
        "chips": job.layout.chips,
        "placement": values.get("placement"),
        "basis": basis.name,
        "port_factor": basis.ports,
        "cost_per_chip_usd": basis.cost_per_chip_usd,
        "part": values.get("part"),
        "way": values.get("way"),
        "routing": values.get("routing"),
        "ms": values.get("ms"),
        "step_ms": values.get("step_ms"),
        "tokens_per_s": values.get("tokens_per_s"),
        "reason": values.get("reason"),
        "fidelity": FIDELITY,
    }


def _fastest(
    networks: Sequence[GroupRates],
    placement: Placement,
    transfer: Transfer,
    layout: LayoutSettings,
    basis: Basis,
) -> tuple[float, list[Way]]:
    """The least time of a transfer, and the way taken.

    There are several ways where one axis goes after the other.
    """
    groups = group_members(layout, placement.chips, transfer.over)
    time_ns, way = _best(networks, groups, transfer.pattern, transfer.bytes, basis)
    fastest = time_ns, [way]
    levels = group_levels(layout, placement.chips, transfer.over)
    if transfer.pattern != "gather" or len(levels) < 2:
        return fastest
    for order in permutations(levels):
        size_bytes, total_ns, ways = transfer.bytes, 0.0, []
        for level in order:
            time_ns, way = _best(networks, level, transfer.pattern, size_bytes, basis)
            total_ns, size_bytes = total_ns + time_ns, size_bytes / level.shape[1]
            ways.append(way)
        fastest = min(fastest, (total_ns, ways), key=lambda option: option[0])
    return fastest


def _best(
    networks: Sequence[GroupRates], groups: IntArray, pattern: str, size_bytes: float, basis: Basis
) -> tuple[float, Way]:
    ways = [way for network in networks for way in network.ways(groups, pattern)]
    times = [way.time_ns(size_bytes, basis) for way in ways]
    best = int(np.argmin(times))
    return times[best], ways[best]
