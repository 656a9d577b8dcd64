"""Plans that take hours, kept as records of their groups and priced again when read.

A record is a line of JSON for each batch: the positions in the batch of the sequences
of each group, what the solver said, and digests of what the planner read. A batch whose
digests differ from today's is refused, with the input that changed. Times are not kept:
they are computed again from the groups.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from railx.io import write_text
from railx.planning.format.parts import refused
from railx.planning.format.plan import SequenceParallelBatch
from railx.planning.groups import micro_batch
from railx.planning.planner import PlannerBase, PlanningTask, assignment_of
from railx.settings import SettingsError, load, to_dict
from railx.workload.batches import SampledBatch

#: The inputs of a planner, in the words of an error.
_INPUTS = {
    "code": "the planner's code",
    "settings": "the planner's settings",
    "constants": "the cost model, devices or seed",
    "lengths": "the batch drawn from the corpus",
}


@dataclass(frozen=True)
class BatchRecord:
    """One planned batch."""

    batch: int
    """Its number, from 0."""
    inputs: dict[str, str]
    """Digests of ``code``, ``settings``, ``constants`` and ``lengths``."""
    micro_batches: list[list[list[int]]]
    """Per micro-batch and group: the degree, then positions in the batch."""
    solver: dict[str, Any]
    """What the plan file has of the solver."""
    predicted_ms: float
    """Predicted time when it was recorded, which reading computes again."""
    cpu_s: float
    """Processor seconds that planning took."""
    provenance: dict[str, Any]
    """Commit, date, processor and versions of solver packages."""


def digests(
    planner: PlannerBase, task: PlanningTask, batch: SampledBatch, code: str
) -> dict[str, str]:
    """Digests of what a planner reads of one batch; ``code`` is that of its code."""
    constants: dict[str, Any] = {"cost": to_dict(task.cost), "devices": task.devices}
    constants |= {"longest": task.max_length_tokens, "seed": task.seed}
    # The number of processes changes no plan.
    settings = {key: value for key, value in to_dict(planner).items() if key != "processes"}
    return {
        "code": code,
        "settings": _digest(settings),
        "constants": _digest(constants),
        "lengths": _digest([batch.sequences.tolist(), batch.lengths.tolist()]),
    }


def read_records(path: str | Path) -> dict[int, BatchRecord]:
    """The records of a plan's batches by number; PlanError names file and line."""
    records: dict[int, BatchRecord] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            record: BatchRecord = load(BatchRecord, json.loads(line))
        except (ValueError, SettingsError) as error:
            raise refused(f"{path}: line {number}", str(error), "a recorded batch") from None
        records[record.batch] = record
    return records


def write_records(path: str | Path, records: Mapping[int, BatchRecord]) -> None:
    """Write records in order, atomically."""
    lines = [json.dumps(asdict(records[batch]), separators=(",", ":")) for batch in sorted(records)]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def recorded(
    planner: PlannerBase, task: PlanningTask, path: str | Path, code: str
) -> tuple[SequenceParallelBatch, ...]:
    """The batches of a task as a file has them, priced by the task's cost model.

    PlanError for a batch that the file lacks, and for one planned from other inputs.
    """
    records, again = read_records(path), f"(python scripts/record_plans.py {Path(path).stem})"
    planned = []
    for number, batch in enumerate(task.batches):
        if number not in records:
            got = f"has {len(records)} batches, not batch {number}"
            raise refused(str(path), got, f"batches of at most as many {again}")
        record, today = records[number], digests(planner, task, batch, code)
        stale = [words for key, words in _INPUTS.items() if record.inputs.get(key) != today[key]]
        if stale:
            got = f"{' and '.join(stale)} changed since it was recorded"
            raise refused(f"{path}: batch {number}", got, f"a record of today's {again}")
        planned.append(_batch(record, batch, task))
    return tuple(planned)


def groups_of(planned: SequenceParallelBatch, batch: SampledBatch) -> list[list[list[int]]]:
    """The ``micro_batches`` of a record."""
    position = {int(row): index for index, row in enumerate(batch.sequences)}
    return [
        [[len(group.ranks), *(position[row] for row in group.sequences)] for group in part.groups]
        for part in planned.micro_batches
    ]


def _batch(record: BatchRecord, batch: SampledBatch, task: PlanningTask) -> SequenceParallelBatch:
    parts = []
    for groups in record.micro_batches:
        # Groups, and the sequences of each, in the order recorded.
        members = np.array([position for group in groups for position in group[1:]])
        place = itertools.count()
        assignment = assignment_of((group[0], [next(place) for _ in group[1:]]) for group in groups)
        sequences, lengths = batch.sequences[members], batch.lengths[members]
        parts.append(micro_batch(assignment, sequences, lengths, task.cost))
    return SequenceParallelBatch(record.batch, tuple(parts), dict(record.solver))


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
