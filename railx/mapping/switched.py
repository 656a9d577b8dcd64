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
* The rate between nodes is in proportion to the rails of a use; the rest of the line's
  rails do nothing for it. Rates of a group are those of its nodes alone on a line.
* A transfer over rows and columns goes one after the other. On rails it is one ring.
* Windows are without stalls, and the idle time of a pipeline is in none: waiting is
  overestimated.
* Networks cost and draw in proportion to the rate of their ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from typing import Any

from railx.economics import PricedNetwork
from railx.families import Lines, build_topology, family_of
from railx.mapping.cost import NetworkCost, network_cost
from railx.mapping.layout import assign_ranks, group_members
from railx.mapping.phases import (
    RULES,
    Plan,
    Programme,
    Step,
    Use,
    plans,
    programme_of,
    stall_ns,
    uses_of,
    windows_of,
)
from railx.mapping.settings import (
    JobSettings,
    LayoutSettings,
    SwitchedNetwork,
    SwitchedSettings,
)
from railx.mapping.step import FIDELITY, Basis, GroupRates
from railx.mapping.volumes import Transfer, step_transfers
from railx.settings import SettingsError

__all__ = ["MODES", "switched_times"]

MODES = ("set_once", "every_phase", "where_it_pays", "packets")
#: Columns that a job without room leaves empty.
_VARIED = (
    *("mode", "rule", "latency_ms", "changes", "step_ms", "compute_ms", "inside_ms"),
    *("network_ms", "bubble_ms", "stall_ms", "tokens_per_s"),
)


@dataclass(frozen=True)
class _Candidate:
    """A plan with its wirings, its programme and its windows worked out."""

    plan: Plan
    wirings: Mapping[Use, str]
    programme: Programme
    windows: Any


class _Network:
    """A network under its routings, and the times of transfers on it."""

    def __init__(self, chosen: SwitchedNetwork, name: str) -> None:
        self.chosen = chosen
        self.name = name
        self._rates: dict[tuple[int, str], list[GroupRates]] = {}

    @cached_property
    def lines(self) -> Lines[Any]:
        lines = family_of(self.chosen.topology).lines
        assert lines is not None  # checked when the settings are read
        return lines

    @property
    def rails(self) -> int:
        return self.lines.shares(self.chosen.topology)

    def rates(self, nodes: int, wiring: str) -> list[GroupRates]:
        """Rates of groups of nodes that are alone on a line."""
        if (nodes, wiring) not in self._rates:
            topology = build_topology(self.lines.alone(self.chosen.topology, nodes, wiring))
            offered = family_of(topology).routings
            self._rates[nodes, wiring] = [
                GroupRates(topology, routing)
                for routing in self.chosen.routings
                if routing in offered
            ]
        return self._rates[nodes, wiring]

    def wirings(self, use: Use) -> tuple[str, ...]:
        return self.lines.wirings(self.chosen.topology, use.nodes)

    def inside_ns(self, job: JobSettings, transfer: Transfer, size: float, basis: Basis) -> float:
        """Time of the part of a transfer whose groups lie in a node."""
        layout = LayoutSettings(mesh=job.layout.mesh, x={}, y={})
        nodes, wiring = 2, self.lines.wirings(self.chosen.topology, 2)[0]
        return self._ns(layout, nodes, wiring, transfer, transfer.over, size, basis, 1.0)

    def use_ns(
        self,
        job: JobSettings,
        transfer: Transfer,
        use: Use,
        wiring: str,
        size: float,
        basis: Basis,
        share: float,
    ) -> float:
        """Time of a transfer on circuits, with this share of the line's rails."""
        degrees = {
            name: degree
            for axis in use.axes
            for name, degree in getattr(job.layout, axis).items()
            if name in use.over
        }
        layout = LayoutSettings(mesh=job.layout.mesh, x=degrees, y={})
        return self._ns(layout, use.nodes, wiring, transfer, use.over, size, basis, share)

    def _ns(
        self,
        layout: LayoutSettings,
        nodes: int,
        wiring: str,
        transfer: Transfer,
        over: Sequence[str],
        size: float,
        basis: Basis,
        share: float,
    ) -> float:
        scaled = Basis(basis.name, basis.ports * share, basis.inside, None)
        best = float("inf")
        for rates in self.rates(nodes, wiring):
            chips = assign_ranks(rates.topology, layout.sizes).chips
            groups = group_members(layout, chips, over)
            for way in rates.ways(groups, transfer.pattern):
                best = min(best, way.time_ns(size, scaled))
        return best


def switched_times(settings: SwitchedSettings) -> list[dict[str, Any]]:
    """One row per network, job, basis, mode, rule and latency.

    ``step_ms`` is the sum of ``compute_ms``, ``inside_ms`` (in nodes), ``network_ms``,
    ``bubble_ms`` and ``stall_ms``; ``changes`` are those of a chip in a step. A job
    without room has one row per network and basis: ``reason`` says why. Raises
    SettingsError where a network has no price.
    """
    costs = {name: _cost(settings, name) for name in settings.networks}
    rows: list[dict[str, Any]] = []
    for name, chosen in settings.networks.items():
        network = _Network(chosen, name)
        for basis in _bases(settings, name, costs):
            for job_name, job in settings.jobs.items():
                common = _common(settings, name, job_name, job, basis, costs)
                try:
                    candidates = list(_candidates(network, job, basis))
                except SettingsError as error:
                    rows.append(common | {"reason": str(error)})
                    continue
                rows += [common | row for row in _rows(settings, network, job, candidates)]
    return rows


def _bases(
    settings: SwitchedSettings, name: str, costs: Mapping[str, NetworkCost]
) -> tuple[Basis, Basis]:
    topology = settings.networks[name].topology
    ports = family_of(topology).ports_per_chip(topology) * topology.port_gbps / 8
    equal = settings.injection_gb_s_per_chip / ports
    afford = costs[settings.reference].usd / costs[name].usd
    return (
        Basis("equal_bandwidth", equal, equal, costs[name].usd),
        Basis("equal_cost", equal * afford, equal, costs[settings.reference].usd),
    )


def _cost(settings: SwitchedSettings, name: str) -> NetworkCost:
    """The cost per chip at the injection bandwidth of the settings."""

    def scale(priced: PricedNetwork) -> float:
        injection = settings.injection_gb_s_per_chip / priced.counts.injection_gb_s_per_chip
        return injection / priced.chips

    return network_cost(settings, name, settings.networks[name], scale)


def _common(
    settings: SwitchedSettings,
    name: str,
    job_name: str,
    job: JobSettings,
    basis: Basis,
    costs: Mapping[str, NetworkCost],
) -> dict[str, Any]:
    chips, watts = job.layout.chips, costs[name].watts
    assert basis.cost_per_chip_usd is not None
    if watts is not None:
        watts *= basis.cost_per_chip_usd / costs[name].usd
    return {
        "network": name,
        "job": job_name,
        "gpus": chips,
        "basis": basis.name,
        **dict.fromkeys(_VARIED),
        "cost_per_gpu_usd": basis.cost_per_chip_usd,
        "cost_usd": basis.cost_per_chip_usd * chips,
        "watts_per_gpu": watts,
        "power_watts": None if watts is None else watts * chips,
        "circuits": None,
        "reason": None,
        "fidelity": FIDELITY,
    }


def _rows(
    settings: SwitchedSettings,
    network: _Network,
    job: JobSettings,
    candidates: Sequence[_Candidate],
) -> Iterator[dict[str, Any]]:
    kinds = len({use.axes for candidate in candidates[:1] for use in candidate.wirings})
    uses = len(candidates[0].wirings)
    modes = {
        "set_once": [candidate for candidate in candidates if len(candidate.plan.turns) == kinds],
        "every_phase": [candidate for candidate in candidates if len(candidate.plan.turns) == uses],
        "where_it_pays": list(candidates),
    }
    if network.rails == 1:
        modes = {"packets": modes["set_once"]}
    tokens = (
        job.sequence_tokens
        * job.micro_batches
        * job.layout.degree("data")
        * job.layout.degree("expert")
    )
    for mode, allowed in modes.items():
        for rule, latency_ms in product(RULES, settings.latencies_ms):
            latency_ns = latency_ms * 1e6
            best = min(
                allowed,
                key=lambda candidate: (
                    candidate.programme.ns + stall_ns(candidate.windows, latency_ns, rule)
                ),
            )
            yield {
                "mode": mode,
                "rule": rule,
                "latency_ms": latency_ms,
                "changes": best.windows.changes,
                "circuits": best.plan.words(
                    {use: f"{'/'.join(use.over)} {wired}" for use, wired in best.wirings.items()}
                ),
                **_parts(job, best, stall_ns(best.windows, latency_ns, rule), tokens),
            }


def _parts(job: JobSettings, candidate: _Candidate, stall: float, tokens: int) -> dict[str, float]:
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
        "tokens_per_s": tokens / step * 1e9,
    }


def _candidates(network: _Network, job: JobSettings, basis: Basis) -> Iterator[_Candidate]:
    transfers = step_transfers(job)
    lines = network.lines
    nodes = job.layout.sizes[1] * job.layout.sizes[2]
    if nodes > lines.nodes(network.chosen.topology):
        raise SettingsError(
            "layout", f"{nodes} nodes; allowed: at most {lines.nodes(network.chosen.topology)}"
        )
    by_transfer = {transfer: uses_of(job.layout, transfer, lines.axes) for transfer in transfers}
    uses = list(
        dict.fromkeys(use for transfer_uses in by_transfer.values() for use in transfer_uses)
    )
    for transfer, transfer_uses in by_transfer.items():
        if transfer.pattern != "gather" and len(transfer_uses) + _in_node(job, transfer) > 1:
            raise SettingsError(
                "layout",
                f"{transfer.name} over several axes; allowed: one axis for all but gathers",
            )
    options = [network.wirings(use) for use in uses]
    for use, offered in zip(uses, options, strict=True):
        if not offered:
            raise SettingsError("layout", f"{use.nodes} nodes on a line; allowed: fewer")
    for chosen in product(*options):
        wirings = dict(zip(uses, chosen, strict=True))
        fewest = {use: lines.fewest(wirings[use], use.nodes) for use in uses}
        for plan in plans(uses, network.rails, fewest):
            times = {
                transfer: _steps(network, job, transfer, transfer_uses, wirings, plan, basis)
                for transfer, transfer_uses in by_transfer.items()
            }
            programme = programme_of(job, times)
            yield _Candidate(plan, wirings, programme, windows_of(programme, plan))


def _in_node(job: JobSettings, transfer: Transfer) -> bool:
    return any(job.layout.mesh.get(name, 1) > 1 for name in transfer.over)


def _steps(
    network: _Network,
    job: JobSettings,
    transfer: Transfer,
    uses: Sequence[Use],
    wirings: Mapping[Use, str],
    plan: Plan,
    basis: Basis,
) -> list[Step]:
    """The steps of a transfer, in the best order of node and kinds of line."""
    levels: list[Use | None] = [*([None] if _in_node(job, transfer) else []), *uses]
    best: list[Step] = []
    for order in permutations(levels):
        size, steps = transfer.bytes, list[Step]()
        for level in order:
            if level is None:
                steps.append((None, network.inside_ns(job, transfer, size, basis)))
                members = 1
                for name in transfer.over:
                    members *= job.layout.mesh.get(name, 1)
            else:
                share = plan.rails(level) / network.rails
                wiring = wirings[level]
                time = network.use_ns(job, transfer, level, wiring, size, basis, share)
                steps.append((level, time))
                members = level.nodes
            size /= members
        if not best or sum(time for _, time in steps) < sum(time for _, time in best):
            best = steps
    return best
