"""How long a step takes on a topology: exact channel loads of every kind of communication, one bottleneck each.

All groups of one kind communicate at once. Their traffic is routed over the topology as any other, so that contention between
groups and the walk inside the nodes count; the busiest channel sets the rate. A gather is done in the better of two ways: every
member sends its part to every other (direct), or round a ring in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.mapping.layout import axes_chips, group_members
from railx.mapping.settings import PARALLELISMS, JobSettings
from railx.mapping.volumes import Transfer, compute_flops, step_transfers
from railx.network.routing import RoutingTable, build_routing, path_sums, table_lane_loads
from railx.topology import Topology, ports_per_chip, settings_of

__all__ = ["FIDELITY", "injection_factor", "step_times"]

FIDELITY = "flow"

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class _Way:
    """One way to move data within groups: what a chip sends over the bytes of the transfer, its rate and its latency."""

    name: str
    sent: float
    gb_s: float
    latency_ns: float

    def time_ns(self, size_bytes: float, rate_factor: float) -> float:
        """Bytes over GB/s are nanoseconds; a faster port shortens the transmission, not the flight."""
        return self.latency_ns + size_bytes * self.sent / (self.gb_s * rate_factor)


class _Network:
    """A routed topology that answers how fast given groups communicate; answers are kept, layouts share them."""

    def __init__(self, topology: Topology, routing: str) -> None:
        self.topology = topology
        self.table: RoutingTable = build_routing(topology, routing)
        self._ways: dict[tuple[bytes, str], list[_Way]] = {}

    @cached_property
    def latency_ns(self) -> FloatArray:
        """Expected time of flight between chips: float[chips, chips]."""
        return path_sums(self.topology, self.table, self.topology.links.latency_ns)

    def ways(self, groups: IntArray, pattern: str) -> list[_Way]:
        """The ways to do ``pattern`` within every group (int[groups, members]) at once."""
        key = (groups.tobytes(), pattern)
        if key not in self._ways:
            members = groups.shape[1]
            share = (members - 1) / members
            if pattern == "next":
                found = [self._way("next", groups, _neighbours(members, both_ways=False), 1.0, 1)]
            else:
                found = [self._way("direct", groups, _everyone(members), share, 1)]
                if pattern == "gather" and members > 2:
                    found.append(self._way("ring", groups, _neighbours(members, both_ways=True), share, members - 1))
            self._ways[key] = found
        return self._ways[key]

    def _way(self, name: str, groups: IntArray, shares: FloatArray, sent: float, rounds: int) -> _Way:
        """``shares`` (float[members, members]): which part of what a member sends goes to which other."""
        demand = np.zeros((self.topology.chips, self.topology.chips))
        demand[groups[:, :, None], groups[:, None, :]] = shares
        links = self.topology.links
        load = table_lane_loads(self.topology, self.table, demand)
        with np.errstate(divide="ignore"):
            bytes_rate = np.where(load > 0, links.gbps / 8 / load, np.inf)
        flight = np.where(demand > 0, self.latency_ns, 0).max()
        return _Way(name, sent, float(bytes_rate.min()), float(flight) * rounds)


def step_times(
    topology: Topology,
    routing: str,
    jobs: Mapping[str, JobSettings],
    rate_factors: Mapping[str, float],
    name: str,
) -> list[dict[str, Any]]:
    """Time of one training step of every job under every rate factor (by ``basis``), one row per part of the step.

    Columns: topology, family, job, basis, rate_factor, part (compute, bubble and the parallelisms), way (how the data moved), ms,
    step_ms (the whole step), tokens_per_s, fidelity. Nothing overlaps except that stages of the pipeline work at the same time:
    an upper bound for schedules that hide communication. ``bubble`` is what the first and last stages wait: (stages - 1)
    micro-batches (1F1B).
    """
    network = _Network(topology, routing)
    rows: list[dict[str, Any]] = []
    for job_name, job in jobs.items():
        chips = axes_chips(topology, job.layout.sizes)
        compute_ns = compute_flops(job) / (job.chip.peak_tflops * job.chip.efficiency) / 1e3
        for basis, factor in rate_factors.items():
            per_micro = {"compute": compute_ns} | dict.fromkeys(PARALLELISMS, 0.0)
            per_step = dict.fromkeys(per_micro, 0.0)
            ways: dict[str, set[str]] = {}
            for transfer in step_transfers(job):
                groups = group_members(job.layout, chips, transfer.over)
                time_ns, way = _best(network, groups, transfer, factor)
                (per_step if transfer.per_step else per_micro)[transfer.name] += time_ns * transfer.times
                ways.setdefault(transfer.name, set()).add(way)
            parts = {part: per_micro[part] * job.micro_batches + per_step[part] for part in per_micro}
            parts["bubble"] = sum(per_micro.values()) * (job.layout.degree("pipeline") - 1)
            step_ns = sum(parts.values())
            replicas = job.layout.degree("data") * job.layout.degree("expert")
            tokens = job.sequence_tokens * job.micro_batches * replicas
            rows += [
                {
                    "topology": name,
                    "family": topology.family,
                    "job": job_name,
                    "chips": job.layout.chips,
                    "basis": basis,
                    "rate_factor": factor,
                    "part": part,
                    "way": "+".join(sorted(ways.get(part, set()))),
                    "ms": time_ns / 1e6,
                    "step_ms": step_ns / 1e6,
                    "tokens_per_s": tokens / step_ns * 1e9,
                    "fidelity": FIDELITY,
                }
                for part, time_ns in parts.items()
            ]
    return rows


def injection_factor(topology: Topology, injection_gb_s_per_chip: float) -> float:
    """What scales the ports of a topology to a wanted injection bandwidth."""
    settings = settings_of(topology)
    return injection_gb_s_per_chip / (ports_per_chip(settings) * settings.port_gbps / 8)


def _best(network: _Network, groups: IntArray, transfer: Transfer, factor: float) -> tuple[float, str]:
    times = [(way.time_ns(transfer.bytes, factor), way.name) for way in network.ways(groups, transfer.pattern)]
    return min(times)


def _everyone(members: int) -> FloatArray:
    return (1 - np.eye(members)) / (members - 1)


def _neighbours(members: int, *, both_ways: bool) -> FloatArray:
    """Round a ring; one way only: to the next member, the last to nobody (a pipeline)."""
    following = np.roll(np.eye(members), 1, axis=1)
    return (following + following.T) / 2 if both_ways else np.eye(members, k=1)
