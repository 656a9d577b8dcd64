"""The provenance record of a job: code, config, inputs, outputs, time and machine.

A table depends on code, config and inputs only, so that two machines' tables can be
compared byte by byte; time and machine are in the record. Files whose digests are not
those of their record are damaged.

Of the machine: commit, versions and hardware, no names of people, machines or folders.
Only the standard library is used, so that a bare GPU node can record the same.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import CODE, shipped_name

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
        "created_utc": now_utc(),
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
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    gpus = []
    for line in (_output(["nvidia-smi", *query]) or "").splitlines():
        name, memory, driver = (part.strip() for part in (*line.split(","), "", "")[:3])
        # nvidia-smi counts in MiB.
        number = memory.replace(".", "", 1).isdigit()
        memory_gb = round(float(memory) * 2**20 / 1e9, 1) if number else None
        gpus.append({"name": name, "memory_gb": memory_gb, "driver": driver or None})
    return gpus


JOB_SCHEMA = "railx.provenance/2"

_MACHINE = ("python", "system", "machine", "cpu", "cores", "memory_gb", "gpus")


def job_record(
    *,
    stage: str,
    item: str,
    code: str,
    packages: Mapping[str, str],
    settings: Any,
    inputs: Iterable[str | Path],
    outputs: Iterable[str | Path],
    started_utc: str,
    load_before: float | None,
    repository: str | Path = CODE,
) -> dict[str, Any]:
    """The record of a job that has just ended, as plain JSON data.

    Keys: ``schema``, ``stage``, ``item``, ``started_utc``, ``ended_utc``, ``commit``
    and ``dirty`` (None without git), ``code`` (digest), ``config`` (SHA-256 of the
    settings), ``inputs`` and ``outputs`` (SHA-256 by path; a file outside the working
    folder by its name, a shipped file by its path in the checkout), ``packages``
    (versions of those that the stage imports), ``lock`` (SHA-256 of requirements.lock,
    None without one), ``load`` (one-minute load average ``before`` and ``after``), and
    the machine's keys of
    :func:`~railx.provenance.collect_provenance`. Raises OSError for a file that cannot
    be read.
    """
    # The caller passes the versions of the stage's packages.
    about = collect_provenance(repository, packages=())
    lock = Path(repository) / "requirements.lock"
    return {
        "schema": JOB_SCHEMA,
        "stage": stage,
        "item": item,
        "started_utc": started_utc,
        "ended_utc": now_utc(),
        "commit": about["commit"],
        "dirty": about["dirty"],
        "code": code,
        "config": settings_digest(settings),
        "inputs": file_digests(inputs),
        "outputs": file_digests(outputs),
        "packages": dict(packages),
        "lock": digest_of(lock) if lock.is_file() else None,
        "load": {"before": load_before, "after": load_average()},
        **{key: about[key] for key in _MACHINE},
    }


def digest_of(path: str | Path) -> str:
    """SHA-256 (hexadecimal) of a file, or of the files of a folder with their names."""
    source, digest = Path(path), hashlib.sha256()
    if source.is_dir():
        for inner in sorted(path for path in source.rglob("*") if path.is_file()):
            digest.update(f"{inner.relative_to(source)}\0{digest_of(inner)}\0".encode())
        return digest.hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_average() -> float | None:
    """The load average of the last minute; None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def now_utc() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def settings_digest(settings: Any) -> str:
    """SHA-256 (hexadecimal) of a job's settings, plain data."""
    plain = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(plain.encode()).hexdigest()


def file_digests(paths: Iterable[str | Path]) -> dict[str, str]:
    """SHA-256 of files and folders by their names in a record, sorted."""
    digests = {}
    for path in paths:
        source = Path(path)
        digests[shipped_name(source)] = digest_of(source)
    return dict(sorted(digests.items()))


#: Suffix of a damaged result that was renamed.
DAMAGED = ".damaged"


def check_intact(files: Iterable[str | Path], results: Path) -> None:
    """Compare files below ``results`` with the records of their jobs.

    A file that differs is renamed to FILE.damaged, so that the next run rebuilds it.
    ValueError names the first. Files without a record are accepted.
    """
    for file in files:
        path = Path(file)
        recorded = _recorded(path, results)
        if recorded is None or not path.is_file():
            continue
        digest = digest_of(path)
        if digest != recorded:
            aside = path.with_name(path.name + DAMAGED)
            path.replace(aside)
            there = f"{aside.stat().st_size} bytes with sha256 {digest[:12]}"
            next_run = f"it is set aside as {aside.name}, and the next run makes it anew"
            made = f"its job made {recorded[:12]}"
            raise UserError(f"{path}: is damaged: {there}, {made}; {next_run}")


def _recorded(path: Path, results: Path) -> str | None:
    """The digest in the record of a file's job; None without a record."""
    try:
        stage, *inner = path.relative_to(results).parts
    except ValueError:
        return None
    records = results / "provenance"
    likely = [records / f"{stage}.json"]
    if inner:
        likely += [records / stage / f"{name}.json" for name in (inner[0], Path(inner[0]).stem)]
    for record in likely:
        try:
            outputs = json.loads(record.read_text(encoding="utf-8"))["outputs"]
        except (OSError, ValueError, KeyError):
            continue
        for name in (path.as_posix(), path.name):
            if isinstance(outputs, dict) and name in outputs:
                return str(outputs[name])
    return None
