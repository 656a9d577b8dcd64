"""A small page with every part: claims of all kinds and verdicts, figures with dark
ones beside them, tables, the published tables that ship, other results and jobs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from railx.evidence import Paper, published_tables, read_expected, read_papers
from railx.figures import draw_figure, figure_of
from railx.io import write_json, write_table
from railx.provenance import collect_provenance
from railx.provenance.jobs import job_record, now_utc
from railx.report.entries import OtherResult, ReportFigure, ReportTable
from railx.report.page import write_report
from tests.builders import (
    PUBLISHED,
    ROOT,
    choice,
    write_result,
    write_stage_table,
)
from workflow.resources import all_claims

PAPERS = "resources/papers.yaml"
QUERY = """select ours -- "quoted" $HOME `pwd` \\ & < 1
from network.railx_hyperx.bounds"""
#: What a text must never become: an element, a script, the end of one.
HOSTILE = "Below 10 % & <b>never</b> <script>document.title = 'run'</script> </script> more."
#: Kind, paper, verdict, fidelity and headline of each claim.
CLAIMS = (
    ("published", "railx", "reproduced", "analytic", True),
    ("published", "railx", "direction only", "packet", False),
    ("derived", "railx", "not reproduced", "analytic", False),
    ("published", "opus", "not here", None, True),
    ("check", "opus", "reproduced", "emulated", False),
    ("published", "rival", "undecided", "measured_cpu", True),
    ("published", "rival", "not reproduced", "measured_cpu", False),
)
_SVG = """<?xml version="1.0"?>
<!-- for people -->
<svg xmlns="http://www.w3.org/2000/svg" width="72pt" height="36pt" viewBox="0 0 72 36">
  <rect width="72" height="36" style="fill: {colour}"/>
  <text x="4" y="20">Two  words &amp; 'more'</text>
</svg>
"""


def claim_rows() -> list[dict[str, Any]]:
    """A row of the claims table for each of ``CLAIMS``."""
    rows = []
    for i, (kind, paper, verdict, fidelity, headline) in enumerate(CLAIMS):
        attempted = verdict != "not here"
        repeated = fidelity in ("emulated", "measured_cpu")
        rows.append(
            {
                "claim": f"claim_{i}",
                "kind": kind,
                "headline": headline,
                "paper": paper,
                "place": "abstract",
                "sentence": HOSTILE if i == 0 else f"Sentence {i}.",
                "published": 10.0,
                "published_text": "at most 10 %",
                "ours": 2.44 if attempted else None,
                "low": 2.31 if repeated else None,
                "high": 2.52 if repeated else None,
                "ours_text": "2.44 %" if attempted else "",
                "samples": 3 if repeated else None,
                "set_aside": 1 if repeated else 0,
                "comparison": "at_most",
                "tolerance": 0.0 if attempted else None,
                "unit": "%",
                "fidelity": fidelity,
                "fidelity_required": "analytic" if attempted else None,
                "verdict": verdict,
                "reason": f"reason of {i}" if attempted else "it needs 64 GPUs",
                "recorded_in": "" if attempted else "paper",
                "recorded_verdict": "" if attempted else "consistent",
                "recorded_text": "" if attempted else "3 %",
                "inputs": "prices" if i == 0 else "",
                "insensitive": "",
                "needs": "" if attempted else "64 GPUs for an hour",
                "source": "the paper's abstract",
                "confidence": "high",
                "notes": "Links inside a node are in no bill." if i == 0 else "",
                "tables": "network.railx_hyperx.bounds, economics.summary" if attempted else "",
                "query": QUERY if attempted else "",
            }
        )
    return rows


def recorded_rows(experiment: str) -> list[dict[str, Any]]:
    """A row for each claim of the papers, with the verdict that a run recorded."""
    expected = ROOT / "resources" / "expected"
    here = read_expected(expected / f"{experiment}.yaml")
    there = read_expected(expected / "paper.yaml")
    template = claim_rows()[0]
    rows = []
    for claim in all_claims():
        settings, judged = claim.settings, here.get(claim.id)
        verdict = judged.verdict if judged else "not here"
        other = there.get(claim.id) if verdict == "not here" and experiment != "paper" else None
        decided = other is not None and other.verdict not in ("not here", "not testable")
        untestable = settings.not_testable
        rows.append(
            {
                **template,
                "claim": claim.id,
                "kind": settings.kind,
                "headline": settings.headline,
                "paper": claim.paper,
                "place": settings.place,
                "sentence": settings.sentence,
                "ours": judged.ours if judged else None,
                "ours_text": "" if judged is None or judged.ours is None else f"{judged.ours:.4g}",
                "fidelity": judged.fidelity if judged else None,
                "verdict": verdict,
                "reason": "ours is 12.5 % above the published value, more than the tolerance of"
                " 10 % and within a factor of two; the claim requires measured_gpu",
                "recorded_in": "paper" if decided else "",
                "recorded_verdict": other.verdict if other and decided else "",
                "needs": untestable.needs if untestable else "",
                "notes": settings.notes or "",
            }
        )
    return rows


@dataclass(frozen=True)
class Made:
    """The files that a page is made of, and how it is made of them again."""

    folder: Path
    parts: Mapping[str, Any]

    def write(self, path: Path, **changes: Any) -> Path:
        """The page, or another one with other parts."""
        write_report(path, **{**self.parts, **changes})
        return path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    results = tmp_path_factory.mktemp("results")
    folder = results / "quick"
    bounds = write_result(
        folder,
        "network.bounds",
        [{"injection_gb_s_per_chip": 400.0, "ideal_gb_s_per_chip": 56.2}],
        "railx_hyperx",
        topology="railx_hyperx",
        family="railx_hyperx",
        chips=1296,
        traffic="uniform",
        routing="min",
        bound_gb_s_per_chip=49.9,
        fidelity="analytic",
    )
    many = {"row": list(range(1000)), "value": [i / 3 for i in range(1000)]}
    write_table(folder / "many.parquet", many)
    write_json(
        folder / "topology.json", {"chips": 1296, "mean": {"hops": 1.779}, "bisection_gbps": None}
    )
    claims = write_result(folder, "evidence.claims", claim_rows())
    write_json(
        folder / "config.json",
        {"seed": 7, "topologies": {"a": {"m": 2, "seed": 3}}, "text": "<script>alert(1)</script>"},
    )
    write_json(folder / "provenance.json", collect_provenance())
    papers = {
        **read_papers(ROOT / "resources" / "papers.yaml"),
        "rival": Paper("Rival", ("2601.00001",), "another network"),
    }
    row = SimpleNamespace(file="railx.csv", id="chips_one_flat_layer")
    parts = {
        "experiment": "quick",
        "papers": papers,
        "claims": claims,
        "figures": [_overview(folder), _drawn(folder, bounds)],
        "tables": [
            ReportTable("Network", str(bounds.relative_to(folder)), bounds),
            ReportTable("Many rows", "many.parquet", folder / "many.parquet", ("value",)),
            ReportTable("Topology metrics", "topology.json", folder / "topology.json"),
        ],
        "published": published_tables(PUBLISHED),
        "judged": [SimpleNamespace(id="claim_0", published=row)],
        "others": list(_others(results)),
        "config": folder / "config.json",
        "provenance": folder / "provenance.json",
        "jobs": list(_jobs(folder)),
        "arena": arena_files(folder, 6),
    }
    return Made(folder, parts)


@pytest.fixture(scope="session")
def report(made: Made) -> Path:
    return made.write(made.folder / "report.html")


def arena_files(results: Path, networks: int) -> list[Path]:
    """Tables of networks of three sizes, with as many columns as the arena has."""
    measures = [
        *(("", measure, "USD") for measure in ("usd_chip_with_node", "usd_chip", "watts_chip")),
        *((f"job {job}", "tokens_per_s", "tokens/s") for job in range(6)),
        *((f"job {job}", "joules_step", "J") for job in range(4)),
        *(("", measure, "GB/s") for measure in ("uniform_bound", "bisection_gb_s_per_chip")),
        *((f"pattern {pattern} at 0.8", "latency_p99", "ns") for pattern in range(4)),
        *((f"fault trace, jobs of {size}", "usable_share", "") for size in (16, 64)),
        *((kind, "cable_ends_chip", "ends") for kind in ("leaf", "optical", "uplink")),
    ]
    return [
        write_result(
            results,
            "arena.comparison",
            [
                {"network": name, "family": name, "asked_chips": asked, "chips": asked, "note": ""}
                | {"subject": subject, "measure": measure, "unit": unit}
                | {"value": 100.0 * number + 10.0, "fidelity": "analytic"}
                for asked in (1296, 4096, 200704)
                for subject, measure, unit in measures
            ],
            name,
        )
        for number, name in enumerate(f"railx_{number}" for number in range(networks))
    ]


def _drawn(folder: Path, bounds: Path) -> ReportFigure:
    """A real figure, as the figure stage leaves it."""
    settings = figure_of("all_to_all_bandwidth").settings(
        **choice("figure", "all_to_all_bandwidth")
    )
    output = folder / "figure" / "bandwidth.svg"
    inputs = {
        wanted.key: [PUBLISHED / wanted.published if wanted.published else bounds]
        for wanted in figure_of("all_to_all_bandwidth").inputs
    }
    draw_figure(settings, inputs, output)
    words, dark = output.with_suffix(".json"), output.with_suffix(".dark.svg")
    return ReportFigure("bandwidth", output, words, dark)


def _overview(folder: Path) -> ReportFigure:
    """A figure of all papers, on a published table too."""
    images = []
    for name, colour in (("all.svg", "#ffffff"), ("all.dark.svg", "#101418")):
        images.append(folder / "figure" / name)
        images[-1].parent.mkdir(exist_ok=True)
        images[-1].write_text(_SVG.format(colour=colour))
    words = folder / "figure" / "all.json"
    write_json(
        words,
        {
            "title": "All claims",
            "paper": "all",
            "caption": "The *bound* of ``network``, 2 < 3.\n\nSecond paragraph.",
            "alternative_text": 'Dots "of" <all> claims.',
            "published": ["opus.csv"],
            "tables": ["evidence/claims.parquet"],
        },
    )
    return ReportFigure("all", images[0], words, images[1])


def _others(results: Path) -> Iterator[OtherResult]:
    """Verdicts of another experiment, recorded ones without provenance, and a table
    that another version wrote.
    """
    rows = [{**row, "verdict": "direction only", "ours_text": "5 %"} for row in claim_rows()]
    paper = write_result(results / "paper", "evidence.claims", rows)
    provenance = results / "paper" / "provenance.json"
    write_json(provenance, {**collect_provenance(), "commit": "c0ffee" * 7, "dirty": False})
    yield OtherResult("paper", paper, provenance)
    recorded = results / "recorded" / "gpus"
    yield OtherResult(
        "recorded/gpus",
        write_stage_table(recorded / "claims.parquet", "evidence.claims", rows[:1]),
        recorded / "provenance.json",
        recorded=True,
    )
    write_table(results / "old.parquet", {"claim": ["claim_0"], "verdict": ["reproduced"]})
    yield OtherResult("old", results / "old.parquet")


def _jobs(folder: Path) -> Iterator[Path]:
    """Records as the pipeline's script writes them, of a machine that is the same
    everywhere.
    """
    for item in ("railx_hyperx", "torus_2d"):
        path = folder / "provenance" / "network" / f"{item}.json"
        record = job_record(
            stage="network",
            item=item,
            code="c0de" * 16,
            packages={"numpy": "9.9.9", "scipy": "1.2.3"},
            settings={},
            inputs=[folder / "config.json"],
            outputs=[folder / "many.parquet", folder / "topology.json"],
            started_utc=now_utc(),
            load_before=0.25,
        )
        same = {"commit": "0123456789abcdef", "dirty": True, "cpu": "a processor", "cores": 2}
        here = {"python": "CPython 3.11", "gpus": [], "load": {"before": 0.25, "after": None}}
        write_json(path, {**record, **same, **here, "ended_utc": "2026-01-02T03:04:05+00:00"})
        yield path


@pytest.fixture(scope="session")
def chromium() -> str:
    """A Chromium to look with; skips where there is none."""
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("needs chromium on the path")
    return found
