"""The page as text: complete, escaped, self-contained, and refused where its inputs are
wrong.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from railx.io import read_table, write_json, write_table
from railx.report import caption_html, figure_entry, write_report

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


def test_counts_rows_and_expressions_come_from_the_claims_table(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert "5 claims: 2 reproduced, 1 partly, 1 not reproduced, 1 not attempted." in html
    assert html.count("data-claim=") == 5
    assert html.count("100 * bound_gb_s_per_chip / injection_gb_s_per_chip") == 5
    assert html.count('<a href="#table-0"><code>network/railx_hyperx.parquet</code></a>') == 7


def test_text_from_files_is_escaped(report: Path) -> None:
    html = report.read_text(encoding="utf-8")
    assert "<b>never</b>" not in html
    assert "fat tree &amp; &lt;b&gt;never" in html
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


def test_claims_without_expressions_are_shown_by_their_tables(report: Path, tmp_path: Path) -> None:
    claims = read_table(report.parent / "claims.parquet").drop_columns(["expression"])
    write_table(tmp_path / "claims.parquet", claims)
    write_report(
        tmp_path / "report.html", experiment="quick", claims=tmp_path / "claims.parquet", figures=[], tables=[],
        config=report.parent / "config.json", provenance=report.parent / "provenance.json",
    )  # fmt: skip
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.count("data-claim=") == 5
    assert html.count("<code>network/railx_hyperx.parquet</code>") == 5
    assert parsed(tmp_path / "report.html").open == []


def test_unknown_figure_and_wrong_claims_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figure: got 'nothing'; allowed: rail_rings"):
        figure_entry("nothing", "a", "a.svg", [])
    columns = (
        "claim",
        "paper",
        "place",
        "sentence",
        "published_text",
        "ours_text",
        "fidelity",
        "fidelity_required",
        "reason",
        "table",
    )
    row = {**dict.fromkeys(columns, "x"), "fidelity": "analytic", "verdict": "maybe"}
    write_table(tmp_path / "claims.parquet", [row])
    write_json(tmp_path / "empty.json", {})
    with pytest.raises(
        ValueError, match=r"claims.parquet: claim x: verdict 'maybe'; allowed: reproduced, partly"
    ):
        write_report(
            tmp_path / "report.html", experiment="x", claims=tmp_path / "claims.parquet", figures=[], tables=[],
            config=tmp_path / "empty.json", provenance=tmp_path / "empty.json",
        )  # fmt: skip
    assert not (tmp_path / "report.html").exists()
