"""Keep the records of a run on a GPU, with their provenance, in results/recorded."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path


def record(options: argparse.Namespace) -> int:
    """``record``: copy the records of OUT to RECORDED/NAME, checked."""
    from training.records import read_record

    paths = sorted((options.out / "steps").glob("*.json"))
    if not paths:
        raise ValueError(f"{options.out}: has no records; allowed: a folder that `run` wrote")
    records = [read_record(path) for path in paths]
    for one in records:
        if one.fidelity != "measured_gpu":
            raise ValueError(f"{one.step}: {one.fidelity}; allowed: records of a run on a GPU")
        if one.provenance.commit is None or one.provenance.commit.endswith("-dirty"):
            raise ValueError(
                f"{one.step}: commit: got {one.provenance.commit}; allowed: a folder made of"
                " committed code"
            )
    first = min(records, key=lambda one: one.provenance.started)
    named = f"{first.provenance.device_name} {first.provenance.started[:10]}"
    name = options.name or re.sub(r"[^a-z0-9]+", "_", named.lower()).strip("_")
    target = options.recorded / name
    if target.exists():
        raise ValueError(f"{target}: is there already; allowed: another --name")
    beside = Path(f"{target}.part")
    shutil.rmtree(beside, ignore_errors=True)
    (beside / "steps").mkdir(parents=True)
    for path in paths:
        shutil.copy(path, beside / "steps" / path.name)
    beside.rename(target)
    print(
        f"{target}: {len(paths)} records, {sum(one.status == 'passed' for one in records)} passed"
    )
    return 0
