"""The page as text: complete, escaped, self-contained, and refused where its inputs are
wrong.
"""

from __future__ import annotations

import re
import subprocess
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from railx.io import read_table, write_table
from railx.report import caption_html, write_report

_VOID = {"meta", "link", "img", "br"}


class _Balance(HTMLParser):
    """Collects tags that do not close, ids, and every address that an element refers
    to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in _VOID:
            self.open.append(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self.addresses += [str(values[key]) for key in ("src", "href") if key in values]
        assert tag != "script"
        assert tag != "img" or values["alt"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(path: Path) -> _Balance:
    parser = _Balance()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def test_page_is_well_formed_and_refers_only_to_itself(report: Path) -> None:
    page = parsed(report)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    for address in page.addresses:
        assert address.startswith("data:") or (address.startswith("#") and address[1:] in page.ids)
    # Addresses of nothing but XML vocabularies may stand inside the encoded figures;
    # none may stand in the page.
    assert not re.search(r"https?://", report.read_text(encoding="utf-8"))


def test_the_first_number_counts_published_claims_only(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    summary = html[html.index('<section id="summary"') : html.index('<section id="verdicts"')]
    words = re.sub(r"<[^>]*>", "", summary)
    assert (
        "3 claims that the papers publish: 1 reproduced, 1 partly, 0 not reproduced,"
        " 1 not attempted." in words
    )
    assert re.findall(r"<strong>(\d+)</strong>", summary) == ["1", "1", "0", "1"]
    by_paper = re.findall(r'<th scope="row">(\w+)</th>((?:<td class="number">\d+</td>)+)', summary)
    assert {paper: re.findall(r"\d+", cells) for paper, cells in by_paper} == {
        "RailX": ["1", "1", "0", "0"],
        "Opus": ["0", "0", "0", "1"],
    }
    assert (
        "Apart from these, 1 derived claim: 0 reproduced, 0 partly, 1 not reproduced,"
        " 0 not attempted." in words
    )
    assert "Apart from these, 1 check: 1 reproduced" in words


def test_kinds_of_claims_stand_apart(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    starts = [html.index(f'<h3 id="{kind}">') for kind in ("published", "derived", "check")]
    assert starts == sorted(starts)
    parts = [html[a:b] for a, b in pairwise([*starts, html.index('<section id="figures"')])]
    claims = [re.findall(r'data-claim="(\w+)"', part) for part in parts]
    assert claims == [["claim_0", "claim_1", "claim_3"], ["claim_2"], ["claim_4"]]
    numbers = [re.findall(r">(Published|Expected)</th>", part) for part in parts]
    assert numbers == [["Published"], ["Expected"], ["Expected"]]


def test_every_row_unfolds_to_its_query_as_a_command(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    commands = [unescape(found) for found in re.findall(r">(railx sql .*?)</pre>", html, re.DOTALL)]
    assert len(commands) == 5
    # A shell hands the query on as it stands in the claims table.
    query = read_table(report.parent / "claims.parquet").column("query")[0].as_py()
    printed = subprocess.run(
        ["sh", "-c", commands[0].replace("railx sql", "printf '%s|'", 1)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{query}|--experiment|quick|"


def test_tables_named_by_queries_lead_to_those_printed(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert html.count('<a href="#table-0"><code>network.railx_hyperx.bounds</code></a>') == 5
    assert html.count("<code>economics.summary</code>") == 5
    assert (
        html.count('<a href="#table-0"><code>network/railx_hyperx/bounds.parquet</code></a>') == 2
    )
    assert html.count("Links inside a node are in no bill.") == 1


def test_text_from_files_is_escaped(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert "<b>never</b>" not in html
    assert "below 10 % &amp; &lt;b&gt;never" in html
    assert "<script>" not in html
    assert "the <em>bound</em> divides the capacity" in html


def test_long_tables_say_how_much_is_left_out(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert "1,000 rows, the first 40 are shown; all are in the file" in html
    assert '<td>mean.hops</td><td class="number" title="1.779">1.779</td>' in html


def test_seeds_and_provenance_are_shown_without_names_of_the_machine(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert "<code>seed = 7</code>, <code>topologies.a.seed = 3</code>" in html
    assert "measured_gpu" in html
    assert str(report.parent) not in html


def test_captions_are_paragraphs_with_inline_marks() -> None:
    assert (
        caption_html("One *two*\nthree ``a*b*c``.\n\n\n2 * 3 * 4 & 5.\n")
        == "<p>One <em>two</em> three <code>a*b*c</code>.</p>\n<p>2 * 3 * 4 &amp; 5.</p>"
    )


def refused(folder: Path, claims: pa.Table, report: Path) -> str:
    write_table(folder / "claims.parquet", claims)
    with pytest.raises(ValueError, match=r"claims\.parquet: ") as error:
        write_report(
            folder / "report.html",
            experiment="quick",
            claims=folder / "claims.parquet",
            figures=[],
            tables=[],
            config=report.parent / "config.json",
            provenance=report.parent / "provenance.json",
        )
    assert not (folder / "report.html").exists()
    return str(error.value)


@pytest.mark.parametrize("column", ["kind", "query", "tables", "notes", "verdict"])
def test_a_claims_table_without_a_column_is_refused(
    report: Path, tmp_path: Path, column: str
) -> None:
    claims = read_table(report.parent / "claims.parquet").drop_columns([column])
    assert f"column {column} is missing; found: claim" in refused(tmp_path, claims, report)


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        ("kind", "published, derived, check"),
        ("verdict", "reproduced, partly, not reproduced, not attempted"),
        ("fidelity", "analytic, flow, packet"),
    ],
)
def test_unknown_words_in_the_claims_table_are_refused(
    report: Path, tmp_path: Path, column: str, allowed: str
) -> None:
    claims = read_table(report.parent / "claims.parquet")
    place = claims.column_names.index(column)
    maybe = claims.set_column(place, column, pa.array(["maybe"] * claims.num_rows))
    message = refused(tmp_path, maybe, report)
    assert f"claim claim_0: {column} 'maybe'; allowed: {allowed}" in message
