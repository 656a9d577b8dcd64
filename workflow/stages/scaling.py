"""Stage scaling: all plans of many devices, and their bottlenecks."""

from __future__ import annotations

from workflow.outputs import Table
from workflow.stage import Job, Stage, Summary, Tracked
from workflow.stages import resource_files


def run(job: Job) -> Summary:
    """Search the published jobs and the sweeps; return the worst errors."""
    from railx.performance.fsdp_scaling import scaling_rows
    from railx.performance.scaling import ScalingSettings
    from railx.performance.subramanian_study import published_plan_rows, sweep_rows

    settings: ScalingSettings = job.load(ScalingSettings, "scaling")
    published = list(published_plan_rows(settings.published_every))
    sharded = list(scaling_rows(settings.fsdp_devices))
    job.write_table("published", published)
    job.write_table("sweeps", list(sweep_rows(settings.searched_devices)))
    job.write_table("sharded", sharded)
    return {
        "published.worst_error": max(abs(row["best_error"]) for row in published),
        "sharded.best_mfu": max(row["mfu"] for row in sharded),
    }


_PLAN = "integer tensor pipeline data micro_batch"

STAGE = Stage(
    name="scaling",
    help="plans of many devices: published best plans, sweeps, and sharded replicas",
    message="Plans of many devices",
    settings=lambda experiment, _: {"scaling": experiment["scaling"]},
    inputs=lambda *_: {"performance": resource_files("performance")},
    outputs={
        "published": Table(
            "text model division system, integer devices,"
            " real published_sequences_per_s best_sequences_per_s planned_sequences_per_s"
            " best_error planned_error memory_error, text fidelity"
        ),
        "sweeps": Table(
            "text sweep model division, integer devices domain_devices,"
            f" real factor sequences_per_s, {_PLAN} sequence,"
            " real compute_share memory_share tensor_share pipeline_share bubble_share"
            " data_share, text fidelity"
        ),
        "sharded": Table(
            f"text network device, integer devices, {_PLAN}, text sharding recompute,"
            " real step_s tokens_per_s_device mfu exposed_share tokens_per_joule memory_gb,"
            " flag fastest, text fidelity",
            printed="Llama 2 7B among many devices: the fastest plan of each pair of degrees",
        ),
    },
    run=run,
    tracked=Tracked("published", ("published",), name="scaling", fidelity="analytic"),
)
