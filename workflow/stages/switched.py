"""Stage switched: jobs on circuits that are set once, switched in the step, or both.

Networks are compared at equal bandwidth and at equal cost. Generated training steps are
replayed on such networks too, where the settings name some. Switching inside a
collective is no mode: docs/findings/opus.md says which facts are missing.
"""

from __future__ import annotations

from pathlib import Path

from workflow.outputs import Table, columns
from workflow.stage import ByHand, Job, Stage, Summary, Tracked
from workflow.stages.economics import check_price_set


def run(job: Job) -> Summary:
    """Lay every job on every network; return the step times without switching."""
    from railx.mapping.rail_steps import rail_step_rows
    from railx.mapping.settings import SwitchedSettings
    from railx.mapping.switched import switched_times

    settings: SwitchedSettings = job.load(SwitchedSettings)
    rows = switched_times(settings)
    job.write_table("steps", rows)
    job.write_table("generated", rail_step_rows(settings))
    lowest = min(settings.latencies_ms)
    return {
        f"{row['network']}.{row['job']}.{row['basis']}.{row['mode']}.step_ms": row["step_ms"]
        for row in rows
        if row["reason"] is None and (row["rule"], row["latency_ms"]) == ("provisioned", lowest)
    }


_STEPS = columns(
    "text network job, integer gpus, text basis mode rule, real latency_ms, integer changes,"
    " real step_ms compute_ms inside_ms network_ms bubble_ms stall_ms tokens_per_s"
    " cost_per_gpu_usd cost_usd watts_per_gpu power_watts, text circuits reason fidelity"
)
_GENERATED = columns(
    "text step job model device, integer gpus, text network basis, real gb_s_per_gpu,"
    " text mode rule,"
    " real latency_ms step_ms stall_ms reconfigurations data_ms pipeline_ms expert_ms"
    " cost_per_gpu_usd cost_usd watts_per_gpu power_watts, text circuits reason fidelity"
)

STAGE = Stage(
    name="switched",
    help="step times of jobs on circuits set once, switched in the job, or both",
    message="Jobs on circuits that are set once or switched",
    settings=lambda experiment, _: experiment["switched"],
    inputs=lambda experiment, _: {"catalogue": Path(experiment["switched"]["catalogue"])},
    outputs={"steps": Table(_STEPS), "generated": Table(_GENERATED)},
    run=run,
    by_hand=ByHand(
        groups=("switched",),
        example="railx switched --json",
        out="the table of step times to write (.parquet)",
        writes={".parquet": "steps"},
    ),
    tracked=Tracked("steps", ("steps", "generated"), name="circuits", fidelity="analytic"),
    check_settings={"switched": check_price_set},
)
