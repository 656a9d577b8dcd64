"""Stage replay: the trace of a run -> wall time, and cluster time on each topology."""

from __future__ import annotations

from workflow.outputs import Json, Table, columns
from workflow.stage import Config, FromStage, Inputs, Item, Job, Stage, Summary, Tracked


def run(job: Job) -> Summary:
    """Replay the run on every topology; medians, or ValueError: parts are missing."""
    from railx.fabric.circuits import Layout
    from railx.io import read_json, read_rows
    from railx.replay.cluster_time import cluster_time, passes_of_run, summarised
    from railx.replay.settings import ReplaySettings

    settings: ReplaySettings = job.load(ReplaySettings, "replay")
    result = read_json(job.file("result"))
    tables = [read_rows(path) for path in job.inputs["bandwidth"]]
    shared = result["device"] == "cuda" and result["backend"] == "gloo"
    trace = read_rows(job.file("trace"))
    times = cluster_time(
        trace,
        {table[0]["topology"]: table for table in tables},
        settings,
        Layout(job.settings["gpus_per_server"]),
        result["warmup_iterations"],
        shared_device=shared,
        passes=passes_of_run(job.file("plan"), job.file("profile"), trace)
        if settings.compute == "profile"
        else None,
    )
    head = {key: result[key] for key in ("run", "plan", "parallelism", "device")}
    tail = {"fidelity": "replay"}
    medians = [head | row | tail for row in summarised(times)]
    job.write_table("iterations", [head | row | tail for row in times])
    job.write_table("settings", medians)
    summary: Summary = {**head, "ranks": result["ranks"]}
    for row in medians:
        key = f"{row['topology']}.{row['mode']}_{row['reconfiguration_latency_ms']:g}ms"
        for name in ("wall_ms", "cluster_ms", "hidden_share"):
            if row[name] is not None:
                summary[f"{key}.{name}"] = row[name]
    summary["fidelity"] = "replay"
    return summary


def _inputs(experiment: Config, run: str) -> Inputs:
    """Trace and summary of the run, all topologies' tables, a named profile."""
    profile = experiment["replay"]["profile"]
    plan = experiment["runs"][run]["plan"]
    profiled = (
        {}
        if profile is None
        else {"profile": FromStage("profile.fit", profile), "plan": FromStage("plan.plan", plan)}
    )
    return profiled | {
        "trace": FromStage("training.trace", run),
        "result": FromStage("training.result", run),
        "bandwidth": FromStage("bandwidth.groups", tuple(experiment["bandwidth"]["topologies"])),
    }


_SETTING = "text run plan parallelism device topology compute mode, real reconfiguration_latency_ms"
_TIMES = "real wall_ms cluster_ms compute_ms communication_ms hidden_share stall_ms"
_ITERATIONS = columns(
    f"{_SETTING}, integer iteration, {_TIMES} wait_ms requests reconfigurations, text fidelity"
)
_SETTINGS = columns(f"{_SETTING}, {_TIMES}, integer iterations, text fidelity")

STAGE = Stage(
    name="replay",
    help="wall time and cluster time of a training run",
    message="Cluster time of training run {item}",
    item=Item("run", lambda experiment: experiment["runs"]),
    settings=lambda experiment, run: {
        "replay": experiment["replay"],
        "gpus_per_server": experiment["runs"][run]["fabric"]["gpus_per_server"],
    },
    inputs=_inputs,
    outputs={
        "iterations": Table(_ITERATIONS),
        "settings": Table(_SETTINGS, printed="Wall time and cluster time of {item}"),
        "summary": Json(),
    },
    run=run,
    tracked=Tracked("summary", ("summary", "settings")),
)
