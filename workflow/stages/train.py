"""Stage train: a plan and its corpus -> measured iterations under every fabric setting,
by ``python -m training.run``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.io import read_json, write_json, write_table
from railx.settings import load, to_dict
from railx.workload.model import ModelSettings
from training.settings import RunSettings

__all__ = ["run"]


def run(
    settings: Mapping[str, Any],
    model: Mapping[str, Any] | ModelSettings,
    *,
    name: str,
    plan_path: str | Path,
    corpus_path: str | Path,
    folder: str | Path,
) -> dict[str, Any]:
    """Write ``folder``/config.json (the resolved run) and train as it says; return the
    summary.

    ``settings`` holds plan (its name), seed, fabric and training. Beside the files of
    the run itself, ``folder``/settings.parquet has one row per fabric setting and
    ``folder``/summary.json the same numbers by name. ValueError when the run could not
    start or broke off; what it said is above.
    """
    folder = Path(folder)
    resolved: RunSettings = load(
        RunSettings,
        {
            "name": name,
            "seed": settings["seed"],
            "plan_name": settings["plan"],
            "plan": str(plan_path),
            "corpus": str(corpus_path),
            "model": to_dict(model),
            "fabric": to_dict(settings["fabric"]),
            "training": to_dict(settings["training"]),
        },
        "run",
    )
    config = folder / "config.json"
    write_json(config, to_dict(resolved))
    command = [sys.executable, "-m", "training.run", "--config", str(config), "--out", str(folder)]
    # Progress goes where messages go: standard output belongs to the summary.
    finished = subprocess.run(command, check=False, stdout=sys.stderr)
    if finished.returncode:
        raise ValueError(
            f"training run {name} ended with exit code {finished.returncode}; its own message is"
            " above"
        )
    result: dict[str, Any] = read_json(folder / "result.json")
    rows = [_row(name, result, setting) for setting in result["settings"]]
    write_table(folder / "settings.parquet", rows)
    summary = {key: value for key, value in result.items() if key not in ("schema", "settings")}
    summary |= {f"{row['mode']}_{row['reconfiguration_latency_ms']:g}ms": row for row in rows}
    write_json(folder / "summary.json", summary)
    return summary


def _row(name: str, result: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """One fabric setting of a run, with its iteration time relative to the electrical
    one of the same launch.
    """
    electrical = next(
        other["iteration_ms"] for other in result["settings"] if other["mode"] == "electrical"
    )
    plain = {key: value for key, value in setting.items() if not isinstance(value, list)}
    relative = {
        "iteration_over_electrical": setting["iteration_ms"] / electrical,
        "last_loss": setting["losses"][-1],
    }
    fidelity = plain.pop("fidelity")
    return (
        {
            "run": name,
            "plan": result["plan"],
            "parallelism": result["parallelism"],
            "device": result["device"],
        }
        | plain
        | relative
        | {"fidelity": fidelity}
    )
