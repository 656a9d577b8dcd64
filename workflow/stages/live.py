"""Stage live: a program in plain torch (``training.live``) on the rails' settings."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow.outputs import Json, Table, columns
from workflow.stage import ByHand, Item, Job, Stage, Summary, Tracked
from workflow.stages.training import EVENT
from workflow.watch import run_module


def run(job: Job) -> Summary:
    """Train, find changes of circuits and their windows; return the summary."""
    import pyarrow.parquet as pq

    from railx.fabric.circuits import Layout
    from railx.io import read_json
    from railx.replay.changes import change_rows, setting_rows, switchings
    from training.live_settings import LiveSettings, journal_path, live_blocks

    settings: LiveSettings = job.load(LiveSettings)
    name, layout = job.item or "program", Layout(settings.tensor_parallel)
    with tempfile.TemporaryDirectory(prefix="railx-") as scratch:
        out = Path(scratch) / "out"
        run_module("training.live", f"program {name}", settings, out)
        measured = read_json(out / "rows.json")
        trace = pq.read_table(out / "trace.parquet").to_pylist()
        journals = {}
        for number, block in enumerate(live_blocks(settings)):
            path = journal_path(out, number)
            # A controller that was killed has written two.
            if path.is_file() and not block.controller_restarted:
                fabric = block.fabric
                key = fabric.mode, fabric.reconfiguration_latency_ms, False
                journals[key] = switchings(path, layout)
    iterations = [{"program": name, **row} for row in measured]
    job.write_table("iterations", _in_order(iterations, _ITERATIONS))
    job.write_table("trace", _in_order([{"program": name, **row} for row in trace], _TRACE))
    timed = {row["iteration"] for row in measured}
    changes = [
        {"program": name, **row}
        for row in change_rows(trace, layout, journals)
        if row["iteration"] in timed
    ]
    job.write_table("changes", _in_order(changes, _CHANGES))
    rows = setting_rows(name, settings.ranks, iterations, changes)
    job.write_table("settings", _in_order(rows, _SETTINGS))
    losses = [row["last_loss"] for row in rows]
    return {
        "program": name,
        "ranks": settings.ranks,
        "loss_difference": (max(losses) - min(losses)) / max(map(abs, losses)),
    }


def _in_order(rows: list[dict[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


_SETTING = columns("text program mode, real reconfiguration_latency_ms, flag controller_restarted")
_ITERATIONS = _SETTING | columns(
    "integer iteration rank, real iteration_ms stall_ms wait_ms,"
    " integer requests held reconfigurations phase_changes mispredictions, real loss load_share,"
    " text fidelity"
)
_TRACE = _SETTING | EVENT | columns("text fidelity")
_CHANGES = _SETTING | columns(
    "integer iteration, text circuits,"
    " real window_ms predicted_stall_ms stall_ms switch_delay_ms begin_delay_ms question_delay_ms,"
    " text fidelity"
)
_SETTINGS = _SETTING | columns(
    "integer ranks, real iteration_ms predicted_iteration_ms stall_ms wait_ms,"
    " integer reconfigurations mispredictions,"
    " real changes all_stalls_ms all_predicted_stalls_ms last_loss load_share,"
    " text controller_priority fidelity"
)

STAGE = Stage(
    name="live",
    help="train a program in plain torch on the emulated rails",
    message="Program {item} in plain torch on the rails",
    item=Item("program", lambda experiment: experiment["live"]),
    settings=lambda experiment, program: experiment["live"][program],
    outputs={
        "iterations": Table(_ITERATIONS),
        "changes": Table(_CHANGES),
        "trace": Table(_TRACE, claims=False),
        "settings": Table(_SETTINGS, printed="Program {item}"),
        "summary": Json(),
    },
    run=run,
    # The digest reads imports; the run itself is a process of its own.
    modules=lambda *_: ("training.live",),
    by_hand=ByHand(
        groups=("live",),
        example="railx live live=dp2_pp2_tp2 'live.latencies_ms=[0,100]' --out run",
        out="the folder to write: iterations, changes, trace, settings, summary",
        writes=None,
        item=lambda _: "program",
    ),
    tracked=Tracked("summary", ("summary", "settings")),
)
