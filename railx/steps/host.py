"""Time of the host in measured steps: its terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from railx.performance.programs import constants_named
from railx.steps.settings import StepJob, StepSettings
from railx.steps.sweep import electrical_step_ms, job_head


def step_seconds(job: StepJob, iterations: int) -> float:
    """The slowest rank's last step over packet switches."""
    return electrical_step_ms(job, iterations) / 1e3


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
        launched = replace(job, host=replace(job.host, pass_ms=0.0))
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
