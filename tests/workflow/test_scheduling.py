"""How Snakemake runs the pipeline's jobs."""

from typing import Any

import pytest


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
