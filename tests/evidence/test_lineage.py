"""What published numbers claims rest on, and what that leaves of their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from railx.evidence import ClaimError, Lineage, PublishedNumbers, published_tables, read_lineage
from tests.builders import ROOT
from tests.evidence.test_judge import Desk, claim
from tests.evidence.test_published import CLAIMS, LINEAGE, NUMBERS

Read = Callable[[dict[str, Any]], Lineage]
PRICE = {
    "title": "prices",
    "kind": "constants",
    "published": [{"file": "paper.csv", "id": "limit"}],
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    (desk.published / "tables.yaml").write_text(
        "paper.csv: {title: Numbers, paper: paper, why: They are few.}", encoding="utf-8"
    )
    # Without the row that has no source.
    table = desk.published / "paper.csv"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join(line for line in lines if "rumour" not in line), encoding="utf-8")
    desk.table([2.0], fidelity=["flow"])
    return desk


@pytest.fixture
def read(desk: Desk) -> Read:
    def lineage(inputs: dict[str, Any]) -> Lineage:
        path = desk.results / "lineage.yaml"
        path.write_text(yaml.safe_dump(inputs), encoding="utf-8")
        numbers = PublishedNumbers(desk.published)
        return read_lineage(path, numbers, published_tables(desk.published), desk.load())

    return lineage


@pytest.mark.parametrize(
    ("inputs", "verdict", "words"),
    [
        ({"a": PRICE}, "reproduced", "equals"),
        ({"a": {**PRICE, "tables": ["a.*"]}}, "consistent", "rests on constants of the paper"),
        ({"a": {**PRICE, "kind": "settings", "tables": ["a.*"]}}, "reproduced", "equals"),
        (
            {
                "a": {"title": "a fit", "kind": "settings", "rests_on": ["b"], "tables": ["a.t"]},
                "b": {
                    "title": "a shape",
                    "kind": "settings",
                    "fitted_to": [{"file": "paper.csv", "id": "speedup"}],
                },
            },
            "consistent",
            "rests on its own published number (a fit)",
        ),
    ],
)
def test_what_a_claim_rests_on_limits_its_verdict(
    desk: Desk, read: Read, inputs: dict[str, Any], verdict: str, words: str
) -> None:
    desk.write(claim())
    (row,) = desk.judge(claim(), lineage=read(inputs))
    assert row["verdict"] == verdict
    assert words in row["reason"]
    assert row["inputs"] == ("a" if "tables" in inputs["a"] else "")


def test_a_derived_claim_may_rest_on_constants_of_the_paper(desk: Desk, read: Read) -> None:
    derived = claim(kind="derived")
    desk.write(derived)
    (row,) = desk.judge(derived, lineage=read({"a": {**PRICE, "tables": ["a.t"]}}))
    assert row["verdict"] == "reproduced"


def test_an_input_that_a_claim_names_counts(desk: Desk, read: Read) -> None:
    named = claim(inputs=["a"])
    desk.write(named)
    (row,) = desk.judge(named, lineage=read({"a": PRICE}))
    assert (row["verdict"], row["inputs"]) == ("consistent", "a")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": {**PRICE, "rests_on": ["a"]}}, "lineage.yaml: a.rests_on: got the circle a -> a"),
        (
            {"a": {**PRICE, "rests_on": ["b"]}, "b": {**PRICE, "rests_on": ["a"]}},
            "lineage.yaml: a.rests_on: got the circle a -> b -> a",
        ),
        ({"a": {**PRICE, "rests_on": ["c"]}}, "lineage.yaml: a.rests_on: got 'c'; allowed: a"),
        (
            {"a": {**PRICE, "published": [{"file": "paper.csv", "id": "gone"}]}},
            "lineage.yaml: a.published.id: 0 rows of paper.csv have the id 'gone'",
        ),
        ({"a": {"title": "x", "kind": "settings"}}, "lineage.yaml: a.published: is missing"),
        ({"a": {**PRICE, "kind": "numbers"}}, "lineage.yaml: a.kind: got 'numbers'"),
        ({"b": PRICE}, "paper.yaml: claim c: inputs: got 'a'; allowed: b"),
    ],
)
def test_mistakes_are_one_line(
    desk: Desk, read: Read, inputs: dict[str, Any], message: str
) -> None:
    desk.write(claim(inputs=["a"]))
    with pytest.raises(ClaimError) as error:
        read(inputs)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_constants_stand_as_published_in_the_files_that_hold_them() -> None:
    counted = 0
    for name, entry in LINEAGE.inputs.items():
        for file, keys in entry.values.items():
            content = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
            for key, row_id in keys.items():
                value: Any = content
                for part in key.split("."):
                    value = value[part]
                rows = [
                    (selection.file, row)
                    for selection in entry.published
                    for row in selection.rows(NUMBERS)
                    if row["id"] == row_id
                ]
                assert rows, (name, row_id)
                ((_, row),) = rows
                published = row.get("value") or row.get("gb_s")
                assert float(value) == float(published or "nan"), (name, file, key)
                counted += 1
    assert counted > 10


@pytest.mark.parametrize("name", ["railx_optical_port_price_implied", "step_model_selene_memory"])
def test_a_number_computed_as_the_published_one_is_consistent_at_best(name: str) -> None:
    (judged,) = [claim for claim in CLAIMS if claim.id == name]
    assert "its own published number" in LINEAGE.limit(judged, LINEAGE.of(judged, ()))
