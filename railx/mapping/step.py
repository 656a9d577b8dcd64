"""The time of a step on a topology, by exact channel loads.

Transfers take what :class:`railx.performance.topologies.ExactLoads` gives. A gather
over several axes goes over all at once, or one axis after the other, whichever is
faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railx.families import rank_placement
from railx.mapping.layout import compute_flops, group_levels, group_members, step_transfers
from railx.mapping.settings import PARALLELISMS, JobSettings
from railx.performance.networks import fastest_order
from railx.performance.topologies import ExactLoads, Way
from railx.performance.volumes import Transfer
from railx.progress import counted
from railx.settings import SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.placement import Placement
from railx.vocabulary.topology import Topology

FIDELITY = "analytic"
_COLUMNS = (
    *("topology", "family", "topology_chips", "job", "chips", "placement", "basis"),
    *("port_factor", "cost_per_chip_usd", "part", "way", "routing", "ms", "step_ms"),
    *("tokens_per_s", "reason", "fidelity"),
)


@dataclass(frozen=True)
class Basis:
    """A basis; ``ports`` and ``inside`` scale the links between and inside nodes."""

    name: str
    ports: float
    inside: float
    cost_per_chip_usd: float | None
    reason: str | None = None
    """Why the ports have no rate on this basis; None: they have."""


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
    tokens_per_s, reason, fidelity. A job without room, or a basis without ports, has
    one row: no part and no times, ``reason`` says why.

    Nothing overlaps except that stages of the pipeline work at the same time, and what
    a job's ``overlaps_data`` hides: an upper bound for schedules that hide
    communication. ``bubble`` is what the first and last
    stages wait: (stages - 1) micro-batches (1F1B).
    """
    network = ExactLoads(topology, routings)
    rows: list[dict[str, Any]] = []
    for job_name, job in counted(jobs.items(), "jobs"):
        common = dict.fromkeys(_COLUMNS) | {
            "topology": name,
            "family": topology.family,
            "topology_chips": topology.chips,
            "job": job_name,
            "chips": job.layout.chips,
            "fidelity": FIDELITY,
        }
        placement, reason = None, None
        try:
            job.check_memory()
            placement = rank_placement(topology, job.layout.sizes)
        except SettingsError as error:
            if error.key != "layout":
                raise
            reason = str(error)
        for basis in counted(bases, "bases"):
            head = common | {
                "basis": basis.name,
                "port_factor": basis.ports,
                "cost_per_chip_usd": basis.cost_per_chip_usd,
                "reason": reason or basis.reason,
            }
            if placement is None or basis.reason is not None:
                rows.append(head)
                continue
            of_parts = _job_rows(network, placement, job, basis)
            rows += [head | row for row in of_parts]
    return rows


def step_ms(network: ExactLoads, placement: Placement, job: JobSettings, basis: Basis) -> float:
    """The time of a whole step."""
    step: float = next(_job_rows(network, placement, job, basis))["step_ms"]
    return step


def _job_rows(
    network: ExactLoads, placement: Placement, job: JobSettings, basis: Basis
) -> Iterator[dict[str, Any]]:
    per_micro = {"compute": job.chip.compute_ns(compute_flops(job))}
    per_micro |= dict.fromkeys(PARALLELISMS, 0.0)
    per_step = dict.fromkeys(per_micro, 0.0)
    chosen: dict[str, list[Way]] = {}
    for transfer in step_transfers(job):
        time_ns, ways = _fastest(network, placement.chips, transfer, job, basis)
        (per_step if transfer.per_step else per_micro)[transfer.name] += time_ns * transfer.times
        chosen.setdefault(transfer.name, []).extend(ways)
    parts = {part: per_micro[part] * job.micro_batches + per_step[part] for part in per_micro}
    if job.overlaps_data:
        flops = job.decoder.pass_flops(job.sequence_tokens, job.recompute)
        hidden = per_micro["compute"] * (1 - flops["forward"] / sum(flops.values()))
        parts["data"] = max(parts["data"] - hidden, 0.0)
    parts["bubble"] = sum(per_micro.values()) * (job.layout.degree("pipeline") - 1)
    step_ns = sum(parts.values())
    for part, time_ns in parts.items():
        ways = chosen.get(part, [])
        yield {
            "placement": placement.kind,
            "part": part,
            "way": "+".join(dict.fromkeys(way.algorithm for way in ways)),
            "routing": "+".join(dict.fromkeys(way.routing for way in ways)),
            "ms": time_ns / 1e6,
            "step_ms": step_ns / 1e6,
            "tokens_per_s": job.plan.tokens / step_ns * 1e9,
        }


def _fastest(
    network: ExactLoads, chips: IntArray, transfer: Transfer, job: JobSettings, basis: Basis
) -> tuple[float, list[Way]]:
    """The least time of a transfer, and the ways taken, one for each axis in turn."""

    def price(groups: IntArray, size_bytes: float) -> tuple[float, Way]:
        return network.fastest(groups, transfer.kind, size_bytes, basis.ports, basis.inside)

    time_ns, way = price(group_members(job.layout, chips, transfer.over), transfer.bytes)
    levels = group_levels(job.layout, chips, transfer.over)
    if transfer.kind == "all_gather" and len(levels) > 1:
        steps = fastest_order(levels, transfer.bytes, lambda groups: groups.shape[1], price)
        total_ns = sum(step_ns for step_ns, _ in steps)
        if total_ns < time_ns:
            return total_ns, [step_way for _, step_way in steps]
    return time_ns, [way]
