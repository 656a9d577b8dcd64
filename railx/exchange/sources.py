"""Programs of ranks from a file of programs or from the trace of a run.

``railx steps --out`` writes programs. The electrical events of a recorded trace become
programs with the durations of the wall clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.exchange.program_walk import ISSUE
from railx.io import read_metadata, read_rows
from railx.replay.programs import KINDS, Programs, read_programs
from railx.replay.recording import recorded_programs


def read_source(path: Path) -> Programs | list[dict[str, Any]]:
    """The programs or the events that a file holds; ValueError where it is neither."""
    try:
        metadata = read_metadata(path)
    except FileNotFoundError:
        raise UserError(f"got {path}: no such file; allowed: a trace or programs") from None
    except (OSError, ValueError):
        metadata = None
    if metadata is not None:
        if "configurations" in metadata:
            return read_programs(path)
        rows = read_rows(path)
        if rows and {"rank", "kind", "group", "channel", "sequence", "issued_ns"} <= set(rows[0]):
            return rows
    raise UserError(
        f"got {path}, which is neither; allowed: a trace (trace.parquet of a run) or programs"
        " (railx steps --out)"
    )


def programs_of(path: Path) -> Programs:
    """The programs of a file, or those of the trace in it."""
    source = read_source(path)
    programs = source if isinstance(source, Programs) else _recorded(path, source)
    issues = programs.columns["does"] == ISSUE
    if (programs.columns["kind"][issues] < 0).any():
        raise UserError(f"got {path} with operations of no kind; allowed: {', '.join(KINDS)}")
    return programs


def _recorded(path: Path, events: list[dict[str, Any]]) -> Programs:
    """The programs of a recording's electrical part, with kinds and bytes."""
    electrical = [event for event in events if event.get("mode", "electrical") == "electrical"]
    if not electrical:
        raise UserError(f"got {path} with no electrical events; allowed: a trace that has some")
    programs = recorded_programs(electrical)
    said = {
        (event["rank"], f"{event['group']}:{event['channel']}", event["sequence"]): event
        for event in electrical
        if event["kind"] in KINDS
    }
    columns = {name: values.copy() for name, values in programs.columns.items()}
    for row in np.flatnonzero(columns["does"] == ISSUE).tolist():
        key = programs.channels[columns["channel"][row]]
        event = said[int(columns["rank"][row]), key, int(columns["sequence"][row])]
        columns["kind"][row] = KINDS.index(event["kind"])
        columns["bytes"][row] = event["bytes"]
    return Programs.from_columns(columns, programs.channels, programs.configurations)
