"""Stage report: verdicts, figures, tables, config and provenance -> one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workflow.stage import File, Inputs, Job, Json, Made, Settings, Stage, Summary

__all__ = ["STAGE", "run"]

_TEMPLATES = Path("railx/report/templates")


def run(job: Job) -> Summary:
    """Write the resolved config and the provenance beside the report, then the report.

    ``settings``: the experiment, the results folder, per figure its name, image and
    words, per printed table its title and path.
    """
    from railx.provenance import collect_provenance
    from railx.report import ReportTable, figure_entry, write_report

    folder = Path(job.settings["results"])
    job.write_json("config", job.settings["experiment"])
    job.write_json("provenance", collect_provenance())
    write_report(
        job.outputs["report"],
        experiment=job.settings["experiment"]["name"],
        claims=job.file("claims"),
        figures=[
            figure_entry(figure["name"], folder / figure["image"], folder / figure["words"])
            for figure in job.settings["figures"]
        ],
        tables=[
            ReportTable(table["title"], table["path"], folder / table["path"])
            for table in job.settings["tables"]
        ],
        config=job.outputs["config"],
        provenance=job.outputs["provenance"],
    )
    return {"report": str(job.outputs["report"])}


def _own(experiment: Settings, _: str) -> dict[str, Any]:
    from workflow.stages import printed_tables, results_folder

    return {
        "experiment": experiment,
        "results": str(results_folder(experiment)),
        "figures": _figures(experiment),
        "tables": [{"title": title, "path": path} for title, path in printed_tables(experiment)],
    }


def _figures(experiment: Settings) -> list[dict[str, Any]]:
    from workflow.stages import STAGES

    figure = STAGES["figure"]
    return [
        {"name": name, "image": figure.path("svg", name), "words": figure.path("words", name)}
        for name in experiment["figures"]
    ]


def _inputs(experiment: Settings, _: str) -> Inputs:
    from workflow.stages import printed_tables, results_folder

    folder = results_folder(experiment)
    return {
        "claims": Made("evidence.claims"),
        "figures": Made("figure.svg", tuple(experiment["figures"])),
        "words": Made("figure.words", tuple(experiment["figures"])),
        "tables": [folder / path for _, path in printed_tables(experiment)],
        "templates": sorted(_TEMPLATES.iterdir()),
    }


STAGE = Stage(
    name="report",
    help="verdicts, figures and tables as one page",
    message="Report of the experiment",
    settings=_own,
    inputs=_inputs,
    outputs={
        "report": File("report.html"),
        "config": File("config.json"),
        "provenance": Json("provenance.json"),
    },
    run=run,
    in_folder=False,
)
