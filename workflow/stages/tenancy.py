"""Stage tenancy: a grid of nodes -> largest jobs, use and lines with failures."""

from __future__ import annotations

from pathlib import Path

from workflow.outputs import Json, Table, columns
from workflow.stage import ByHand, Job, Stage, Summary, Tracked


def run(job: Job) -> Summary:
    """Run the studies of the settings; return the flat summary."""
    from railx.tenancy import TenancySettings, study
    from railx.tenancy.trace import spare_table, trace_table

    seed = job.settings["seed"]
    tenancy: TenancySettings = job.load(TenancySettings, "tenancy")
    faults = study.fault_table(tenancy, seed)
    degraded = study.degraded_table(tenancy, seed)
    mix = study.mix_of_jobs(tenancy, seed)
    utilisation = study.utilisation_table(tenancy, seed)
    trace = trace_table(tenancy.trace, seed)
    summary = study.tenancy_summary(tenancy, faults, utilisation, degraded, mix["summary"])
    job.write_table("faults", faults)
    job.write_table("utilisation", utilisation)
    job.write_table("degraded", degraded)
    job.write_table("trace", trace)
    job.write_table("spares", spare_table(tenancy.trace, trace))
    return summary


_FAULTS = columns(
    "text system placement, integer failed_nodes sample nodes usable_nodes,"
    " real usable_share healthy_share formula_share, integer lines_needed lines_out,"
    " text fidelity"
)
_UTILISATION = columns(
    "text system policy queue scenario, integer failed_nodes, real offered_load,"
    " integer sample jobs,"
    " real utilisation utilisation_of_healthy rejected_share rejected_by_shape_share"
    " rejected_node_hours_share wait_mean_hours wait_p95_hours blocked_by_shape_share,"
    " integer interruptions, real lost_share, text fidelity"
)
_DEGRADED = columns(
    "text setting fault, integer failures, text plan, integer sample nodes rails nodes_used,"
    " real ring_share, integer pairs pairs_whole pairs_reduced pairs_lost,"
    " real worst_pair_share mean_pair_share worst_node_share, text fidelity"
)
_TRACE = columns(
    "text network, integer chips draw, real from_days days, integer failed_servers,"
    " real healthy_share largest_share, integer job_chips, real usable_share, text fidelity"
)
_SPARES = columns("text network, integer chips draw, real spare_share time_share, text fidelity")

_SUMMARY = columns(
    "text fidelity,"
    " integer mix_jobs mix_jobs_placed mix_ports_shared mix_failed_nodes_used"
    " mix_failed_rails_used mix_failed_switches_used"
)

STAGE = Stage(
    name="tenancy",
    help="jobs and failures on a reconfigurable grid: largest job, use by a stream of jobs,"
    " degraded lines, networks under a trace of faults",
    message="Jobs and failures on the grid",
    settings=lambda experiment, _: {key: experiment[key] for key in ("tenancy", "seed")},
    inputs=lambda experiment, _: {"faults": Path(experiment["tenancy"]["trace"]["file"])},
    outputs={
        "faults": Table(_FAULTS),
        "utilisation": Table(_UTILISATION),
        "degraded": Table(_DEGRADED),
        "trace": Table(_TRACE),
        "spares": Table(_SPARES),
        "summary": Json(keys=_SUMMARY),
    },
    run=run,
    by_hand=ByHand(
        groups=("seed", "tenancy"),
        example="railx tenancy tenancy=small --json",
        out="the table of utilisation to write (.parquet)",
        writes={".parquet": "utilisation"},
        settings=lambda chosen: chosen,
    ),
    tracked=Tracked("summary", ("faults", "utilisation", "degraded"), name="grid"),
)
