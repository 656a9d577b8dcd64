"""Numbers of pages: what a comment names stands in the text, or the line says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from railx.errors import UserError
from railx.evidence import Recorded
from railx.evidence.findings import (
    FindingsTable,
    Sources,
    computed_page,
    open_blocks,
    read_findings_tables,
    recorded_rows,
    recorded_table,
    recorded_tables_text,
    references,
)
from railx.settings import SettingsError

SOURCES = Sources(
    {
        "paper": {
            "fast": Recorded("consistent", 1.925, 1.846, 2.0, 40),
            "slow": Recorded("undecided", 12345.6),
        }
    },
    {"fast": 1.72, "slow": None},
    {
        "times": FindingsTable("paper", query="select 1"),
        "claims": FindingsTable("paper", claims=("{fast,slow}", "- fast")),
    },
    {
        "times": [
            {"row": "7B, long", "s": 3.26, "gain": None},
            {"row": "13B", "s": -0.4, "gain": 2},
        ],
        "published.paper": [{"id": "devices", "value": 64.0}],
    },
    lambda file: _settings(file),
)


def _settings(file: str) -> dict[str, object]:
    if file != "conf/a.yaml":
        raise FileNotFoundError(file)
    return {"memory": {"gib": 30}, "name": "a", "on": True}


def _page(text: str, *numbers: str) -> tuple[str, list[str]]:
    """The page, where entry ``n`` has these numbers."""
    tables = dict(SOURCES.tables) | ({"n": FindingsTable(numbers=numbers)} if numbers else {})
    return computed_page(text, replace(SOURCES, tables=tables), "page.md")


@pytest.mark.parametrize(
    ("text", "numbers", "now"),
    [
        ("It is 1.92x.", ["paper fast"], "1.93x"),
        ("It is 1.8.", ["paper fast low"], "1.8"),
        ("Of 39 batches.", ["paper fast samples"], "40 batches"),
        ("As 1.7.", ["paper fast published"], "1.7"),
        ("By 90 %.", ["paper fast - 1 x 100"], "92 %"),
        ("By +90 %.", ["paper fast - 1 x 100"], "+92 %"),
        ("At 11.8 or 1.8.", ["paper fast + 10", "paper fast"], "11.9 or 1.9"),
        ("In 12,000 s.", ["paper slow"], "12,346 s"),
        ("In 3.0 s.", ["times s 7B, long"], "3.3 s"),
        ("In -0.5 s.", ["times s 13B"], "-0.4 s"),
        ("In 1 s.", ["times s 13B"], "0 s"),
        ("On 63 GPUs.", ["published.paper value devices"], "64 GPUs"),
        ("With 31 GiB.", ["conf/a.yaml memory.gib"], "30 GiB"),
        ("7B of 7 and 7.7: 7.", ["paper fast", "paper fast", "-"], "7B of 2 and 1.9: 7"),
        ("`5` of [5](5.md): 7.", ["-", "paper fast"], "`5` of [5](5.md): 2"),
    ],
)
def test_a_number_is_that_of_its_source(text: str, numbers: list[str], now: str) -> None:
    page, changes = _page(f"{text} <!-- computed: n -->", *numbers)
    assert now in page
    assert bool(changes) == (now not in text)
    # Written once, nothing is left to change.
    assert _page(page, *numbers) == (page, [])


def test_only_the_block_above_a_comment_is_read() -> None:
    text = "* First 1.5.\n* Second 2.5.\n  <!-- computed: n -->\n\nThird 2.5.\n"
    page, changes = _page(text, "paper fast")
    assert page.startswith("* First 1.5.\n* Second 1.9.")
    assert page.endswith("Third 2.5.\n")
    assert changes == ["page.md: n: paper fast is 1.9; the text has 2.5"]
    with pytest.raises(UserError, match=r"n has 2 numbers; the text has 2\.5"):
        _page(text, "paper fast", "-")


def test_tables_are_filled_cell_by_cell() -> None:
    text = """| 7B | a | b |
|---|---|---|
| 13B | 1.0 (1.0) | 9 |
| 30B | 8 | 1.00 (2.00) |

<!-- computed: claims -->
"""
    page, changes = _page(text)
    assert "| 13B | 1.9 (1.7) | 12,346 |" in page
    # Nothing is recorded for a dash: its cell stays.
    assert "| 30B | 8 | 1.93 (1.72) |" in page
    assert len(changes) == 5
    assert _page(page) == (page, [])


def test_rows_of_a_query_fill_the_numbers_that_a_row_shows() -> None:
    head = "| | s | gain |\n|---|---|---|\n"
    text = f"{head}| 7B | 1.00 | |\n| 13B | 1.00 | 1 |\n\n<!-- computed: times -->\n"
    page, _ = _page(text)
    assert "| 7B | 3.26 | |\n| 13B | -0.40 | 2 |" in page
    with pytest.raises(UserError, match="2 numbers in a row; the text has 3"):
        _page(text.replace("| 1.00 | 1 |", "| 1.00 | 1 2 |"))
    with pytest.raises(UserError, match="has 2 rows; the text has 1"):
        _page(text.replace("| 7B | 1.00 | |\n", ""))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("paper quick", "allowed: a claim"),
        ("paper fast best", "allowed: a claim"),
        ("paper slow published", "has no value"),
        ("times s", "allowed: TABLE COLUMN ROW"),
        ("times x 13B", "allowed: TABLE COLUMN ROW"),
        ("other s", "allowed: TABLE COLUMN ROW"),
        ("published.paper value nodes", "allowed: TABLE COLUMN ROW"),
        ("conf/a.yaml memory", "allowed: a key with a number"),
        ("conf/a.yaml name", "allowed: a key with a number"),
        ("conf/a.yaml on", "allowed: a key with a number"),
        ("conf/a.yaml memory.mib", "allowed: a key with a number"),
        ("conf/b.yaml memory.gib", "allowed: a key with a number"),
    ],
)
def test_a_reference_to_nothing_is_one_line(reference: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        _page("It is 2. <!-- computed: n -->", reference)
    assert str(error.value).startswith("page.md: ")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"an entry of resources/findings\.yaml"):
        _page("It is 2. <!-- computed: other -->")


def test_what_has_numbers_and_no_source_is_listed() -> None:
    text = """# Page of 3

* 7B and `3.5` in [code](page.md#2).
* It is 3.
* It is 4. <!-- computed: n -->

| a |
|---|
| 5 |

<!-- computed: claims -->

Five of 6.
"""
    assert open_blocks(text) == ["* It is 3.", "Five of 6."]
    assert references(text) == ["n", "claims"]
    # A comment that names no entry is no source.
    assert len(open_blocks(text.replace("computed: n", "computed: 4 = n"))) == 3


def test_recorded_tables_come_back_and_know_their_query() -> None:
    rows = [{"row": 'a "b", c', "n": 1 / 3, "none": None}, {"row": "d", "n": 2, "none": None}]
    made = {"dirty": True, "made_utc": "2026-11-26T20:03:36+00:00"}
    table = {**made, **recorded_table(rows, "select 1")}
    recorded = yaml.safe_load(recorded_tables_text({"t": table, "s": table}))
    assert recorded == {"s": table, "t": table}
    first, second = recorded_rows(recorded, "t", "select  1")
    assert (first["row"], second) == ('a "b", c', {"row": "d", "n": 2.0, "none": None})
    assert first["n"] == pytest.approx(1 / 3, rel=1e-9)
    with pytest.raises(UserError, match="u: is not there"):
        recorded_rows(recorded, "u", "select 1")
    with pytest.raises(UserError, match="t: another query made it"):
        recorded_rows(recorded, "t", "select 2")


def test_an_entry_is_a_query_claims_or_numbers(tmp_path: Path) -> None:
    for entry in ({}, {"query": "select 1", "numbers": ("paper fast",)}):
        with pytest.raises(SettingsError, match="either a query, claims or numbers"):
            FindingsTable(**entry)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="at least one reference"):
        FindingsTable(numbers=("-", "-"))
    path = tmp_path / "findings.yaml"
    path.write_text("t: {experiment: paper, labels: -1, claims: [a]}", encoding="utf-8")
    with pytest.raises(UserError, match=r"findings\.yaml: t\.labels"):
        read_findings_tables(path)
