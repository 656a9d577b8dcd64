"""The Slurm profile on a real Slurm with two nodes, started and stopped here.

`make test-slurm`; root, slurm-wlm and munge, and the extra `slurm`.
"""

import importlib.util
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import pytest

from railx.io import read_json, read_rows
from tests.cluster.slurm import Slurm, missing, slurm
from tests.workflow.conftest import PipelineCopy
from tests.workflow.running import jobs_of, living, ranks_of, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

RUN = "results/quick/training/static_stdlib"
#: One iteration of two fabric settings: what switches has to reach the controller.
SHORT = [
    *(f"runs.static_stdlib.training.{word}" for word in ("iterations=1", "timeout_s=300")),
    "runs.static_stdlib.training.on_demand_latencies_ms=[0]",
    "runs.static_stdlib.training.provisioned_latencies_ms=[]",
]
PROFILE = ("--workflow-profile", "workflow/profiles/slurm")
#: A job that takes long enough to be hit.
LONG = "results/quick/corpus/stdlib/summary.json"
PATIENCE_S = 900.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(why)
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("the Slurm plugin is not there: pip install railx-lab[slurm]")
    with slurm() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        patch.setenv("RAILX_HEAD_ADDRESS", "127.0.0.1")
        yield running


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> PipelineCopy:
    copy = PipelineCopy(tmp_path_factory.mktemp("pipeline"))
    # As docs/clusters.md says: the profile is edited to what the nodes are.
    profile = copy.folder / "workflow/profiles/slurm/config.yaml"
    shipped = profile.read_text()
    assert shipped.count("ranks_per_node: 8 ") == 1
    profile.write_text(shipped.replace("ranks_per_node: 8 ", "ranks_per_node: 2 "))
    return copy


def on_slurm(pipeline: PipelineCopy, *arguments: str) -> subprocess.Popen[str]:
    """The pipeline under the profile; states are asked for every second."""
    quick = ("--slurm-init-seconds-before-status-checks", "1")
    return pipeline.start(*arguments, *PROFILE, *quick, f"hydra={' '.join(SHORT)}")


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said


def new_jobs(cluster: Slurm, before: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {number: job for number, job in cluster.jobs().items() if number not in before}


def test_a_sweep_fans_out(cluster: Slurm, pipeline: PipelineCopy) -> None:
    names = ("torus_2d", "fat_tree", "railx_torus")
    targets = [LONG, *(f"results/quick/topology/{name}/metrics.json" for name in names)]
    before = cluster.jobs()
    finished(on_slurm(pipeline, *targets))
    jobs = new_jobs(cluster, before)
    # A job each, none here.
    rules = sorted(comment.split("_wildcards")[0] for _, comment in jobs.values())
    assert rules == ["rule_corpus", *["rule_topology"] * 3]
    assert {state for state, _ in jobs.values()} == {"COMPLETED"}
    shown = [cluster.show(number) for number in jobs]
    assert {job["NodeList"] for job in shown} == {"one", "two"}
    assert all("gpu" not in job.get("TresPerNode", "") for job in shown)
    # Jobs without an order between them ran beside one another.
    spans = sorted((job["StartTime"], job["EndTime"]) for job in shown)
    assert any(later[0] < sooner[1] for sooner, later in pairwise(spans))
    for target in targets:
        assert (pipeline.folder / target).stat().st_size
    log = (pipeline.folder / "results/quick/logs/corpus/stdlib.log").read_text()
    assert re.search(r"begins: corpus stdlib$", log, re.MULTILINE)
    assert re.search(r"ends: .* s\)$", log, re.MULTILINE)


def test_training_asks_for_gpus_and_spans_nodes(cluster: Slurm, pipeline: PipelineCopy) -> None:
    before = cluster.jobs()
    finished(on_slurm(pipeline, f"{RUN}/result.json"))
    jobs = new_jobs(cluster, before)
    number = next(key for key, (_, comment) in jobs.items() if comment.startswith("rule_training"))
    shown = cluster.show(number)
    assert (shown["NumNodes"], shown["NodeList"]) == ("2", "one,two")
    assert shown["TresPerNode"] == "gres:gpu:2"
    folder = pipeline.folder / RUN
    rows = read_rows(folder / "iterations.parquet")
    assert {row["rank"] for row in rows} == {0, 1, 2, 3}
    assert {row["mode"] for row in rows} == {"electrical", "on_demand"}
    result = read_json(folder / "result.json")
    assert result["losses_agree"]
    # Slurm started an agent on each node, and each agent two ranks.
    log = (pipeline.folder / "results/quick/logs/training/static_stdlib.log").read_text()
    assert re.search("^ranks on 2 nodes: srun .*--nnodes 2 --nproc-per-node 2 ", log, re.MULTILINE)
    assert not living(pipeline.folder)


def test_a_failed_job_is_retried(cluster: Slurm, pipeline: PipelineCopy) -> None:
    before = cluster.jobs()
    running = on_slurm(pipeline, LONG, "--forcerun", "corpus")
    until(lambda: jobs_of(pipeline.folder))
    for worker in jobs_of(pipeline.folder):
        os.kill(worker, signal.SIGKILL)
    finished(running)
    jobs = new_jobs(cluster, before)
    assert [jobs[number][0] for number in sorted(jobs, key=int)] == ["FAILED", "COMPLETED"]
    assert (pipeline.folder / LONG).stat().st_size


def test_a_cancelled_job_ends_cleanly(cluster: Slurm, pipeline: PipelineCopy) -> None:
    before = cluster.jobs()
    # The corpus is as it was, but newer: nothing but training is to run.
    pipeline.snakemake(f"{RUN}/result.json", "--touch", f"hydra={' '.join(SHORT)}")
    again = ("--forcerun", "training", "--retries", "0")
    running = on_slurm(pipeline, f"{RUN}/result.json", *again)

    until(lambda: ranks_of(pipeline.folder) or running.poll() is not None)
    (number,) = new_jobs(cluster, before)
    cluster.ask("scancel", number)
    finished(running, code=1)
    assert cluster.jobs()[number][0] == "CANCELLED"
    until(lambda: not living(pipeline.folder))
    assert not list((pipeline.folder / "results").rglob("*.part"))
    assert not (pipeline.folder / RUN / "result.json").exists()


def test_interrupting_the_run_cancels_its_jobs(cluster: Slurm, pipeline: PipelineCopy) -> None:
    before = cluster.jobs()
    running = on_slurm(pipeline, f"{RUN}/result.json")
    until(lambda: jobs_of(pipeline.folder))
    os.killpg(running.pid, signal.SIGINT)
    finished(running, code=1)
    until(lambda: {state for state, _ in new_jobs(cluster, before).values()} == {"CANCELLED"})
    until(lambda: not living(pipeline.folder))
    # What was cancelled twice over goes on.
    finished(on_slurm(pipeline, f"{RUN}/result.json"))
