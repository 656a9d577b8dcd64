"""Uploading offline W&B runs, once.

A run is pending until wandb's mark is beside it; views are pending until the
ledger names them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.io import read_json
from railx.tracking.ledger import Ledger
from railx.tracking.views import VIEWS_SCHEMA, build_report, build_workspace

#: Runs in one call of wandb: a command line has a limited length.
_AT_ONCE = 100


def pending_runs(folder: str | Path) -> list[Path]:
    """The offline runs below ``folder``/wandb that were not uploaded, oldest first."""
    root = Path(folder) / "wandb"
    runs = sorted(root.glob("offline-run-*/run-*.wandb"))
    return [run.parent for run in runs if not run.with_suffix(".wandb.synced").exists()]


def pending_views(folder: str | Path) -> list[tuple[str, str, dict[str, Any]]]:
    """The views that the server does not have: their mark, kind and contents.

    A view that names other metrics or invocations than the last is a new one.
    """
    root, done = Path(folder), Ledger(Path(folder)).uploaded()
    runs = []
    for path in sorted((root / "wandb").glob("*.views.json")):
        views = read_json(path)
        if views.get("schema") != VIEWS_SCHEMA:
            raise UserError(f"{path}: schema is {views.get('schema')!r}; allowed: {VIEWS_SCHEMA}")
        for kind, of in (("workspace", ["names"]), ("report", ["names", "invocations"])):
            words = [views["project"], views["entity"], *(views[key] for key in of)]
            digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
            mark = f"{kind}:{views['experiment']}:{digest}"
            if mark not in done:
                runs.append((mark, kind, views))
    return runs


def sync(folder: str | Path) -> dict[str, int]:
    """Upload pending runs and views; return their numbers.

    Raises RuntimeError without a login, and where runs are pending still when wandb has
    ended.
    """
    runs, views = pending_runs(folder), pending_views(folder)
    if not runs and not views:
        return {"runs": 0, "views": 0}
    _check_login()
    ledger = Ledger(Path(folder))
    for start in range(0, len(runs), _AT_ONCE):
        _upload(runs[start : start + _AT_ONCE])
    left = set(pending_runs(folder))
    for run in runs:
        if run not in left:
            ledger.add({"uploaded": run.name})
    if left:
        missing = f"{len(left)} of {len(runs)} runs were not uploaded, the first is {min(left)}"
        raise RuntimeError(f"{missing}; call again, what has arrived is not sent twice")
    for mark, kind, contents in views:
        _save(kind, contents)
        ledger.add({"uploaded": mark})
    return {"runs": len(runs), "views": len(views)}


def _check_login() -> None:
    import wandb

    if not wandb.login(prompt=False):
        raise RuntimeError(
            "W&B: not logged in; run `wandb login` first, or set WANDB_API_KEY (nothing was sent)"
        )


def _upload(runs: Sequence[Path]) -> None:
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    command = [sys.executable, "-m", "wandb", "sync", *(str(run) for run in runs)]
    subprocess.run(command, check=False, env=environment, stdout=sys.stderr)


def _save(kind: str, views: Mapping[str, Any]) -> None:
    import wandb

    entity = views["entity"] or wandb.Api().default_entity
    build = build_workspace if kind == "workspace" else build_report
    build({**views, "entity": entity}).save()
