"""The language of claims: values, groups, and what it refuses."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.expressions import evaluate

PLAN = pd.DataFrame(
    {
        "iteration": [0, 0, 0, 1],
        "micro_batch": [0, 0, 1, 0],
        "predicted_ms": [3.0, 5.0, 2.0, 7.0],
        "kind": ["forward", "backward", "forward", "forward"],
    }
)
SWEEP = pd.DataFrame({"latency": [0, 10, 20], "time": [100.0, 130.0, 160.0]})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("mean(predicted_ms)", 4.25),
        ("max(predicted_ms) - min(predicted_ms)", 5.0),
        ("median(predicted_ms)", 4.0),
        ("count(kind)", 4.0),
        ("sum(max(predicted_ms, by=(iteration, micro_batch)))", 14.0),
        ("max(sum(max(predicted_ms, by=(iteration, micro_batch)), by=iteration))", 7.0),
        ("sum(predicted_ms * (kind == 'forward'))", 12.0),
        ("sum(where(kind == 'backward', predicted_ms))", 5.0),
        ("sum(predicted_ms == max(predicted_ms, over=iteration))", 2.0),
        ("max(abs(predicted_ms - 4))", 3.0),
        ("minimum(sum(predicted_ms), 10)", 10.0),
        ("max(minimum(predicted_ms, 4)) + maximum(1, 2)", 6.0),
        ("-2 ** 2 / +4", -1.0),
        ("abs(0 - 3)", 3.0),
        ("only(where(iteration == 1, predicted_ms))", 7.0),
    ],
)
def test_values(expression: str, value: float) -> None:
    assert evaluate(expression, {"": PLAN}) == pytest.approx(value)


def test_slope_is_least_squares() -> None:
    assert evaluate("slope(time, latency)", {"": SWEEP}) == pytest.approx(3.0)


@settings(deadline=None)
@given(
    st.floats(-100, 100),
    st.floats(-100, 100),
    st.lists(st.integers(-50, 50), min_size=2, max_size=9, unique=True),
)
def test_slope_finds_any_line(slope: float, offset: float, points: list[int]) -> None:
    frame = pd.DataFrame({"x": points, "y": [slope * x + offset for x in points]})
    assert evaluate("slope(y, x)", {"": frame}) == pytest.approx(slope, abs=1e-6)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 1e3)), min_size=1, max_size=30
    )
)
def test_grouped_aggregates_agree_with_plain_python(rows: list[tuple[int, int, float]]) -> None:
    frame = pd.DataFrame(rows, columns=["iteration", "micro_batch", "ms"])
    slowest: dict[tuple[int, int], float] = {}
    for iteration, micro_batch, ms in rows:
        slowest[iteration, micro_batch] = max(slowest.get((iteration, micro_batch), 0.0), ms)
    value = evaluate("sum(max(ms, by=(iteration, micro_batch)))", {"": frame})
    assert value == pytest.approx(sum(slowest.values()))


def test_selections_combine_by_group() -> None:
    slower = SWEEP.assign(time=SWEEP["time"] * 2).iloc[1:]
    ratio = evaluate(
        "mean(b.time, by=latency) / mean(a.time, by=latency)", {"a": SWEEP, "b": slower}
    )
    assert isinstance(ratio, pd.Series)
    assert ratio.to_dict() == {10: 2.0, 20: 2.0}


def test_dotted_keys_of_json() -> None:
    frame = pd.DataFrame([{"metrics.diameter": 2, "name": "x"}])
    assert evaluate("only(metrics.diameter)", {"": frame}) == 2.0
    assert evaluate("only(a.metrics.diameter) * 2", {"a": frame}) == 4.0


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("mean(predicted_ms", "is not an expression"),
        ("mean(absent)", "no column 'absent'; allowed: iteration"),
        ("median_of(predicted_ms)", "no function 'median_of'; allowed: mean"),
        ("predicted_ms", "a value per row; allowed: an aggregate"),
        ("'forward'", "gives text"),
        ("mean(kind)", "'kind' holds no numbers"),
        ("kind + 'x'", "can only be compared"),
        ("mean(3)", "mean of a single value"),
        ("mean(predicted_ms, iteration)", "mean got 2 arguments; allowed: 1"),
        ("slope(predicted_ms)", "slope got 1 arguments; allowed: 2"),
        ("slope(1, 2)", "slope of a single value"),
        (
            "only(predicted_ms)",
            "4 different values (3, 5, 2, 7); allowed: a filter that leaves one",
        ),
        ("mean(predicted_ms, where=iteration)", "mean knows no where=; allowed: by= and over="),
        ("slope(predicted_ms, iteration, by=kind)", "slope knows no by="),
        ("mean(predicted_ms, by=iteration, over=kind)", "both by= and over="),
        ("mean(predicted_ms, by=absent)", "no column 'absent'"),
        (
            "sum(mean(predicted_ms, by=iteration), by=kind)",
            "the groups have no 'kind'; allowed: iteration",
        ),
        ("sum(mean(predicted_ms, by=iteration), over=iteration)", "over= works on rows"),
        (
            "mean(predicted_ms, by=iteration) + mean(predicted_ms, by=micro_batch)",
            "groups by different keys, do not combine",
        ),
        ("mean(predicted_ms - mean(predicted_ms, by=iteration))", "do not combine"),
        ("predicted_ms.__class__", "no column 'predicted_ms.__class__'"),
        ("__import__('os').system('true')", "no function"),
        ("[1, 2]", "is not allowed"),
        ("predicted_ms[0]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("1 if True else 2", "is not allowed"),
        ("1 < 2 < 3", "is not allowed"),
        ("mean(f(x).y)", "is not allowed"),
        ("1e308 ** 2", "expression:"),
        ("(0 - 8) ** 0.5", "no real number"),
    ],
)
def test_refusals_are_one_clear_line(expression: str, message: str) -> None:
    with pytest.raises(ClaimError) as error:
        evaluate(expression, {"": PLAN})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("mean(time)", "names no selection; allowed: a, b"),
        ("mean(a.time - b.time)", "rows of two selections do not combine"),
    ],
)
def test_selections_are_named(expression: str, message: str) -> None:
    with pytest.raises(ClaimError, match=message):
        evaluate(expression, {"a": SWEEP, "b": SWEEP})


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 / 0", "not a finite number"),
        ("mean(time) / (mean(latency) - 10)", "not a finite number"),
        ("only(where(latency == 5, time))", "leave the value empty"),
        ("mean(where(latency == 5, time))", "leave the mean empty"),
        ("slope(time, where(latency == 10, latency))", "at least two different values"),
    ],
)
def test_missing_values_are_not_available(expression: str, message: str) -> None:
    with pytest.raises(NotAvailable, match=message):
        evaluate(expression, {"": SWEEP})


def test_groups_without_anything_in_common_are_not_available() -> None:
    other = SWEEP.assign(latency=SWEEP["latency"] + 1)
    with pytest.raises(NotAvailable, match="share no latency"):
        evaluate("mean(a.time, by=latency) / mean(b.time, by=latency)", {"a": SWEEP, "b": other})


def test_null_metrics_are_not_available() -> None:
    frame = pd.DataFrame([{"diameter": None}])
    with pytest.raises(NotAvailable):
        evaluate("only(diameter)", {"": frame})
