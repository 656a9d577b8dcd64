"""Every way to a verdict, on small tables made by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from railx.evidence import (
    CLAIM_COLUMNS,
    VERDICTS,
    Claim,
    ClaimError,
    PublishedNumbers,
    Recorded,
    claims_table,
    count_verdicts,
    judge,
    load_claims,
    read_papers,
)
from railx.io import write_table

PUBLISHED = (
    "id,value,unit,source,confidence\nspeedup,2,times faster,a paper,high\nzero,0,,a"
    " paper,high\nlimit,0.1,,a paper,high\nrumour,3,,,low\nslope,2,ms per ms,a paper,high\n"
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
        self.papers = folder / "papers.yaml"
        self.papers.write_text("paper: {name: Paper, arxiv: ['0'], idea: to be fast}\n")
        self.files: set[str] = {"plan/a/groups.parquet"}

    def table(self, values: list[Any], name: str = "a/t.parquet", **columns: list[Any]) -> None:
        write_table(self.results / name, {"value": values, **columns})
        self.files.add(name)

    def write(self, *claims: dict[str, Any], paper: str = "paper") -> None:
        (self.claims / "paper.yaml").write_text(
            yaml.safe_dump({"paper": paper, "claims": list(claims)}), encoding="utf-8"
        )

    def judge(self, *claims: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        self.write(*claims)
        return judge(self.load(), self.results, self.files, **more)

    def load(self) -> tuple[Claim, ...]:
        return load_claims(self.claims, self.published, self.papers)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def claim(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "id": "c",
        "sentence": "It is faster.",
        "place": "section 1",
        "published": {"file": "paper.csv", "id": "speedup"},
        "kind": "published",
        "query": "select value as ours, fidelity from a.t",
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
            "ours, 2.1 times faster, is 5 % above the published 2, within the tolerance of 10 %",
        ),
        ({}, 2.2, "reproduced", "10 % above"),
        (
            {},
            2.21,
            "direction only",
            "10.5 % above the published 2, more than the tolerance of 10 %",
        ),
        (
            {},
            1.79,
            "direction only",
            "10.5 % below the published 2, more than the tolerance of 10 %",
        ),
        ({}, 3.0, "direction only", "within a factor of 2"),
        ({}, 4.0, "direction only", "within a factor of 2"),
        ({}, 1.0, "direction only", "within a factor of 2"),
        ({}, 0.99, "not reproduced", "50.5 % below the published 2"),
        (
            {"comparison": "at_least", "tolerance": 0.1},
            1.79,
            "not reproduced",
            "10.5 % below the published at least 2",
        ),
        ({"comparison": "at_least", "tolerance": 0.0}, 2 - 1e-9, "reproduced", "is at least"),
        ({"comparison": "at_most", "tolerance": 0.0}, 2 + 1e-9, "reproduced", "is at most"),
        ({"comparison": "exact", "tolerance": 0.0}, 2 + 1e-9, "reproduced", "equals"),
        (
            {"comparison": "at_most", "tolerance": 0.1},
            2.19,
            "reproduced",
            "9.5 % above the published at most 2",
        ),
        (
            {"comparison": "at_most", "tolerance": 0.1},
            2.21,
            "not reproduced",
            "10.5 % above the published at most 2",
        ),
        (
            {"comparison": "exact", "tolerance": 0.01},
            2.011,
            "not reproduced",
            "differs from the published 2 by 0.011, more than the tolerance of 0.01",
        ),
        ({}, 4.5, "not reproduced", "125 % above the published 2, more than the tolerance of 10 %"),
        ({"neutral": 1.0}, 1.2, "not reproduced", "0.2 of the effect beyond 1"),
        ({"neutral": 1.0}, 1.5, "direction only", "0.5 of the effect beyond 1"),
        ({"neutral": 1.0}, 3.0, "direction only", "2 of the effect beyond 1"),
        ({"neutral": 1.0}, 3.01, "not reproduced", "2.01 of the effect beyond 1"),
        ({"neutral": 1.0}, 9.0, "not reproduced", "8 of the effect beyond 1"),
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
            "ours, 1.99 times faster, is 0.5 % below the published at least 2",
        ),
        (
            {"comparison": "at_least", "tolerance": 0.1},
            1.81,
            "reproduced",
            "9.5 % below the published at least 2, within the tolerance of 10 %",
        ),
        (
            {"comparison": "at_least", "tolerance": 0.0, "neutral": 1.0},
            1.5,
            "direction only",
            "0.5 of the effect beyond 1",
        ),
        (
            {"comparison": "at_most", "tolerance": 0.0},
            1.5,
            "reproduced",
            "is at most the published 2",
        ),
        (
            {"comparison": "at_most", "tolerance": 0.0},
            2.5,
            "not reproduced",
            "25 % above the published at most 2",
        ),
        (
            {
                "comparison": "at_most",
                "published": {"file": "paper.csv", "id": "limit"},
                "neutral": 1.0,
            },
            0.5,
            "direction only",
            "of the effect beyond 1",
        ),
        ({"comparison": "exact", "tolerance": 0.0}, 2.0, "reproduced", "equals the published 2"),
        (
            {"comparison": "exact", "tolerance": 0.0},
            2.001,
            "not reproduced",
            "differs from the published 2 by 0.001",
        ),
        (
            {"comparison": "exact", "tolerance": 0.01},
            2.001,
            "reproduced",
            "is within the allowed 0.01 of the published 2",
        ),
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
        (
            {"published": {"file": "paper.csv", "id": "zero"}},
            1.0,
            "not reproduced",
            "is 1 above the published 0",
        ),
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
    assert all(row[key].endswith(row["unit"]) for key in ("ours_text", "published_text"))


NOT_TESTABLE = {"reason": "It needs 1,024 GPUs.", "needs": "A cluster."}
TREND: dict[str, Any] = {
    "comparison": "trend",
    "published": {"file": "paper.csv", "id": "slope"},
    "tolerance": 0.05,
    "direction": "increasing",
    "query": "select x, avg(value) as ours, lowest(fidelity) as fidelity from a.t group by x",
}


LAST_OVER_FIRST = {
    **TREND,
    "trend_value": "last_over_first",
    "published": {"file": "paper.csv", "id": "zero"},
}


@pytest.mark.parametrize(
    ("values", "direction", "verdict", "reason"),
    [
        (
            [1.0, 2.0, 3.0, 4.0],
            "increasing",
            "reproduced",
            "ours rises from 1 to 4 over 4 points (1 ms per ms)",
        ),
        ([1.0, 0.9, 3.0, 4.0], "increasing", "reproduced", "rises from 1 to 4"),
        ([1.0, 3.0, 2.0, 4.0], "increasing", "direction only", "1 of 3 steps goes against it"),
        ([1.0, 0.5, 0.2, 4.0], "increasing", "direction only", "2 of 3 steps go against it"),
        ([1.0, 3.0, 2.0, 0.5], "increasing", "not reproduced", "not increasing"),
        ([2.0, 2.0, 2.0, 2.0], "increasing", "not reproduced", "not increasing"),
        ([0.1, 0.2, 0.3, 0.4], "increasing", "reproduced", "rises from 0.1 to 0.4"),
        # The tolerance is a share of the range, not of the values.
        (
            [100.0, 103.0, 102.0, 104.0],
            "increasing",
            "direction only",
            "1 of 3 steps goes against it",
        ),
        ([4.0, 3.0, 2.0, 1.0], "decreasing", "reproduced", "ours falls from 4 to 1"),
    ],
)
def test_verdict_of_a_trend(
    desk: Desk, values: list[float], direction: str, verdict: str, reason: str
) -> None:
    desk.table(values[::-1], x=[3, 2, 1, 0], fidelity=["replay"] * 4)
    row = desk.judge(claim(**{**TREND, "direction": direction}))[0]
    assert row["verdict"] == verdict
    assert row["ours_text"].endswith("ms per ms")
    assert row["published_text"] == "2 ms per ms"
    assert row["ours"] == pytest.approx(np.polyfit(range(4), values, 1)[0], abs=1e-12)
    assert reason in row["reason"]
    ratio = desk.judge(claim(**{**LAST_OVER_FIRST, "direction": direction}))[0]
    assert (ratio["verdict"], ratio["ours"]) == (verdict, values[-1] / values[0])


def test_an_unknown_row_is_answered_with_the_first_eight(tmp_path: Path) -> None:
    names = [f"row_{number}" for number in range(9)]
    (tmp_path / "many.csv").write_text("id,value\n" + "".join(f"{name},1\n" for name in names))
    with pytest.raises(ValueError, match=re.escape(", ".join(names[:8]) + ", ...)")):
        PublishedNumbers(tmp_path).row("many.csv", "none")


def test_a_trend_of_one_point_is_not_here(desk: Desk) -> None:
    desk.table([1.0], x=[0], fidelity=["replay"])
    row = desk.judge(claim(**TREND))[0]
    assert (row["verdict"], row["reason"]) == (
        "not here",
        "a trend needs at least two points; the results have 1; no recorded experiment decides it",
    )


@pytest.mark.parametrize(
    ("fidelity", "required", "value", "verdict"),
    [
        (["replay"], "replay", 2.0, "reproduced"),
        (["replay"], "analytic", 2.0, "reproduced"),
        (["analytic"], "measured_gpu", 2.0, "consistent"),
        (["packet"], "replay", 2.0, "consistent"),
        (["analytic"], "measured_gpu", 9.0, "not reproduced"),
        ([None], "analytic", 2.0, "consistent"),
    ],
)
def test_fidelity_limits_the_verdict(
    desk: Desk, fidelity: list[str | None], required: str, value: float, verdict: str
) -> None:
    desk.table([value], fidelity=pa.array(fidelity, pa.string()))  # type: ignore[arg-type]
    row = desk.judge(claim(fidelity_required=required))[0]
    assert row["verdict"] == verdict
    assert row["fidelity"] == fidelity[0]
    if verdict == "consistent":
        assert f"the claim requires {required}" in row["reason"]


STEPS = "select value as ours, fidelity, steps, 9 as ranks from a.t"


@pytest.mark.parametrize(
    ("steps", "value", "verdict", "reason"),
    [
        (50, 2.0, "reproduced", "equals the published 2"),
        (49, 2.0, "undecided", "but ours rests on 49 steps of at least 50 that the claim requires"),
        (49, 3.0, "undecided", "within a factor of 2; but ours rests on 49 steps"),
        (49, 9.0, "not reproduced", "besides, ours rests on 49 steps of at least 50"),
        (50, 3.0, "direction only", "within a factor of 2"),
        (None, 2.0, "undecided", "but ours rests on 0 steps"),
    ],
)
def test_small_runs_reproduce_nothing(
    desk: Desk, steps: int | None, value: float, verdict: str, reason: str
) -> None:
    desk.table([value], fidelity=["analytic"], steps=[steps])
    row = desk.judge(claim(query=STEPS, requires={"steps": 50, "ranks": 4}))[0]
    assert row["verdict"] == verdict
    assert reason in row["reason"]
    assert "ranks" not in row["reason"]


def test_the_smallest_run_behind_a_value_counts(desk: Desk) -> None:
    """Every repeat, and everything that is too small is named."""
    desk.table([2.0] * 3, fidelity=["analytic"] * 3, steps=[60, 9, 60], sample=[1, 2, 3])
    query = STEPS.replace("steps,", "steps, sample,")
    row = desk.judge(claim(query=query, requires={"steps": 50, "ranks": 2000}))[0]
    assert row["verdict"] == "undecided"
    assert row["reason"].endswith(
        "but ours rests on 9 ranks of at least 2,000 and 9 steps of at least 50 that the claim"
        " requires"
    )


def test_the_least_faithful_row_counts(desk: Desk) -> None:
    desk.table([2.0, 2.0], fidelity=["measured_gpu", "emulated"])
    query = "select avg(value) as ours, lowest(fidelity) as fidelity from a.t"
    assert desk.judge(claim(query=query))[0]["fidelity"] == "emulated"


@pytest.mark.parametrize(
    ("fidelity", "lowest"),
    [
        (["measured_gpu", "packet", "replay"], "packet"),
        (["flow", "replay", "packet"], "flow"),
        (["flow", None, "replay"], None),
    ],
)
def test_a_trend_is_as_faithful_as_its_least_faithful_point(
    desk: Desk, fidelity: list[str | None], lowest: str | None
) -> None:
    desk.table([1.0, 2.0, 3.0], x=[0, 1, 2], fidelity=fidelity)
    row = desk.judge(claim(**TREND))[0]
    assert row["fidelity"] == lowest
    assert row["verdict"] == ("consistent" if lowest is None else "reproduced")


def test_points_without_a_value_are_no_part_of_a_trend(desk: Desk) -> None:
    desk.table([1.0, None, 3.0], x=[0, 1, 2], fidelity=["flow", "analytic", "flow"])
    row = desk.judge(claim(**TREND))[0]
    assert (row["verdict"], row["ours"], row["fidelity"]) == ("reproduced", 1.0, "flow")
    assert "over 2 points" in row["reason"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (
            "select value as ours, fidelity from plan.a.groups",
            "plan.a.groups is not among the results of this experiment",
        ),
        (
            "select value as ours, fidelity from a.t where value > 7",
            "the query finds no row in a.t",
        ),
        (
            "select max(value) as ours, lowest(fidelity) as fidelity from a.t where value > 7",
            "the query finds no value in a.t",
        ),
        ("select missing as ours, fidelity from a.t", "the query finds no value in a.t"),
        ("select value / 0 as ours, fidelity from a.t", "ours is not a finite number"),
        ("select (value - 2) / 0 as ours, fidelity from a.t", "ours is not a finite number"),
        ("select null as ours, null as fidelity", "the query finds no value"),
    ],
)
def test_what_is_not_there_is_not_here(desk: Desk, query: str, reason: str) -> None:
    desk.table([2.0], fidelity=["analytic"], missing=pa.nulls(1, pa.float64()))  # type: ignore[arg-type]
    row = desk.judge(claim(query=query))[0]
    assert row["verdict"] == "not here"
    assert row["reason"].startswith(reason)
    assert (row["ours"], row["ours_text"], row["fidelity"]) == (None, "", None)


def test_an_empty_table_is_not_here(desk: Desk) -> None:
    columns = {"value": pa.array([], pa.float64()), "fidelity": pa.array([], pa.string())}
    write_table(desk.results / "a/t.parquet", columns)
    desk.files.add("a/t.parquet")
    trend = TREND["query"].replace("select x", "select value as x").replace("by x", "by value")
    rows = desk.judge(claim(), claim(id="trend", **{**TREND, "query": trend}))
    assert [row["verdict"] for row in rows] == ["not here"] * 2
    assert {row["reason"] for row in rows} == {
        "the query finds no row in a.t; no recorded experiment decides it"
    }


def test_the_reason_calls_a_derived_number_expected(desk: Desk) -> None:
    desk.table([2.0], fidelity=["analytic"])
    kinds = ("published", "derived", "check")
    comparisons = ("ratio", "exact", "at_least")
    rows = desk.judge(
        *(
            claim(id=f"{kind}_{comparison}", kind=kind, comparison=comparison)
            for kind in kinds
            for comparison in comparisons
        )
    )
    for row in rows:
        word = "published" if row["kind"] == "published" else "expected"
        assert f"the {word} 2" in row["reason"]


ASSUMED = 'select "case" as assumption, value as ours, fidelity from a.t'


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        ([2.0, 2.1], "reproduced", "of 2 assumptions (2 to 2.1) it holds in 2"),
        ([2.0, 9.0], "depends", "it holds in 1 (50 %)"),
        ([9.0, 2.0], "depends", "it holds in 1 (50 %)"),
        ([9.0, 8.0], "not reproduced", "it holds in 0"),
        ([2.0] * 19 + [9.0], "depends", "it holds in 19 (95 %)"),
        ([2.0] * 20 + [9.0], "reproduced", "it holds in 20"),
        ([9.0] + [2.0] * 20, "depends", "where the chosen one differs"),
    ],
)
def test_a_claim_may_depend_on_what_the_paper_leaves_open(
    desk: Desk, values: list[float], verdict: str, words: str
) -> None:
    names = [f"case {number}" for number in range(len(values))]
    desk.table(values, case=names, fidelity=["flow"] * len(values))
    (row,) = desk.judge(claim(query=ASSUMED, chosen="case 0"))
    assert (row["verdict"], row["ours"], row["fidelity"]) == (verdict, values[0], "flow")
    assert words in row["reason"]


@pytest.mark.parametrize(("two", "verdict"), [(9.0, "depends"), (2.0, "undecided")])
def test_a_value_under_an_assumption_has_the_interval_of_its_batches(
    desk: Desk, two: float, verdict: str
) -> None:
    names, batches = ["one"] * 3 + ["two"] * 3, [0, 1, 2] * 2
    weights = [1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    desk.table(
        [1.8, 2.2, 2.0, two, two, two],
        case=names,
        batch=batches,
        share=weights,
        fidelity=["flow"] * 6,
    )
    query = ASSUMED.replace("value", "batch as sample, share as weight, value")
    (row,) = desk.judge(claim(query=query, chosen="one"))
    assert (row["verdict"], row["ours"], row["samples"]) == (verdict, 2.0, 3)
    assert row["reason"].endswith("; of 1 the interval is not on one side")
    # Cochran's spread of a ratio of means, and Student's t of two degrees of freedom.
    half = 4.302653 * (2 * (0.75 * 0.2) ** 2 / 2) ** 0.5 / 3**0.5
    assert (row["low"], row["high"]) == pytest.approx((2.0 - half, 2.0 + half), rel=1e-6)


def test_rows_of_an_assumption_that_were_disturbed_or_have_no_value_do_not_count(
    desk: Desk,
) -> None:
    desk.table(
        [1.9, 2.0, 2.1, 90.0, None],
        case=["one"] * 5,
        batch=[0, 1, 2, 3, 4],
        busy=[False] * 3 + [True, False],
        fidelity=["flow"] * 3 + ["flow", None],
    )
    query = ASSUMED.replace("value", "batch as sample, busy as disturbed, value")
    (row,) = desk.judge(claim(query=query, chosen="one"))
    assert (row["ours"], row["samples"], row["fidelity"]) == (pytest.approx(2.0), 3, "flow")
    assert row["set_aside"] == 1
    assert row["reason"].endswith("1 repeat set aside because the machine was busy")


@pytest.mark.parametrize(("steps", "verdict"), [(5, "reproduced"), (4, "undecided")])
def test_runs_under_an_assumption_may_be_too_small(desk: Desk, steps: int, verdict: str) -> None:
    desk.table([2.0, 2.0], case=["one", "two"], steps=[9, steps], fidelity=["flow"] * 2)
    query = ASSUMED.replace("value", "steps, value")
    (row,) = desk.judge(claim(query=query, chosen="one", requires={"steps": 5}))
    assert row["verdict"] == verdict


def test_an_assumption_that_is_missing_is_named(desk: Desk) -> None:
    desk.table([2.0], case=["one"], fidelity=["flow"])
    (row,) = desk.judge(claim(query=ASSUMED, chosen="two"))
    assert row["verdict"] == "not here"
    assert row["reason"].startswith("the query finds no value for the assumption two, but for one")


def test_what_another_experiment_decides_is_named_with_its_verdict(desk: Desk) -> None:
    missing = claim(id="a", query="select value as ours, fidelity from plan.a.groups")
    recorded = {
        "first": {"a": Recorded("not here")},
        "second": {"a": Recorded("consistent", ours=2.1)},
    }
    (row,) = desk.judge(missing, recorded=recorded)
    assert (row["verdict"], row["reason"]) == ("not here", "decided in experiment second")
    assert [row[f"recorded_{key}"] for key in ("in", "verdict", "text")] == [
        "second",
        "consistent",
        "2.1 times faster",
    ]
    desk.table([2.0], fidelity=["flow"])
    (row,) = desk.judge(claim(id="a"), recorded=recorded)
    assert (row["verdict"], row["recorded_in"]) == ("reproduced", "")


def test_a_claim_has_the_places_of_all_rows_that_state_it(desk: Desk) -> None:
    desk.table([2.0], fidelity=["flow"])
    (row,) = desk.judge(claim(also=[{"file": "paper.csv", "id": "rumour"}]))
    assert row["place"].endswith("; paper.csv (3)")
    with pytest.raises(ClaimError, match="have the id 'gone'"):
        desk.judge(claim(also=[{"file": "paper.csv", "id": "gone"}]))


def test_verdicts_are_counted_by_kind(desk: Desk) -> None:
    desk.table([2.0], fidelity=["analytic"])
    far = "select 9 * value as ours, fidelity from a.t"
    rows = desk.judge(
        claim(id="a"),
        claim(id="b", query=far),
        claim(id="c", query=far, kind="derived"),
        claim(id="d", kind="check"),
        claim(id="e", kind="check", query="select value as ours, fidelity from a.t where false"),
    )
    counts = count_verdicts(rows)
    assert {kind: tuple(found.values()) for kind, found in counts.items()} == {
        "published": (1, 0, 0, 0, 0, 1, 0, 0),
        "derived": (0, 0, 0, 0, 0, 1, 0, 0),
        "check": (1, 0, 0, 0, 0, 0, 1, 0),
    }
    assert all(tuple(found) == VERDICTS for found in counts.values())


def test_columns_and_types_of_the_claims_table(desk: Desk) -> None:
    query = "\nselect value as ours, fidelity from a.t, plan.a.groups\n"
    rows = desk.judge(claim(comparison="at_least", neutral=1.0, query=query, notes="Small."))
    assert list(rows[0]) == [
        "claim",
        "kind",
        "headline",
        "paper",
        "place",
        "sentence",
        "published",
        "published_text",
        "ours",
        "low",
        "high",
        "ours_text",
        "samples",
        "set_aside",
        "comparison",
        "tolerance",
        "unit",
        "fidelity",
        "fidelity_required",
        "verdict",
        "reason",
        "needs",
        "recorded_in",
        "recorded_verdict",
        "recorded_text",
        "inputs",
        "insensitive",
        "source",
        "confidence",
        "notes",
        "tables",
        "query",
    ]
    table = claims_table(rows)
    assert {field.name: field.type for field in table.schema} == CLAIM_COLUMNS
    assert rows[0]["published_text"] == "at least 2 times faster"
    assert rows[0]["paper"] == "paper"
    assert rows[0]["notes"] == "Small."
    assert (rows[0]["source"], rows[0]["confidence"]) == ("a paper", "high")
    assert (rows[0]["unit"], rows[0]["headline"], rows[0]["needs"]) == ("times faster", False, "")
    assert set(rows[0]["tables"].split(", ")) == {"a.t", "plan.a.groups"}
    assert rows[0]["query"] == query.strip()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"query": "select speed as ours, fidelity from a.t"},
            "query: no column speed; allowed: value",
        ),
        (
            {"query": "select value from a.t"},
            "query: gives the columns value; allowed: ours, fidelity",
        ),
        ({"query": "select value as ours, fidelity, 1 as x from a.t"}, "allowed: ours, fidelity"),
        ({"query": "select 1 as ours"}, "query: gives the columns ours; allowed: ours, fidelity"),
        (
            {"query": "select value as ours, fidelity from a.two"},
            "query: gives 2 rows; allowed: one",
        ),
        (
            {"query": "select fidelity as ours, fidelity from a.t"},
            "query: ours is 'analytic'; allowed: a number",
        ),
        (
            {"query": "select value as ours, 'guessed' as fidelity from a.t"},
            "query: fidelity is 'guessed'; allowed: analytic, flow",
        ),
        (
            {"query": "select value as ours, fidelity from a.guess"},
            "fidelity: a.guess has 'guessed'; allowed: analytic, flow",
        ),
        ({"query": "select 1; select 2"}, "query: got 2 statements"),
        (
            {**TREND, "query": "select value as ours, fidelity from a.t"},
            "allowed: x, ours, fidelity",
        ),
        (
            {"requires": {"steps": 50}},
            "query: gives the columns ours, fidelity; allowed: ours, fidelity, steps, and of",
        ),
        (
            {"query": "select value as ours, fidelity, false as disturbed from a.t"},
            "allowed: ours, fidelity, and of what was repeated sample, with disturbed or weight",
        ),
        (
            {"query": "select value as ours, fidelity, 1 as sample from a.two"},
            "query: gives two rows for sample = 1; allowed: one",
        ),
        (
            {"query": "select value as ours, fidelity, null as sample from a.t"},
            "query: sample is None; allowed: the number or name of a repeat",
        ),
        (
            {**TREND, "query": "select 1 as x, value as ours, fidelity from a.two"},
            "query: gives two rows for x = 1; allowed: one",
        ),
        (
            {**TREND, "query": "select null as x, value as ours, fidelity from a.t"},
            "query: x is None; allowed: a number",
        ),
    ],
)
def test_queries_that_do_not_fit_are_named(
    desk: Desk, changes: dict[str, Any], message: str
) -> None:
    desk.table([2.0], fidelity=["analytic"])
    desk.table([2.0, 3.0], name="a/two.parquet", fidelity=["analytic"] * 2)
    desk.table([2.0], name="a/guess.parquet", fidelity=["guessed"])
    with pytest.raises(ClaimError) as error:
        desk.judge(claim(**changes))
    assert str(error.value).startswith("paper.yaml: claim c: ")
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
        ({"query": ""}, "claim c: query: got ''; allowed: not empty"),
        ({"query": None}, "claim c: query: is missing; allowed: one SELECT, or not_testable"),
        ({"not_testable": NOT_TESTABLE}, "claim c: query: got one beside not_testable"),
        ({"query": None, "not_testable": NOT_TESTABLE}, "claim c: tolerance: allowed: null"),
        ({"tolerance": None}, "claim c: tolerance: is missing; allowed: 0 or greater"),
        ({"fidelity_required": None}, "claim c: fidelity_required: is missing"),
        ({"trend_value": "slope"}, "claim c: trend_value: allowed: null for every comparison but"),
        (
            {**TREND, "published": {"file": "paper.csv", "id": "speedup"}},
            "claim c: unit: got 'times faster'; allowed: words with ' per ' for a slope",
        ),
        (
            {**TREND, "trend_value": "last_over_first"},
            "claim c: unit: got 'ms per ms'; allowed: 'last over first' or none",
        ),
        (
            {"published": {"file": "paper.csv", "id": "rumour"}},
            "claim c: published.id: rumour of paper.csv has no source",
        ),
        ({"ours": {"expression": "1"}}, "claim c: ours: unknown key"),
        ({"kind": "rumour"}, "claim c: kind: got 'rumour'; allowed: published, derived, check"),
        ({"direction": "increasing"}, "claim c: direction: allowed"),
        ({**TREND, "neutral": 1.0}, "claim c: neutral: allowed: null for trend and exact"),
        ({"requires": {"steps": 0}}, "claim c: requires.steps: got 0.0; allowed: greater than 0"),
        ({"requires": {"ours": 5}}, "claim c: requires: got ours; allowed: columns of the query"),
    ],
)
def test_mistakes_in_claim_files_are_one_clear_line(
    desk: Desk, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClaimError) as error:
        desk.judge(claim(**changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_paper_that_is_not_listed_is_refused(desk: Desk) -> None:
    desk.write(claim(), paper="other")
    with pytest.raises(ClaimError, match=r"paper\.yaml: paper: got 'other'; allowed: paper"):
        desk.load()


def test_papers_have_names_and_ideas(tmp_path: Path) -> None:
    path = tmp_path / "papers.yaml"
    for content, message in (
        ("a: {name: A, arxiv: []}", "papers.yaml: a.idea: is missing"),
        ("{}", "papers.yaml: got {}; allowed: not empty"),
        ("a: [\n", "papers.yaml, line 2: not valid YAML"),
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ClaimError) as error:
            read_papers(path)
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)


def test_ids_are_unique(desk: Desk) -> None:
    with pytest.raises(ClaimError, match="claim c: id: is used twice"):
        desk.judge(claim(), claim())


def test_broken_files_are_named(desk: Desk) -> None:
    with pytest.raises(ClaimError, match="no claim file"):
        desk.load()
    (desk.claims / "paper.yaml").write_text("claims: [", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"paper\.yaml, line 2: not valid YAML"):
        desk.load()
    (desk.claims / "paper.yaml").write_text("claims: [3]\npaper: paper", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"paper\.yaml: claim number 1"):
        desk.load()
    (desk.claims / "paper.yaml").write_text("claims: [{kind: check}]\npaper: paper")
    with pytest.raises(ClaimError, match=r"paper\.yaml: claim number 1: "):
        desk.load()
    (desk.claims / "paper.yaml").write_text("claims: []\npaper: paper", encoding="utf-8")
    with pytest.raises(ClaimError, match=r"paper\.yaml: claims: got \(\); allowed: not empty"):
        desk.load()


def test_a_table_that_an_earlier_run_left_behind_proves_nothing(desk: Desk) -> None:
    settings = claim(comparison="at_least", neutral=1.0)
    desk.table([2.5], fidelity=["replay"])
    assert desk.judge(settings)[0]["verdict"] != "not here"
    desk.files.remove("a/t.parquet")
    row = desk.judge(settings)[0]
    assert row["verdict"] == "not here"
    assert row["reason"].startswith("a.t is not among the results of this experiment")
