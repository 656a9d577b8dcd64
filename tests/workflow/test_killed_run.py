"""A run killed at any moment continues where it was."""

import os
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.system

TARGETS = (
    "results/quick/figure/topology_metrics.svg",
    "results/quick/circuits/railx_hyperx/circuits.json",
    "results/quick/corpus/stdlib/summary.json",
)


def _total_jobs(output: str) -> int:
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith("total"))


def test_a_killed_run_continues(pipeline_copy: Any) -> None:
    first_total = _total_jobs(pipeline_copy.snakemake(*TARGETS, "--dry-run").stdout)
    running = pipeline_copy.start(*TARGETS)
    for line in running.stdout:
        # Two jobs are done and others are under way when the whole process group dies.
        if line.startswith("2 of "):
            os.killpg(running.pid, signal.SIGKILL)
            break
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert list((pipeline_copy.folder / ".snakemake" / "locks").iterdir())

    done_before = list((pipeline_copy.folder / "results").rglob("*.parquet"))
    again = pipeline_copy.snakemake(*TARGETS)
    assert done_before
    for target in TARGETS:
        assert (pipeline_copy.folder / target).stat().st_size > 0
    assert not list((pipeline_copy.folder / "results").rglob("*.part"))
    assert _total_jobs(again.stdout) < first_total

    third = pipeline_copy.snakemake(*TARGETS)
    assert "Nothing to be done" in third.stdout
