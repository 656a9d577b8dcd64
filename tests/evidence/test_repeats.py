"""Verdicts on what was repeated: medians, intervals, and what is set aside."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from railx.evidence import judge, load_claims
from railx.intervals import FEWEST, difference, estimate, estimate_line, weighted_mean
from railx.io import write_table

#: Repeats from which on order statistics reach 95 %.
ENOUGH = 6
VALUES = st.lists(st.floats(0.1, 100).map(lambda value: round(value, 3)), min_size=3, max_size=9)
PUBLISHED = (
    "id,value,unit,source,confidence\n"
    "two,2,times faster,a paper,high\n"
    "slope,1,ms per ms,a paper,high\n"
)


class Desk:
    """A folder in which one claim is judged on samples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("claims", "published", "results"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "published" / "paper.csv").write_text(PUBLISHED, encoding="utf-8")
        (folder / "papers.yaml").write_text("paper: {name: P, arxiv: [], idea: fast}\n")

    def judge(self, rows: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
        named = ", ".join(f"{name} as {name}" for name in rows[0] if name != "fidelity")
        claim = {
            "id": "c",
            "kind": "published",
            "sentence": "It is faster.",
            "place": "section 1",
            "published": {"file": "paper.csv", "id": "two"},
            "query": f"select {named}, fidelity from a.t",
            "comparison": "ratio",
            "tolerance": 0.1,
            "fidelity_required": "analytic",
        } | changes
        write_table(
            self.folder / "results" / "a" / "t.parquet",
            {name: [row[name] for row in rows] for name in rows[0]},
        )
        (self.folder / "claims" / "paper.yaml").write_text(
            yaml.safe_dump({"paper": "paper", "claims": [claim]}), encoding="utf-8"
        )
        claims = load_claims(
            self.folder / "claims", self.folder / "published", self.folder / "papers.yaml"
        )
        (row,) = judge(claims, self.folder / "results", ["a/t.parquet"])
        return row


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


def samples(*values: float | None, **columns: Any) -> list[dict[str, Any]]:
    """A row per repeat."""
    return [
        {"sample": number, "ours": value, "fidelity": "emulated", **columns}
        for number, value in enumerate(values)
    ]


TREND = {
    "comparison": "trend",
    "direction": "increasing",
    "tolerance": 0.05,
    "published": {"file": "paper.csv", "id": "slope"},
}


def lines(*points: list[float | None]) -> list[dict[str, Any]]:
    """A row per point and repeat; None: that repeat has no such point."""
    return [
        {"x": place, "sample": number, "ours": value, "fidelity": "emulated", "disturbed": False}
        for place, values in enumerate(points)
        for number, value in enumerate(values)
        if value is not None
    ]


@settings(deadline=None, max_examples=25)
@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_repeats_changes_nothing(values: list[float], chance: Any) -> None:
    shuffled = list(values)
    chance.shuffle(shuffled)
    assert estimate(shuffled) == estimate(values)


@settings(deadline=None, max_examples=25)
@given(VALUES)
@example([9.0, 9.0, 8.812])
@example([35.0, 34.377, 34.377])
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = estimate(values)
    assert found.value == np.median(values)
    low, high = found.ends
    assert low <= found.value <= high
    if len(values) >= ENOUGH:
        assert {low, high} <= set(values)
    assert found.samples == len(values)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 9, 17, 40])
@pytest.mark.parametrize("spread", [None, 0.1, 1.0])
def test_intervals_cover_the_median_in_95_percent_of_the_cases(
    count: int, spread: float | None
) -> None:
    """Of 2,000 drawn sets, normal ones (None) and lognormal ones of this spread.

    Repeats of times on a processor spread by 8 % at most (resources/expected), skewed
    to slow ones. Where they spread by a factor Student's interval is too short.
    """
    chance = np.random.default_rng(count)
    draws = chance.normal(size=(2000, count))
    covered = 0
    for values in draws if spread is None else np.exp(spread * draws):
        low, high = estimate(values.tolist()).ends
        covered += low <= (0.0 if spread is None else 1.0) <= high
    # Three standard errors of the share below 95 %.
    assert covered / len(draws) >= (0.85 if spread == 1.0 and count < ENOUGH else 0.935)


def test_intervals_of_batches_cover_the_ratio_of_sums() -> None:
    chance = np.random.default_rng(5)
    covered = 0
    for _ in range(2000):
        fast = chance.gamma(9.0, size=40)
        slow = fast * chance.normal(1.7, 0.2, size=40)
        found = weighted_mean((slow / fast).tolist(), fast.tolist())
        assert found.value == pytest.approx(slow.sum() / fast.sum())
        covered += found.ends[0] <= 1.7 <= found.ends[1]
    assert 0.935 <= covered / 2000 <= 0.975


def test_intervals_by_hand() -> None:
    """Order statistics, and Student's t of two degrees of freedom, 4.3027."""
    assert estimate([1, 2, 3, 4, 5, 6, 7]).ends == (1, 7)
    assert estimate(range(1, 10)).ends == (2, 8)
    # The third to the fifth of seven cover half; 99 % take Student's.
    assert estimate(range(1, 8), 0.5).ends == (3, 5)
    assert estimate(range(1, 8), 0.99).ends[0] < 1
    reach = 4.302653 / 3**0.5
    assert estimate([1, 2, 3]).ends == pytest.approx((2 - reach, 2 + reach))
    # The mean lies far from the median.
    assert estimate([0, 0, 100]).ends[0] < 0


def test_equal_repeats_have_an_interval_of_no_width() -> None:
    assert estimate([2.5] * 4).ends == (2.5, 2.5)


@pytest.mark.parametrize("count", [1, 2])
def test_few_repeats_have_no_interval(count: int) -> None:
    found = estimate([1.0] * count)
    assert (found.value, found.ends, found.samples) == (1.0, (), count)


def test_repeats_that_pair_are_compared_one_by_one() -> None:
    slow_and_fast = {0: 10.0, 1: 20.0, 2: 30.0}
    later = {name: value + 1 for name, value in slow_and_fast.items()}
    assert difference(slow_and_fast, later).ends == (1.0, 1.0)
    unpaired = difference(slow_and_fast, {f"other {name}": value for name, value in later.items()})
    assert (unpaired.value, unpaired.ends, unpaired.samples) == (1.0, (), 0)


def test_a_line_of_repeats_that_pair_has_the_median_of_their_slopes() -> None:
    def rise(places: Any, values: Any) -> Any:
        return values[..., -1] - values[..., 0]

    points = [{0: 0.0, 1: 100.0, 2: 200.0}, {0: 1.0, 1: 102.0, 2: 203.0}]
    assert estimate_line([0, 1], points, rise) == estimate([1.0, 2.0, 3.0])
    apart = [points[0], {name + 10: value for name, value in points[1].items()}]
    found = estimate_line([0, 1], apart, rise)
    assert (found.value, found.ends, found.samples) == (2.0, (), 0)


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        ((1.9, 2.0, 2.1), "reproduced", "median of 6 repeats, 95 % interval 1.9 to 2.1"),
        ((2.0, 2.0, 2.0), "reproduced", "95 % interval of no width"),
        # The median alone would be enough; one end is not.
        ((2.0, 2.0, 2.3), "undecided", "not on one side: 2.3 is 15 % above the published 2"),
        ((1.7, 2.0, 2.0), "undecided", "not on one side: 1.7 is 15 % below the published 2"),
        # Both ends fail alike, and what lies between them would not.
        ((1.0, 1.1, 3.9), "undecided", "not on one side: 2 equals the published 2"),
        ((2.5, 2.6, 2.7), "direction only", "yet within a factor of 2"),
        ((4.5, 5.0, 6.0), "not reproduced", "more than the tolerance"),
        ((3.9, 4.5, 5.0), "undecided", "not on one side: 3.9"),
    ],
)
def test_a_verdict_holds_for_the_whole_interval(
    desk: Desk, values: tuple[float, ...], verdict: str, words: str
) -> None:
    low, median, high = values
    row = desk.judge(samples(low, median, median, median, median, high))
    assert (row["verdict"], row["ours"]) == (verdict, median)
    assert (row["low"], row["high"], row["samples"]) == (low, high, 6)
    assert words in row["reason"]


@settings(deadline=None, max_examples=15)
@given(
    values=st.lists(st.floats(0.5, 5).map(lambda value: round(value, 2)), min_size=3, max_size=5),
    comparison=st.sampled_from(["ratio", "at_most", "at_least", "exact"]),
)
def test_what_is_decided_is_what_every_repeat_in_the_interval_says(
    desk: Desk, values: list[float], comparison: str
) -> None:
    row = desk.judge(samples(*values), comparison=comparison)
    inside = [value for value in values if row["low"] <= value <= row["high"]]
    alone = {
        desk.judge([{"ours": value, "fidelity": "replay"}], comparison=comparison)["verdict"]
        for value in inside
    }
    if row["verdict"] != "undecided":
        assert alone == {row["verdict"]}


@settings(deadline=None, max_examples=15)
@given(
    kept=st.lists(st.floats(1, 4).map(lambda value: round(value, 2)), min_size=3, max_size=5),
    lost=st.lists(st.sampled_from([0.0, 1e9, math.nan, math.inf]), min_size=1, max_size=3),
)
def test_rows_that_are_set_aside_have_no_influence(
    desk: Desk, kept: list[float], lost: list[float]
) -> None:
    calm = samples(*kept, disturbed=False)
    busy = [
        {"sample": 100 + number, "ours": value, "fidelity": "analytic", "disturbed": True}
        for number, value in enumerate(lost)
    ]
    alone, beside = desk.judge(calm), desk.judge(busy + calm)
    for column in ("ours", "low", "high", "samples", "fidelity", "verdict", "ours_text"):
        assert beside[column] == alone[column]
    assert (alone["set_aside"], beside["set_aside"]) == (0, len(lost))
    word = "repeat" if len(lost) == 1 else "repeats"
    assert beside["reason"] == (
        f"{alone['reason']}; {len(lost)} {word} set aside because the machine was busy"
    )


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            samples(2.0),
            "too few: 1 repeat, where a verdict needs 3; ours so far: 2 times faster",
        ),
        (samples(2.0, 2.0), "too few: 2 repeats, where a verdict needs 3"),
        (samples(2.0, 2.0, None), "too few: 2 repeats, where a verdict needs 3"),
        (
            samples(2.0, disturbed=True),
            "too few: no repeat is left, where a verdict needs 3; 1 repeat set aside",
        ),
    ],
)
def test_too_few_repeats_decide_nothing(
    desk: Desk, rows: list[dict[str, Any]], reason: str
) -> None:
    row = desk.judge(rows)
    assert row["verdict"] == "undecided"
    assert (row["low"], row["high"]) == (None, None)
    assert row["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("fidelity", "verdict"),
    [
        ("replay", "reproduced"),
        ("emulated", "undecided"),
        ("measured_cpu", "undecided"),
        ("measured_gpu", "undecided"),
    ],
)
@pytest.mark.parametrize("changes", [{}, TREND])
def test_what_is_measured_or_emulated_once_decides_nothing(
    desk: Desk, fidelity: str, verdict: str, changes: dict[str, Any]
) -> None:
    rows = [{"ours": 2.0, "fidelity": fidelity}]
    if changes:
        rows = [{"x": place, "ours": place, "fidelity": fidelity} for place in (1.0, 2.0)]
    row = desk.judge(rows, **changes)
    assert (row["verdict"], row["samples"]) == (verdict, None)
    assert ("was not repeated: a verdict needs 3 repeats" in row["reason"]) == (
        verdict == "undecided"
    )


def test_low_fidelity_caps_what_repeats_prove(desk: Desk) -> None:
    row = desk.judge(samples(2.0, 2.0, 2.0), fidelity_required="measured_gpu")
    assert row["verdict"] == "consistent"
    assert "but ours is emulated and the claim requires measured_gpu" in row["reason"]
    undecided = desk.judge(samples(2.0, 2.0, 9.0), fidelity_required="measured_gpu")
    assert undecided["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("points", "verdict", "words"),
    [
        # Every repeat is slower than the one before it; each rises all the same.
        (
            ([1, 11, 21], [2, 12, 22], [3, 13, 23]),
            "reproduced",
            "rises from 11 to 13 over 3 points",
        ),
        (([1, 1, 1], [2, 2, 2], [1.5, 1.5, 1.5]), "direction only", "1 of 2 steps goes against it"),
        (([1, 1, 1], [0, 2, 2], [4, 4, 4]), "undecided", "do not agree on 1 of 2 steps"),
        (([1, 1, 1], [2, 2, 2], [3, 3, 0]), "undecided", "whether its last point is above"),
        (([3, 3, 3], [2, 2, 2], [1, 1, 1]), "not reproduced", "which is not increasing"),
    ],
)
def test_steps_of_a_trend_hold_for_the_whole_interval(
    desk: Desk, points: tuple[list[float | None], ...], verdict: str, words: str
) -> None:
    # The median of six and its ends are those of the three.
    row = desk.judge(lines(*([a, b, b, b, b, c] for a, b, c in points)), **TREND)
    assert row["verdict"] == verdict
    assert words in row["reason"]
    assert row["samples"] == 6


def test_the_number_of_a_trend_is_the_median_slope_of_its_repeats(desk: Desk) -> None:
    row = desk.judge(lines([0] * 6, [1, 2, 2, 2, 2, 4], [2, 4, 4, 4, 4, 8]), **TREND)
    assert (row["ours"], row["low"], row["high"]) == pytest.approx((2, 1, 4))
    assert row["ours_text"] == "2 ms per ms"
    assert "median of 6 repeats, 95 % interval 1 to 4" in row["reason"]


def test_a_point_with_too_few_repeats_leaves_a_trend_undecided(desk: Desk) -> None:
    rows = lines([1, 1, 1, 1], [2, 2, 2, None], [3, 3, 3, 3])
    assert desk.judge(rows, **TREND)["verdict"] == "reproduced"
    rows[4]["disturbed"] = True
    row = desk.judge(rows, **TREND)
    assert (row["verdict"], row["set_aside"], row["samples"]) == ("undecided", 1, 2)
    assert row["reason"].endswith("; 1 repeat set aside at 1 point because the machine was busy")
    for busy in rows[4:7]:
        busy["disturbed"] = True
    row = desk.judge(rows, **TREND)
    assert row["reason"].startswith("too few: no repeat is left")
    assert row["set_aside"] == FEWEST
    for place in range(3):
        rows[4 * place]["disturbed"] = True
    assert "3 repeats set aside at 5 points" in desk.judge(rows, **TREND)["reason"]


def test_repeats_of_a_simulation_are_called_seeds(desk: Desk) -> None:
    rows = [{**row, "fidelity": "packet"} for row in samples(2.0, 2.0, 2.1)]
    assert "median of 3 seeds" in desk.judge(rows)["reason"]


def test_a_claim_that_is_not_testable_says_why_and_what_it_takes(desk: Desk) -> None:
    row = desk.judge(
        samples(2.0),
        query=None,
        tolerance=None,
        fidelity_required=None,
        not_testable={"reason": "No cluster.", "needs": "1,024 GPUs."},
        headline=True,
        comparison="at_least",
    )
    assert (row["verdict"], row["reason"], row["needs"]) == (
        "not testable",
        "No cluster.",
        "1,024 GPUs.",
    )
    assert (row["published_text"], row["headline"]) == ("at least 2 times faster", True)
    assert [row[name] for name in ("ours", "low", "samples", "tolerance", "fidelity")] == [None] * 5
    assert (row["query"], row["tables"], row["ours_text"]) == ("", "", "")
