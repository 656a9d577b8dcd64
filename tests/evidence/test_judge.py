"""Every way to a verdict, on small tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from railx.evidence import CLAIM_COLUMNS, VERDICTS, ClaimError, claims_table, judge, load_claims
from railx.io import write_json, write_table

PUBLISHED = (
    "id,value,unit,source,confidence\nspeedup,2,times faster,a paper,high\nzero,0,,a"
    " paper,high\nlimit,0.1,,a paper,high\n"
)


class Desk:
    """A folder with one claim file, published numbers and results."""

    def __init__(self, folder: Path) -> None:
        self.claims, self.published, self.results = (
            folder / "claims",
            folder / "published",
            folder / "results",
        )
        for path in (self.claims, self.published, self.results):
            path.mkdir()
        (self.published / "paper.csv").write_text(PUBLISHED, encoding="utf-8")

    def table(self, values: list[Any], name: str = "t.parquet", **columns: list[Any]) -> None:
        write_table(self.results / name, {"value": values, **columns})

    def write(self, *claims: dict[str, Any], paper: str = "Paper (arXiv 0)") -> None:
        (self.claims / "paper.yaml").write_text(
            yaml.safe_dump({"paper": paper, "claims": list(claims)}), encoding="utf-8"
        )

    def judge(self, *claims: dict[str, Any]) -> list[dict[str, Any]]:
        self.write(*claims)
        return judge(load_claims(self.claims, self.published), self.results)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def claim(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "id": "c",
        "sentence": "It is faster.",
        "place": "section 1",
        "published": {"file": "paper.csv", "id": "speedup"},
        "ours": {"table": "t.parquet", "expression": "only(value)"},
        "comparison": "ratio",
        "tolerance": 0.1,
        "fidelity_required": "analytic",
    }
    return {**base, **changes}


@pytest.mark.parametrize(
    ("changes", "value", "verdict", "reason"),
    [
        (
            {},
            2.1,
            "reproduced",
            "ours, 2.1 times faster, is 5.0% off the published 2 (tolerance 10.0%)",
        ),
        ({}, 2.2, "reproduced", "10.0% off"),
        ({}, 3.0, "partly", "within a factor of 2"),
        ({}, 4.5, "not reproduced", "125.0% off the published 2 (allowed 10.0%)"),
        ({"neutral": 1.0}, 1.2, "partly", "the direction holds: both are above 1"),
        ({"neutral": 1.0}, 9.0, "partly", "the direction holds: both are above 1"),
        (
            {"neutral": 1.0},
            0.9,
            "not reproduced",
            "the direction does not hold: ours is not above 1",
        ),
        (
            {"neutral": 1.0},
            1.0,
            "not reproduced",
            "the direction does not hold: ours is not above 1",
        ),
        (
            {"comparison": "at_least", "tolerance": 0.0},
            2.0,
            "reproduced",
            "is at least the published 2",
        ),
        (
            {"comparison": "at_least", "tolerance": 0.0},
            1.99,
            "not reproduced",
            "is not at least the published 2",
        ),
        ({"comparison": "at_least", "tolerance": 0.1}, 1.81, "reproduced", "is at least"),
        (
            {"comparison": "at_least", "tolerance": 0.0, "neutral": 1.0},
            1.5,
            "partly",
            "the direction holds: both are above 1",
        ),
        (
            {"comparison": "at_most", "tolerance": 0.0},
            1.5,
            "reproduced",
            "is at most the published 2",
        ),
        ({"comparison": "at_most", "tolerance": 0.0}, 2.5, "not reproduced", "is not at most"),
        (
            {
                "comparison": "at_most",
                "published": {"file": "paper.csv", "id": "limit"},
                "neutral": 1.0,
            },
            0.5,
            "partly",
            "both are below 1",
        ),
        ({"comparison": "exact", "tolerance": 0.0}, 2.0, "reproduced", "equals the published 2"),
        (
            {"comparison": "exact", "tolerance": 0.0},
            2.001,
            "not reproduced",
            "differs from the published 2 by 0.001",
        ),
        ({"comparison": "exact", "tolerance": 0.01}, 2.001, "reproduced", "tolerance 0.01"),
        (
            {
                "published": {"file": "paper.csv", "id": "zero"},
                "comparison": "exact",
                "tolerance": 0.0,
            },
            0.0,
            "reproduced",
            "equals",
        ),
        ({"published": {"file": "paper.csv", "id": "zero"}}, 1.0, "not reproduced", "inf% off"),
    ],
)
def test_verdict_of_a_value(
    desk: Desk, changes: dict[str, Any], value: float, verdict: str, reason: str
) -> None:
    desk.table([value], fidelity=["analytic"])
    row = desk.judge(claim(**changes))[0]
    assert row["verdict"] == verdict
    assert reason in row["reason"]
    assert row["ours"] == value
    assert row["fidelity"] == "analytic"


TREND = {
    "comparison": "trend",
    "tolerance": 0.05,
    "direction": "increasing",
    "ours": {"table": "t.parquet", "expression": "mean(value, by=x)"},
}


@pytest.mark.parametrize(
    ("values", "direction", "verdict", "reason"),
    [
        ([1.0, 2.0, 3.0, 4.0], "increasing", "reproduced", "increasing from 1 to 4 over 4 points"),
        ([1.0, 0.9, 3.0, 4.0], "increasing", "reproduced", "increasing"),
        ([1.0, 3.0, 2.0, 4.0], "increasing", "partly", "1 of 3 steps go against it"),
        ([1.0, 3.0, 2.0, 0.5], "increasing", "not reproduced", "not increasing"),
        ([2.0, 2.0, 2.0, 2.0], "increasing", "not reproduced", "not increasing"),
        ([4.0, 3.0, 2.0, 1.0], "decreasing", "reproduced", "decreasing"),
    ],
)
def test_verdict_of_a_trend(
    desk: Desk, values: list[float], direction: str, verdict: str, reason: str
) -> None:
    desk.table(values[::-1], x=[3, 2, 1, 0], fidelity=["replay"] * 4)
    row = desk.judge(claim(**{**TREND, "direction": direction}))[0]
    assert (row["verdict"], row["ours"]) == (verdict, values[-1] / values[0])
    assert reason in row["reason"]


def test_a_trend_of_one_point_is_not_attempted(desk: Desk) -> None:
    desk.table([1.0], x=[0], fidelity=["replay"])
    row = desk.judge(claim(**TREND))[0]
    assert (row["verdict"], row["reason"]) == (
        "not attempted",
        "a trend needs at least two points; the results have 1",
    )


@pytest.mark.parametrize(
    ("fidelity", "required", "value", "verdict"),
    [
        (["measured_gpu"], "measured_gpu", 2.0, "reproduced"),
        (["measured_gpu"], "analytic", 2.0, "reproduced"),
        (["analytic"], "measured_gpu", 2.0, "partly"),
        (["emulated"], "measured_cpu", 2.0, "partly"),
        (["analytic"], "measured_gpu", 9.0, "not reproduced"),
        ([None], "analytic", 2.0, "partly"),
    ],
)
def test_fidelity_limits_the_verdict(
    desk: Desk, fidelity: list[str | None], required: str, value: float, verdict: str
) -> None:
    desk.table([value], fidelity=pa.array(fidelity, pa.string()))  # type: ignore[arg-type]
    row = desk.judge(claim(fidelity_required=required))[0]
    assert row["verdict"] == verdict
    assert row["fidelity"] == fidelity[0]
    if verdict == "partly":
        assert f"the claim requires {required}" in row["reason"]


def test_the_least_faithful_row_counts(desk: Desk) -> None:
    desk.table([2.0, 2.0], fidelity=["measured_gpu", "emulated"])
    assert desk.judge(claim())[0]["fidelity"] == "emulated"


def test_fidelity_of_a_file_without_any_is_the_claims(desk: Desk) -> None:
    write_json(desk.results / "m.json", {"graph": {"diameter": 2}, "name": "x", "empty": {}})
    ours = {"table": "m.json", "expression": "only(graph.diameter)"}
    assert desk.judge(claim(ours=ours, comparison="exact"))[0]["verdict"] == "partly"
    row = desk.judge(claim(ours={**ours, "fidelity": "analytic"}, comparison="exact"))[0]
    assert (row["verdict"], row["fidelity"], row["table"]) == ("reproduced", "analytic", "m.json")


def test_missing_tables_and_rows_are_not_attempted(desk: Desk) -> None:
    desk.table([2.0], fidelity=["analytic"], topology=["torus"])
    absent = {"selections": {"a": {"table": "plans/a.parquet"}}, "expression": "only(a.value)"}
    nothing = {
        "table": "t.parquet",
        "filter": {"topology": "ring", "value": {"at_least": 1}},
        "expression": "only(value)",
    }
    rows = desk.judge(claim(id="absent", ours=absent), claim(id="nothing", ours=nothing))
    assert [row["verdict"] for row in rows] == ["not attempted"] * 2
    assert rows[0]["reason"] == "plans/a.parquet is not among the results of this experiment"
    assert rows[1]["reason"] == "t.parquet has no row with topology ring, value at least 1"
    assert rows[0]["ours"] is None
    assert rows[0]["ours_text"] == ""
    assert rows[0]["fidelity"] is None


def test_null_metrics_are_not_attempted(desk: Desk) -> None:
    write_json(desk.results / "m.json", {"diameter": None})
    row = desk.judge(
        claim(ours={"table": "m.json", "expression": "only(diameter)", "fidelity": "analytic"})
    )[0]
    assert row["verdict"] == "not attempted"
    assert "empty" in row["reason"]


@pytest.mark.parametrize(
    ("rows_filter", "value"),
    [
        ({"mode": "a"}, 1.0),
        ({"mode": ["a", "b"], "x": {"at_least": 2}}, 2.0),
        ({"x": {"not": 1, "at_most": 2}}, 2.0),
        ({"mode": None}, 3.0),
    ],
)
def test_filters(desk: Desk, rows_filter: dict[str, Any], value: float) -> None:
    desk.table([1.0, 2.0, 3.0], mode=["a", "b", None], x=[1, 2, 3], fidelity=["analytic"] * 3)
    ours = {"table": "t.parquet", "filter": rows_filter, "expression": "only(value)"}
    assert desk.judge(claim(ours=ours))[0]["ours"] == value


def test_lists_of_a_json_file_as_rows(desk: Desk) -> None:
    write_json(
        desk.results / "r.json",
        {"peak": [3, 2], "planned": [3, 3], "settings": [{"ms": 1}, {"ms": 2}], "none": None},
    )
    peaks = {
        "table": "r.json",
        "rows": ["peak", "planned"],
        "expression": "max(abs(peak - planned))",
        "fidelity": "measured_cpu",
    }
    inner = {
        "table": "r.json",
        "rows": ["settings"],
        "expression": "sum(ms)",
        "fidelity": "measured_cpu",
    }
    none = {"table": "r.json", "rows": ["none"], "expression": "sum(none)"}
    rows = desk.judge(
        claim(id="a", ours=peaks), claim(id="b", ours=inner), claim(id="c", ours=none)
    )
    assert [row["ours"] for row in rows] == [1.0, 3.0, None]
    assert rows[2]["verdict"] == "not attempted"


def test_columns_and_types_of_the_claims_table(desk: Desk) -> None:
    rows = desk.judge(claim(comparison="at_least", neutral=1.0))
    assert list(rows[0]) == [
        "claim", "paper", "place", "sentence", "published", "published_text", "ours", "ours_text", "comparison", "tolerance",
        "fidelity", "fidelity_required", "verdict", "reason", "table", "selection", "expression",
    ]  # fmt: skip
    table = claims_table(rows)
    assert {field.name: field.type for field in table.schema} == CLAIM_COLUMNS
    assert rows[0]["published_text"] == "at least 2 times faster"
    assert rows[0]["paper"] == "Paper (arXiv 0)"
    assert rows[0]["verdict"] in VERDICTS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ours": {"table": "t.parquet", "expression": "only(speed)"}},
            "claim c: ours.expression: no column 'speed'; allowed: value",
        ),
        (
            {"ours": {"table": "t.parquet", "filter": {"x": 1}, "expression": "only(value)"}},
            "claim c: ours.filter.x: no such column",
        ),
        (
            {
                "ours": {
                    "table": "t.parquet",
                    "filter": {"value": {"above": 1}},
                    "expression": "only(value)",
                }
            },
            "claim c: ours.filter.value.above: unknown key; allowed: at_least, at_most, not",
        ),
        (
            {
                "ours": {
                    "table": "t.parquet",
                    "filter": {"value": {"at_least": "x"}},
                    "expression": "only(value)",
                }
            },
            "claim c: ours.filter.value.at_least: 'x' cannot be compared",
        ),
        (
            {"ours": {"table": "t.parquet", "expression": "mean(value, by=value)"}},
            "allowed: a single value",
        ),
        (
            {"ours": {"table": "r.json", "rows": ["a", "b"], "expression": "sum(a)"}},
            "differ in length",
        ),
        (
            {"ours": {"table": "r.json", "rows": ["z"], "expression": "sum(z)"}},
            "no key 'z' in r.json",
        ),
        (
            {"ours": {"table": "r.json", "rows": ["n"], "expression": "sum(n)"}},
            "'n' of r.json is no list",
        ),
        ({"ours": {"table": "l.json", "expression": "sum(n)"}}, "holds no object"),
        (
            {**TREND, "ours": {"table": "t.parquet", "expression": "only(value)"}},
            "one value per group (by=) for a trend",
        ),
        (
            {"ours": {"table": "f.parquet", "expression": "only(value)"}},
            "claim c: ours.fidelity: f.parquet has 'guessed'",
        ),
    ],
)
def test_claims_that_do_not_fit_their_table(
    desk: Desk, changes: dict[str, Any], message: str
) -> None:
    desk.table([2.0], fidelity=["analytic"])
    desk.table([2.0], name="f.parquet", fidelity=["guessed"])
    write_json(desk.results / "r.json", {"a": [1], "b": [1, 2], "n": 3})
    write_json(desk.results / "l.json", [1])
    with pytest.raises(ClaimError) as error:
        desk.judge(claim(**changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"comparison": "roughly"},
            "paper.yaml: claim c: comparison: got 'roughly'; allowed: ratio, at_most",
        ),
        ({"tolerance": -1}, "claim c: tolerance: got -1.0; allowed: 0 or greater"),
        ({"fidelity_required": "guess"}, "claim c: fidelity_required: got 'guess'"),
        ({"verdict": "reproduced"}, "claim c: verdict: unknown key"),
        ({"published": {"file": "none.csv", "id": "x"}}, "claim c: published.file: no none.csv in"),
        (
            {"published": {"file": "paper.csv", "id": "x"}},
            "claim c: published.id: 0 rows of paper.csv have the id 'x'",
        ),
        (
            {"published": {"file": "paper.csv", "id": "zero", "column": "best"}},
            "published.column: paper.csv has no 'best'",
        ),
        (
            {"published": {"file": "paper.csv", "id": "zero", "column": "source"}},
            "is 'a paper'; allowed: a number",
        ),
        ({"ours": {"expression": "1"}}, "claim c: ours.table: allowed: either one table"),
        (
            {"ours": {"table": "/etc/t.parquet", "expression": "1"}},
            "claim c: ours.table: got '/etc/t.parquet'",
        ),
        (
            {"ours": {"table": "../t.parquet", "expression": "1"}},
            "claim c: ours.table: got '../t.parquet'",
        ),
        ({"ours": {"table": "t.csv", "expression": "1"}}, "claim c: ours.table: got 't.csv'"),
        (
            {"ours": {"table": "t.parquet", "rows": ["a"], "expression": "1"}},
            "claim c: ours.rows: allowed: only for a .json",
        ),
        (
            {
                "ours": {
                    "filter": {"a": 1},
                    "selections": {"a": {"table": "t.json"}},
                    "expression": "1",
                }
            },
            "ours.filter: allowed: only",
        ),
        ({"direction": "increasing"}, "claim c: direction: allowed"),
        ({**TREND, "neutral": 1.0}, "claim c: neutral: allowed: null for trend and exact"),
    ],
)
def test_mistakes_in_claim_files_are_one_clear_line(
    desk: Desk, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClaimError) as error:
        desk.judge(claim(**changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_ids_are_unique(desk: Desk) -> None:
    with pytest.raises(ClaimError, match="claim c: id: is used twice"):
        desk.judge(claim(), claim())


def test_broken_files_are_named(desk: Desk) -> None:
    with pytest.raises(ClaimError, match="no claim file"):
        load_claims(desk.claims, desk.published)
    (desk.claims / "paper.yaml").write_text("claims: [", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"paper\.yaml: not valid YAML"):
        load_claims(desk.claims, desk.published)
    (desk.claims / "paper.yaml").write_text("claims: [3]\npaper: x", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"paper\.yaml: claim number 1"):
        load_claims(desk.claims, desk.published)
    (desk.claims / "paper.yaml").write_text("claims: []\npaper: x", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"paper\.yaml: claims: got \(\); allowed: not empty"):
        load_claims(desk.claims, desk.published)


def test_a_table_that_an_earlier_run_left_behind_proves_nothing(desk: Desk) -> None:
    settings = claim(comparison="at_least", neutral=1.0)
    desk.table([2.5], fidelity=["replay"])
    assert desk.judge(settings)[0]["verdict"] != "not attempted"
    row = judge(load_claims(desk.claims, desk.published), desk.results, tables=set())[0]
    assert row["verdict"] == "not attempted"
    assert "not among the results of this experiment" in row["reason"]
