"""Stage evidence: result tables and published numbers -> verdicts."""

from __future__ import annotations

from pathlib import Path

from railx.places import in_repository
from workflow.cache_keys import remembered
from workflow.outputs import Json, Table
from workflow.stage import Config, Inputs, Job, Stage, Summary, Tracked
from workflow.stages import claim_files, results_folder

_CLAIMS = in_repository("resources/claims")
_PUBLISHED = in_repository("resources/published")
_PAPERS = in_repository("resources/papers.yaml")
_LINEAGE = in_repository("resources/lineage.yaml")
_EXPECTED = in_repository("resources/expected")


def run(job: Job) -> Summary:
    """Judge all claims from the results; write verdicts and counts, return these."""
    from railx import evidence
    from railx.io import write_table

    results = Path(job.settings["results"])
    files = [str(file.relative_to(results)) for file in job.inputs["results"]]
    published = job.inputs["published"][0].parent
    claims = evidence.load_claims(job.inputs["claims"][0].parent, published, job.file("papers"))
    numbers, tables = evidence.PublishedNumbers(published), evidence.published_tables(published)
    lineage = evidence.read_lineage(job.file("lineage"), numbers, tables, claims)
    recorded = {file.stem: evidence.read_expected(file) for file in job.inputs["recorded"]}
    rows = evidence.judge(claims, results, files, lineage, recorded)
    job.write("claims", write_table, evidence.claims_table(rows))
    counts: Summary = dict(evidence.count_verdicts(rows))
    job.write_json("counts", counts)
    return counts


@remembered
def _columns() -> dict[str, str]:
    from railx.evidence import CLAIM_COLUMNS

    return {name: str(kind) for name, kind in CLAIM_COLUMNS.items()}


def _inputs(experiment: Config, _: str) -> Inputs:
    return {
        "results": claim_files(experiment, before="evidence"),
        "claims": sorted(_CLAIMS.glob("*.yaml")),
        "published": [*sorted(_PUBLISHED.glob("*.csv")), _PUBLISHED / "tables.yaml"],
        "papers": _PAPERS,
        "lineage": _LINEAGE,
        "recorded": [
            file for file in sorted(_EXPECTED.glob("*.yaml")) if file.stem != experiment["name"]
        ],
    }


STAGE = Stage(
    name="evidence",
    help="verdicts on the papers' claims",
    message="Verdicts on the papers' claims",
    settings=lambda experiment, _: {"results": str(results_folder(experiment))},
    inputs=_inputs,
    outputs={"claims": Table(_columns), "counts": Json()},
    run=run,
    tracked=Tracked("counts", ("claims",), name="claims", verdicts="claims"),
)
