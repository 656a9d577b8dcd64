"""The nodes of a job on a cluster, and how its ranks start on them.

The ranks of a job with several nodes are started by torchrun's agents, one a node: by
``srun`` under Slurm, elsewhere by the other nodes themselves, which find the command in
a folder that all of them see. This module imports no torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from railx.errors import UserError
from railx.settings import SettingsError

#: The variables of a job whose nodes were started without Slurm: how many they are, and
#: a folder that all of them see, where the others find the command of their agent.
NODES = "RAILX_NODES"
AGENTS = "RAILX_AGENTS"
COMMAND = "command.json"

#: What Slurm says that is as true for a step of several nodes.
_OF_THE_JOB = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_WORKING_CLUSTER")
#: Addresses that only their own machine reaches.
_LOOPBACK = re.compile(r"^(127\.|localhost$|::1$)")


def check_cuda(device: str, key: str) -> None:
    """Refuse ``device`` "cuda" on a machine without one; SettingsError names ``key``.

    The driver is asked: torch takes seconds to import, and a job is not needed for it.
    """
    if device == "cuda" and not _has_cuda():
        raise SettingsError(key, "got cuda, but no CUDA device is there; allowed here: auto, cpu")


def _has_cuda() -> bool:
    # AMD's GPUs are cuda to torch and have another driver.
    if Path("/dev/kfd").exists():
        return True
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return not failed and count.value > 0


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
    logs: str,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """What trains: a plain start, or torchrun's agents, which meet at the first.

    Each agent makes a folder of its own in ``logs``, and leaves it there.
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
    agent += ["--log-dir", logs]
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
