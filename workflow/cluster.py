"""Training on the nodes of a cluster: what a job asks for, and how its ranks start.

The profile of a cluster says how its nodes look (``ranks_per_node`` and
``gpus_per_rank`` of a rule, under ``set-resources``); on one machine both are unset and
nothing is asked for. The ranks of a job with several nodes are started by torchrun's
agents, one a node: by ``srun`` under Slurm, elsewhere by the other nodes themselves,
which find the command in a folder that all of them see.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import SHIPPED
from workflow.stage import Needs, Settings, Stage

__all__ = [
    "AGENTS",
    "COMMAND",
    "NODES",
    "PER_NODE",
    "PLUGINS",
    "asked",
    "check_nodes",
    "check_plugin",
    "check_profile",
    "head_address",
    "nodes_here",
    "profile_resources",
    "ranks_command",
    "reachable",
]

#: Where the profiles are.
PROFILES = SHIPPED / "workflow" / "profiles"
#: The package of a profile's plugin, by the extra that brings it and names the profile.
PLUGINS = {
    "slurm": "snakemake_executor_plugin_slurm",
    "kubernetes": "snakemake_executor_plugin_cluster_generic",
}

#: What a profile says of the nodes of a cluster.
PER_NODE = ("ranks_per_node", "gpus_per_rank")

#: The variables of a job whose nodes were started without Slurm: how many they are, and
#: a folder that all of them see, where the others find the command of their agent.
NODES = "RAILX_NODES"
AGENTS = "RAILX_AGENTS"
COMMAND = "command.json"

#: What Slurm says that is as true for a step of several nodes.
_OF_THE_JOB = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_WORKING_CLUSTER")
#: Addresses that only their own machine reaches.
_LOOPBACK = re.compile(r"^(127\.|localhost$|::1$)")


def check_profile(name: str) -> str:
    """The folder of a profile; ValueError where it, or its plugin, is not there."""
    folder = PROFILES / name
    if not name or not (folder / "config.yaml").is_file():
        allowed = sorted(path.parent.name for path in PROFILES.glob("*/config.yaml"))
        raise UserError(f"PROFILE: got {name!r}; allowed: {', '.join(allowed)}")
    check_plugin(name)
    return str(folder)


def check_plugin(name: str) -> None:
    """Refuse a profile, by its name, whose plugin is not installed."""
    plugin = PLUGINS.get(name)
    if plugin is not None and find_spec(plugin) is None:
        raise UserError(
            f"PROFILE: {name} wants the package {plugin.replace('_', '-')}, which is not"
            f" installed; it comes with the extra: pip install 'railx-lab[{name}]'"
        )


def asked(needs: Needs, profile: Mapping[str, Any]) -> dict[str, int | str | None]:
    """The resources of a job that runs ranks; None where nothing is asked for.

    Ranks spread evenly over as few nodes as hold them. GPUs are asked for by node
    (``gres``), and not where the run is to stay on the CPU. ValueError names what the
    profile says wrong.
    """
    here, gpus = (_whole_number(profile, key) for key in PER_NODE)
    if here is None:
        return dict.fromkeys(("nodes", "gres", "tasks", "cpus_per_task"))
    if here < 1:
        raise UserError(f"ranks_per_node: got {here}; allowed: 1 or more")
    if gpus is not None and gpus < 0:
        raise UserError(f"gpus_per_rank: got {gpus}; allowed: 0 or more")
    ranks = needs.ranks
    nodes = ceil(ranks / here)
    if ranks % nodes:
        raise UserError(
            f"ranks_per_node: got {here}; allowed for {ranks} ranks: {ranks} or more, or a divisor"
        )
    ranks_per_node = ranks // nodes
    gpus_per_node = ranks_per_node * (gpus or 0) if needs.device != "cpu" else 0
    return {
        "nodes": nodes,
        "gres": f"gpu:{gpus_per_node}" if gpus_per_node else None,
        # One launcher a node. With GPUs the plugin would read it as tasks a GPU.
        "tasks": None if gpus_per_node else nodes,
        "cpus_per_task": ranks_per_node * needs.threads_per_rank,
    }


def check_nodes(settings: Any, stages: Mapping[str, Stage], experiment: Settings) -> None:
    """Refuse ranks of an experiment that do not spread over the nodes of the profile.

    Snakemake asks for what a job wants only when the job is about to start.
    """
    for name, stage in stages.items():
        profile = profile_resources(settings, name)
        for item in stage.items(experiment) if profile else ():
            try:
                asked(stage.needs(experiment, item), profile)
            except UserError as error:
                raise UserError(f"{name} {item}: {error}") from None


def _whole_number(profile: Mapping[str, Any], key: str) -> int | None:
    value = profile.get(key)
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(f"{key}: got {value!r}; allowed: a whole number") from None


def nodes_here(environment: Mapping[str, str] = os.environ) -> int:
    """The nodes that a cluster gave to this job; 1 outside of one."""
    if NODES in environment:
        return int(environment[NODES])
    job = environment.get("SLURM_JOB_ID")
    return 1 if job is None else _slurm_nodes(job)


@cache
def _slurm_nodes(job: str) -> int:
    """The nodes of a job, asked of Slurm: a step's variables tell of the step alone."""
    command = ["squeue", "--noheader", "--jobs", job, "--format=%D"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise UserError(f"squeue: cannot tell the nodes of job {job}: {error}") from None


def head_address(environment: Mapping[str, str] = os.environ) -> str:
    """Where the other nodes reach the first one of a job, on which this code runs.

    An interface stands for its address: nobody knows before the job begins which node
    is the first one. ValueError for an interface without an IPv4 address.
    """
    import psutil

    named = environment.get("RAILX_HEAD_ADDRESS") or socket.gethostname()
    interfaces = psutil.net_if_addrs()
    if named not in interfaces:
        return named
    addresses = [
        address.address for address in interfaces[named] if address.family == socket.AF_INET
    ]
    if not addresses:
        raise UserError(
            f"RAILX_HEAD_ADDRESS: got {named}, an interface without an IPv4 address; allowed: an"
            " interface with one, a name or an address"
        )
    return str(addresses[0])


def ranks_command(
    module: str,
    arguments: Sequence[str],
    ranks: int,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """The command that trains: a plain start, or an agent of torchrun on each node.

    The first node of the job has rank 0, so its address is the one to meet at.
    """
    nodes = nodes_here(environment)
    if nodes == 1:
        return [sys.executable, "-m", module, *arguments]
    if ranks % nodes:
        raise UserError(f"{ranks} ranks on {nodes} nodes; allowed: a multiple of the nodes")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    agent = [sys.executable, "-m", "torch.distributed.run"]
    agent += ["--nnodes", str(nodes), "--nproc-per-node", str(ranks // nodes)]
    agent += ["--master-addr", head_address(environment), "--master-port", str(port)]
    agent += ["-m", module, *arguments]
    if folder := environment.get(AGENTS):
        # A dry run loads none of what reads tables.
        from railx.io import write_json

        write_json(Path(folder) / COMMAND, agent)
        return ["env", "PET_NODE_RANK=0", *agent]
    # This runs in a step of the job on its first node. What is said of that step would
    # keep another one there; the agents share what the job was given.
    variables = (name for name in sorted(environment) if name.startswith("SLURM_"))
    step = ["env", *(f"--unset={name}" for name in variables if name not in _OF_THE_JOB)]
    step += ["srun", f"--jobid={environment['SLURM_JOB_ID']}", "--overlap", "--kill-on-bad-exit=1"]
    step += [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"]
    # Each learns its number from Slurm.
    numbered = 'PET_NODE_RANK=$SLURM_NODEID exec "$@"'
    return [*step, "sh", "-c", numbered, "sh", *agent]


def reachable(host: str, nodes: int, environment: Mapping[str, str] = os.environ) -> str:
    """The address for a controller: as set, or where other nodes reach this one."""
    outside = nodes > 1 and (_LOOPBACK.match(host) or host.startswith("unix:"))
    return head_address(environment) if outside else host


def profile_resources(settings: Any, rule: str) -> dict[str, Any]:
    """What the profile of this run says of the nodes, for a rule."""
    rule_resources = (settings.overwrite_resources or {}).get(rule, {})
    return {key: _plain(rule_resources[key]) for key in PER_NODE if key in rule_resources}


def _plain(value: Any) -> Any:
    """A resource as Snakemake keeps it, evaluated where it is a number in words."""
    plain = getattr(value, "value", value)
    return plain if isinstance(plain, (int, str)) else getattr(value, "raw", None)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m workflow.cluster NAME``: the folder of a profile that can be used."""
    try:
        print(check_profile(*(sys.argv[1:] if arguments is None else arguments)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
