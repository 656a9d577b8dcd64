"""Numbers of pages: what a comment names stands in the text, or the line says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from railx.errors import UserError
from railx.evidence import Recorded
from railx.evidence.findings import (
    FindingsTable,
    Sources,
    computed_page,
    open_blocks,
    read_findings_tables,
    read_recorded_table,
    recorded_table_text,
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
    {"times": [{"row": "7B, long", "s": 3.26, "gain": None}, {"row": "13B", "s": -0.4, "gain": 2}]},
)


def _page(text: str) -> tuple[str, list[str]]:
    return computed_page(text, SOURCES, "page.md")


@pytest.mark.parametrize(
    ("text", "now"),
    [
        ("It is 1.92x. <!-- computed: 1.92 = paper fast -->", "1.93x"),
        ("It is 1.8. <!-- computed: 1.8 = paper fast low -->", "1.8"),
        ("Of 39 batches. <!-- computed: 39 = paper fast samples -->", "40 batches"),
        ("As 1.7. <!-- computed: 1.7 = paper fast published -->", "1.7"),
        ("By 90 %. <!-- computed: 90 = paper fast - 1 x 100 -->", "92 %"),
        ("By +90 %. <!-- computed: +90 = paper fast - 1 x 100 -->", "+92 %"),
        (
            "At 11.8 or 1.8. <!-- computed: 11.8\n= paper fast + 10; 1.8 =\npaper fast -->",
            "11.9 or 1.9",
        ),
        ("In 12,000 s. <!-- computed: 12,000 = paper slow -->", "12,346 s"),
        ("In 1.0e3 s. <!-- computed: 1.0e3 = paper slow -->", "1.2e4 s"),
        ("In 3.0 s. <!-- computed: 3.0 = times s 7B, long -->", "3.3 s"),
        ("In -0.5 s. <!-- computed: -0.5 = times s 13B -->", "-0.4 s"),
        ("In 1 s. <!-- computed: 1 = times s 13B -->", "0 s"),
        (
            "7B of 7 and 7.7: 7. <!-- computed: 7 = paper fast; 7.7 = paper fast -->",
            "7B of 2 and 1.9: 7",
        ),
    ],
)
def test_a_number_is_that_of_its_source(text: str, now: str) -> None:
    page, changes = _page(text)
    assert now in page
    assert bool(changes) == (page != text)
    # Written once, nothing is left to change, the comment included.
    assert _page(page) == (page, [])


def test_only_the_block_above_a_comment_is_read() -> None:
    text = "* First 1.5.\n* Second 2.5.\n  <!-- computed: 2.5 = paper fast -->\n\nThird 2.5.\n"
    page, changes = _page(text)
    assert page.startswith("* First 1.5.\n* Second 1.9.")
    assert page.endswith("Third 2.5.\n")
    assert changes == ["page.md: paper fast is 1.9; the text has 2.5"]
    with pytest.raises(UserError, match=r"the text has no 1\.5 there"):
        _page(text.replace("2.5 = ", "1.5 = "))


def test_tables_are_filled_cell_by_cell() -> None:
    text = """| 7B | a | b |
|---|---|---|
| 13B | 1.0 (1.0) | 9 |
| 30B | 8 | 1.00 (2.00) |

<!-- computed: table claims -->
"""
    page, changes = _page(text)
    assert "| 13B | 1.9 (1.7) | 12,346 |" in page
    # Nothing is recorded for a dash: its cell stays.
    assert "| 30B | 8 | 1.93 (1.72) |" in page
    assert len(changes) == 5
    assert _page(page) == (page, [])


def test_rows_of_a_query_fill_the_numbers_that_a_row_shows() -> None:
    head = "| | s | gain |\n|---|---|---|\n"
    text = f"{head}| 7B | 1.00 | |\n| 13B | 1.00 | 1 |\n\n<!-- computed: table times -->\n"
    page, _ = _page(text)
    assert "| 7B | 3.26 | |\n| 13B | -0.40 | 2 |" in page
    with pytest.raises(UserError, match="2 numbers in a row; the text has 3"):
        _page(text.replace("| 1.00 | 1 |", "| 1.00 | 1 2 |"))
    with pytest.raises(UserError, match="has 2 rows; the text has 1"):
        _page(text.replace("| 7B | 1.00 | |\n", ""))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("2 = paper quick", "allowed: a claim"),
        ("2 = paper fast best", "allowed: a claim"),
        ("2 = paper slow published", "has no value"),
        ("2 = times s", "allowed: TABLE COLUMN ROW"),
        ("2 = times x 13B", "allowed: TABLE COLUMN ROW"),
        ("2 = other s", "a table of resources/findings.yaml"),
        ("two", "allowed: NUMBER = REFERENCE"),
        ("table other", "a table of resources/findings.yaml"),
    ],
)
def test_a_reference_to_nothing_is_one_line(content: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        _page(f"It is 2. <!-- computed: {content} -->")
    assert str(error.value).startswith("page.md: ")
    assert "\n" not in str(error.value)


def test_what_has_numbers_and_no_source_is_listed() -> None:
    text = """# Page of 3

* 7B and `3.5` in [code](page.md#2).
* It is 3.
* It is 4. <!-- computed: 4 = paper fast -->

| a |
|---|
| 5 |

<!-- computed: table claims -->

Five of 6.
"""
    assert open_blocks(text) == ["* It is 3.", "Five of 6."]
    assert list(references(text)) == [("4", "paper fast"), ("table", "claims")]


def test_recorded_tables_come_back_and_know_their_query(tmp_path: Path) -> None:
    rows = [{"row": 'a "b", c', "n": 1 / 3, "none": None}, {"row": "d", "n": 2, "none": None}]
    path = tmp_path / "t.csv"
    with pytest.raises(UserError, match="is not there"):
        read_recorded_table(path, "select 1")
    from railx.evidence.findings import query_digest

    path.write_text(
        recorded_table_text(rows, {"query": query_digest("select 1")}), encoding="utf-8"
    )
    first, second = read_recorded_table(path, "select  1")
    assert (first["row"], second) == ('a "b", c', {"row": "d", "n": 2.0, "none": None})
    assert first["n"] == pytest.approx(1 / 3, rel=1e-9)
    with pytest.raises(UserError, match="another query made it"):
        read_recorded_table(path, "select 2")


def test_a_definition_is_a_query_or_claims(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="either a query or claims"):
        FindingsTable("paper")
    path = tmp_path / "findings.yaml"
    path.write_text("t: {experiment: paper, labels: -1, claims: [a]}", encoding="utf-8")
    with pytest.raises(UserError, match=r"findings\.yaml: t\.labels"):
        read_findings_tables(path)
