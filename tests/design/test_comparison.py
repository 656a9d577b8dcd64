"""A network beside others: places by value, the same job on each, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.design.arena import arena_rows
from railx.design.comparison import Comparison, compare_network, comparison_lines, write_page
from railx.errors import UserError
from tests.builders import topology_settings
from tests.design.test_arena import SETTINGS
from tests.workflow.test_cli import refused
from workflow.cli import main

ARENA = replace(SETTINGS, most_chips=2.0)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare_network("mine", topology_settings("torus_2d"), ARENA, 1)


def test_the_same_network_has_the_same_values(comparison: Comparison) -> None:
    rows = {row["network"]: row for row in comparison.rows}
    assert rows["mine"]["values"] == rows["torus_2d"]["values"]
    assert rows.keys() == {"mine", "torus_2d", "rail_only"}
    # 100 chips: jobs have whole servers of 8.
    assert comparison.chips == 96
    arena = list(arena_rows("torus_2d", replace(ARENA, chips=(96,)), 1))
    (rate,) = (
        r["value"] for r in arena if (r["subject"], r["measure"]) == ("dense", "tokens_per_s")
    )
    assert rows["mine"]["values"][0] == pytest.approx(rate / 96, rel=1e-12)


def test_places_count_better_values(comparison: Comparison) -> None:
    table = comparison.as_dict()
    for measure, place in table["places"].items():
        values = {row["network"]: row[measure] for row in table["rows"] if row[measure] is not None}
        smaller = any(word in measure for word in ("USD", "hops", "latency", "W a chip"))
        ranked = sorted(values.values(), reverse=not smaller)
        expected = (ranked.index(values["mine"]) + 1, len(values)) if "mine" in values else None
        assert place == expected, measure
    assert {"dense tokens/s a device", "USD a chip"} <= table["places"].keys()
    # No column of a job that fits nowhere, but a note.
    assert not any("too_large" in measure for measure in table["places"])
    assert any(note.startswith("too_large: ") for note in table["notes"])


def test_rows_are_remembered_by_name_and_size() -> None:
    asked: dict[str, list[dict[str, Any]]] = {}

    def kept(name: str, compute: Any) -> list[dict[str, Any]]:
        return asked.setdefault(name, [] if name in asked else compute())

    small = replace(ARENA, traffics={}, jobs={"dense": ARENA.jobs["dense"]})
    first = compare_network("mine", topology_settings("torus_2d"), small, 1, kept=kept)
    again = compare_network("mine", topology_settings("torus_2d"), small, 1, kept=kept)
    assert asked.keys() == {"rail_only 96", "torus_2d 96"}
    assert first.rows == again.rows


def test_the_page_has_every_row(comparison: Comparison, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", comparison, ARENA)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<tr") == 1 + len(comparison.measures) + len(comparison.rows)
    assert page.count('class="mine"') == 1
    assert "http" not in page


def test_a_network_that_nodes_do_not_divide(capsys: pytest.CaptureFixture[str]) -> None:
    network = "resources/topologies/petersen.graphml"
    assert main(["compare-network", network, "arena=small", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = (row for row in answer["rows"] if row["network"] == "petersen")
    # The Petersen graph: 15 links, diameter 2.
    assert (row["chips"], row["diameter hops"]) == (10, 2)
    assert "USD a chip" not in row or row["USD a chip"] is None
    assert "usd_chip: no bill of materials" in answer["notes"]


def test_a_size_that_the_network_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="mine: "):
        compare_network("mine", topology_settings("torus_2d"), replace(ARENA, most_chips=1.0), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.graphml"], "nothing.graphml: got no such file; allowed: a network's FILE"),
        (["network=torus_2d"], "network=torus_2d: got no network; allowed: a FILE"),
        (["topology=torus"], "topology: got 'torus'; allowed: "),
        (["topology=torus_2d", "arena=none"], "arena: got no jobs or no networks; allowed: "),
        (
            ["topology=torus_2d", "arena=small", "arena.point.price_set=nope"],
            "arena.point.price_set: got 'nope'; allowed: ",
        ),
        (
            ["topology=torus_2d", "arena=small", "arena.jobs.dense_70b.model=nope"],
            "arena.jobs.dense_70b.model: got nope; allowed: ",
        ),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "compare-network", *words).startswith(message)


def test_lines_mark_the_network(comparison: Comparison) -> None:
    marked = [line for line in comparison_lines(comparison) if line.startswith("*")]
    assert [line.split()[1] for line in marked] == ["mine"]
