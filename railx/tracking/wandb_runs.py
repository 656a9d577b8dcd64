"""Stage results as W&B runs, offline unless the settings say otherwise.

An offline run cannot be asked what it holds, so a ledger in the results folder maps
result keys to run folders. The id of a run follows from its result: a run that is
logged or synced twice stays one run on the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from railx.io import read_json, write_json
from railx.tracking.results import StageResult, numbers
from railx.tracking.settings import TrackingSettings

__all__ = ["LEDGER_SCHEMA", "log_to_wandb"]

LEDGER_SCHEMA = "railx.wandb_ledger/1"


def log_to_wandb(
    results: Sequence[StageResult],
    settings: TrackingSettings,
    folder: Path,
    experiment: str,
    invocation: str,
    tags: Mapping[str, str],
) -> dict[str, tuple[str, bool]]:
    """Log what the ledger lacks, grouped by ``invocation``.

    Returns the run id by result key, and whether it was found. Runs stand in
    ``folder``/wandb. Raises RuntimeError where online mode has no login.
    """
    ledger_path = folder / "wandb" / "ledger.json"
    ledger = _read_ledger(ledger_path)
    runs: dict[str, dict[str, Any]] = ledger["runs"]
    missing = [result for result in results if _entry(experiment, result) not in runs]
    logged = {
        result.key: (str(runs[_entry(experiment, result)]["run"]), True)
        for result in results
        if result not in missing
    }
    if missing:
        with _session(settings, folder) as wandb:
            for result in missing:
                if result.key in logged:
                    continue
                entry = _log_one(wandb, result, settings, folder, experiment, invocation, tags)
                runs[_entry(experiment, result)] = entry
                write_json(ledger_path, ledger)
                logged[result.key] = (entry["run"], False)
    return logged


def _entry(experiment: str, result: StageResult) -> str:
    return f"{experiment}/{result.title}@{result.digest}"


def _read_ledger(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"schema": LEDGER_SCHEMA, "runs": {}}
    ledger: dict[str, Any] = read_json(path)
    if ledger.get("schema") != LEDGER_SCHEMA:
        raise ValueError(f"{path}: schema is {ledger.get('schema')!r}; allowed: {LEDGER_SCHEMA}")
    return ledger


@contextmanager
def _session(settings: TrackingSettings, folder: Path) -> Iterator[Any]:
    """The wandb module with its service.

    All runs share the service; it ends with the block.
    """
    quiet = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"}
    if settings.wandb == "offline":
        # Nothing of an offline run belongs outside the results folder.
        places = {
            f"WANDB_{kind}_DIR": str((folder / "wandb" / kind.lower()).resolve())
            for kind in ("CACHE", "CONFIG", "DATA")
        }
        quiet |= {"WANDB_MODE": "offline", **places}
    before = {key: os.environ.get(key) for key in quiet}
    os.environ.update(quiet)
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    import wandb

    try:
        yield wandb
    finally:
        wandb.teardown()
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _log_one(
    wandb: Any,
    result: StageResult,
    settings: TrackingSettings,
    folder: Path,
    experiment: str,
    invocation: str,
    tags: Mapping[str, str],
) -> dict[str, Any]:
    options = wandb.Settings(
        mode=settings.wandb,
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        host="local",
    )
    about = {
        "stage": result.stage,
        "name": result.name,
        "digest": result.digest,
        "fidelity": result.fidelity,
        **tags,
    }
    try:
        run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            dir=str(folder),
            id=f"{experiment}-{result.key}",
            name=result.title,
            group=invocation,
            job_type=result.stage,
            tags=[tag for tag in (experiment, result.stage, result.fidelity) if tag],
            config={"railx": about, **result.config},
            resume="allow" if settings.wandb == "online" else None,
            reinit="create_new",
            settings=options,
        )
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split())[:200]
        raise RuntimeError(
            f"tracking.wandb: {settings.wandb} run could not start ({reason}); log in with `wandb"
            " login` or use offline"
        ) from None
    run.log(numbers(result.metrics))
    place = Path(run.dir).parent
    run.finish()
    return {
        "run": run.id,
        "folder": place.name,
        "stage": result.stage,
        "name": result.name,
        "invocation": invocation,
    }
