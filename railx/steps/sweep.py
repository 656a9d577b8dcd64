"""Replays of generated jobs over latencies, modes, circuit rules and bandwidths.

Windows, phases and traffic need no clock: a window is how long a rank computes between
two operations on the rails, collectives inside the server left out. Passes begin and
end with a message of the pipeline, at its two ends too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.fabric.circuits import Configuration, Layout
from railx.fabric.settings import Mode
from railx.performance.networks import ring_bytes
from railx.planning.format.simulation import Shape, orders_of
from railx.progress import counted
from railx.replay.changes import stall_ms
from railx.replay.run import Prepared, Replayed, prepare, replay_programs
from railx.replay.wiring import CircuitModel, TableWiring, Wire
from railx.steps.layers import Direction, exchanged_bytes, hop_bytes, layer_segments, stage_units
from railx.steps.programs import (
    PARALLELISMS,
    PARALLELISMS_OF_CHANNELS,
    job_ranks,
    programs,
    templates,
)
from railx.steps.settings import StepJob, StepSettings
from railx.steps.template import Template


def bit(rail: int, stage: int, value: int) -> Wire:
    """The bit of a stage on a rail with its value: it has one value at a time."""
    return Wire(rail, (stage, value), ((rail, stage),))


class StageBits(TableWiring):
    """The circuits of Opus' controller: one bit for each stage of a rail.

    A bit sets all ports of a stage on a rail: 1 for the pipeline, 0 for the ring of its
    replicas (arXiv 2602.12521, the artifact's encoding). A message between two stages
    sets the bits of both, every other operation clears the bit of its stage. So a stage
    has one state on a rail for all replicas, a rail of p stages has 2^p states, and
    different bits change at the same time. Ranks are numbered stage by stage.
    """

    def __init__(self, gpus_per_server: int, ranks_per_stage: int) -> None:
        super().__init__()
        if ranks_per_stage % gpus_per_server:
            allowed = f"a multiple of {gpus_per_server}, the ranks of a server"
            raise UserError(f"ranks_per_stage: got {ranks_per_stage}; allowed: {allowed}")
        self.gpus_per_server, self.ranks_per_stage = gpus_per_server, ranks_per_stage

    def is_scale_up(self, members: Iterable[int]) -> bool:
        """Whether all members sit in one server, so that no bit is asked for."""
        return len({member // self.gpus_per_server for member in members}) <= 1

    def wires(self, configuration: Configuration) -> tuple[Wire, ...]:
        """The bits that ``configuration`` needs; none within a server."""
        if self.is_scale_up(configuration.members):
            return ()
        value = int(configuration.kind == "pair")
        bits = {
            bit(member % self.gpus_per_server, member // self.ranks_per_stage, value)
            for member in configuration.members
        }
        return tuple(sorted(bits))


def window_statistics(job: StepJob) -> list[dict[str, Any]]:
    """The windows of a step over all stages and micro-batches.

    A row for each transition and direction: ``count``, and ``mean_ms``, ``min_ms``,
    ``max_ms``. ``within_layer`` tells the windows in which experts compute from those
    between layers. From the pipeline to the replicas and back it is one each: nothing
    is computed after the last backward pass.
    """
    windows_ms: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    units, passes = stage_units(job), job.micro_batches * job.parts
    orders = orders_of(
        job.schedule, Shape(job.degrees.pipeline, [1] * job.micro_batches, job.parts)
    )
    for stage, entry in ((stage, entry) for stage, order in enumerate(orders) for entry in order):
        direction: Direction = "backward" if entry >= passes else "forward"
        part_units = units[stage][entry // job.micro_batches % job.parts]
        last, computed, exchanges = "PP", 0.0, 0
        for unit in part_units if direction == "forward" else reversed(part_units):
            for segment in layer_segments(job, unit, direction, electrical=True):
                if segment.kind == "compute":
                    computed += segment.lasts_ns / 1e6
                elif segment.on_rail:
                    name = PARALLELISMS[segment.kind]
                    within = name == last == "EP" and exchanges % 2 == 1
                    windows_ms[f"{last}->{name}", direction, within].append(computed)
                    last, computed = name, 0.0
                    exchanges += name == "EP"
        windows_ms[f"{last}->PP", direction, False].append(computed)
    if job.degrees.data > 1 and job.parameters == "replicated" and job.gradients == "at_end":
        for transition in ("PP->DP", "DP->PP"):
            windows_ms[transition, "", False].append(0.0)
    return [
        {
            "transition": transition,
            "direction": direction,
            "within_layer": within,
            "count": len(lengths),
            "mean_ms": sum(lengths) / len(lengths),
            "min_ms": min(lengths),
            "max_ms": max(lengths),
        }
        for (transition, direction, within), lengths in sorted(windows_ms.items())
    ]


def phases(template: Template) -> list[tuple[str, int]]:
    """The runs of operations of one parallelism in a step, in program order.

    Steps follow one another, so that a last run of the first one's parallelism is put
    before it.
    """
    names = [PARALLELISMS[move.lane] for move in template.moves if move.does == "issue"]
    runs = [(name, len(list(run))) for name, run in itertools.groupby(names)]
    if len(runs) > 1 and runs[0][0] == runs[-1][0]:
        runs = [(runs[0][0], runs[-1][1] + runs[0][1]), *runs[1:-1]]
    return runs


def traffic(job: StepJob) -> dict[str, float]:
    """Bytes that the ranks of one rail send in a step, by parallelism.

    Those of all rails are as many times that as a server has ranks. ``TP`` stays in the
    server.
    """
    sent: dict[str, float] = defaultdict(float)
    ranks = job_ranks(job, all_ranks=False) // job.degrees.pipeline
    for template in templates(job, electrical=True):
        sent["TP"] += ranks * template.tensor_bytes
        for move in template.moves:
            if move.does == "issue" and move.kind != "recv":
                sent[PARALLELISMS[move.lane]] += ranks * move.sent_bytes
    return dict(sent)


def per_pipeline(job: StepJob) -> dict[str, float]:
    """Bytes of a step along one pipeline, summed over the layers that a token passes.

    ``EP`` is what one rank of each stage puts into exchanges with experts, ``PP`` what
    crosses one boundary of stages in both directions, ``DP`` what a rank would send to
    reduce the gradients of all layers.
    """
    units = [unit for stage in stage_units(job) for part in stage for unit in part]
    experts = sum(unit.experts for unit in units)
    crossing = 2 * job.micro_batches * hop_bytes(job)
    shared = sum(unit.parameters for unit in units if unit.number is not None)
    return {
        "EP": 4 * experts * job.micro_batches * exchanged_bytes(job),
        "PP": crossing,
        "DP": ring_bytes("all_reduce", shared * job.bytes_per_element, job.degrees.data),
    }


def all_phases(job: StepJob) -> list[list[tuple[str, int]]]:
    """The phases of every stage."""
    return [phases(template) for template in templates(job, electrical=False)]


#: The rule with packet switches between all ranks.
_PACKETS = "electrical"
_MODES: tuple[Mode, ...] = ("on_demand", "provisioned")


def job_head(name: str, variant: str, job: StepJob) -> dict[str, Any]:
    """The columns of a job in every table."""
    degrees = ("data", "pipeline", "tensor", "expert")
    return {
        "step": name,
        "job": variant,
        "model": job.model.name,
        "device": job.device.name,
        "gpus": job.degrees.ranks,
        **{degree: getattr(job.degrees, degree) for degree in degrees},
        "gradients": job.gradients if job.parameters == "replicated" else "sharded",
    }


def time_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job, bandwidth, rule, mode and latency.

    ``step_ms`` is the slowest rank's step and ``electrical_ms`` that with packet
    switches at the same bandwidth. ``formula_ms`` is the latter and the paper's sum of
    max(0, L - W) over the windows of the rank where it is most, N L on demand.
    ``compute_ms`` and ``tensor_ms`` (collectives in the server) are means over the
    ranks, ``stall_ms`` (waiting for light) the most of any.
    """
    sweep = settings.sweep
    for variant, job in counted(settings.jobs().items(), "jobs"):
        yield from _rows(name, variant, job, settings, sweep.latencies_ms)
        for rate in counted(sweep.bandwidths_gb_s, "bandwidths"):
            slower = replace(job, device=replace(job.device, scale_out_gb_s=rate))
            if rate != job.device.scale_out_gb_s:
                yield from _rows(name, variant, slower, settings, sweep.bandwidth_latencies_ms)


def _rows(
    name: str, variant: str, job: StepJob, settings: StepSettings, latencies_ms: Sequence[float]
) -> Iterator[dict[str, Any]]:
    sweep = settings.sweep
    cases: list[tuple[str, Mode, float]] = [(_PACKETS, "electrical", 0.0)]
    cases += itertools.product(sweep.rules, _MODES, latencies_ms)
    prepared = {rule: _prepared(job, rule, settings) for rule in (_PACKETS, *sweep.rules)}
    stages = templates(job, electrical=False)
    tensor_ms = fmean(sum(move.tensor_ns for move in template.moves) for template in stages) / 1e6
    gaps_ms = fmean(sum(move.gap_ns for move in template.moves) for template in stages) / 1e6
    electrical_ms, timeline = 0.0, dict[int, list[tuple[str, float]]]()
    for rule, mode, latency_ms in cases:
        replayed = replay_programs(prepared[rule], mode, round(latency_ms * 1e6))
        result = last_step(replayed, sweep.iterations)
        if mode == "electrical":
            electrical_ms = result["step_ms"]
            timeline = timeline_windows(prepared[_PACKETS], replayed, sweep.iterations - 1)
        added_ms = 0.0
        if mode != "electrical":
            # By the paper's formula, on the slowest rank.
            windows_ms = [[length for _, length in windows] for windows in timeline.values()]
            if mode == "on_demand":
                windows_ms = [[0.0] * len(lengths) for lengths in windows_ms]
            added_ms = max((stall_ms(latency_ms, lengths) for lengths in windows_ms), default=0.0)
        yield {
            **job_head(name, variant, job),
            "scale_out_gb_s": job.device.scale_out_gb_s,
            "ranks_replayed": job_ranks(job, all_ranks=sweep.whole),
            "rule": rule,
            "mode": mode,
            "reconfiguration_latency_ms": latency_ms,
            "step_ms": result["step_ms"],
            "electrical_ms": electrical_ms,
            "added_ms": result["step_ms"] - electrical_ms,
            "compute_ms": gaps_ms - tensor_ms,
            "tensor_ms": tensor_ms,
            "utilisation": (gaps_ms - tensor_ms) / result["step_ms"],
            "formula_ms": electrical_ms + added_ms,
            "stall_ms": result["stall_ms"],
            "reconfigurations": result["reconfigurations"],
            "fidelity": "replay",
        }


def circuit_model(job: StepJob, rule: str, *, all_ranks: bool) -> CircuitModel:
    """Which circuits operations need by a rule."""
    layout = Layout(job.degrees.server if all_ranks else 1)
    if rule != "stage_bits":
        return layout
    ranks = job_ranks(job, all_ranks=all_ranks)
    return StageBits(layout.gpus_per_server, ranks // job.degrees.pipeline)


def _prepared(job: StepJob, rule: str, settings: StepSettings) -> Prepared:
    all_ranks = settings.sweep.whole
    generated = programs(
        job, electrical=rule == _PACKETS, iterations=settings.sweep.iterations, all_ranks=all_ranks
    )
    return prepare(generated, circuit_model(job, rule, all_ranks=all_ranks))


def last_step(replayed: Replayed, iterations: int) -> dict[str, float]:
    """Of the last step: the slowest rank, the longest stall, mean reconfigurations."""
    table = replayed.table
    last = table["iteration"] == iterations - 1
    return {
        "step_ms": float((table["end_ns"] - table["begin_ns"])[last].max()) / 1e6,
        "stall_ms": float(table["stall_ns"][last].max()) / 1e6,
        "reconfigurations": float(table["reconfigurations"][last].mean()),
    }


def electrical_step_ms(
    job: StepJob, iterations: int, stages: Sequence[Template] | None = None
) -> float:
    """The slowest rank's last step over packet switches (:func:`programs`)."""
    laid = programs(
        job, electrical=True, iterations=iterations, all_ranks=False, stage_templates=stages
    )
    replayed = replay_programs(prepare(laid, Layout(1)), "electrical", 0)
    return last_step(replayed, iterations)["step_ms"]


def timeline_windows(
    prepared: Prepared, replayed: Replayed, iteration: int
) -> dict[int, list[tuple[str, float]]]:
    """The windows of every rank in an iteration of a replay, in their order.

    A window lies between two operations of unlike parallelisms: the transition and its
    length in ms, negative where they overlap.
    """
    columns = prepared.programs.columns
    rows = np.flatnonzero((replayed.started_ns >= 0) & (columns["iteration"] == iteration))
    lanes = [
        PARALLELISMS_OF_CHANNELS[name.partition(":")[2]] for name in prepared.programs.channels
    ]
    windows: dict[int, list[tuple[str, float]]] = {}
    ranks = columns["rank"][rows]
    for rank in np.unique(ranks).tolist():
        rank_rows = rows[ranks == rank]
        rank_rows = rank_rows[np.argsort(replayed.started_ns[rank_rows], kind="stable")]
        last, ended_ns = "", 0
        windows[rank] = []
        for row in rank_rows.tolist():
            now, started_ns = lanes[columns["channel"][row]], int(replayed.started_ns[row])
            if last and now != last:
                idle_ms = (started_ns - ended_ns) / 1e6
                windows[rank].append((f"{last}->{now}", idle_ms))
                ended_ns = 0
            last, ended_ns = now, max(ended_ns, int(replayed.ended_ns[row]))
    return windows


def _heads(name: str, settings: StepSettings) -> Iterator[tuple[dict[str, Any], StepJob]]:
    for variant, job in settings.jobs().items():
        yield job_head(name, variant, job), job


def timeline_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """The windows of the first replica of every stage, electrically switched."""
    sweep = settings.sweep
    for head, job in _heads(name, settings):
        prepared = _prepared(job, _PACKETS, settings)
        replayed = replay_programs(prepared, "electrical", 0)
        windows = timeline_windows(prepared, replayed, sweep.iterations - 1)
        ranks = job_ranks(job, all_ranks=sweep.whole) // job.degrees.pipeline
        for stage in range(job.degrees.pipeline):
            for number, (transition, length_ms) in enumerate(windows.get(stage * ranks, ())):
                row = {"transition": transition, "window_ms": length_ms, "fidelity": "replay"}
                yield {**head, "stage": stage, "window": number, **row}


def window_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """The windows of every job (:func:`window_statistics`), but where a published
    generator writes the passes: then the timeline has them.
    """
    for head, job in _heads(name, settings):
        if job.expert_counts is not None:
            continue
        for row in window_statistics(job):
            yield {**head, **row, "fidelity": "analytic"}


def phase_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """The phases of every job and stage, in the order of the program."""
    for head, job in _heads(name, settings):
        for stage, runs in enumerate(all_phases(job)):
            for number, (parallelism, operations) in enumerate(runs):
                row = {"parallelism": parallelism, "operations": operations}
                yield {**head, "stage": stage, "phase": number, **row, "fidelity": "analytic"}


def traffic_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """Bytes that the ranks of a rail send, and those along one pipeline; the latter not
    where a published generator writes the passes.
    """
    for head, job in _heads(name, settings):
        scopes = {"rail": traffic(job)}
        if job.expert_counts is None:
            scopes["pipeline"] = per_pipeline(job)
        for scope, sent_bytes in scopes.items():
            for parallelism, size in sent_bytes.items():
                row = {"scope": scope, "parallelism": parallelism, "sent_gb": size / 1e9}
                yield {**head, **row, "fidelity": "analytic"}
