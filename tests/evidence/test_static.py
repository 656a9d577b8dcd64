"""What is wrong with the query of a claim is found without any result."""

from __future__ import annotations

import pyarrow as pa
import pytest

from railx.evidence import Claim, ClaimError, check_queries
from railx.evidence.claims import ClaimSettings, NotTestable, PublishedReference
from railx.evidence.published import Published

DECLARED: dict[str, pa.Schema | None] = {
    "network.*.bounds": pa.schema(
        [
            ("bound", pa.float64()),
            ("routing", pa.dictionary(pa.int8(), pa.string())),
            ("fidelity", pa.string()),
        ]
    ),
    "economics.summary": pa.schema([("cost_usd", pa.float64()), ("fidelity", pa.string())]),
    "training.*.result": None,
}


def claim(query: str | None, comparison: str = "ratio") -> Claim:
    settings = ClaimSettings(
        id="c",
        kind="published",
        sentence="It is cheap.",
        place="section 1",
        published=PublishedReference("paper.csv", "cost"),
        comparison=comparison,  # type: ignore[arg-type]
        query=query,
        not_testable=None if query else NotTestable("No cluster.", "1,024 GPUs."),
        tolerance=0.1 if query else None,
        fidelity_required="analytic" if query else None,
        direction="increasing" if comparison == "trend" else None,
    )
    published = Published("paper.csv", "cost", "value", 2.0, "USD", "a paper", "high")
    return Claim("paper", "paper.yaml", settings, published)


@pytest.mark.parametrize(
    ("query", "comparison"),
    [
        ("select cost_usd as ours, fidelity from economics.summary", "ratio"),
        ("select bound as ours, fidelity from network.any.bounds where routing = 'min'", "ratio"),
        ("select bound as ours, fidelity, 1 as sample from network.any.bounds", "ratio"),
        ("select 1 as sample, bound as x, bound as ours, fidelity from network.a.bounds", "trend"),
        # What a JSON file holds is not declared.
        ("select deep_key as ours, 'replay' as fidelity from training.run.result", "ratio"),
        (None, "at_least"),
    ],
)
def test_queries_that_fit_the_declared_columns_pass(query: str | None, comparison: str) -> None:
    check_queries([claim(query, comparison)], DECLARED)


@pytest.mark.parametrize(
    ("query", "comparison", "message"),
    [
        (
            "select price as ours, fidelity from economics.summary",
            "ratio",
            "query: no column price; allowed: cost_usd, fidelity",
        ),
        (
            "select s.price as ours, fidelity from economics.summary as s",
            "ratio",
            "query: no column price; allowed: cost_usd, fidelity",
        ),
        (
            "select cost_usd as ours, fidelity from economics.bill",
            "ratio",
            "query: no stage makes a table economics.bill; allowed: economics.summary",
        ),
        (
            "select bound as ours, fidelity from network.bounds",
            "ratio",
            "query: no stage makes a table network.bounds; allowed: network.NAME.bounds",
        ),
        (
            "select a as ours, fidelity from training.run.result, nowhere.table",
            "ratio",
            "query: no stage makes a table nowhere.table; allowed: network.NAME.bounds, economics",
        ),
        (
            "select cost_usd as cost, fidelity from economics.summary",
            "ratio",
            "query: gives the columns cost, fidelity; allowed: ours, fidelity",
        ),
        (
            "select cost_usd as ours, fidelity from economics.summary",
            "trend",
            "query: gives the columns ours, fidelity; allowed: x, ours, fidelity",
        ),
        ("select 1; select 2", "ratio", "query: got 2 statements"),
        ("select cost_usd as ours, fidelity frm economics.summary", "ratio", "query: "),
        (
            "select fidelity + cost_usd as ours, fidelity from economics.summary",
            "ratio",
            "query: ",
        ),
    ],
)
def test_queries_that_do_not_fit_are_one_line(query: str, comparison: str, message: str) -> None:
    with pytest.raises(ClaimError) as error:
        check_queries(
            [claim("select 1 as ours, 'flow' as fidelity"), claim(query, comparison)], DECLARED
        )
    assert str(error.value).startswith(f"paper.yaml: claim c: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "pair",
    [
        ("routing = 'min'", "routing = 'min' and lost > 1"),
        ("routing = 'min'", "routing = 'it''s' and lost = 'x'"),
        ("bound > 1 -- it's\n and bound > 2 -- 's", "bound > 1 -- it's\n and lost > 2 -- 's"),
    ],
)
def test_each_query_is_checked_beside_one_that_is_nearly_the_same(pair: tuple[str, str]) -> None:
    head = "select bound as ours, fidelity from network.any.bounds where "
    with pytest.raises(ClaimError, match="no column lost"):
        check_queries([claim(head + where) for where in pair], DECLARED)
    check_queries([claim(head + "routing = 'a'"), claim(head + "routing = 'b'")], DECLARED)
    with pytest.raises(ClaimError, match="out of range"):
        check_queries([claim(f"{head} true order by {column}") for column in (1, 9)], DECLARED)
    with pytest.raises(ClaimError, match="not found"):
        check_queries(
            [claim(f"{head} network.{item}.bounds.bound > 1") for item in ("any", "other")],
            DECLARED,
        )
    tables = [
        claim(f"select bound as ours, fidelity from {name}")
        for name in ("network.a1.bounds", "network.a2.bonds")
    ]
    with pytest.raises(ClaimError, match="no stage makes a table"):
        check_queries(tables, DECLARED)
    with pytest.raises(ClaimError, match="gives the columns"):
        check_queries([claim(head + "true"), claim(head + "true", "trend")], DECLARED)
