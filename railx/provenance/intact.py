"""Integrity of results: digests of files against the records of their jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from railx.errors import UserError
from railx.provenance.jobs import digest_of

__all__ = ["DAMAGED", "check_intact"]

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
