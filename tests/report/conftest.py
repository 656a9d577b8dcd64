"""A small report with every part: claims of all verdicts, two figures, tables, config
and provenance.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from railx.figures import draw_figure
from railx.figures.all_to_all_bandwidth import AllToAllBandwidthSettings
from railx.io import write_json, write_table
from railx.provenance import collect_provenance
from railx.report import ReportTable, figure_entry, write_report
from tests.builders import write_result, write_stage_table

CLAIMS = (
    ("published", "RailX", "reproduced"),
    ("published", "RailX", "partly"),
    ("derived", "RailX", "not reproduced"),
    ("published", "Opus", "not attempted"),
    ("check", "Opus", "reproduced"),
)
QUERY = """select ours -- "quoted" $HOME `pwd` \\ & < 1
from network.railx_hyperx.bounds"""


def claim_rows() -> list[dict[str, Any]]:
    rows = []
    for i, (kind, paper, verdict) in enumerate(CLAIMS):
        attempted = verdict != "not attempted"
        rows.append(
            {
                "claim": f"claim_{i}",
                "kind": kind,
                "paper": paper,
                "place": "abstract",
                "sentence": "Cost per injection bandwidth is below 10 % & <b>never</b> more.",
                "published": 10.0,
                "published_text": "at most 10 %",
                "ours": 2.44 if attempted else None,
                "ours_text": "2.44 %" if attempted else "",
                "comparison": "at_most",
                "tolerance": 0.0,
                "fidelity": "analytic" if attempted else None,
                "fidelity_required": "analytic",
                "verdict": verdict,
                "reason": "ours, 2.44 %, is at most the published 10",
                "notes": "Links inside a node are in no bill." if i == 0 else "",
                "tables": "network.railx_hyperx.bounds, economics.summary",
                "query": QUERY,
            }
        )
    return rows


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
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
    write_table(
        folder / "many.parquet", {"row": list(range(1000)), "value": [i / 3 for i in range(1000)]}
    )
    write_json(
        folder / "topology.json", {"chips": 1296, "mean": {"hops": 1.779}, "bisection_gbps": None}
    )
    write_stage_table(folder / "claims.parquet", "evidence.claims", claim_rows())
    write_json(
        folder / "config.json",
        {"seed": 7, "topologies": {"a": {"m": 2, "seed": 3}}, "text": "<script>alert(1)</script>"},
    )
    write_json(folder / "provenance.json", collect_provenance())
    settings = AllToAllBandwidthSettings(
        "all_to_all_bandwidth", 8, 3, 80, 9.0, (), "uniform", "linear"
    )
    draw_figure(settings, {"bounds": [bounds]}, folder / "figure" / "bandwidth")
    source = str(bounds.relative_to(folder))
    figures = [
        figure_entry(name, folder / f"figure/bandwidth.{name}", folder / "figure/bandwidth.json")
        for name in ("svg", "png")
    ]
    tables = [
        ReportTable("Network", source, bounds),
        ReportTable("Many rows", "many.parquet", folder / "many.parquet", ("value",)),
        ReportTable("Topology metrics", "topology.json", folder / "topology.json"),
    ]
    path = folder / "report.html"
    write_report(
        path,
        experiment="quick",
        claims=folder / "claims.parquet",
        figures=figures,
        tables=tables,
        config=folder / "config.json",
        provenance=folder / "provenance.json",
    )
    assert json.loads((folder / "provenance.json").read_text())["schema"] == "railx.provenance/1"
    return path
