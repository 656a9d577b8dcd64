"""Results that were copied into this folder without Snakemake's notes about them.

Snakemake keeps what its jobs were made of in ``.snakemake``, by which it knows changed
settings and code. Where that folder did not come along, the record beside the results
(:mod:`railx.provenance.jobs`) decides instead: a job whose code, packages, settings,
inputs and outputs are those of its record is up to date, any other is made again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The order of Snakemake's own imports is a circle for any other first module.
import snakemake.api  # noqa: F401
from snakemake.dag import DAG

from railx.provenance.jobs import JOB_SCHEMA, file_digests, settings_digest
from workflow.stages import STAGES

_update_needrun = DAG.update_needrun


def find_carried() -> None:
    """Let Snakemake's runs in this process look for carried results first."""
    DAG.update_needrun = _update_with_records


def is_current(
    record: Mapping[str, Any],
    *,
    stage: str,
    item: str,
    code: Mapping[str, Any],
    settings: Any,
    inputs: list[str],
    outputs: list[str],
) -> bool:
    """Whether a job would make the files again that its ``record`` describes.

    ``code`` has ``digest`` and ``packages``, as a rule's params; ``inputs`` and
    ``outputs`` are paths, read only where the rest agrees. Raises OSError for a file
    that is not there.
    """
    expected = {
        "schema": JOB_SCHEMA,
        "stage": stage,
        "item": item,
        "code": code["digest"],
        "packages": code["packages"],
        "config": settings_digest(settings),
    }
    return (
        all(record.get(key) == value for key, value in expected.items())
        and record.get("inputs") == file_digests(inputs)
        and record.get("outputs") == file_digests(outputs)
    )


async def _update_with_records(dag: Any, create_inventory: bool = False) -> None:
    if create_inventory and dag.workflow.is_main_process:
        await _note_carried(dag)
    await _update_needrun(dag, create_inventory)


async def _note_carried(dag: Any) -> None:
    """Note the current jobs as made; force the others, which nothing else knows."""
    persistence = dag.workflow.persistence
    current: list[Any] = []
    outdated: list[Any] = []
    for job in dag.jobs:
        if job.rule.name not in STAGES or persistence.has_metadata(job):
            continue
        if all(Path(path).exists() for path in job.output):
            (current if _is_current(job) else outdated).append(job)
    now = time.time()
    for job in current:
        # Files of a copy or a clone are as old as the copying made them.
        for path in job.output:
            os.utime(path, (now, now))
    for job in current:
        await persistence.finished(job)
    for job in outdated:
        dag.forcefiles.update(job.output)
    if current or outdated:
        again = f"; {len(outdated)} differ from theirs and are made again" if outdated else ""
        print(f"carried results: {len(current)} jobs are as recorded{again}", file=sys.stderr)


def _is_current(job: Any) -> bool:
    try:
        record = json.loads(Path(job.output.record).read_text(encoding="utf-8"))
        return isinstance(record, dict) and is_current(
            record,
            stage=job.rule.name,
            item=next(iter(job.wildcards), ""),
            code=job.params.code,
            settings=job.params.settings,
            inputs=list(map(str, job.input)),
            outputs=[str(path) for name, path in job.output.items() if name != "record"],
        )
    except (OSError, ValueError):
        return False
