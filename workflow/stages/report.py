"""Stage report: verdicts, figures, tables, config and provenance -> one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.places import in_repository
from workflow.outputs import File, Json
from workflow.stage import Config, FromStage, Inputs, Job, Stage, Summary, Tracked
from workflow.stages import printed_tables, provenance_files, results_folder

_TEMPLATES = in_repository("railx/report/templates")
_PAPERS = in_repository("resources/papers.yaml")
_CLAIMS = in_repository("resources/claims")
_PUBLISHED = in_repository("resources/published")
#: Where an experiment's verdicts and provenance stand below its results.
_VERDICTS, _PROVENANCE = "evidence/claims.parquet", "provenance.json"
_RECORDED = "recorded"


def run(job: Job) -> Summary:
    """Write the resolved config and the provenance beside the page, then the page.

    ``settings``: the experiment, the results folder, the names of the figures, per
    printed table its title, path and kind, the folder of all results.
    """
    from railx.evidence import load_claims, published_tables, read_papers
    from railx.provenance import collect_provenance
    from railx.report.entries import ReportFigure, ReportTable
    from railx.report.page import write_report

    results = Path(job.settings["results"])
    job.write_json("config", job.settings["experiment"])
    job.write_json("provenance", collect_provenance())
    published = job.inputs["published"][0].parent
    claims = load_claims(job.inputs["claim_files"][0].parent, published, job.file("papers"))
    images = zip(
        job.settings["figures"],
        *(job.inputs[key] for key in ("figures", "dark", "narrow", "words")),
        strict=True,
    )
    write_report(
        job.outputs["report"],
        experiment=job.settings["experiment"]["name"],
        papers=read_papers(job.file("papers")),
        claims=job.file("claims"),
        figures=[
            ReportFigure(name, light, words, dark, narrow)
            for name, light, dark, narrow, words in images
        ],
        tables=[
            ReportTable(table["title"], table["path"], results / table["path"], kind=table["kind"])
            for table in job.settings["tables"]
        ],
        published=published_tables(published),
        judged=claims,
        others=[_other(path, results.parent) for path in job.inputs["others"]],
        config=job.outputs["config"],
        provenance=job.outputs["provenance"],
        jobs=job.inputs["provenance"],
        arena=job.inputs["arena"],
    )
    return {"report": str(job.outputs["report"])}


def _other(claims: Path, results: Path) -> Any:
    from railx.report.entries import OtherResult

    folder = claims.parent.parent
    name = folder.relative_to(results)
    return OtherResult(str(name), claims, folder / _PROVENANCE, recorded=name.parts[0] == _RECORDED)


def _stage_settings(experiment: Config, _: str) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "results": str(results_folder(experiment)),
        "figures": list(experiment["figures"]),
        "tables": printed_tables(experiment),
    }


def _inputs(experiment: Config, _: str) -> Inputs:
    folder = results_folder(experiment)
    others, figures = _others(folder), tuple(experiment["figures"])
    return {
        "claims": FromStage("evidence.claims"),
        "figures": FromStage("figure.svg", figures),
        **{key: FromStage(f"figure.{key}", figures) for key in ("dark", "narrow", "words")},
        "tables": [folder / table["path"] for table in printed_tables(experiment)],
        "arena": FromStage("arena.comparison", tuple(experiment["arena"]["networks"])),
        "papers": _PAPERS,
        "claim_files": sorted(_CLAIMS.glob("*.yaml")),
        "published": sorted(_PUBLISHED.iterdir()),
        "others": others,
        "others_provenance": [
            path for page in others if (path := page.parent.parent / _PROVENANCE).is_file()
        ],
        "provenance": provenance_files(experiment, before="report"),
        "templates": sorted(_TEMPLATES.iterdir()),
    }


def _others(page: Path) -> list[Path]:
    """The verdicts of other experiments, where they were run, recorded ones last."""
    results = page.parent
    beside = [path for path in results.glob(f"*/{_VERDICTS}") if path.parts[-3] != page.name]
    recorded = (results / _RECORDED).glob(f"**/{_VERDICTS}")
    return [*sorted(beside), *sorted(recorded)]


STAGE = Stage(
    name="report",
    help="verdicts, figures and tables as one page",
    message="Report of the experiment",
    settings=_stage_settings,
    inputs=_inputs,
    outputs={
        "report": File("report.html"),
        "config": File("config.json"),
        "provenance": Json(claims=False),
    },
    run=run,
    tracked=Tracked("", ("report",), name="page"),
    in_folder=False,
)
