"""Generated training steps on circuits set once, switched in the step, or both.

The jobs are those of :mod:`railx.steps`, with what overlaps in them, and each step is
replayed under the controller's own rules. No paper compares these networks. What a
step sends takes as long as exact channel loads allow where its groups lie:

* Networks are compared at an equal rate out of a server per GPU (the job's), or at an
  equal cost of it. Servers are the job's on every network: transfers inside one take
  the same time, and no bill has their links.
* A kind of line (:class:`railx.families.Lines`) has rails, whose ports uses
  share out for the whole job or take turns on (:mod:`railx.mapping.phases`).
* Each of a node's ports on a rail has one peer. A ring takes both ports, a message to
  another stage the one toward it; between two nodes both lead to the other.
* A collective over rows and columns does one after the other, and holds the circuits of
  both from beginning to end.
* Transfers of packet switches that overlap do not slow each other, as in the published
  reference. Rails that uses share out do not need it.
* Networks cost and draw in proportion to the rate of their ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from railx.economics import Cost
from railx.fabric.circuits import Configuration
from railx.fabric.settings import Mode
from railx.families import build_topology, family_of
from railx.mapping.cost import cost_columns, network_cost
from railx.mapping.lines import LineNetwork, WiredPlan, plans_by_mode, transfer_ns
from railx.mapping.phases import Plan, Use, plans
from railx.mapping.settings import (
    LayoutSettings,
    RailStep,
    RailStepsSettings,
    SwitchedNetwork,
    SwitchedSettings,
)
from railx.performance.networks import Kind, fastest_order
from railx.performance.topologies import node_rates_gb_s
from railx.replay.programs import KINDS, Programs
from railx.replay.run import prepare, replay_programs
from railx.replay.wiring import TableWiring, Wire
from railx.steps.programs import PARALLELISMS_OF_CHANNELS, programs
from railx.steps.settings import StepJob
from railx.steps.sweep import last_step

_RULES: tuple[Mode, ...] = ("on_demand", "provisioned")
#: Steps that are replayed; the last counts, so that it is one among others.
_ITERATIONS = 2
_FIDELITY = "replay"
#: Parallelisms of a use by the words of :mod:`railx.steps`.
_USES = {"DP": "data", "PP": "pipeline", "EP": "expert"}


class Exchange(Configuration):
    """The circuits of experts where they differ from those of the replicas."""


@dataclass(frozen=True, eq=False)
class _Candidate(WiredPlan):
    """A layout with a plan for its uses and their wirings."""

    layout: LayoutSettings

    def uses(self, parallelism: str) -> list[Use]:
        """The uses of a parallelism, one for each kind of line that it lies on."""
        return [use for use in self.wirings if parallelism in use.over]


def rail_step_rows(settings: SwitchedSettings) -> Iterator[dict[str, Any]]:
    """A row for each step, network, basis, mode, rule and latency.

    ``step_ms`` is the slowest rank's step. ``data_ms``, ``pipeline_ms`` and
    ``expert_ms`` are the total times of a rank's transfers (mean over ranks), hidden or
    not; ``stall_ms`` is the longest wait for light, ``reconfigurations`` are
    those of a rank (mean). Modes as in :mod:`railx.mapping.switched`, without those
    that a network does not have; one that has no room for a step has one row per basis
    with the ``reason``.
    """
    generated = settings.generated
    if generated is None:
        return
    costs = {
        # USD and W per GB/s of a GPU that leaves its server.
        name: network_cost(
            settings,
            f"generated.networks.{name}",
            chosen,
            lambda priced: 1 / (node_rates_gb_s(build_topology(priced.topology))[0] * priced.chips),
        )
        for name, chosen in generated.networks.items()
    }
    for (name, chosen), (step_name, step) in product(
        generated.networks.items(), generated.steps.items()
    ):
        rate = step.step.jobs()[step.job].device.scale_out_gb_s
        afford = costs[generated.reference].usd / costs[name].usd
        for basis, gb_s in (("equal_bandwidth", rate), ("equal_cost", rate * afford)):
            head = {"step": step_name, "network": name, "basis": basis}
            for row in _rows(generated, step, chosen, gb_s, costs[name]):
                yield dict.fromkeys(_COLUMNS) | head | row


def _rows(
    settings: RailStepsSettings, step: RailStep, chosen: SwitchedNetwork, gb_s: float, cost: Cost
) -> Iterator[dict[str, Any]]:
    job = step.step.jobs()[step.job]
    gpus = job.degrees.ranks
    common = {
        "job": step.job,
        "model": job.model.name,
        "device": job.device.name,
        "gpus": gpus,
        "gb_s_per_gpu": gb_s,
        **cost_columns(cost.scaled(gb_s), gpus),
        "fidelity": _FIDELITY,
    }
    line = _Line(chosen, job, gb_s)
    candidates = [candidate for layout in step.layouts for candidate in line.candidates(layout)]
    if not candidates:
        reason = f"no room for {gpus // job.degrees.server} servers of {job.degrees.server}"
        yield common | {"reason": reason}
        return
    times = {
        candidate: list(_times(line, candidate, settings.latencies_ms)) for candidate in candidates
    }
    modes = plans_by_mode(list(times), packets=not line.circuits)
    for mode, allowed in modes.items():
        for number in range(len(_RULES) * len(settings.latencies_ms) if allowed else 0):
            best = min(allowed, key=lambda candidate: times[candidate][number]["step_ms"])
            yield common | {"mode": mode} | times[best][number]


_COLUMNS = (
    *("step", "job", "model", "device", "gpus", "network", "basis", "gb_s_per_gpu"),
    *("mode", "rule", "latency_ms", "step_ms", "stall_ms", "reconfigurations"),
    *("data_ms", "pipeline_ms", "expert_ms"),
    *("cost_per_gpu_usd", "cost_usd", "watts_per_gpu", "power_watts"),
    *("circuits", "reason", "fidelity"),
)


class _Line(LineNetwork):
    """A network that carries one job at a rate, and the times of transfers on it."""

    def __init__(self, chosen: SwitchedNetwork, job: StepJob, gb_s: float) -> None:
        super().__init__(chosen)
        self.job, self.gb_s = job, gb_s
        self.circuits = family_of(chosen.topology).switched

    def candidates(self, layout: LayoutSettings) -> Iterator[_Candidate]:
        """The plans for a layout; none where the network has no room for it."""
        for uses in self._uses(layout):
            for wired in product(*(self.wirings(use.nodes) for use in uses)):
                wirings = dict(zip(uses, wired, strict=True))
                if len(uses) > len({use.axes for use in uses}) and _alike(wirings):
                    continue
                for plan in self._plans(wirings):
                    yield _Candidate(plan, wirings, layout)

    def _uses(self, layout: LayoutSettings) -> Iterator[tuple[Use, ...]]:
        """The uses of circuits; experts with the replicas, or separately."""
        nodes = prod(layout.sizes[1:])
        job_nodes = self.job.degrees.ranks // self.job.degrees.server
        if nodes != job_nodes or nodes > self.nodes:
            return
        experts = self.job.degrees.expert_servers > 1
        for apart in (False, True) if experts else (False,):
            together = [("data", "expert") if experts else ("data",)]
            uses: list[Use] = []
            for axes in self.lines.axes:
                data, stages = (layout.degree(name, axes) for name in ("data", "pipeline"))
                overs = [("data",), ("expert",)] if apart else together
                uses += [Use(axes, over, data) for over in overs if data > 1]
                uses += [Use(axes, ("pipeline",), stages)] if stages > 1 else []
            yield tuple(uses)

    def _plans(self, wirings: Mapping[Use, str]) -> Iterator[Plan]:
        if self.rails > 1:
            yield from plans(list(wirings), self.rails, self.fewest(wirings))
        elif self.circuits:
            yield Plan(tuple({use: 1} for use in wirings))
        else:
            yield Plan((dict.fromkeys(wirings, 1),))

    def operation_ns(self, candidate: _Candidate, name: str, kind: str, size: float) -> float:
        """How long an operation of a parallelism takes once its circuits are up."""
        word: Kind = "send" if kind in ("send", "recv") else kind  # type: ignore[assignment]

        def price(use: Use, size_bytes: float) -> tuple[float, None]:
            alone = self.alone(use.nodes, candidate.wirings[use])
            outside, inside = node_rates_gb_s(alone.topology)
            mesh = {"tensor": self.job.degrees.server}
            layout = LayoutSettings(mesh, x={use.over[0]: use.nodes}, y={})
            ports = self.gb_s / outside * (candidate.plan.rails(use) / self.rails)
            scaled = self.job.device.scale_up_gb_s / inside if inside else 1.0
            return transfer_ns(alone, layout, use.over[:1], word, size_bytes, ports, scaled), None

        uses = candidate.uses(name)
        if word in ("send", "all_to_all"):
            return price(uses[0], size)[0]
        steps = fastest_order(uses, size, lambda use: use.nodes, price)
        return sum(time for time, _ in steps)


def _alike(wirings: Mapping[Use, str]) -> bool:
    """Whether separate circuits of experts equal those of the replicas."""
    apart = {use.axes: wiring for use, wiring in wirings.items() if use.over == ("expert",)}
    return any(
        use.over == ("data",) and apart.get(use.axes) == wiring for use, wiring in wirings.items()
    )


class TurnWiring(TableWiring):
    """Circuits of the kinds of line on which uses take turns; others are always up."""

    def __init__(self, layout: LayoutSettings, uses: Mapping[Use, tuple[range, str]]) -> None:
        super().__init__()
        self._layout = layout
        self._uses = uses
        self._kinds = list(dict.fromkeys(use.axes for use in uses))

    def is_scale_up(self, members: Iterable[int]) -> bool:
        """Whether no circuit has to be switched: all kinds of line in use are set."""
        stages = self._stages(members)
        return not any(stages == (use.over == ("pipeline",)) for use in self._uses)

    def wires(self, configuration: Configuration) -> tuple[Wire, ...]:
        """On every rail of the use both neighbours in each ring, or the two stages."""
        exchange = isinstance(configuration, Exchange)
        stages = self._stages(configuration.members)
        wires: list[Wire] = []
        for use, (rails, wiring) in self._uses.items():
            if (stages, exchange) != (use.over == ("pipeline",), use.over == ("expert",)):
                continue
            line = self._kinds.index(use.axes)
            for (here, there), rail in product(self._neighbours(use, configuration.members), rails):
                ports = (line, rail, here, "right"), (line, rail, there, "left")
                wires.append(Wire(line, (line, rail, here, there, wiring), ports))
        return tuple(wires)

    def _stages(self, members: Iterable[int]) -> bool:
        """Whether members differ in their stage."""
        return len({self._position(member)[1] for member in members}) > 1

    def _neighbours(self, use: Use, members: Sequence[int]) -> list[tuple[int, int]]:
        ordered = sorted(members)
        if use.over == ("pipeline",):
            low, high = ordered
            return [(low, high), (high, low)] if use.nodes == 2 else [(low, high)]
        rings: dict[tuple[int, ...], list[int]] = {}
        for member in ordered:
            digits = self._position(member)[0]
            others = tuple(digit for axis, digit in digits if axis not in use.axes)
            rings.setdefault(others, []).append(member)
        return [
            pair for ring in rings.values() for pair in zip(ring, [*ring[1:], ring[0]], strict=True)
        ]

    def _position(self, node: int) -> tuple[list[tuple[str, int]], int]:
        """A node's positions among the replicas, axis by axis, and its stage."""
        digits: list[tuple[str, int]] = []
        for axis in ("x", "y"):
            degree = getattr(self._layout, axis).get("data", 1)
            digits.append((axis, node % degree))
            node //= degree
        return digits, node


def _times(
    line: _Line, candidate: _Candidate, latencies_ms: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """The replays of a candidate under every rule and latency."""
    generated = _with_times(line, candidate)
    always = candidate.set_once or not line.circuits
    turns = _turns(candidate)
    prepared = prepare(generated, TurnWiring(candidate.layout, turns))
    parts = _parts(generated)
    replayed = replay_programs(prepared, "electrical", 0)
    for rule, latency_ms in product(_RULES, latencies_ms):
        if not always:
            replayed = replay_programs(prepared, rule, round(latency_ms * 1e6))
        yield {
            "rule": rule,
            "latency_ms": latency_ms,
            **last_step(replayed, _ITERATIONS),
            **parts,
            "circuits": candidate.words(axes=True),
        }


def _turns(candidate: _Candidate) -> dict[Use, tuple[range, str]]:
    """The rails and wirings of uses on kinds of line on which there are turns."""
    turn_rails: dict[Use, tuple[range, str]] = {}
    for axes in {use.axes: None for use in candidate.wirings}:
        turns = [turn for turn in candidate.plan.turns if axes in {use.axes for use in turn}]
        for turn in turns if len(turns) > 1 else ():
            first = 0
            for use, count in turn.items():
                turn_rails[use] = range(first, first + count), candidate.wirings[use]
                first += count
    return turn_rails


def _with_times(line: _Line, candidate: _Candidate) -> Programs:
    """The job's programs with the times of its transfers on this network."""
    generated = programs(line.job, electrical=True, iterations=_ITERATIONS, all_ranks=False)
    columns = dict(generated.columns)
    names = _names(generated)
    lasts = columns["lasts_ns"].copy()
    issues = np.flatnonzero(columns["kind"] >= 0)
    keys = np.stack([names[columns["channel"][issues]], columns["kind"][issues]])
    keys = np.concatenate([keys, columns["bytes"][issues][None]])
    unique, inverse = np.unique(keys, axis=1, return_inverse=True)
    times = [
        round(line.operation_ns(candidate, list(_USES.values())[use], KINDS[kind], float(size)))
        for use, kind, size in unique.T.tolist()
    ]
    lasts[issues] = np.array(times, np.int64)[inverse.reshape(-1)]
    columns["lasts_ns"] = lasts
    configurations = list(generated.configurations)
    if any(use.over == ("expert",) for use in candidate.wirings):
        configuration = columns["configuration"].copy()
        exchanges = (columns["channel"] >= 0) & (
            names[columns["channel"]] == list(_USES).index("EP")
        )
        for number in np.unique(configuration[exchanges]).tolist():
            old = configurations[number]
            configuration[exchanges & (configuration == number)] = len(configurations)
            configurations.append(Exchange(old.kind, old.members))
        columns["configuration"] = configuration
    return Programs.from_columns(columns, generated.channels, configurations)


def _names(generated: Programs) -> Any:
    """The parallelism of every channel, as a number of ``_USES``."""
    words = [PARALLELISMS_OF_CHANNELS[name.partition(":")[2]] for name in generated.channels]
    return np.array([list(_USES).index(word) for word in words])


def _parts(generated: Programs) -> dict[str, float]:
    """Times of a rank's transfers in a step: mean over the ranks."""
    columns = generated.columns
    last = (columns["kind"] >= 0) & (columns["iteration"] == _ITERATIONS - 1)
    parallelisms = _names(generated)[columns["channel"]]
    return {
        f"{name}_ms": float(columns["lasts_ns"][last & (parallelisms == number)].sum())
        / generated.ranks
        / 1e6
        for number, name in enumerate(_USES.values())
    }
