"""The provenance record of a job: code, config, inputs, outputs, time and machine.

A table depends on code, config and inputs only, so that two machines' tables can be
compared byte by byte; time and machine are in the record. Files whose digests are not
those of their record are damaged.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.places import CODE, shipped_name
from railx.provenance.machine import collect_provenance

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
            raise UserError(
                f"{path}: is damaged: {aside.stat().st_size} bytes with sha256 {digest[:12]}, its"
                f" job made {recorded[:12]}; it is set aside as {aside.name}, and the next run"
                " makes it anew"
            )


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
