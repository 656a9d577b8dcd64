"""Time of the host in measured steps: its terms, and the fit of its constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from scipy.optimize import minimize_scalar

from railx.performance.programs import constants_named
from railx.steps.settings import StepJob, StepSettings
from railx.steps.sweep import electrical_step_ms, job_head


def step_seconds(job: StepJob, iterations: int) -> float:
    """The slowest rank's last step over packet switches."""
    return electrical_step_ms(job, iterations) / 1e3


def fitted_pass_ms(runs: Sequence[tuple[StepJob, float]], iterations: int) -> float:
    """The ``pass_ms`` of jobs with a host that fits measured steps best, in ms.

    ``runs``: each job and its measured step in s. The sum of the squares of the
    relative errors is least. No pass takes longer than a measured step.
    """

    def squares(pass_ms: float) -> float:
        return sum(
            (step_seconds(_with_pass(job, pass_ms), iterations) / measured_s - 1) ** 2
            for job, measured_s in runs
        )

    longest_ms = 1e3 * max(measured_s for _, measured_s in runs)
    best = minimize_scalar(squares, bounds=(0.0, longest_ms), method="bounded")
    return float(best.x)


def _with_pass(job: StepJob, pass_ms: float) -> StepJob:
    if job.host is None:
        raise ValueError("a job without a host has no time of it")
    return replace(job, host=replace(job.host, pass_ms=pass_ms))


def host_rows(name: str, settings: StepSettings) -> Iterator[dict[str, Any]]:
    """A row for each job with a host: its terms, and where its constant is from.

    ``device_ms`` is the step over packet switches without a host, ``launched_ms`` that
    with the host's least times of ``constants``, and ``step_ms`` that with ``pass_ms``
    for each pass of a layer, too. ``forward_host_ms`` and ``backward_host_ms`` are the
    least times of a layer's passes, without its collectives, and ``step_host_ms`` is
    that of a step.
    """
    for variant, job in settings.jobs().items():
        if job.host is None:
            continue
        constants = constants_named(job.host.constants)
        launched = _with_pass(job, 0.0)
        device_s, launched_s, whole_s = (
            step_seconds(one, settings.sweep.iterations)
            for one in (replace(job, host=None), launched, job)
        )
        yield {
            **job_head(name, variant, job),
            "constants": job.host.constants,
            "forward_host_ms": 1e3 * constants.forward_host_s,
            "backward_host_ms": 1e3 * constants.backward_host_s,
            "step_host_ms": 1e3 * constants.step_s,
            "pass_ms": job.host.pass_ms,
            "fitted_on": ", ".join(job.host.fitted_on),
            "device_ms": 1e3 * device_s,
            "launched_ms": 1e3 * launched_s,
            "step_ms": 1e3 * whole_s,
            "fidelity": "replay",
        }
