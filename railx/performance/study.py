"""The model against every measured set: rows, errors by group, and a plain roofline.

Rows that a program's constants were fitted on are predicted by constants fitted without
them (``resources/performance/left_out.csv``), if there are such; ``basis`` says which
case a row is.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

import numpy as np

from railx.performance.programs import FITTED, Constants, constants_named
from railx.performance.validation import Case, constants_of, predict, read_set
from railx.places import SHIPPED
from railx.settings import Between, NotEmpty, SettingsError

__all__ = ["FIDELITY", "FILES", "ValidationSettings", "error_rows", "measured_rows"]

FIDELITY = "analytic"
#: The measured sets by name: files of ``resources/measured``.
FILES = {
    "vtrain_single": "vtrain_single.csv",
    "vtrain_multi": "vtrain_multi.csv",
    "selene": "megatron_selene_table5.csv",
    "selene_memory": "megatron_selene_memory.csv",
    "mosaic": "mosaic_fsdp.csv",
    "torchtitan": "torchtitan.csv",
    "nemo": "nemo_bridge_25_11.csv",
    "mlperf": "mlperf_gpt3_175b.csv",
}
#: How a row was predicted: by constants fitted without it, by constants of other sets,
#: or by constants that were fitted on it as well.
LEFT_OUT, OTHER_SETS, FITTED_ON = "left out of the fit", "fitted on other sets", "fitted on it"
_DEGREES = ("data", "tensor", "pipeline", "context", "expert")
_MEASURED = SHIPPED / "resources" / "measured"
_PERFORMANCE = SHIPPED / "resources" / "performance"


@dataclass(frozen=True)
class ValidationSettings:
    """Which measured sets the model of a step is held against."""

    sets: Annotated[tuple[str, ...], NotEmpty()] = tuple(FILES)
    """Names of the sets."""
    replayed_plans: Annotated[int, Between(1, 100_000)] = 40
    """Random plans whose closed form is held against their replay."""

    def __post_init__(self) -> None:
        for name in self.sets:
            if name not in FILES:
                raise SettingsError("sets", f"got {name}; allowed: {', '.join(FILES)}")


def measured_rows(settings: ValidationSettings) -> Iterator[dict[str, Any]]:
    """A row for every measured number of the sets.

    Columns: set, row (its place in the file), model, device, precision, recipe,
    devices, data, tensor, pipeline, context, expert, quantity (``seconds`` of a step or
    ``gib`` of a device), measured, ours, roofline (without constants; None of memory),
    error (ours over measured less 1), basis, fidelity.
    """
    for name in settings.sets:
        cases, constants, basis = _predicted_by(name)
        seconds, memory = predict(cases, constants)
        roofline, _ = predict(cases, [_roofline(case.program) for case in cases])
        for number, case in enumerate(cases):
            plan = case.plan
            head = {
                "set": name,
                "row": number,
                "model": case.model.name,
                "device": case.labels.get("device") or case.device,
                "precision": case.labels.get("precision") or case.precision,
                "recipe": case.recipe,
                "devices": plan.devices,
                **{axis: getattr(plan, axis) for axis in _DEGREES},
            }
            for quantity, measured, ours in (
                ("seconds", case.seconds, seconds[number]),
                ("gib", case.memory_gib, memory[number]),
            ):
                if measured is not None:
                    timed = quantity == "seconds"
                    yield {
                        **head,
                        "quantity": quantity,
                        "measured": measured,
                        "ours": float(ours),
                        "roofline": float(roofline[number]) if timed else None,
                        "error": float(ours) / measured - 1,
                        "basis": basis[number] if timed else OTHER_SETS,
                        "fidelity": FIDELITY,
                    }


def error_rows(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Errors of the rows by set, quantity and group.

    Groups: ``all``, each device and precision, and tensor parallelism of 16. Columns:
    set, quantity, group, rows, left_out (rows not fitted), mean_error (absolute and
    relative), median_ratio, worst_error, mean_error_roofline, fidelity. Errors are over
    the rows not fitted, or all where there are none.
    """
    keys = dict.fromkeys((row["set"], row["quantity"]) for row in rows)
    for name, quantity in keys:
        part = [row for row in rows if (row["set"], row["quantity"]) == (name, quantity)]
        groups = {"all": part}
        for column in ("device", "precision"):
            for value in dict.fromkeys(row[column] for row in part):
                groups[f"{column}: {value}"] = [row for row in part if row[column] == value]
        groups["tensor: 16"] = [row for row in part if row["tensor"] == 16]
        for group, members in groups.items():
            unseen = [row for row in members if row["basis"] != FITTED_ON]
            if not members:
                continue
            judged = unseen or members
            errors = np.abs([row["error"] for row in judged])
            plain = [row["roofline"] / row["measured"] - 1 for row in judged if row["roofline"]]
            yield {
                "set": name,
                "quantity": quantity,
                "group": group,
                "rows": len(members),
                "left_out": len(unseen),
                "mean_error": float(errors.mean()),
                "median_ratio": float(np.median([1 + row["error"] for row in judged])),
                "worst_error": float(errors.max()),
                "mean_error_roofline": float(np.abs(plain).mean()) if plain else None,
                "fidelity": FIDELITY,
            }


def _predicted_by(name: str) -> tuple[list[Case], list[Constants], list[str]]:
    """The cases of a set, the constants that predict each, and their basis."""
    file = FILES[name]
    kind, cases = read_set(_MEASURED / file)
    constants = constants_of(cases, kind.program)
    on_these = {one.name for one in constants if file in one.rows}
    basis = [FITTED_ON if one.name in on_these else OTHER_SETS for one in constants]
    for without, rows in _left_out(file):
        # Of several fits without a row, the one without the most rows decides.
        for number in rows:
            constants[number], basis[number] = without, LEFT_OUT
    return cases, constants, basis


@cache
def _left_out(file: str) -> tuple[tuple[Constants, tuple[int, ...]], ...]:
    """Fits without some rows of a file, those without fewer rows first."""
    path = _PERFORMANCE / "left_out.csv"
    with path.open(newline="", encoding="utf-8") as lines:
        table = [row for row in csv.DictReader(lines) if row["file"] == file]
    fits = []
    for row in table:
        values: dict[str, Any] = {name: float(row[name]) for name in FITTED}
        numbers = tuple(map(int, row["rows"].split()))
        fits.append((replace(constants_named(row["constants"]), **values), numbers))
    return tuple(sorted(fits, key=lambda one: len(one[1])))


@cache
def _roofline(program: str) -> Constants:
    """Every share at its peak, nothing launched: what a plain roofline says."""
    shares = {name: 1.0 for name in FITTED if name.endswith("_share")}
    none = {name: 0.0 for name in FITTED if not name.endswith("_share")}
    return Constants("roofline", "", program, **shares, **none)  # type: ignore[arg-type]
