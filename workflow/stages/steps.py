"""Stage steps: generated training steps -> times on rails, windows, traffic, host."""

from __future__ import annotations

from pathlib import Path

from railx.errors import UserError
from railx.settings import SettingsError, load
from workflow.outputs import File, Json, Table, columns
from workflow.stage import ByHand, Experiment, Item, Job, Stage, Summary, Tracked


def run(job: Job) -> Summary:
    """Generate the jobs, replay them over the sweep; return times as a flat summary."""
    from railx.steps.host import host_rows
    from railx.steps.published_run import graph_time_rows
    from railx.steps.settings import StepSettings
    from railx.steps.split import split_rows
    from railx.steps.sweep import phase_rows, time_rows, timeline_rows, traffic_rows, window_rows

    settings: StepSettings = job.load(StepSettings)
    times = list(time_rows(job.item, settings))
    job.write_table("times", times)
    job.write_table("graphs", graph_time_rows(job.item, settings))
    job.write_table("windows", window_rows(job.item, settings))
    job.write_table("timeline", timeline_rows(job.item, settings))
    job.write_table("phases", phase_rows(job.item, settings))
    job.write_table("traffic", traffic_rows(job.item, settings))
    job.write_table("split", split_rows(job.item, settings))
    job.write_table("host", host_rows(job.item, settings))
    summary: Summary = {"step": job.item, "model": settings.job.model.name}
    for row in times:
        if row["scale_out_gb_s"] == settings.job.device.scale_out_gb_s:
            latency = f"{row['mode']}_{row['reconfiguration_latency_ms']:g}ms"
            key = f"{row['job']}.{row['rule']}.{latency}"
            summary[f"{key}.step_ms"] = row["step_ms"]
    summary["fidelity"] = "replay"
    return summary


def _write(job: Job) -> Summary:
    """Generate the first job, on packet switches, as programs; its description."""
    from railx.replay.programs import write_programs
    from railx.steps.programs import programs
    from railx.steps.settings import StepSettings

    settings: StepSettings = load(StepSettings, job.settings, "step")
    name, first = next(iter(settings.jobs().items()))
    tables = programs(
        first, electrical=True, iterations=settings.sweep.iterations, all_ranks=settings.sweep.whole
    )
    summary: Summary = {"job": name, "model": first.model.name, "gpus": first.degrees.ranks}
    job.write("programs", write_programs, tables, notes=summary)
    return {**summary, "ranks": tables.ranks, "steps": len(tables), "fidelity": "analytic"}


#: Of the host's time, where the settings have one.
_CONSTANTS = Path("resources/performance/constants.yaml")
_JOB = columns(
    "text step job model device, integer gpus data pipeline tensor expert, text gradients"
)
_TIMES = _JOB | columns(
    "real scale_out_gb_s, integer ranks_replayed, text rule mode,"
    " real reconfiguration_latency_ms step_ms electrical_ms added_ms compute_ms tensor_ms"
    " utilisation formula_ms stall_ms reconfigurations, text fidelity"
)
_GRAPHS = columns(
    "text step job layer, integer gpus, text counts, real scale_out_gb_s, text mode,"
    " real reconfiguration_latency_ms step_ms electrical_ms added_ms compute_ms"
    " exposed_ms, integer switches, text fidelity"
)
_WINDOWS = _JOB | columns(
    "text transition direction, flag within_layer, integer count,"
    " real mean_ms min_ms max_ms, text fidelity"
)
_TIMELINE = _JOB | columns("integer stage window, text transition, real window_ms, text fidelity")
_PHASES = _JOB | columns("integer stage phase, text parallelism, integer operations, text fidelity")
_TRAFFIC = _JOB | columns("text scope parallelism, real sent_gb, text fidelity")

_SPLIT = _JOB | columns(
    "text parallelism, real sent_gb total_gb_s rate_gb_s step_ms electrical_ms, text fidelity"
)
_HOST = _JOB | columns(
    "text constants, real forward_host_ms backward_host_ms step_host_ms pass_ms,"
    " text fitted_on, real device_ms launched_ms step_ms, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse constants of a host that no program has."""
    from railx.performance.programs import constants_named

    for name, step in experiment.steps.items():
        if step.job.host is None:
            continue
        try:
            constants_named(step.job.host.constants)
        except UserError as error:
            key = f"steps.{name}.job.host.constants"
            raise SettingsError(key, str(error).partition(": ")[2]) from None


STAGE = Stage(
    name="steps",
    help="generated training steps on rails: times, windows, phases, traffic, terms of the host",
    message="Generated training step {item}",
    # Results that were made before there was this stage have none.
    item=Item("step", lambda experiment: experiment.get("steps", ())),
    settings=lambda experiment, step: experiment["steps"][step],
    inputs=lambda experiment, step: {
        "constants": [_CONSTANTS] if experiment["steps"][step]["job"]["host"] else []
    },
    outputs={
        "times": Table(_TIMES),
        "graphs": Table(_GRAPHS),
        "windows": Table(_WINDOWS),
        "timeline": Table(_TIMELINE),
        "phases": Table(_PHASES),
        "traffic": Table(_TRAFFIC),
        "split": Table(_SPLIT),
        "host": Table(_HOST),
        "summary": Json(),
    },
    run=run,
    by_hand=ByHand(
        groups=("step",),
        example="railx steps step=smoke --json",
        out="the programs of its first job to write (.parquet)",
        writes={".parquet": "programs"},
        settings=lambda chosen: chosen["step"],
        run=_write,
        outputs={"programs": File("programs.parquet")},
    ),
    tracked=Tracked(
        "summary", ("times", "windows", "timeline", "phases", "traffic", "split", "host")
    ),
    check=check,
)
