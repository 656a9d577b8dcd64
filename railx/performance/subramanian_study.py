"""The best plans of arXiv 2410.00273 against ours, and what the best plan depends on.

``resources/performance/subramanian_best.csv`` has best plans of the paper's public
outputs: a model's numbers, not measurements.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from railx.errors import UserError
from railx.performance.plans import Array
from railx.performance.subramanian import (
    DIVISIONS,
    Division,
    PaperJob,
    PricedPlans,
    job_named,
    price,
    search,
)
from railx.places import SHIPPED

FIDELITY = "analytic"
_BEST_PLANS = SHIPPED / "resources" / "performance" / "subramanian_best.csv"
_MODELS = ("gpt3_1T", "vit_era5")
#: Systems of the sweeps: the paper's newest device, domains of today's nodes.
_DEVICE, _DOMAIN = "b200", 8
_DOMAINS = (4, 8, 16, 32, 64)
#: What is scaled to see what a step depends on: the keys of a device.
_RESOURCES = {
    "operations": ("peak_tflops", "vector_tflops"),
    "memory bandwidth": ("memory_gb_s",),
    "memory capacity": ("capacity_gb",),
    "network bandwidth": ("fast_gb_s", "slow_gb_s"),
}
_FACTORS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, eq=False)
class PublishedPlan:
    """A row of the public outputs: the best plan of a job and what it takes."""

    job: PaperJob
    system: str
    plan: dict[str, Array]
    """Columns of :class:`~railx.performance.subramanian.PricedPlans`, one row."""
    sequences_per_s: float
    memory_gb: float
    bubble: float
    """Share of the step in which stages wait."""


def published_rows() -> list[PublishedPlan]:
    """The best plans of the public outputs, in the order of the file."""
    with _BEST_PLANS.open(newline="", encoding="utf-8") as lines:
        return [_published(row) for row in csv.DictReader(lines)]


def _published(row: dict[str, str]) -> PublishedPlan:
    device, _, domain = row["system"].partition("-NVS")
    degrees, near = (_numbers(row[name]) for name in ("plan", "nv"))
    tensor = "tp" if row["tensor"] == "1d" else "tp1"
    axes = {"tensor": tensor, "sequence": "tp2", "data": "dp", "pipeline": "pp"}
    plan = {axis: degrees.get(key, 1) for axis, key in axes.items()}
    plan |= {"micro_batch": degrees["mbs"], "blocks": degrees.get("nb", 1)}
    plan |= {f"{axis}_near": near.get(f"nv_{key}", 1) for axis, key in axes.items()}
    division = cast("Division", row["tensor"])
    return PublishedPlan(
        job_named(row["model"], device.lower(), int(domain), division, int(row["gpus"])),
        row["system"],
        {name: np.array([value]) for name, value in plan.items()},
        float(row["samples_s"]),
        float(row["memory_gb"]),
        float(row["bubble"]),
    )


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (one.partition("=") for one in text.split(";"))}


def published_plan_rows(every: int) -> Iterator[dict[str, Any]]:
    """A row for every ``every``-th published plan.

    Columns: model, division, system, devices, published_sequences_per_s,
    best_sequences_per_s (of our search), planned_sequences_per_s (of the published plan
    by our model), best_error, planned_error, memory_error, fidelity.
    """
    for row in published_rows()[::every]:
        job, published = row.job, row.sequences_per_s
        found, planned = search(job), price(job, row.plan)
        best = float(found.sequences_per_s[found.fastest])
        given = float(planned.sequences_per_s[0])
        yield {
            "model": job.model.name,
            "division": job.division,
            "system": row.system,
            "devices": job.devices,
            "published_sequences_per_s": published,
            "best_sequences_per_s": best,
            "planned_sequences_per_s": given,
            "best_error": best / published - 1,
            "planned_error": given / published - 1,
            "memory_error": float(planned.memory_gb[0]) / row.memory_gb - 1,
            "fidelity": FIDELITY,
        }


def sweep_rows(devices: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The fastest plans over devices, sizes of the fast domain and scaled resources.

    ``devices``: sizes of the strong scaling; the other sweeps take the largest.
    Columns: sweep (``devices``, ``domain`` or a resource), model, division, devices,
    domain_devices, factor, sequences_per_s, the degrees of the plan, and shares of the
    step by part; fidelity. Jobs that fit no plan have no row.
    """
    for model in _MODELS:
        for division in DIVISIONS:
            base = job_named(model, _DEVICE, _DOMAIN, division, max(devices))
            for count in devices:
                yield from _fastest("devices", replace(base, devices=count))
            for domain in _DOMAINS:
                chip = replace(base.device, node_devices=domain)
                yield from _fastest("domain", replace(base, device=chip))
            for resource, keys in _RESOURCES.items():
                for factor in _FACTORS:
                    scaled = {key: _scaled(getattr(base.device, key), factor) for key in keys}
                    chip = replace(base.device, **scaled)
                    yield from _fastest(resource, replace(base, device=chip), factor)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {name: number * factor for name, number in value.items()}
    return value * factor


def _fastest(sweep: str, job: PaperJob, factor: float = 1.0) -> Iterator[dict[str, Any]]:
    priced: PricedPlans = search(job)
    try:
        row = priced.fastest
    except UserError:
        return
    total = float(priced.total_s[row])
    yield {
        "sweep": sweep,
        "model": job.model.name,
        "division": job.division,
        "devices": job.devices,
        "domain_devices": job.device.node_devices,
        "factor": factor,
        "sequences_per_s": job.global_batch / total,
        **{
            name: int(priced.plans[name][row])
            for name in ("tensor", "pipeline", "data", "micro_batch", "sequence")
        },
        **{f"{name}_share": float(part[row]) / total for name, part in priced.parts.items()},
        "fidelity": FIDELITY,
    }
