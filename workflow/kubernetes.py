"""Jobs on Kubernetes, for workflow/profiles/kubernetes (docs/clusters.md).

Each job of the pipeline becomes a Job of Kubernetes in the container image of this
project, in the same folder of a volume that all pods share. A job that asks for several
nodes becomes a pod on each: the first runs the job, the others wait for its ranks.

    python -m workflow.kubernetes render JOBSCRIPT     what would be submitted
    python -m workflow.kubernetes submit JOBSCRIPT     submits it, prints its name
    python -m workflow.kubernetes status NAME          running, success or failed
    python -m workflow.kubernetes pod JOBSCRIPT        what a pod runs
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

from railx.errors import UserError
from railx.io import read_json, write_text
from training.nodes import AGENTS, COMMAND, NODES

#: The service that gives the pods of a job names, ``JOB-0.railx`` and so on.
SERVICE = "railx"
#: How Snakemake writes what a job is into its script.
_PROPERTIES = "# properties = "
_OVER = "over"
_LOOK_S = 0.5
_TEMPLATE = Path(__file__).with_suffix(".yaml.jinja")


def properties_of(jobscript: Path) -> dict[str, Any]:
    """What a script of Snakemake says of its job: rule, threads, resources, log."""
    for line in jobscript.read_text(encoding="utf-8").splitlines():
        if line.startswith(_PROPERTIES):
            properties: dict[str, Any] = json.loads(line.removeprefix(_PROPERTIES))
            return properties
    raise UserError(f"{jobscript}: no line {_PROPERTIES.strip()}; allowed: a script of Snakemake")


def job_name(jobscript: Path, properties: Mapping[str, Any], attempt: str = "") -> str:
    """A name that Kubernetes takes and that no other job has, nor another attempt."""
    words = [str(properties.get("rule", "job")), *properties.get("wildcards", {}).values()]
    plain = re.sub("[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")
    digest = sha256(f"{jobscript.absolute()}{attempt}".encode()).hexdigest()[:10]
    return f"railx-{plain[:40].strip('-')}-{digest}"


def manifests(
    jobscript: Path, image: str, claim: str, mount: str, attempt: str = ""
) -> list[dict[str, Any]]:
    """The job and the service that names its pods, as Kubernetes reads them."""
    import yaml
    from jinja2 import Environment, StrictUndefined

    properties = properties_of(jobscript)
    resources = properties.get("resources", {})
    name = job_name(jobscript, properties, attempt)
    environment = Environment(undefined=StrictUndefined, trim_blocks=True)
    text = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        service=SERVICE,
        name=name,
        rule=str(properties.get("rule", "job")),
        nodes=int(resources.get("nodes") or 1),
        cpus=resources.get("cpus_per_task") or int(properties.get("threads", 1)),
        memory_mb=resources.get("mem_mb"),
        gpus=str(resources.get("gres") or "").rsplit(":", 1)[-1],
        minutes=int(resources.get("runtime") or 0),
        image=image,
        claim=claim,
        mount=mount,
        folder=str(Path.cwd()),
        command=[
            *(sys.executable, "-m", "railx_lab", "workflow.kubernetes", "pod"),
            str(jobscript.absolute()),
        ],
        environment={
            NODES: str(int(resources.get("nodes") or 1)),
            AGENTS: str(Path.cwd() / ".railx" / "agents" / name),
            "RAILX_HEAD_ADDRESS": f"{name}-0.{SERVICE}",
        },
    )
    return list(yaml.safe_load_all(text))


def _kubectl(*words: str, stdin: str | None = None) -> str:
    try:
        done = subprocess.run(
            ["kubectl", *words], input=stdin, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise UserError("kubectl: not found; it is what jobs are submitted with") from None
    if done.returncode:
        raise UserError(f"kubectl {words[0]}: {' '.join(done.stderr.split())}")
    return done.stdout


def _status(name: str) -> str:
    """What Snakemake wants to hear of a job; one that is gone has failed."""
    described = _kubectl("get", "job", name, "--ignore-not-found", "--output", "json")
    if not described.strip():
        return "failed"
    conditions = json.loads(described).get("status", {}).get("conditions") or []
    true = {condition["type"] for condition in conditions if condition.get("status") == "True"}
    if "Failed" in true:
        return "failed"
    return "success" if "Complete" in true else "running"


def _pod(jobscript: Path) -> int:
    """The first pod runs the job; others run an agent once there is one to run."""
    index = int(os.environ.get("JOB_COMPLETION_INDEX", "0"))
    folder = Path(os.environ[AGENTS])
    if index == 0:
        try:
            return subprocess.run(["sh", str(jobscript)], check=False).returncode
        finally:
            write_text(folder / _OVER, "")
    command = folder / COMMAND
    while not command.is_file():
        if (folder / _OVER).exists():
            return 0
        time.sleep(_LOOK_S)
    environment = os.environ | {"PET_NODE_RANK": str(index)}
    return subprocess.run(read_json(command), env=environment, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow.kubernetes",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("render", "submit"):
        subparser = commands.add_parser(name)
        for option, what in (
            ("--image", "the container image of this project"),
            ("--claim", "the claim of the volume that pods share"),
            ("--mount", "where it is mounted, here and in pods"),
        ):
            subparser.add_argument(option, required=True, help=what)
        subparser.add_argument("jobscript", type=Path)
    commands.add_parser("status").add_argument("name")
    commands.add_parser("pod").add_argument("jobscript", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "status":
            print(_status(options.name))
            return 0
        if options.command == "pod":
            return _pod(options.jobscript)
        # A retried job has the same script.
        attempt = token_hex(4) if options.command == "submit" else ""
        job = manifests(options.jobscript, options.image, options.claim, options.mount, attempt)
        listed = {"apiVersion": "v1", "kind": "List", "items": job}
        if options.command == "render":
            print(json.dumps(listed, indent=2))
            return 0
        _kubectl("apply", "--filename", "-", stdin=json.dumps(listed))
        print(job[-1]["metadata"]["name"])
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
