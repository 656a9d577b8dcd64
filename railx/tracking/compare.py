"""Comparing two pipeline invocations by their records.

The records are read from the MLflow store of a results folder, or from its offline W&B
runs where there is none. No network is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from railx.errors import UserError, allowed_names
from railx.io import dotted_leaves, read_json
from railx.tracking.ledger import Ledger
from railx.tracking.results import RECORD, RECORD_SCHEMA
from railx.tracking.store import (
    INVOCATION_STAGE,
    TAG,
    artifact_folder,
    finished_runs,
    open_store,
    store_address,
)

COMPARISON_SCHEMA = "railx.comparison/1"
#: Origins and stages whose numbers are times of one run, which differ from run to run.
_TIMED_FIDELITIES = ("emulated", "measured_cpu", "measured_gpu")
_TIMED_STAGES = ("training", "live", "profile", "replay")
#: What a verdict of an older run may be called now: in another word it did not flip.
_NEW_WORDS = {
    "partly": ("consistent", "direction only", "depends", "not reproduced"),
    "not attempted": ("not here", "not testable"),
}
#: In the older words nothing was consistent.
_OLD_REPRODUCED = ("reproduced", "consistent")
#: Numbers without an interval that differ by no more than this share are the same.
_SAME = 1e-12


@dataclass(frozen=True)
class _Logged:
    invocation: str
    experiment: str
    logged_utc: str
    runs: int
    new: int
    record: Path


def list_invocations(
    folder: str | Path, experiment: str | None = None, store: str | None = None
) -> list[dict[str, Any]]:
    """One row per invocation, oldest first.

    invocation, experiment, logged_utc, runs, new (results it was the first to log).
    ``store`` is the address of an MLflow store other than the folder's own. Raises
    ValueError where nothing has been tracked in ``folder``, or not under
    ``experiment``.
    """
    entries = _logged(Path(folder), experiment, store)
    return [{key: row for key, row in vars(entry).items() if key != "record"} for entry in entries]


def compare_invocations(
    folder: str | Path,
    invocation_a: str = "previous",
    invocation_b: str = "latest",
    experiment: str | None = None,
    store: str | None = None,
) -> dict[str, Any]:
    """What changed from one invocation to another, as plain JSON data.

    ``latest`` and ``previous`` are the last two invocations. Keys: ``schema``,
    ``a`` and ``b`` (invocation, experiment, logged_utc, commit), ``config`` (key, a,
    b), ``code`` (module, a, b, stages), ``packages`` (package, a, b), ``stages``
    (stage, name, state, because, a_seconds, b_seconds), ``numbers`` (stage, name,
    metric, a, b, ratio, a_low, a_high, b_low, b_high, timed, moved), ``verdicts``
    (claim, paper, a, b, a_ours, b_ours, published, flipped, reason). What a side lacks
    is None. ``state`` is ``same``, ``reran``, ``only in a`` or ``only in b``. A number
    ``moved`` where the intervals of both sides, or one side's interval and the other's
    value, lie apart; without intervals where it differs at all, unless it is a time of
    one run (``timed``), which says nothing alone. Verdicts of older runs are flipped
    where no word of today fits. Raises ValueError naming the invocations that there
    are.
    """
    logged = _logged(Path(folder), experiment, store)
    a, b = (_record(_resolve(name, logged).record) for name in (invocation_a, invocation_b))
    return {
        "schema": COMPARISON_SCHEMA,
        "a": _about(a),
        "b": _about(b),
        "config": _differing("key", *(dict(dotted_leaves(side["config"])) for side in (a, b))),
        "code": _code(a, b),
        "packages": _differing("package", a["packages"], b["packages"]),
        "stages": list(_stages(a, b)),
        "numbers": list(_numbers(a, b)),
        "verdicts": list(_verdicts(a, b)),
    }


def only_changed(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison without stages, numbers and verdicts that stayed as they were."""
    return {
        **comparison,
        "stages": [row for row in comparison["stages"] if row["state"] != "same"],
        "numbers": [row for row in comparison["numbers"] if row["moved"]],
        "verdicts": [row for row in comparison["verdicts"] if row["flipped"]],
    }


def _logged(folder: Path, experiment: str | None, store: str | None) -> list[_Logged]:
    entries = sorted(_everything(folder, store), key=lambda entry: entry.logged_utc)
    names = sorted({entry.experiment for entry in entries})
    if experiment is not None and entries and experiment not in names:
        allowed = allowed_names(experiment, names)
        raise UserError(f"experiment: got {experiment!r}; allowed: {allowed}")
    if not entries:
        allowed = "a results folder in which tracking has run"
        raise UserError(f"{folder}: no invocation was tracked to its end; allowed: {allowed}")
    return [entry for entry in entries if experiment in (None, entry.experiment)]


def _everything(folder: Path, store: str | None) -> Iterator[_Logged]:
    """The invocations of MLflow, and those of W&B alone."""
    lines = [line for line in Ledger(folder).runs() if line["stage"] == INVOCATION_STAGE]
    seen: set[str] = set()
    try:
        with _readable(folder, store):
            tracked = list(_in_mlflow(folder, store))
    except _NotReadable:
        raise
    except ValueError:
        if not lines or store is not None:
            raise
    else:
        seen = {entry.invocation for entry in tracked}
        yield from tracked
    for line in lines:
        path = folder / "wandb" / str(line["folder"]) / "files" / RECORD
        if line["invocation"] not in seen and path.exists():
            record = _record(path)
            yield _Logged(
                record["invocation"],
                record["experiment"],
                record["logged_utc"],
                len(record["results"]),
                sum(not result["found"] for result in record["results"]),
                path,
            )


def _in_mlflow(folder: Path, store: str | None) -> Iterator[_Logged]:
    client = open_store(folder, create=False, store=store)
    experiments = {entry.experiment_id: entry.name for entry in client.search_experiments()}
    condition = f"tags.`{TAG}stage` = '{INVOCATION_STAGE}'"
    for run in finished_runs(client, list(experiments), condition):
        tags = run.data.tags
        artifacts = artifact_folder(run.info.artifact_uri)
        if artifacts is not None:
            yield _Logged(
                tags[f"{TAG}invocation"],
                experiments[run.info.experiment_id],
                tags[f"{TAG}logged_utc"],
                int(tags[f"{TAG}results"]),
                int(tags[f"{TAG}new"]),
                artifacts / RECORD,
            )


class _NotReadable(UserError):
    """A store that its database cannot read."""


@contextmanager
def _readable(folder: Path, store: str | None) -> Iterator[None]:
    """Say in one line that the database of a store does not read it.

    The address of a server may hold a password, so only a file is named.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import DBAPIError

        if not isinstance(error, (DBAPIError, MlflowException)):
            raise
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        address = store_address(folder, store)
        if password := urlsplit(address).password:
            reason = reason.replace(password, "***")
        file = address.partition("sqlite:///")[2]
        allowed = "an MLflow store"
        what = f"{folder if store is None else '--store'}: a database"
        if file:
            allowed += " (remove the file: the next tracked run makes one)"
            what = f"{file}: a file"
        raise _NotReadable(f"{what} that cannot be read ({reason}); allowed: {allowed}") from None


def _resolve(name: str, logged: list[_Logged]) -> _Logged:
    for entry in logged:
        if entry.invocation == name:
            return entry
    index = {"latest": -1, "previous": -2}.get(name)
    if index is not None and len(logged) >= -index:
        return logged[index]
    allowed = f"{', '.join(entry.invocation for entry in logged)}, latest, previous"
    raise UserError(f"invocation: got {name!r}; allowed: {allowed} (of two or more)")


def _record(path: Path) -> dict[str, Any]:
    record = read_json(path)
    schema = record.get("schema") if isinstance(record, dict) else type(record).__name__
    if schema != RECORD_SCHEMA:
        raise UserError(f"{path}: schema is {schema!r}; allowed: {RECORD_SCHEMA}")
    return dict(record)


def _about(record: Mapping[str, Any]) -> dict[str, Any]:
    about = {key: record[key] for key in ("invocation", "experiment", "logged_utc")}
    return about | {"commit": record["tags"].get("commit")}


def _pairs(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Every key with both values, in the order of a; keys of b alone are last."""
    for key in [*a, *(key for key in b if key not in a)]:
        yield key, a.get(key), b.get(key)


def _differing(what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{what: key, "a": old, "b": new} for key, old, new in _pairs(a, b) if old != new]


def _code(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    users: dict[str, set[str]] = defaultdict(set)
    for result in (*a["results"], *b["results"]):
        for module in result["modules"]:
            users[module].add(result["stage"])
    rows = sorted(_differing("module", a["modules"], b["modules"]), key=itemgetter("module"))
    return [{**row, "stages": sorted(users[row["module"]])} for row in rows]


def _results(record: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(result["stage"], result["name"]): result for result in record["results"]}


def _stages(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for (stage, name), old, new in _pairs(_results(a), _results(b)):
        if old is None or new is None:
            state, because = "only in b" if old is None else "only in a", []
        else:
            because = _because(a, b, old, new)
            state = "reran" if because else "same"
        yield {
            "stage": stage,
            "name": name,
            "state": state,
            "because": because,
            "a_seconds": old["job"].get("seconds") if old else None,
            "b_seconds": new["job"].get("seconds") if new else None,
        }


def _because(
    a: Mapping[str, Any], b: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[str]:
    """Why a result was rebuilt; empty where it is the same."""
    if (old["digest"], old["contents"]) == (new["digest"], new["contents"]):
        return []
    reasons = []
    if old["config"] != new["config"]:
        reasons.append("config")
    for word in ("modules", "packages"):
        before, after = (
            {name: record[word][name] for name in result[word]}
            for record, result in ((a, old), (b, new))
        )
        if before != after:
            reasons.append("code" if word == "modules" else word)
    if list(old["inputs"].values()) != list(new["inputs"].values()):
        reasons.append("inputs")
    return reasons or ["made again"]


def _numbers(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for (stage, name), old, new in _pairs(_results(a), _results(b)):
        timed = stage in _TIMED_STAGES or any(
            side is not None and side.get("fidelity") in _TIMED_FIDELITIES for side in (old, new)
        )
        empty: dict[str, Any] = {"numbers": {}, "intervals": {}}
        old, new = old or empty, new or empty
        for metric, left, right in _pairs(old["numbers"], new["numbers"]):
            base, _, end = metric.rpartition("_")
            if end in ("low", "high") and any(base in side["intervals"] for side in (old, new)):
                continue  # an end of another number's interval
            left_ends, right_ends = (side["intervals"].get(metric) for side in (old, new))
            ends = [*(left_ends or (None, None)), *(right_ends or (None, None))]
            yield {
                "stage": stage,
                "name": name,
                "metric": metric,
                "a": left,
                "b": right,
                "ratio": right / left if left and right is not None else None,
                **dict(zip(("a_low", "a_high", "b_low", "b_high"), ends, strict=True)),
                "timed": timed,
                "moved": _moved(left, right, left_ends, right_ends)
                and not (timed and left_ends is None and right_ends is None),
            }


def _moved(
    a: float | None, b: float | None, a_ends: list[float] | None, b_ends: list[float] | None
) -> bool:
    if a is None or b is None:
        return a is not b
    if a_ends is None and b_ends is None:
        return abs(a - b) > _SAME * max(abs(a), abs(b))
    (a_low, a_high), (b_low, b_high) = a_ends or [a, a], b_ends or [b, b]
    return a_high < b_low or b_high < a_low


def _verdicts(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    sides = [{row["claim"]: row for row in record["verdicts"]} for record in (a, b)]
    old_words = [any(row["verdict"] in _NEW_WORDS for row in side.values()) for side in sides]
    for claim, old, new in _pairs(*sides):
        row, old, new = new or old, old or {}, new or {}
        values = [old.get("verdict"), new.get("verdict")]
        yield {
            "claim": claim,
            "paper": row["paper"],
            "a": values[0],
            "b": values[1],
            "a_ours": old.get("ours_text"),
            "b_ours": new.get("ours_text"),
            "published": row.get("published_text"),
            "flipped": not _same_verdict(values, old_words),
            "reason": row.get("reason"),
        }


def _same_verdict(values: list[str | None], old_words: list[bool]) -> bool:
    """Whether two verdicts are the same, one of them perhaps in the older words."""
    if values[0] == values[1]:
        return True
    if old_words[0] == old_words[1]:
        return False
    before, now = values if old_words[0] else values[::-1]
    words = _OLD_REPRODUCED if before == "reproduced" else _NEW_WORDS.get(str(before), ())
    return now in words
