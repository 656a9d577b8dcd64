"""Training jobs on circuits that are set once, switched in the job, or both.

No paper compares these: RailX sets its rings for a job and keeps them, Opus switches
the circuits of photonic rails between the phases of a step. Both are one mechanism
here, ports that uses divide or take turns on (:mod:`railx.mapping.phases`), so that
RailX can be switched in the job as well, and photonic rails be set once. Modes:

* ``set_once``: one turn, the uses divide the rails for the whole job.
* ``every_phase``: each use has all rails of its line while it lasts.
* ``where_it_pays``: the best of all plans at the latency, those two among them.
* ``packets``: electrical switches, nothing to set.

Assumptions, all ours:

* Nothing overlaps, as in the step times of :mod:`railx.mapping.step`, save switching
  with what lies in its window.
* All chips change circuits at the same points of their programmes. A stall of a
  micro-batch is passed on to the stages that wait for it.
* Rates are those of :mod:`railx.mapping.lines`.
* A transfer over rows and columns goes one after the other. On rails it is one ring.
* Windows are without stalls, and the idle time of a pipeline is in none: waiting is
  overestimated.
* Networks cost and draw in proportion to the rate of their ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from typing import Any

from railx.economics import Cost, PricedNetwork
from railx.mapping.cost import cost_columns, injection_gb_s_per_chip, network_cost
from railx.mapping.layout import step_transfers
from railx.mapping.lines import LineNetwork, WiredPlan, plans_by_mode, transfer_ns
from railx.mapping.phases import (
    RULES,
    Programme,
    Step,
    Use,
    Windows,
    plans,
    programme_of,
    stall_ns,
    uses_of,
    windows_of,
)
from railx.mapping.settings import JobSettings, LayoutSettings, SwitchedSettings
from railx.mapping.step import FIDELITY, Basis
from railx.performance.networks import fastest_order
from railx.performance.volumes import Transfer
from railx.settings import SettingsError

MODES = ("set_once", "every_phase", "where_it_pays", "packets")
_COLUMNS = (
    *("network", "job", "gpus", "basis", "mode", "rule", "latency_ms", "changes", "step_ms"),
    *("compute_ms", "inside_ms", "network_ms", "bubble_ms", "stall_ms", "tokens_per_s"),
    *("cost_per_gpu_usd", "cost_usd", "watts_per_gpu", "power_watts"),
    *("circuits", "reason", "fidelity"),
)


@dataclass(frozen=True, eq=False)
class _Candidate(WiredPlan):
    """A plan with its programme and its windows worked out."""

    programme: Programme
    windows: Windows


def switched_times(settings: SwitchedSettings) -> list[dict[str, Any]]:
    """One row per network, job, basis, mode, rule and latency.

    ``step_ms`` is the sum of ``compute_ms``, ``inside_ms`` (in nodes), ``network_ms``,
    ``bubble_ms`` and ``stall_ms``; ``changes`` are those of a chip in a step. A job
    without room has one row per network and basis: ``reason`` says why. Raises
    SettingsError where a network has no price.
    """

    def per_chip(priced: PricedNetwork) -> float:
        injection = settings.injection_gb_s_per_chip / priced.counts.injection_gb_s_per_chip
        return injection / priced.chips

    costs = {
        name: network_cost(settings, f"networks.{name}", chosen, per_chip)
        for name, chosen in settings.networks.items()
    }
    rows: list[dict[str, Any]] = []
    for name, chosen in settings.networks.items():
        network = LineNetwork(chosen)
        for basis in _bases(settings, name, costs):
            usd = basis.cost_per_chip_usd
            assert usd is not None
            # A network draws in proportion to its cost.
            cost = replace(costs[name].scaled(usd / costs[name].usd), usd=usd)
            for job_name, job in settings.jobs.items():
                common = dict.fromkeys(_COLUMNS) | {
                    "network": name,
                    "job": job_name,
                    "gpus": job.layout.chips,
                    "basis": basis.name,
                    **cost_columns(cost, job.layout.chips),
                    "fidelity": FIDELITY,
                }
                try:
                    candidates = list(_candidates(network, job, basis))
                except SettingsError as error:
                    rows.append(common | {"reason": str(error)})
                    continue
                rows += [common | row for row in _rows(settings, network, job, candidates)]
    return rows


def _bases(settings: SwitchedSettings, name: str, costs: Mapping[str, Cost]) -> tuple[Basis, Basis]:
    ports_gb_s = injection_gb_s_per_chip(settings.networks[name].topology)
    equal = settings.injection_gb_s_per_chip / ports_gb_s
    afford = costs[settings.reference].usd / costs[name].usd
    return (
        Basis("equal_bandwidth", equal, equal, costs[name].usd),
        Basis("equal_cost", equal * afford, equal, costs[settings.reference].usd),
    )


def _rows(
    settings: SwitchedSettings,
    network: LineNetwork,
    job: JobSettings,
    candidates: Sequence[_Candidate],
) -> Iterator[dict[str, Any]]:
    modes = plans_by_mode(candidates, packets=network.rails == 1)
    for mode, allowed in modes.items():
        for rule, latency_ms in product(RULES, settings.latencies_ms):
            latency_ns = latency_ms * 1e6
            stalls = [stall_ns(candidate.windows, latency_ns, rule) for candidate in allowed]
            stall, best = min(
                zip(stalls, allowed, strict=True), key=lambda pair: pair[1].programme.ns + pair[0]
            )
            yield {
                "mode": mode,
                "rule": rule,
                "latency_ms": latency_ms,
                "changes": best.windows.changes,
                "circuits": best.words(axes=False),
                **_parts(job, best, stall),
            }


def _parts(job: JobSettings, candidate: _Candidate, stall: float) -> dict[str, float]:
    programme = candidate.programme
    once = sum(time for _, time in programme.micro_batch)
    network = sum(time for use, time in programme.micro_batch if use) * job.micro_batches
    network += sum(time for use, time in programme.end if use)
    compute = programme.compute_ns * job.micro_batches
    bubble = once * programme.waits
    step = programme.ns + stall
    return {
        "step_ms": step / 1e6,
        "compute_ms": compute / 1e6,
        "inside_ms": (programme.ns - bubble - network - compute) / 1e6,
        "network_ms": network / 1e6,
        "bubble_ms": bubble / 1e6,
        "stall_ms": stall / 1e6,
        "tokens_per_s": job.plan.tokens / step * 1e9,
    }


def _candidates(network: LineNetwork, job: JobSettings, basis: Basis) -> Iterator[_Candidate]:
    job.check_memory()
    nodes = prod(job.layout.sizes[1:])
    if nodes > network.nodes:
        raise SettingsError("layout", f"{nodes} nodes; allowed: at most {network.nodes}")
    axes = network.lines.axes
    by_transfer = {sent: uses_of(job.layout, sent, axes) for sent in step_transfers(job)}
    uses = list(dict.fromkeys(chain.from_iterable(by_transfer.values())))
    for transfer, on_lines in by_transfer.items():
        spanned = len(on_lines) + (_members_in_node(job, transfer) > 1)
        if transfer.kind != "all_gather" and spanned > 1:
            allowed = "one axis for all but gathers"
            raise SettingsError("layout", f"{transfer.name} over several axes; allowed: {allowed}")
    options = [network.wirings(use.nodes) for use in uses]
    for use, offered in zip(uses, options, strict=True):
        if not offered:
            raise SettingsError("layout", f"{use.nodes} nodes on a line; allowed: fewer")
    for chosen in product(*options):
        wirings = dict(zip(uses, chosen, strict=True))
        for plan in plans(uses, network.rails, network.fewest(wirings)):
            wired = WiredPlan(plan, wirings)
            times = {
                transfer: _steps(network, job, transfer, on_lines, wired, basis)
                for transfer, on_lines in by_transfer.items()
            }
            programme = programme_of(job, times)
            yield _Candidate(plan, wirings, programme, windows_of(programme, plan))


def _members_in_node(job: JobSettings, transfer: Transfer) -> int:
    return prod(job.layout.degree(name, ("mesh",)) for name in transfer.over)


def _steps(
    network: LineNetwork,
    job: JobSettings,
    transfer: Transfer,
    uses: Sequence[Use],
    wired: WiredPlan,
    basis: Basis,
) -> list[Step]:
    """The steps of a transfer, in the best order of node (None) and kinds of line."""
    in_node, mesh = _members_in_node(job, transfer), job.layout.mesh

    def price(level: Use | None, size: float) -> tuple[float, Use | None]:
        if level is None:
            layout, over, ports = LayoutSettings(mesh, {}, {}), transfer.over, basis.ports
            alone = network.alone(2, network.wirings(2)[0])
        else:
            layout, over = LayoutSettings(mesh, _degrees(job.layout, level), {}), level.over
            ports = basis.ports * (wired.plan.rails(level) / network.rails)
            alone = network.alone(level.nodes, wired.wirings[level])
        time = transfer_ns(alone, layout, over, transfer.kind, size, ports, basis.inside)
        return time, level

    levels: list[Use | None] = [*([None] if in_node > 1 else []), *uses]
    steps = fastest_order(
        levels, transfer.bytes, lambda level: level.nodes if level else in_node, price
    )
    return [(level, time) for time, level in steps]


def _degrees(layout: LayoutSettings, use: Use) -> dict[str, int]:
    """Degrees of a use's parallelisms on the axes of its line."""
    return {
        name: degree
        for axis in use.axes
        for name, degree in getattr(layout, axis).items()
        if name in use.over
    }
