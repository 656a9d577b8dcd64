"""Stage validation: the model of a step against measured runs and its replay."""

from __future__ import annotations

from workflow.outputs import Table
from workflow.stage import Job, Stage, Summary, Tracked
from workflow.stages import resource_files


def run(job: Job) -> Summary:
    """Compare the model with every measured row; return the mean errors by set."""
    from railx.performance.study import ValidationSettings, error_rows, measured_rows
    from railx.steps.random_plans import compared_rows

    settings: ValidationSettings = job.load(ValidationSettings, "validation")
    rows = list(measured_rows(settings))
    errors = list(error_rows(rows))
    replayed = list(compared_rows(settings.replayed_plans, job.settings["seed"]))
    job.write_table("rows", rows)
    job.write_table("errors", errors)
    job.write_table("replayed", replayed)
    summary: Summary = {
        f"{row['set']}.{row['quantity']}.mean_error": row["mean_error"]
        for row in errors
        if row["group"] == "all"
    }
    summary["replayed.worst_error"] = max(abs(row["error"]) for row in replayed)
    return summary


_PLAN = "integer devices data tensor pipeline context expert"

STAGE = Stage(
    name="validation",
    help="the model of a training step against measured runs and against its replay",
    message="The model of a step against measured runs",
    settings=lambda experiment, _: {key: experiment[key] for key in ("validation", "seed")},
    inputs=lambda *_: {name: resource_files(name) for name in ("measured", "performance")},
    outputs={
        "rows": Table(
            f"text set, integer row, text model device precision recipe, {_PLAN},"
            " text quantity, real measured ours roofline error, text basis fidelity"
        ),
        "errors": Table(
            "text set quantity group, integer rows left_out,"
            " real mean_error median_ratio worst_error mean_error_roofline, text fidelity",
            printed="Errors of the model of a step, on rows left out of its fits",
        ),
        "replayed": Table(
            f"integer seed, text schedule sharding recompute, {_PLAN} virtual micro_batches,"
            " real closed_s replayed_s error, text fidelity"
        ),
    },
    run=run,
    tracked=Tracked("errors", ("errors", "rows"), name="step_model", fidelity="analytic"),
)
