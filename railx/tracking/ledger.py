"""The ledger of W&B runs in a results folder: a line per logged or uploaded run.

Offline runs cannot be queried. Lines are appended under a lock, so that concurrent jobs
lose none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from railx.errors import UserError

_FILE = "ledger.jsonl"
_PATIENCE_S = 60.0


class Ledger:
    """The file ``folder``/wandb/ledger.jsonl.

    A line is a JSON object: ``run`` with ``experiment``, ``key``, ``folder``,
    ``stage``, ``name`` and ``invocation`` for a logged run, ``uploaded`` with a folder
    or a view for uploads. A partial line of a killed job is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "wandb" / _FILE

    def lines(self) -> list[dict[str, Any]]:
        """All lines, oldest first."""
        entries = []
        try:
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        except UnicodeDecodeError as error:
            got = f"{self._path}: byte {error.start} is no text"
            raise UserError(f"{got}; allowed: lines of JSON") from None
        for line in text.splitlines():
            with suppress(json.JSONDecodeError):
                entries.append(json.loads(line))
        return [line for line in entries if isinstance(line, dict)]

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line and make sure that it is on disk."""
        from filelock import FileLock

        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self._path.with_suffix(".lock"), timeout=_PATIENCE_S)
        with lock, self._path.open("ab") as file:
            # A new line first: a killed job may have left half of one.
            lead = b"\n" if self._half() else b""
            file.write(lead + json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _half(self) -> bool:
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def runs(self) -> list[dict[str, Any]]:
        """The lines of logged runs."""
        return [line for line in self.lines() if "run" in line]

    def uploaded(self) -> set[str]:
        """The folders and views that the server has."""
        return {str(line["uploaded"]) for line in self.lines() if "uploaded" in line}
