"""Stage results as W&B runs, offline unless the settings say otherwise.

A W&B run is in one group, its invocation. A result that an earlier invocation had
logged is therefore logged again in the new group, whole, with a link to its first run:
two groups are then two whole runs of the pipeline. The id of a run follows from its
result and invocation: a run that is logged or uploaded twice stays one run.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from railx.io import write_json
from railx.tracking.ledger import Ledger
from railx.tracking.results import (
    RECORD,
    Curve,
    Invocation,
    StageResult,
    numbers,
    table_json,
    verdict_counts,
)
from railx.tracking.settings import TrackingSettings
from railx.tracking.store import INVOCATION_STAGE
from railx.tracking.views import logged_names, write_views

#: W&B's own limit on a tag.
_TAG_CHARACTERS = 64
#: Characters of a run's id before its digest, of the 128 that W&B takes.
_ID_CHARACTERS = 60
#: Environment variables of folders of the service, not of a run.
_SERVICE_FOLDERS = ("CACHE", "CONFIG", "DATA")


def first_wandb_runs(
    results: Sequence[StageResult], folder: Path, experiment: str, but: str = ""
) -> dict[str, str]:
    """The ledger's first run of each result by its key, but for invocation ``but``."""
    keys = {result.key for result in results}
    first: dict[str, str] = {}
    for line in Ledger(folder).runs():
        if line["experiment"] == experiment and line["key"] in keys and line["invocation"] != but:
            first.setdefault(str(line["key"]), str(line["run"]))
    return first


def log_to_wandb(
    results: Sequence[StageResult],
    settings: TrackingSettings,
    folder: Path,
    invocation: Invocation,
    record: Mapping[str, Any],
) -> dict[str, tuple[str, bool]]:
    """Log an invocation as a group, except the runs in the ledger.

    Returns the run id by result key, and whether an earlier invocation had logged it.
    Runs are in ``folder``/wandb. Raises RuntimeError where online mode has no login.
    """
    ledger = Ledger(folder)
    done = {str(line["run"]) for line in ledger.runs()}
    first = first_wandb_runs(results, folder, invocation.experiment, invocation.name)
    runs = {result.key: _run_id(invocation, result.key, result.title) for result in results}
    missing = [result for result in results if runs[result.key] not in done]
    above = _run_id(invocation, "", INVOCATION_STAGE)
    if missing or above not in done:
        with wandb_session(settings.wandb == "offline", folder) as wandb:
            start = partial(_start, wandb, settings, folder, invocation)
            for result in missing:
                run = start(
                    id=runs[result.key],
                    name=f"{result.title} {invocation.name}",
                    job_type=result.stage,
                    tags=_tags(result, invocation),
                    config=_config(result, invocation, first.get(result.key)),
                )
                _log(wandb, run, result, settings, invocation)
                ledger.add(_finish(run, invocation, result.key, result.stage, result.name))
            if above not in done:
                name = invocation.name
                about = {"stage": INVOCATION_STAGE, "name": name, "invocation": name}
                run = start(
                    id=above,
                    name=name,
                    job_type=INVOCATION_STAGE,
                    tags=[invocation.experiment, INVOCATION_STAGE],
                    config={"railx": about | dict(invocation.tags), **invocation.config},
                )
                _log_invocation(run, results, len(set(runs) - set(first)), record)
                ledger.add(_finish(run, invocation, "", INVOCATION_STAGE, invocation.name))
    shown = [file for result in results for file in _shown(result, settings)]
    media = [key for key, path in shown if path.suffix != ".parquet"]
    groups = [
        str(line["invocation"])
        for line in ledger.runs()
        if line["stage"] == INVOCATION_STAGE and line["experiment"] == invocation.experiment
    ]
    write_views(
        folder / "wandb" / f"{invocation.experiment}.views.json",
        settings,
        invocation.experiment,
        logged_names(results, media),
        # Compares the last two invocations of the experiment.
        groups[-2:],
    )
    return {result.key: (runs[result.key], result.key in first) for result in results}


def _run_id(invocation: Invocation, key: str, title: str) -> str:
    """The id of a run, which names its folder: stage and item, then a digest."""
    about = re.sub(r"[^A-Za-z0-9_]+", "-", f"{invocation.experiment}-{title}")
    return f"{about[:_ID_CHARACTERS]}-{invocation.run_id(key)[:12]}"


@contextmanager
def wandb_session(offline: bool, folder: Path) -> Iterator[Any]:
    """The wandb module with its service, which all runs share and the block ends."""
    quiet = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"}
    if offline:
        # Nothing of an offline run belongs outside the results folder.
        places = {
            f"WANDB_{kind}_DIR": str((folder / "wandb" / kind.lower()).resolve())
            for kind in _SERVICE_FOLDERS
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


def _tags(result: StageResult, invocation: Invocation) -> list[str]:
    words = [invocation.experiment, result.stage, *([result.fidelity] if result.fidelity else [])]
    for row in result.verdicts:
        verdict = f": {row['verdict']}"
        words.append(str(row["claim"])[: _TAG_CHARACTERS - len(verdict)] + verdict)
    return list(dict.fromkeys(words))


def _config(result: StageResult, invocation: Invocation, first: str | None) -> dict[str, Any]:
    about = {
        **{key: getattr(result, key) for key in ("stage", "name", "digest", "key", "fidelity")},
        "result": result.title,
        "invocation": invocation.name,
        "first_run": first,
        "inputs": dict(result.inputs),
        "outputs": dict(result.outputs),
        **invocation.tags,
    }
    return {"railx": about, **result.config}


def _start(
    wandb: Any, settings: TrackingSettings, folder: Path, invocation: Invocation, **about: Any
) -> Any:
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
    try:
        return wandb.init(
            project=settings.project,
            entity=settings.entity,
            dir=str(folder),
            group=invocation.name,
            resume="allow" if settings.wandb == "online" else None,
            reinit="create_new",
            settings=options,
            **about,
        )
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split())[:200]
        got = f"tracking.wandb: {settings.wandb} run could not start ({reason})"
        raise RuntimeError(f"{got}; log in with `wandb login` or use offline") from None


def _log(
    wandb: Any, run: Any, result: StageResult, settings: TrackingSettings, invocation: Invocation
) -> None:
    """History, media, numbers and the digests of the files, in this order."""
    for row in _rows(run, result.curves):
        run.log(row)
    media = _media(wandb, result, settings)
    if media:
        run.log(media)
    job = {"job": dict(result.job)} if result.job else {}
    run.summary.update(_nested(numbers(result.metrics)) | job | _verdicts(result.verdicts))
    if result.outputs:
        artifact = wandb.Artifact(
            f"{invocation.experiment}.{result.stage}.{result.name}",
            "result",
            metadata={"digest": result.digest, "inputs": dict(result.inputs)},
        )
        for path, digest in result.outputs.items():
            # A digest in place of an address: the same contents are the same version.
            artifact.add_reference(f"sha256://{digest}", name=Path(path).name, checksum=False)
        run.log_artifact(artifact)


def _rows(run: Any, curves: Sequence[Curve]) -> Iterator[dict[str, float]]:
    """One row of W&B's history per step, with the curves that count by the same."""
    rows: dict[str, dict[float, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for step in dict.fromkeys(curve.step for curve in curves):
        run.define_metric(step)
    for curve in curves:
        run.define_metric(curve.name, step_metric=curve.step)
        for at, value in curve.points:
            rows[curve.step][at] |= {curve.step: at, curve.name: value}
    for steps in rows.values():
        for _, row in sorted(steps.items()):
            yield row


def _media(wandb: Any, result: StageResult, settings: TrackingSettings) -> dict[str, Any]:
    media: dict[str, Any] = {}
    for key, path in _shown(result, settings):
        if path.suffix == ".png":
            media[key] = wandb.Image(str(path))
        elif path.suffix == ".html":
            media[key] = wandb.Html(str(path), inject=False)
        elif (table := table_json(path, settings.table_rows)) is not None:
            media[key] = wandb.Table(**table, allow_mixed_types=True)
    return media


def _shown(result: StageResult, settings: TrackingSettings) -> Iterator[tuple[str, Path]]:
    """The files that W&B shows, by the key of their panel."""
    folders = {".png": "figures", ".html": "pages", ".parquet": "tables"}
    for path in result.artifacts:
        if path.suffix in folders and path.stat().st_size <= settings.artifact_limit_mb * 1e6:
            yield f"{folders[path.suffix]}/{path.stem}", path


def _nested(values: Mapping[str, float]) -> dict[str, Any]:
    """Dotted names as nested mappings, which W&B shows with dots again."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        node = nested
        for part in path:
            inner = node.setdefault(part, {})
            if not isinstance(inner, dict):
                # The prefix is a number already: the rest stays one word.
                node[name] = value
                break
            node = inner
        else:
            node[last] = value
    return nested


def _verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"verdicts": {str(row["claim"]): str(row["verdict"]) for row in rows}} if rows else {}


def _log_invocation(
    run: Any, results: Sequence[StageResult], new: int, record: Mapping[str, Any]
) -> None:
    verdicts = [row for result in results for row in result.verdicts]
    counts: dict[str, Any] = {"results": len(results), "new_results": new}
    counts["verdict_counts"] = verdict_counts(verdicts)
    run.summary.update(counts | _verdicts(verdicts))
    # A file of the run's own folder: it is uploaded from there and moves with it.
    write_json(Path(run.dir) / RECORD, record)
    run.save(str(Path(run.dir) / RECORD), base_path=run.dir, policy="now")


def _finish(run: Any, invocation: Invocation, key: str, stage: str, name: str) -> dict[str, Any]:
    run_folder = Path(run.dir).parent
    run.finish()
    return {
        "run": run.id,
        "experiment": invocation.experiment,
        "key": key,
        "folder": run_folder.name,
        "stage": stage,
        "name": name,
        "invocation": invocation.name,
    }
