"""A run killed at any moment continues where it was."""

import os
import signal
from typing import Any

TARGETS = ("results/quick/figures/all_to_all_bandwidth.svg", "results/quick/corpora/stdlib.json")


def test_a_killed_run_continues(pipeline_copy: Any) -> None:
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
    total = next(line.split()[1] for line in again.stdout.splitlines() if line.startswith("total"))
    first_total = 1 + 2 * 6 + 1
    assert int(total) < first_total

    third = pipeline_copy.snakemake(*TARGETS)
    assert "Nothing to be done" in third.stdout
