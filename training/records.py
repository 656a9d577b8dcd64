"""Records of measurements on one GPU, written by a step of ``scripts/gpu``.

A record is one JSON object, checked by :func:`read_record`: provenance, checks
(expected and measured values) and measurements. Tables of recorded runs contain records
only. Needs no torch, so that a pipeline can read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from railx.io import Fidelity, read_json
from railx.settings import AtLeast, NonNegative, NotEmpty, SettingsError, load

SCHEMA = "railx.gpu_step/1"

#: How a step can end. ``wrong``: a check did not hold; ``failed``: it ended in an
#: error; ``cut off``: its call was over, and the next call takes it again.
Status = Literal["passed", "wrong", "skipped", "failed", "too long", "cut off"]

Relation = Literal["equal", "at_most", "at_least"]


def holds(value: float, relation: Relation, expected: float) -> bool:
    """Whether ``value`` has the ``relation`` to ``expected``."""
    if relation == "equal":
        return value == expected
    return value <= expected if relation == "at_most" else value >= expected


@dataclass(frozen=True)
class Check:
    """Something that must hold, or a goal."""

    name: Annotated[str, NotEmpty()]
    """What is looked at, in words with underscores."""
    subject: str
    """Of which run, kernel, rank or point; empty where the step has one."""
    found: float | None
    """The number; null where this device cannot tell it (memory on a CPU)."""
    relation: Relation
    """The relation of the number to the expected one."""
    expected: float
    unit: str
    """The unit of both; empty for counts and shares."""
    passed: bool | None
    """Whether it holds; null where nothing was found."""
    goal: bool
    """A goal that is missed does not make the step wrong."""
    fidelity: Fidelity

    def __post_init__(self) -> None:
        right = None if self.found is None else holds(self.found, self.relation, self.expected)
        if self.passed != right:
            raise SettingsError(
                "passed",
                f"got {self.passed} for {self.found} {self.relation} {self.expected}; allowed:"
                f" {right}",
            )


@dataclass(frozen=True)
class Measurement:
    """One measured number."""

    name: Annotated[str, NotEmpty()]
    """What it is, in words with underscores, without the unit."""
    subject: str
    """Of which model, run, mode or stage."""
    sample: str
    """The repeat, iteration or point; empty where there is one number."""
    value: float
    unit: str
    """Its unit; empty for counts and shares."""
    fidelity: Fidelity

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise SettingsError("value", f"got {self.value}; allowed: a finite number")


@dataclass(frozen=True)
class Provenance:
    """What ran where; null where this machine does not say it."""

    commit: str | None
    """Commit of the code, with ``-dirty`` where it had changes."""
    device: Literal["cpu", "cuda"]
    device_name: Annotated[str, NotEmpty()]
    driver: str | None
    cuda: str | None
    """Version of CUDA that torch was built for."""
    nccl: str | None
    torch: Annotated[str, NotEmpty()]
    python: Annotated[str, NotEmpty()]
    cores: Annotated[int, AtLeast(1)]
    seed: int | None
    command: Annotated[str, NotEmpty()]
    """The command that took the step."""
    started: Annotated[str, NotEmpty()]
    """When, in UTC (ISO 8601)."""


@dataclass(frozen=True)
class StepRecord:
    """The record of one step, the content of its file."""

    schema: Literal["railx.gpu_step/1"]
    """Version of this form."""
    step: Annotated[str, NotEmpty()]
    part: Annotated[int, AtLeast(1)]
    """The call that it belongs to."""
    status: Status
    why: str
    """The reason where it did not pass; empty otherwise."""
    seconds: Annotated[float, NonNegative()]
    """How long it took, by the wall clock."""
    fidelity: Literal["measured_cpu", "measured_gpu"]
    """measured_cpu: a dry run, which says nothing about a GPU."""
    provenance: Provenance
    checks: tuple[Check, ...]
    """What was expected and found; a step that was taken to its end has one or more."""
    measurements: tuple[Measurement, ...]
    details: dict[str, Any] = field(default_factory=dict)
    """Whatever else the step wants to keep; no table reads it."""

    def __post_init__(self) -> None:
        dry = self.fidelity == "measured_cpu"
        if dry != (self.provenance.device == "cpu"):
            raise SettingsError(
                "fidelity", f"got {self.fidelity} on {self.provenance.device}; allowed: the same"
            )
        if self.status in ("passed", "wrong"):
            if not self.checks:
                raise SettingsError("checks", "got none; allowed: at least one where it was taken")
            right = "wrong" if self.missed() else "passed"
            if self.status != right:
                raise SettingsError("status", f"got {self.status}; allowed by the checks: {right}")
        elif not self.why:
            raise SettingsError("why", f"is missing; allowed: the reason for {self.status}")
        entries: list[Check | Measurement] = [*self.checks, *self.measurements]
        for entry in entries:
            if dry and entry.fidelity == "measured_gpu":
                raise SettingsError(
                    "fidelity", f"got measured_gpu for {entry.name}; allowed: nothing of it here"
                )

    def missed(self) -> list[Check]:
        """The checks that do not hold, goals aside."""
        return [check for check in self.checks if check.passed is False and not check.goal]


def read_record(path: str | Path) -> StepRecord:
    """The record in a file; SettingsError, one line with file and key: it is none."""
    plain: Mapping[str, Any] = read_json(path)
    record: StepRecord = load(StepRecord, plain, Path(path).name)
    return record
