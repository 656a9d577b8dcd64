"""The jobs that the Kubernetes profile renders, and pods that run them here."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railx.io import read_json, read_rows
from tests.builders import ROOT
from tests.workflow.conftest import PipelineCopy
from workflow.kubernetes import main, manifests

IMAGE = ("--image", "railx-lab:1", "--claim", "shared", "--mount", "/work")
HOSTS = {"railx-test-0": "10.213.0.1", "railx-test-1": "10.213.0.2"}


def written(folder: Path, **properties: Any) -> Path:
    """A script as Snakemake writes it for a job."""
    path = folder / "snakejob.sh"
    path.write_text(f"#!/bin/sh\n# properties = {json.dumps(properties)}\nexit 0\n")
    return path


def test_a_plain_job(tmp_path: Path) -> None:
    resources = {"mem_mb": 4000, "runtime": 30}
    script = written(
        *(tmp_path,),
        rule="corpus",
        wildcards={"corpus": "stdlib_Like.2"},
        threads=3,
        resources=resources,
    )
    service, job = manifests(script, "railx-lab:1", "shared", "/work")
    assert service["kind"] == "Service"
    assert service["spec"]["clusterIP"] == "None"
    name, spec = job["metadata"]["name"], job["spec"]
    assert name.startswith("railx-corpus-stdlib-like-2-")
    assert len(name) <= 60
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 0)
    assert spec["activeDeadlineSeconds"] == 1800
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert "affinity" not in pod
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "shared"
    (container,) = pod["containers"]
    assert container["image"] == "railx-lab:1"
    assert container["volumeMounts"] == [{"name": "work", "mountPath": "/work"}]
    assert container["resources"] == {"requests": {"cpu": "3", "memory": "4000M"}}
    assert container["command"][-2:] == ["pod", str(script)]


def test_a_job_with_ranks_has_a_pod_and_its_gpus_on_each_node(tmp_path: Path) -> None:
    asked = {"nodes": 4, "gres": "gpu:8", "cpus_per_task": 16, "mem_mb": 9000}
    script = written(tmp_path, rule="training", threads=1, resources=asked)
    service, job = manifests(script, "railx-lab:1", "shared", "/work")
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"]) == (4, 4)
    assert spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert container["resources"]["requests"]["cpu"] == "16"
    own = {one["name"]: one["value"] for one in container["env"]}
    assert own["RAILX_NODES"] == "4"
    # The name of the first pod, as the service that selects the pods makes it.
    assert own["RAILX_HEAD_ADDRESS"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (apart,) = pod["affinity"]["podAntiAffinity"].popitem()[1]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    for nodes, keys in ((1, False), (2, True)):
        script = written(tmp_path, rule="training", threads=1, resources={"nodes": nodes})
        _, job = manifests(script, "railx-lab:1", "shared", "/work")
        assert ("affinity" in job["spec"]["template"]["spec"]) is keys


def test_attempts_have_names_of_their_own(tmp_path: Path) -> None:
    names = set()
    for attempt in ("1", "2"):
        folder = tmp_path / attempt
        folder.mkdir()
        script = written(folder, rule="corpus", wildcards={"corpus": "x" * 90})
        for again in ("", "again"):
            names.add(manifests(script, "i", "c", "/work", again)[-1]["metadata"]["name"])
    assert len(names) == 4
    assert all(len(f"{name}-0") <= 63 for name in names)


def test_a_script_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "other.sh"
    script.write_text("exit 0\n")
    assert main(["render", *IMAGE, str(script)]) == 2
    assert capsys.readouterr().err == (
        f"error: {script}: no line # properties =; allowed: a script of Snakemake\n"
    )


def test_rendering_needs_no_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    script = written(tmp_path, rule="corpus", threads=1, resources={})
    assert main(["render", *IMAGE, str(script)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [item["kind"] for item in said["items"]] == ["Service", "Job"]
    assert said["items"] == manifests(script, "railx-lab:1", "shared", "/work")
    assert main(["submit", *IMAGE, str(script)]) == 2
    assert "kubectl: not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("", "failed"),
        ('{"status": {}}', "running"),
        ('{"status": {"conditions": null}}', "running"),
        ('{"status": {"conditions": [{"type": "Complete", "status": "True"}]}}', "success"),
        ('{"status": {"conditions": [{"type": "Failed", "status": "True"}]}}', "failed"),
        ('{"status": {"conditions": [{"type": "Failed", "status": "False"}]}}', "running"),
        ('{"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}', "running"),
    ],
)
def test_status(
    told: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "told").write_text(told)
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\ncat "{tmp_path / "told"}"\n')
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["status", "railx-x"]) == 0
    assert capsys.readouterr().out == f"{expected}\n"


def test_a_cluster_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho 'refused' >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["status", "railx-x"]) == 2
    assert capsys.readouterr().err == "error: kubectl get: refused\n"


def test_the_pods_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs the script; others end with it, or run the agent that it left."""
    monkeypatch.setenv("RAILX_AGENTS", str(tmp_path / "agents"))
    script = tmp_path / "job.sh"
    script.write_text(f"touch {tmp_path}/ran\nexit 7\n")
    assert main(["pod", str(script)]) == 7
    assert (tmp_path / "ran").exists()
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert main(["pod", str(script)]) == 0
    said = tmp_path / "rank"
    agent = ["sh", "-c", f"echo $PET_NODE_RANK > {said}; exit 5"]
    (tmp_path / "agents" / "command.json").write_text(json.dumps(agent))
    assert main(["pod", str(script)]) == 5
    assert said.read_text() == "1\n"


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Two network namespaces with a cable between them, as two hosts."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces want root and iproute2")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    first, second = HOSTS
    made = []
    try:
        for name in HOSTS:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "eth0", "netns", second)
        for name, address in HOSTS.items():
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield HOSTS
    finally:
        for name in made:
            ip("netns", "del", name)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_profile_trains_over_two_hosts(
    tmp_path: Path, hosts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job a pod, those of training on hosts that share no loopback."""
    pytest.importorskip("snakemake_executor_plugin_cluster_generic")
    cluster, programs = tmp_path / "cluster", tmp_path / "bin"
    for folder in (cluster, programs):
        folder.mkdir()
    (cluster / "hosts").write_text("".join(f"{one} {at}\n" for one, at in hosts.items()))
    kubectl = programs / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/cluster/kubectl.py "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("FAKE_CLUSTER", str(cluster))
    own = f"{programs}:{Path(sys.executable).parent}"
    monkeypatch.setenv("PATH", f"{own}:{os.environ['PATH']}")
    pipeline = PipelineCopy(tmp_path / "pipeline")
    profile = pipeline.folder / "workflow/profiles/kubernetes/config.yaml"
    shipped = profile.read_text()
    assert shipped.count("ranks_per_node: 8 ") == 1
    profile.write_text(shipped.replace("ranks_per_node: 8 ", "ranks_per_node: 2 "))
    run = "runs.static_stdlib.training"
    short = (f"{run}.iterations=1 {run}.timeout_s=300 {run}.on_demand_latencies_ms=[0]",)
    pipeline.snakemake(
        "results/quick/training/static_stdlib/result.json",
        *("--workflow-profile", "workflow/profiles/kubernetes"),
        f"hydra={' '.join(short)} {run}.provisioned_latencies_ms=[]",
    )
    folder = pipeline.folder / "results/quick/training/static_stdlib"
    rows = read_rows(folder / "iterations.parquet")
    assert {row["rank"] for row in rows} == {0, 1, 2, 3}
    assert {row["mode"] for row in rows} == {"electrical", "on_demand"}
    assert read_json(folder / "result.json")["losses_agree"]
    (training,) = cluster.glob("railx-training-*")
    asked = read_json(training / "job.json")["spec"]
    assert asked["completions"] == 2
    pods = asked["template"]["spec"]["containers"][0]["resources"]
    assert pods["limits"] == {"nvidia.com/gpu": "2"}
    assert [(training / f"{index}.code").read_text() for index in (0, 1)] == ["0\n", "0\n"]
    # A job of the pipeline is a job of the cluster, and none ran here.
    assert len(list(cluster.glob("railx-*/job.json"))) == 3
