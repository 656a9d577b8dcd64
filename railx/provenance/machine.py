"""The commit, the versions and the hardware behind a run.

No names of people, machines or folders are recorded. Only the standard library is
used, so that a bare GPU node can record the same.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from railx.places import CODE

SCHEMA = "railx.provenance/1"

#: Packages whose version can change a result.
PACKAGES: tuple[str, ...] = (
    "duckdb", "hydra-core", "matplotlib", "mlflow", "numba", "numpy", "pandas",
    "pyarrow", "pyscipopt", "scipy", "seaborn", "snakemake", "torch", "wandb",
)  # fmt: skip

_PROJECT = "railx-lab"
_SECONDS = 10.0


def collect_provenance(
    repository: str | Path = CODE, packages: Iterable[str] = PACKAGES
) -> dict[str, Any]:
    """Commit, versions and hardware as plain JSON data.

    Keys: ``schema``, ``created_utc``, ``project`` (version), ``commit`` and ``dirty``
    (None where git or the history is missing), ``python``, ``system``, ``machine``,
    ``packages`` (name to version of those asked for, absent ones left out), ``cpu``,
    ``cores``, ``memory_gb`` (10^9 bytes), ``gpus`` (name, memory_gb, driver; empty
    without nvidia-smi).
    """
    commit, dirty = _commit(Path(repository))
    return {
        "schema": SCHEMA,
        "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "project": _version(_PROJECT),
        "commit": commit,
        "dirty": dirty,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": {name: version for name in packages if (version := _version(name)) is not None},
        "cpu": _processor(),
        "cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "memory_gb": _memory_gb(),
        "gpus": _gpus(),
    }


def _commit(repository: Path) -> tuple[str | None, bool | None]:
    """The commit and whether files differ from it.

    (None, None) where the folder is not itself the root of a repository.
    """
    root = _output(["git", "-C", str(repository), "rev-parse", "--show-toplevel"])
    if not root or Path(root).resolve() != repository.resolve():
        return None, None
    commit = _output(["git", "-C", str(repository), "rev-parse", "--verify", "HEAD"])
    status = _output(["git", "-C", str(repository), "status", "--porcelain"])
    return commit or None, None if not commit or status is None else bool(status)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _output(command: list[str]) -> str | None:
    """The stripped output of a command; None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    """The processor's model, as the kernel names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    return (
        _output(["sysctl", "-n", "machdep.cpu.brand_string"])
        or platform.processor()
        or platform.machine()
    )


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _gpus() -> list[dict[str, Any]]:
    listed = _output(
        [
            "nvidia-smi",
            "--query-gpu=name,memory.total,driver_version",
            "--format=csv,noheader,nounits",
        ]
    )
    gpus = []
    for line in (listed or "").splitlines():
        name, memory, driver = (part.strip() for part in (*line.split(","), "", "")[:3])
        # nvidia-smi counts in MiB.
        memory_gb = (
            round(float(memory) * 2**20 / 1e9, 1) if memory.replace(".", "", 1).isdigit() else None
        )
        gpus.append({"name": name, "memory_gb": memory_gb, "driver": driver or None})
    return gpus
