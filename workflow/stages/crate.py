"""Stage crate: the records of all jobs -> a Workflow Run RO-Crate of the results."""

from __future__ import annotations

from pathlib import Path

from workflow.outputs import File, Json
from workflow.stage import FromStage, Job, Stage, Summary
from workflow.stages import STAGES, provenance_files, results_folder

_WORKFLOW = Path("Snakefile")


def run(job: Job) -> Summary:
    """Write the crate's metadata and the workflow that it names."""
    from railx.io import read_json, write_text
    from railx.provenance.crate import run_crate

    folder = Path(job.settings["results"])
    records = {
        path.relative_to(folder).as_posix(): read_json(path) for path in job.inputs["records"]
    }
    write_text(job.outputs["workflow"], job.file("workflow").read_text(encoding="utf-8"))
    job.write_json(
        "crate",
        run_crate(
            experiment=job.settings["experiment"],
            folder=folder.as_posix(),
            workflow=job.outputs["workflow"].name,
            config=job.file("config").name,
            report=job.file("report").name,
            records=records,
            stages=job.settings["stages"],
        ),
    )
    return {"jobs": len(records)}


STAGE = Stage(
    name="crate",
    help="how every file was made, as a Workflow Run RO-Crate",
    message="Workflow Run RO-Crate of the experiment",
    settings=lambda experiment, _: {
        "experiment": experiment["name"],
        "results": str(results_folder(experiment)),
        "stages": {name: stage.help for name, stage in STAGES.items()},
    },
    inputs=lambda experiment, _: {
        "records": provenance_files(experiment, before="crate"),
        "workflow": _WORKFLOW,
        "config": FromStage("report.config"),
        "report": FromStage("report.report"),
    },
    outputs={
        "crate": Json(path="ro-crate-metadata.json", claims=False),
        "workflow": File("Snakefile"),
    },
    run=run,
    in_folder=False,
)
