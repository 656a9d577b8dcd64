"""A real Slurm of this machine's package, for the length of a ``with`` block.

Two nodes on one machine, each with four CPUs and two GPUs that are files. No
accounting: what jobs become is asked of the controller.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Slurm", "missing", "slurm"]

_PROGRAMS = (
    "setpriv",
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "squeue",
    "scontrol",
    "scancel",
)
_NODES = ("one", "two")
_START_S = 60.0


def missing() -> str:
    """Why no Slurm can run here; empty where one can."""
    absent = [name for name in _PROGRAMS if _program(name) is None]
    if absent:
        return f"{', '.join(absent)} not found: install slurm-wlm and munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons start as root only"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Slurm:
    """A running Slurm: its folder, and what its commands want in the environment."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints."""
        return subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def jobs(self) -> dict[str, tuple[str, str]]:
        """The state and the comment of every job that the controller remembers."""
        listed = self.ask("squeue", "--states=all", "--noheader", "--format=%i|%T|%k")
        rows = [line.split("|", 2) for line in listed.splitlines()]
        return {number: (state, comment) for number, state, comment in rows}

    def show(self, job: str) -> dict[str, str]:
        """What the controller knows of a job."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextlib.contextmanager
def slurm() -> Iterator[Slurm]:
    """Start munge, the controller and both nodes; end them with the block."""
    # Socket paths are short: the folder is not below pytest's.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    processes: list[subprocess.Popen[bytes]] = []
    running = Slurm(folder)

    def start(*command: str) -> None:
        program = _program(command[0])
        assert program is not None
        with (folder / "said").open("ab") as said:
            processes.append(
                subprocess.Popen(
                    # They end with whoever started them, however that ends.
                    ["setpriv", "--pdeathsig", "TERM", program, *command[1:]],
                    env={**os.environ, **running.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                )
            )

    try:
        _configure(folder)
        munge = folder / "munge"
        start(
            *("munged", "--foreground", "--force", "--key-file", f"{munge}/key"),
            *("--socket", f"{munge}/socket", "--pid-file", f"{munge}/pid"),
            *("--log-file", f"{munge}/log", "--seed-file", f"{munge}/seed"),
        )
        _until(lambda: (munge / "socket").exists(), folder)
        start("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for node in _NODES:
            start("slurmd", "-D", "-f", f"{folder}/slurm.conf", "-N", node)
        _until(lambda: _idle(running) == len(_NODES), folder)
        yield running
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            running.ask("scancel", "--user", "root")
            _until(lambda: not running.ask("squeue", "--noheader"), folder)
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _idle(running: Slurm) -> int:
    try:
        return running.ask("sinfo", "--noheader", "--Node", "--format=%t").split().count("idle")
    except subprocess.CalledProcessError:
        return 0


def _until(true, folder: Path) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + _START_S
    while not true():
        if time.monotonic() > end:
            said = "\n".join(
                f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
                for path in [folder / "said", *folder.glob("*.log")]
            )
            raise RuntimeError(f"Slurm did not come up\n{said}")
        time.sleep(0.1)


def _configure(folder: Path) -> None:
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir()
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    # The plugin clears SLURM_CONF for its steps, which look in a folder of the machine.
    (folder / "bin").mkdir()
    step = folder / "bin" / "srun"
    step.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {_program("srun")} "$@"\n')
    step.chmod(0o755)
    for gpu in range(2):
        (folder / f"gpu{gpu}").touch()
    controller, *nodes = _free_ports(1 + len(_NODES))
    described = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4"
        " RealMemory=8000 Gres=gpu:2 State=UNKNOWN"
        for node, port in zip(_NODES, nodes, strict=True)
    )
    names = ",".join(_NODES)
    (folder / "gres.conf").write_text(
        f"AutoDetect=off\nNodeName={names} Name=gpu File={folder}/gpu[0-1]\n"
    )
    # MinJobAge is Slurm's own default: how long squeue knows a job that has ended.
    (folder / "slurm.conf").write_text(
        f"""ClusterName=railx
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU,CR_LLN
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
MinJobAge=300
SchedulerParameters=sched_min_interval=100000
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
{described}
PartitionName=all Nodes={names} Default=YES MaxTime=120 State=UP OverSubscribe=NO
"""
    )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
