"""A step on bandwidth that is split once for all between the parallelisms.

A GPU's bandwidth inside and outside its server is one total, and each parallelism has a
share of it throughout: the static reference of the Opus artifact. Its smoke run gives
425, 56 and 19 of 500 GB/s to 8,248 GB of tensor, 143.83 GB of data and 17.18 GB of
pipeline traffic, which is the square root of the traffic and not the traffic.
Of all splits it is that which makes the sum of the times least, were they one after
the other: V / b is as steep for every parallelism where b grows with the root of V.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from railx.steps.programs import PARALLELISMS, templates
from railx.steps.settings import StepJob, StepSettings
from railx.steps.sweep import electrical_step_ms, job_head, traffic
from railx.steps.template import Template


def split_rates(sent_bytes: Mapping[str, float], total_gb_s: float) -> dict[str, float]:
    """The bandwidth of each parallelism in GB/s, in proportion to the square root of
    its traffic. What sends nothing has none.
    """
    roots = {name: math.sqrt(size) for name, size in sent_bytes.items() if size > 0}
    whole = sum(roots.values())
    return {name: total_gb_s * root / whole for name, root in roots.items()}


def on_split(template: Template, job: StepJob, rates_gb_s: Mapping[str, float]) -> Template:
    """A stage's program where each parallelism has its rate of ``rates_gb_s``."""
    up, out = job.device.scale_up_gb_s, job.device.scale_out_gb_s
    moves = []
    for move in template.moves:
        tensor_ns = round(move.tensor_ns * up / rates_gb_s["TP"]) if move.tensor_ns else 0
        slower = 1.0 if not move.lane else out / rates_gb_s[PARALLELISMS[move.lane]]
        moves.append(
            replace(
                move,
                gap_ns=move.gap_ns - move.tensor_ns + tensor_ns,
                tensor_ns=tensor_ns,
                lasts_ns=round(move.lasts_ns * slower),
            )
        )
    return replace(template, moves=moves)


def split_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job and parallelism: its traffic and bandwidth, and the step.

    ``step_ms`` is the slowest rank's step on the split and ``electrical_ms`` that with
    each parallelism at the full rate of its links.
    """
    for variant, job in settings.jobs().items():
        total = job.device.scale_up_gb_s + job.device.scale_out_gb_s
        sent = traffic(job)
        rates = split_rates(sent, total)
        whole = templates(job, electrical=True)
        electrical_ms, split_ms = (
            electrical_step_ms(job, settings.sweep.iterations, stages)
            for stages in (whole, [on_split(template, job, rates) for template in whole])
        )
        for parallelism, rate in rates.items():
            yield {
                **job_head(name, variant, job),
                "parallelism": parallelism,
                "sent_gb": sent[parallelism] / 1e9,
                "total_gb_s": total,
                "rate_gb_s": rate,
                "step_ms": split_ms,
                "electrical_ms": electrical_ms,
                "fidelity": "replay",
            }
