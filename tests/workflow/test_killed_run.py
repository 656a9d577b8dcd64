"""How Snakemake runs the pipeline's jobs; a run killed at any moment continues where it
was, with its marks cleared, and those of a living one are not.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflow.places import hold_folder


@pytest.mark.system
def test_jobs_that_ended_are_not_looked_after_for_good(pipeline_copy: Any) -> None:
    """With a limit on jobs a second, every job that ends has Snakemake look at all
    ready jobs once more in each second of the rest of the run.
    """
    (pipeline_copy.folder / "asks.smk").write_text(
        'include: "Snakefile"\n'
        "onsuccess:\n"
        '    print("limit:", workflow.scheduler.job_rate_limiter)\n'
    )
    wanted = "results/quick/topology/torus_2d/graph.parquet"
    done = pipeline_copy.snakemake("--snakefile", "asks.smk", wanted)
    assert "limit: None" in done.stdout.splitlines()


TARGETS = (
    "results/quick/figure/topology_metrics.svg",
    "results/quick/circuits/railx_hyperx/circuits.json",
    "results/quick/corpus/stdlib/summary.json",
)


def _total_jobs(output: str) -> int:
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith("total"))


@pytest.mark.system
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


HOLDER = """
import sys
from pathlib import Path
from workflow.places import hold_folder
print(hold_folder(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""


def stale_mark(state: Path) -> Path:
    mark = state / "locks" / "0.input.lock"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return mark


@pytest.mark.system
def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "True"
    mark = stale_mark(tmp_path)
    assert hold_folder(tmp_path) is None
    assert mark.exists()
    holder.kill()
    holder.communicate()
    assert hold_folder(tmp_path) is not None
    assert not mark.exists()
