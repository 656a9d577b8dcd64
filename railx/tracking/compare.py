"""Comparing two pipeline invocations from the MLflow store of a results folder.

No network is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.tracking.store import INVOCATION, NAME, STAGE, finished_runs, open_store

__all__ = ["compare_runs", "list_invocations"]

_MARK = f"{INVOCATION}/"


def list_invocations(folder: str | Path, experiment: str | None = None) -> list[dict[str, Any]]:
    """One row per invocation, oldest first.

    invocation, experiment, logged_utc (its first mark), runs, new (runs it added).
    Raises ValueError where nothing has been tracked in ``folder``, or not under
    ``experiment``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, run in _runs(Path(folder), experiment):
        for tag, mark in run.data.tags.items():
            if tag.startswith(_MARK):
                state, _, time = mark.partition(" ")
                invocation = tag[len(_MARK) :]
                row = rows.setdefault(
                    invocation,
                    {
                        "invocation": invocation,
                        "experiment": name,
                        "logged_utc": time,
                        "runs": 0,
                        "new": 0,
                    },
                )
                row["logged_utc"] = min(row["logged_utc"], time)
                row["runs"] += 1
                row["new"] += state == "new"
    return sorted(rows.values(), key=lambda row: row["logged_utc"])


def compare_runs(
    folder: str | Path,
    invocation_a: str = "previous",
    invocation_b: str = "latest",
    experiment: str | None = None,
) -> list[dict[str, Any]]:
    """One row per metric of both invocations.

    stage, name, metric, a, b, ratio (b over a; None where one is missing or a is 0).
    ``latest`` and ``previous`` stand for the last two invocations. Raises ValueError
    naming the invocations that there are.
    """
    known = [row["invocation"] for row in list_invocations(folder, experiment)]
    left, right = (_resolve(name, known) for name in (invocation_a, invocation_b))
    sides = [_metrics(Path(folder), experiment, invocation) for invocation in (left, right)]
    rows = []
    for stage, name, metric in sorted(set(sides[0]) | set(sides[1])):
        a, b = (side.get((stage, name, metric)) for side in sides)
        ratio = b / a if a and b is not None else None
        rows.append(
            {"stage": stage, "name": name, "metric": metric, "a": a, "b": b, "ratio": ratio}
        )
    return rows


def _resolve(name: str, known: list[str]) -> str:
    if name in known:
        return name
    place = {"latest": -1, "previous": -2}.get(name)
    if place is not None and len(known) >= -place:
        return known[place]
    raise ValueError(
        f"invocation: got {name!r}; allowed: {', '.join(known) or 'none yet'}, latest, previous (of"
        " two or more)"
    )


def _metrics(
    folder: Path, experiment: str | None, invocation: str
) -> dict[tuple[str, str, str], float]:
    values: dict[tuple[str, str, str], float] = {}
    for _, run in _runs(folder, experiment, f"tags.`{_MARK}{invocation}` LIKE '%'"):
        tags = run.data.tags
        for metric, value in run.data.metrics.items():
            values[tags.get(STAGE, ""), tags.get(NAME, ""), metric] = value
    return values


def _runs(folder: Path, experiment: str | None, condition: str = "") -> list[tuple[str, Any]]:
    client = open_store(folder, create=False)
    names = {found.experiment_id: found.name for found in client.search_experiments()}
    chosen = [
        identifier for identifier, name in names.items() if experiment is None or name == experiment
    ]
    if not chosen:
        raise ValueError(
            f"experiment: got {experiment!r}; allowed: {', '.join(sorted(names.values()))}"
        )
    return [
        (names[run.info.experiment_id], run) for run in finished_runs(client, chosen, condition)
    ]
