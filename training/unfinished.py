"""The state of an unfinished run: its finished blocks and its last checkpoint.

The folder ``unfinished`` in the output folder stores them atomically, so that a killed
run loses no block and the same command continues it. ``run.json`` identifies the run.
After the results are written the folder is removed, and the last checkpoint stays as
``checkpoint``.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from railx.io import dotted_leaves, read_json, read_table, write_json, write_table
from railx.places import package_folder
from railx.settings import to_dict
from training.checkpoint import Checkpoint, newest_checkpoint
from training.settings import RunSettings

_FOLDER, _CHECKPOINT = "unfinished", "checkpoint"
#: Subfolders of a run with checkpoints, the latest first.
CHECKPOINT_FOLDERS = (_FOLDER, _CHECKPOINT)


class Unfinished:
    """The folder of one run; rank 0 writes to it."""

    def __init__(self, out: Path, identity: Mapping[str, Any]) -> None:
        self.out, self.folder, self.identity = out, out / _FOLDER, dict(identity)

    def difference(self) -> str | None:
        """The first difference between the stored run and this one, if any."""
        path = self.folder / "run.json"
        if not path.is_file():
            return None
        theirs = read_json(path)
        for key in sorted({*theirs, *self.identity}, key=lambda key: (key == "code", key)):
            if theirs.get(key) != self.identity.get(key):
                return f"{key} was {theirs.get(key)} and is {self.identity.get(key)}"
        return None

    def begin(self) -> None:
        """Create the folder; remove the state of another run."""
        path = self.folder / "run.json"
        if path.is_file() and self.difference() is None:
            return
        if self.folder.exists():
            shutil.rmtree(self.folder)
        write_json(path, self.identity)

    def keep(self, number: int, facts: Mapping[str, Any], trace: pa.Table | None) -> None:
        """Store a finished block."""
        self.begin()
        write_part(self._block(number), facts, trace)

    def blocks(self) -> Iterator[tuple[dict[str, Any], pa.Table | None]]:
        """The finished blocks of this run, in order."""
        if self.difference() is not None:
            return
        number = 0
        while (self._block(number) / "block.json").is_file():
            yield read_part(self._block(number))
            number += 1

    def checkpoint(self) -> Checkpoint | None:
        """The last complete checkpoint of this run, if any."""
        return newest_checkpoint(self.folder) if self.difference() is None else None

    def description(self) -> str:
        """The stored state as a sentence; "" where there is none."""
        blocks, last = sum(1 for _ in self.blocks()), self.checkpoint()
        if not blocks and last is None:
            return ""
        parts = [f"{blocks} finished block{'s' * (blocks != 1)}"]
        if last is not None:
            parts.append(f"a checkpoint of block {last.block + 1} after {last.step} steps")
        return f"{self.folder} keeps {' and '.join(parts)}; the same command goes on from there"

    def end(self) -> None:
        """Remove the state, except the last checkpoint; the results are written."""
        last, target = newest_checkpoint(self.folder), self.out / _CHECKPOINT
        if last is not None:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            last.folder.replace(target / last.folder.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _block(self, number: int) -> Path:
        return self.folder / f"block_{number:03d}"


def run_identity(settings: RunSettings, resumed: Checkpoint | None) -> dict[str, Any]:
    """The identity of a run, by dotted key: launches with the same one continue it.

    Settings, digests of plan, corpus, first checkpoint and code, and torch's version.
    """
    plain = to_dict(settings)
    for key in ("plan", "corpus"):
        plain[key] = hashlib.sha256(Path(plain[key]).read_bytes()).hexdigest()[:16]
    begun = None
    if resumed is not None:
        begun = hashlib.sha256((resumed.folder / "checkpoint.json").read_bytes()).hexdigest()[:16]
    further = {"resume": begun, "torch": torch.__version__, "code": _code()}
    return dict(dotted_leaves(plain)) | further


def write_part(folder: Path, facts: Mapping[str, Any], trace: pa.Table | None) -> None:
    """Write (part of) a block into a folder; block.json, written last, completes it."""
    if trace is not None:
        write_table(folder / "trace.parquet", trace)
    write_json(folder / "block.json", dict(facts))


def read_part(folder: Path) -> tuple[dict[str, Any], pa.Table | None]:
    """Read the files of :func:`write_part`."""
    trace = folder / "trace.parquet"
    return read_json(folder / "block.json"), read_table(trace) if trace.is_file() else None


def _code() -> str:
    """A digest of ``training`` and of the packages that it may import."""
    digest = hashlib.sha256()
    for name in ("railx", "railx_torch", "training"):
        folder = package_folder(name)
        for path in sorted(folder.rglob("*.py")):
            named = path.relative_to(folder.parent).as_posix()
            digest.update(named.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
