"""Programs that the tests of this room write for other tools."""

from __future__ import annotations

from typing import Any

import numpy as np

from railx.exchange.chakra_messages import COLLECTIVES
from railx.fabric.circuits import Configuration
from railx.replay.programs import DOES, KINDS, Programs
from tests.replay.programs import ReplayedOperation, Step, from_steps

__all__ = ["collectives_alone", "job", "operation_rows", "rows", "said", "together"]

_COLLECTIVES = [KINDS.index(name) for name in COLLECTIVES]
#: Times in nanoseconds that no microsecond is a multiple of, to get them exactly back.
_SCALE = 1_337


def said(programs: Programs, seed: int, *, most_bytes: int = 2**40) -> Programs:
    """The programs with kinds and bytes, and longer times."""
    rng = np.random.default_rng(seed)
    columns = {name: values.copy() for name, values in programs.columns.items()}
    for name in ("gap_ns", "lasts_ns", "pickup_ns", "resume_ns"):
        columns[name] *= _SCALE
    operations: dict[tuple[int, int], tuple[int, int]] = {}
    for row in operation_rows(programs).tolist():
        key = int(columns["channel"][row]), int(columns["sequence"][row])
        kind = _COLLECTIVES[int(rng.integers(len(_COLLECTIVES)))]
        drawn = operations.setdefault(key, (kind, int(rng.integers(0, most_bytes))))
        if KINDS[columns["kind"][row]] not in ("send", "recv"):
            columns["kind"][row] = drawn[0]
        columns["bytes"][row] = drawn[1]
    return Programs.from_columns(columns, programs.channels, programs.configurations)


def together(programs: Programs) -> Programs:
    """The programs with ranks that begin together and threads that are never late."""
    columns = {name: values.copy() for name, values in programs.columns.items()}
    columns["pickup_ns"][:] = 0
    columns["alone"][:] = False
    columns["gap_ns"][columns["does"] == DOES.index("begin")] = 0
    return Programs.from_columns(columns, programs.channels, programs.configurations)


def operation_rows(programs: Programs) -> Any:
    """The rows that issue operations."""
    return np.flatnonzero(programs.columns["does"] == DOES.index("issue"))


def rows(programs: Programs) -> list[tuple[Any, ...]]:
    """All steps with channels and configurations themselves, not their numbers.

    What an operation is stands where it is issued.
    """
    columns = {name: values.tolist() for name, values in programs.columns.items()}
    columns["kind"] = [
        kind if DOES[does] == "issue" else -1
        for kind, does in zip(columns["kind"], columns["does"], strict=True)
    ]
    columns["channel"] = [
        None if number < 0 else programs.channels[number] for number in columns["channel"]
    ]
    columns["configuration"] = [
        None if number < 0 else programs.configurations[number]
        for number in columns["configuration"]
    ]
    return list(zip(*columns.values(), strict=True))


def job(
    gaps: tuple[int, int, int, int] = (0, 0, 0, 0), kind: str = "all_gather", size: int = 1000
) -> Programs:
    """Two ranks: they compute, exchange in the background, compute on, and wait."""
    operation = ReplayedOperation(
        ("0,1:data", 0), Configuration("ring", (0, 1)), {0: 2_500, 1: 2_500}, kind=kind
    )
    own = [
        Step(0, "begin", gaps[0]),
        Step(0, "issue", gaps[1], operation),
        Step(0, "wait", gaps[2], operation),
        Step(0, "end", gaps[3]),
    ]
    programs = from_steps({0: own, 1: own})
    programs.columns["bytes"][operation_rows(programs)] = size
    return programs


def collectives_alone(steps: dict[int, list[Any]], seed: int) -> Programs:
    """The first iteration without messages, which a graph does not wait to send."""
    kept = {
        rank: [
            step
            for step in own
            if step.iteration == 0
            and (step.operation is None or step.operation.configuration.kind == "ring")
        ]
        for rank, own in steps.items()
    }
    return together(said(from_steps(kept), seed))
