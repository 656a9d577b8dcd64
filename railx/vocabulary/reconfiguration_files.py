"""Files of reconfiguration plans: JSON with a line per switch, CSV with a row per step.

The JSON schema is ``railx.reconfiguration/1``.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

from railx.errors import UserError
from railx.io import read_json, write_text
from railx.vocabulary.reconfiguration import ACTIONS, ReconfigurationPlan

__all__ = [
    "RECONFIGURATION_SCHEMA",
    "read_reconfiguration",
    "write_reconfiguration",
    "write_reconfiguration_csv",
]

RECONFIGURATION_SCHEMA = "railx.reconfiguration/1"


def write_reconfiguration(path: str | Path, plan: ReconfigurationPlan) -> None:
    """Write a plan as JSON, one line per switch that changes."""
    head = {
        "schema": RECONFIGURATION_SCHEMA,
        "before": plan.before,
        "after": plan.after,
        "kept": plan.unchanged,
        "disconnected": plan.disconnected,
        "connected": plan.connected,
        "optical_switches": plan.switches,
        "optical_switches_touched": plan.switches_touched,
        "ports_touched": plan.ports_touched,
    }
    lines = []
    pairs = np.stack([plan.port_a, plan.port_b], axis=1)
    bounds = np.flatnonzero(np.diff(plan.ocs, prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        down = first + int((plan.action[first:last] == 0).sum())
        ocs = int(plan.ocs[first])
        entry = {
            "ocs": ocs,
            "name": plan.names[ocs],
            "disconnect": pairs[first:down].tolist(),
            "connect": pairs[down:last].tolist(),
        }
        lines.append(json.dumps(entry))
    write_text(path, json.dumps(head)[:-1] + ', "switches": [\n' + ",\n".join(lines) + "\n]}\n")


def read_reconfiguration(path: str | Path) -> ReconfigurationPlan:
    """Read a file of :func:`write_reconfiguration`; names of unchanged switches are
    lost.

    Raises ValueError where the file is not a plan.
    """
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("schema") != RECONFIGURATION_SCHEMA:
        schema = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise UserError(
            f"{path}: schema {schema!r}; allowed: {RECONFIGURATION_SCHEMA}, a reconfiguration plan"
        )
    names = [f"unused{i}" for i in range(stored["optical_switches"])]
    rows = []
    for switch in stored["switches"]:
        names[switch["ocs"]] = switch["name"]
        for code, key in enumerate(ACTIONS):
            rows += [(switch["ocs"], code, a, b) for a, b in switch[key]]
    ocs, action, port_a, port_b = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return ReconfigurationPlan(
        stored["before"],
        stored["after"],
        ocs,
        action,
        port_a,
        port_b,
        stored["kept"],
        stored["optical_switches"],
        tuple(names),
    )


def write_reconfiguration_csv(path: str | Path, plan: ReconfigurationPlan) -> None:
    """Write a plan as CSV, one row per step in the order to take them."""
    names = np.array(plan.names)[plan.ocs].tolist()
    actions = np.array(ACTIONS)[plan.action].tolist()
    steps = range(len(plan))
    columns = (steps, plan.ocs.tolist(), names, actions, plan.port_a.tolist(), plan.port_b.tolist())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step", "ocs", "name", "action", "port_a", "port_b"))
    writer.writerows(zip(*columns, strict=True))
    write_text(path, text.getvalue())
