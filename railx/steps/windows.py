"""What a step does on the rails without a clock: windows, phases and traffic.

A window is how long a rank computes between two operations on the rails, collectives
inside the server left out. Passes begin and end with a message of the pipeline, at its
two ends too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

from railx.planning.format.simulation import Shape, orders_of
from railx.steps.layers import (
    Direction,
    all_reduce_share,
    exchanged_bytes,
    hop_bytes,
    layer_segments,
    stage_units,
)
from railx.steps.programs import PARALLELISMS, Template, templates
from railx.steps.settings import StepJob

__all__ = ["all_phases", "per_pipeline", "phases", "traffic", "windows"]


def windows(job: StepJob) -> list[dict[str, Any]]:
    """The windows of a step over all stages and micro-batches.

    A row for each transition and direction: ``count``, and ``mean_ms``, ``min_ms``,
    ``max_ms``. ``within_layer`` tells the windows in which experts compute from those
    between layers. From the pipeline to the replicas and back it is one each: nothing
    is computed after the last backward pass.
    """
    windows_ms: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    units = stage_units(job)
    orders = orders_of(
        job.schedule, Shape(job.degrees.pipeline, [1] * job.micro_batches, job.parts)
    )
    for stage, order in enumerate(orders):
        for entry in order:
            direction: Direction = (
                "backward" if entry >= job.micro_batches * job.parts else "forward"
            )
            part = entry // job.micro_batches % job.parts
            last, computed, exchanges = "PP", 0.0, 0
            part_units = units[stage][part]
            for unit in part_units if direction == "forward" else reversed(part_units):
                for segment in layer_segments(job, unit, direction, electrical=True):
                    if segment.kind == "compute":
                        computed += segment.lasts_ns / 1e6
                    elif segment.on_rail:
                        name = "EP" if segment.kind == "expert" else "CP"
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
    ranks = job.degrees.data * job.degrees.context
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
        "DP": shared * job.bytes_per_element * all_reduce_share(job.degrees.data),
    }


def all_phases(job: StepJob) -> list[list[tuple[str, int]]]:
    """The phases of every stage."""
    return [phases(template) for template in templates(job, electrical=False)]
