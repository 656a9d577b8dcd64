"""The page as text: complete, escaped, self-contained, and refused where its inputs are
wrong.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import subprocess
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from railx.evidence import VERDICTS, Paper, published_tables, read_expected, read_papers
from railx.io import read_json, read_table, write_json, write_table
from railx.provenance.jobs import digest_of
from railx.report.cells import cell
from railx.report.claims import abstract, missing_in_words
from railx.report.entries import ReportFigure, caption_html
from railx.report.recorded import write_recorded_report
from tests.builders import PUBLISHED, ROOT
from tests.report.conftest import CLAIMS, PAPERS, QUERY, Made

_VOID = {"meta", "link", "img", "br", "source", "rect"}


class _Page(HTMLParser):
    """Tags that do not close, ids, addresses, headings, and the rows of each table by
    the ``details`` that holds it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[int] = []
        self.rows: dict[str, list[list[str]]] = {}
        self._details: list[str] = []
        self._cell = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in _VOID:
            self.open.append(tag)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self.addresses += [str(values[key]) for key in ("src", "href", "srcset") if key in values]
        assert not [key for key in values if key == "style" or key.startswith("on")]
        assert tag != "img" or values["alt"]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "details":
            self._details.append(str(values.get("id")))
        if tag == "tr" and self._details:
            self.rows.setdefault(self._details[-1], []).append([])
        if tag == "td" and self._details:
            self.rows[self._details[-1]][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag
        if tag == "details":
            self._details.pop()
        if tag == "td":
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell and self._details:
            self.rows[self._details[-1]][-1][-1] += data


def text_of(report: Path) -> str:
    return report.read_text(encoding="utf-8")


def part(html: str, start: str, end: str) -> str:
    """The page from one text to the next, as words."""
    begin = html.index(start)
    found = re.sub(r"<[^>]*>", " ", html[begin : html.index(end, begin)])
    return " ".join(unescape(found).split())


def test_page_is_well_formed_and_refers_only_to_itself_and_to_papers(report: Path) -> None:
    page = _Page(report)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    for address in page.addresses:
        assert address.startswith(("data:", "https://arxiv.org/abs/")) or (
            address.startswith("#") and address[1:] in page.ids
        )
    # No heading skips a level.
    assert page.headings[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(page.headings))


def test_the_first_number_counts_published_claims_only(report: Path) -> None:
    html = text_of(report)
    header = part(html, "<h1>", 'id="bar"')
    assert header.startswith("What held of RailX, Opus and Rival")
    assert (
        "5 published claims : 1 reproduced 1 direction only 1 undecided 1 not reproduced 1 not here"
        in header
    )
    assert "Not here, recorded in paper ( make reproduce EXPERIMENT=paper ): 1 consistent" in header
    counts = html[html.index('<table class="counts">') : html.index('id="apart"')]
    rows = [
        re.findall(r">([^<>\s][^<>]*)<", row)
        for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", counts, re.DOTALL)
    ]
    assert [row[0] for row in rows if len(row) == 10] == ["RailX", "Opus", "Rival"]
    assert "held 1 open 2 failed 1 not judged 1 By paper" in part(
        html, '<table class="counts">', "<tbody>"
    )
    by_paper = {row[0]: row[1:] for row in rows if len(row) == 10}
    assert by_paper["RailX"] == ["1", "·", "1", "·", "·", "·", "·", "·", "2"]
    assert by_paper["Rival"] == ["·", "·", "·", "·", "1", "1", "·", "·", "2"]
    by_fidelity = {row[0]: row[2:] for row in rows if len(row) == 11}
    assert by_fidelity == {
        "analytic": ["1", "·", "·", "·", "·", "·", "·", "·", "1"],
        "packet": ["·", "·", "1", "·", "·", "·", "·", "·", "1"],
        "measured_cpu": ["·", "·", "·", "·", "1", "1", "·", "·", "2"],
        "none": ["·", "·", "·", "·", "·", "·", "1", "·", "1"],
    }


def test_each_paper_is_a_paragraph_of_what_held_and_what_it_turns_on(
    made: Made, tmp_path: Path
) -> None:
    rows = read_table(made.parts["claims"]).to_pylist()
    rows[1] |= {"verdict": "depends", "claim": "railx_diameter"}
    write_table(tmp_path / "claims.parquet", pa.Table.from_pylist(rows))
    html = text_of(made.write(tmp_path / "page.html", claims=tmp_path / "claims.parquet"))
    paragraphs = part(html, '<dl class="abstract">', "</dl>")
    turns_on = made.parts["papers"]["railx"].depends
    assert paragraphs == (
        f"RailX 1 reproduced: abstract. 1 depends: {turns_on} Opus Recorded in paper:"
        " 1 consistent: abstract. Rival 1 undecided: abstract. 1 not reproduced: abstract."
    )


def test_topics_with_several_claims_say_how_many() -> None:
    rows = [
        {"kind": "published", "paper": "a", "claim": f"{word}_{number}", "place": place}
        | {"verdict": "reproduced", "recorded_in": "", "recorded_verdict": ""}
        for number, (word, place) in enumerate(
            [("cost", "fig. 1"), ("x", "table 2, top"), ("cost", "x")]
        )
    ]
    (only,) = abstract(rows, "a", Paper("A", (), "idea", topics={"cost": "price"}))
    assert (only["number"], only["topics"]) == (3, [("price", 2), ("table 2", 1)])


def test_derived_claims_and_checks_stand_apart(report: Path) -> None:
    apart = part(text_of(report), 'id="apart"', "</section>")
    assert "Apart from these, 1 derived claim, which no paper states: 1 not reproduced" in apart
    assert "Not reproduced: Sentence 2" in apart
    assert "Apart from these, 1 check, which no paper states: 1 reproduced" in apart


def test_headlines_show_published_and_ours_side_by_side(report: Path) -> None:
    html = text_of(report)
    table = html[html.index('<table class="headlines">') : html.index('<section id="failed"')]
    assert re.findall(r'data-claim="(\w+)"', table) == ["claim_0", "claim_3", "claim_5"]
    shown = part(table, 'data-claim="claim_5"', "</tr>")
    assert "undecided Sentence 5. Published at most 10 % Ours 2.44 %" in shown
    assert "95 %: 2.31 to 2.52, n = 3 measured_cpu" in shown
    assert (
        "not here paper: consistent Sentence 3. Published at most 10 % Ours – 3 % in paper none"
        in part(table, 'data-claim="claim_3"', "</tr>")
    )


def test_what_did_not_hold_is_said_in_words(report: Path) -> None:
    html = text_of(report)
    failed = html[html.index('<section id="failed"') : html.index('<section id="counts"')]
    assert re.findall(r"<h3>([\w ]+) <", failed) == [
        "Not reproduced",
        "Direction only",
        "Undecided",
    ]
    assert re.findall(r'<li data-claim="(\w+)"', failed) == ["claim_6", "claim_1", "claim_5"]
    words = part(failed, "<h3>", "</section>")
    assert "Rival: Sentence 6. Reason of 6." in words
    assert "1 published claim is not here : another experiment decides it" in words


def test_each_paper_has_its_section_in_the_order_of_the_papers(report: Path) -> None:
    html = text_of(report)
    sections = re.findall(r'<section class="paper" id="paper-(\w+)"', html)
    assert sections == ["railx", "opus", "flexsp", "infinipipe", "performance", "networks", "rival"]
    starts = [html.index(f'id="paper-{key}"') for key in sections]
    parts = [html[a:b] for a, b in pairwise([*starts, html.index('<section id="tables"')])]
    claims = [re.findall(r'<details class="claim" id="claim-(\w+)"', one) for one in parts]
    assert claims == [
        ["claim_1", "claim_0", "claim_2"],
        ["claim_3", "claim_4"],
        [],
        [],
        [],
        [],
        ["claim_6", "claim_5"],
    ]
    assert '<a href="https://arxiv.org/abs/2601.00001" rel="noreferrer">' in parts[-1]
    assert re.findall(r'<figure id="([\w-]+)"', parts[0]) == ["figure-bandwidth"]
    assert html.index('<figure id="figure-all"') < starts[0]
    kinds = re.findall(r'<section class="claims" id="(\w+)-railx"', parts[0])
    assert kinds == ["published", "derived"]
    numbers = list(dict.fromkeys(re.findall(r"<span>(Published|Expected)</span>", parts[0])))
    assert numbers == ["Published", "Expected"]


def test_a_claim_unfolds_to_all_that_is_known_of_it(report: Path) -> None:
    html = text_of(report)
    first = part(html, 'id="claim-claim_0"', "</details>")
    for words in (
        "Reason of 0. Links inside a node are in no bill.",
        "In the paper abstract",
        "at most 10 %: the paper's abstract (confidence high), row in railx.csv",
        "Fidelity analytic; the claim requires analytic or better",
        "Computed from network.railx_hyperx.bounds , economics.summary",
        "Elsewhere paper: direction only 5 % analytic recorded/gpus: direction only 5 % analytic",
        "make claim CLAIM=claim_0 EXPERIMENT=quick",
    ):
        assert words in first
    measured = part(html, 'id="claim-claim_5"', "</details>")
    assert (
        "Samples 3; ours is their median, its 95 % interval reaches from 2.31 to 2.52" in measured
    )
    assert "1 set aside as disturbed" in measured
    missing = part(html, 'id="claim-claim_3"', "</details>")
    assert "It needs 64 GPUs. It would take 64 GPUs for an hour" in missing
    assert "railx sql" not in missing


def test_every_query_stands_there_as_a_command(report: Path) -> None:
    commands = [
        unescape(found)
        for found in re.findall(r">(railx sql .*?)</pre>", text_of(report), re.DOTALL)
    ]
    assert len(commands) == sum(verdict != "not here" for _, _, verdict, _, _ in CLAIMS)
    # A shell hands the query on as it stands in the claims table.
    printed = subprocess.run(
        ["sh", "-c", commands[0].replace("railx sql", "printf '%s|'", 1)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{QUERY}|--experiment|quick|"


def test_tables_named_by_queries_and_figures_lead_to_those_printed(report: Path) -> None:
    html = text_of(report)
    attempted = len(CLAIMS) - 1
    assert (
        html.count('<a href="#table-0"><code>network.railx_hyperx.bounds</code></a>') == attempted
    )
    assert (
        html.count('<a href="#table-0"><code>network/railx_hyperx/bounds.parquet</code></a>') == 1
    )
    assert html.count("<code>economics.summary</code>") == attempted


def test_every_row_of_every_published_table_is_on_the_page(report: Path) -> None:
    page = _Page(report)
    tables = published_tables(PUBLISHED)
    assert len(tables) == len(list(PUBLISHED.glob("*.csv")))
    for table in tables:
        shown = page.rows[f"file-{Path(table.file).stem}"]
        wanted = [[cell(row[column]) for column in table.columns] for row in table.rows]
        assert [row for row in shown if row] == wanted


def test_a_published_table_says_who_draws_and_judges_it_or_why_nobody_does(report: Path) -> None:
    html = text_of(report)
    judged = part(html, 'id="file-railx"', "<table")
    assert "not drawn, judged by 1 claim Judged by claim_0 (reproduced)." in judged
    drawn = part(html, 'id="file-opus"', "<table")
    assert "drawn in 1 figure, not judged Drawn in All claims ." in drawn
    for table in published_tables(PUBLISHED):
        anchor = f'id="file-{Path(table.file).stem}"'
        assert " ".join(table.why.split()) in part(html, anchor, "<table")


def test_other_experiments_are_named_with_their_counts_and_commit(report: Path) -> None:
    html = text_of(report)
    others = html[html.index('<section id="others"') :]
    paper, recorded, old = (
        part(others, f'<th scope="row">{name}', "</tr>")
        for name in ("paper", "recorded/gpus", "old")
    )
    assert "paper · · 5 · · · · · 5 analytic" in paper
    assert f"commit {('c0ffee' * 7)[:12]}" in paper
    assert "recorded/gpus recorded · · 1 · · · · · 1 analytic commit not known" in recorded
    assert "not read: the claims table has no kind, ours_text, fidelity" in old


def test_without_other_experiments_nothing_is_said_of_them(made: Made, tmp_path: Path) -> None:
    page = made.write(tmp_path / "page.html", others=[], jobs=[])
    assert 'id="others"' not in text_of(page)
    assert 'id="jobs"' not in text_of(page)
    assert "Elsewhere" not in text_of(page)


def test_text_from_files_is_escaped(report: Path) -> None:
    html = text_of(report)
    assert "<b>never</b>" not in html
    assert "Below 10 % &amp; &lt;b&gt;never" in html
    # The page's own script and no other.
    assert html.count("<script>") == 1
    assert html.count("</script>") == 1
    assert 'alt="Dots &#34;of&#34; &lt;all&gt; claims."' in html
    assert "<p>The <em>bound</em> of <code>network</code>, 2 &lt; 3.</p>" in html


def test_long_tables_say_how_much_is_left_out(report: Path) -> None:
    html = text_of(report)
    assert "1,000 rows, the first 40 are shown; all are in the file" in html
    assert '<td>mean.hops</td><td class="number">1.779</td>' in html
    assert len([row for row in _Page(report).rows["table-1"] if row]) == 40


def test_a_thousand_points_are_a_page_that_opens(made: Made, report: Path, tmp_path: Path) -> None:
    (table,) = [one for one in made.parts["tables"] if one.title == "Network"]
    names = [f"network/point_{number:04d}/bounds.parquet" for number in range(1000)]
    tables = [
        dataclasses.replace(table, title=f"Traffic {name}", name=name, kind="Traffic on each")
        for name in names
    ]
    words = read_json(made.folder / "figure/all.json")
    image = tmp_path / "all.svg"
    # Marks, not comments, which no page keeps.
    marks = '<rect width="1" height="1"/>' * 20_000
    for path in (image, tmp_path / "all.dark.svg"):
        path.write_text(f'<svg width="9pt" height="9pt">{marks}</svg>')
    image.with_suffix(".png").write_bytes(b"a picture")
    alternative = ", ".join(f"point {number}: 1.5" for number in range(1000))
    write_json(tmp_path / "all.json", {**words, "tables": names, "alternative_text": alternative})
    point = {"family": "torus_2d", "n": 1, "x_scale": 4, "y_scale": 4, "port_gbps": 400.0}
    config = tmp_path / "config.json"
    write_json(config, {"topologies": {f"point_{number}": point for number in range(1000)}})
    page = made.write(
        tmp_path / "page.html",
        tables=[*tables, *made.parts["tables"]],
        figures=[
            ReportFigure("all", image, tmp_path / "all.json", tmp_path / "all.dark.svg"),
            *made.parts["figures"][1:],
        ],
        jobs=[*made.parts["jobs"], *[made.parts["jobs"][0]] * 2000],
        config=config,
    )
    assert page.stat().st_size - report.stat().st_size < 500_000
    html, shown = unescape(text_of(page)), _Page(page).rows
    assert (
        "Traffic on each: 960 tables more, <code>network/point_0040/bounds.parquet</code>" in html
    )
    assert "1,962 jobs more: commit 0123456789ab, code c0dec0" in html
    assert "1,962 with changes that are not committed" in html
    assert "and 980 tables more" in html
    assert "characters more are left out here" in html
    assert "Of so many marks the page holds the picture alone" in html
    assert "2,002 jobs" in html
    # 40 jobs, the line of the others and the heading.
    assert len(shown["jobs"]) == 42
    assert base64.b64encode(b"a picture").decode() in html
    assert html.count("rect") < 100


def test_every_job_shows_where_it_comes_from(report: Path) -> None:
    rows = [row for row in _Page(report).rows["jobs"] if row]
    assert rows[0] == [
        "2026-01-02T03:04:05",
        "0123456789ab, changed",
        "c0dec0dec0de",
        # SHA-256 of the settings {}.
        "44136fa355b3",
        digest_of(ROOT / "requirements.lock")[:12],
        "1",
        "2",
        "before 0.25",
        "numpy 9.9.9, scipy 1.2.3",
        "a processor, 2 cores, CPython 3.11",
    ]
    assert len(rows) == 2


def test_seeds_and_provenance_are_shown_without_names_of_the_machine(report: Path) -> None:
    html = text_of(report)
    assert "<code>seed = 7</code>, <code>topologies.a.seed = 3</code>" in html
    assert str(report.parent) not in html


def test_captions_are_paragraphs_with_inline_marks() -> None:
    assert (
        caption_html("One *two*\nthree ``a*b*c``.\n\n\n2 * 3 * 4 & 5.\n")
        == "<p>One <em>two</em> three <code>a*b*c</code>.</p>\n<p>2 * 3 * 4 &amp; 5.</p>"
    )


def refused(made: Made, folder: Path, claims: pa.Table) -> str:
    write_table(folder / "claims.parquet", claims)
    with pytest.raises(ValueError, match=r"claims\.parquet: ") as error:
        made.write(folder / "report.html", claims=folder / "claims.parquet")
    assert not (folder / "report.html").exists()
    return str(error.value)


@pytest.mark.parametrize("column", ["kind", "query", "needs", "notes", "verdict", "headline"])
def test_a_claims_table_without_a_column_is_refused(
    made: Made, tmp_path: Path, column: str
) -> None:
    claims = read_table(made.parts["claims"]).drop_columns([column])
    assert f"column {column} is missing; found: claim" in refused(made, tmp_path, claims)


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        ("kind", "published, derived, check"),
        ("verdict", ", ".join(VERDICTS)),
        ("fidelity", "analytic, flow, packet"),
        ("paper", "railx, opus, flexsp, infinipipe, performance, networks, rival"),
    ],
)
def test_unknown_words_in_the_claims_table_are_refused(
    made: Made, tmp_path: Path, column: str, allowed: str
) -> None:
    claims = read_table(made.parts["claims"])
    place = claims.column_names.index(column)
    maybe = claims.set_column(place, column, pa.array(["maybe"] * claims.num_rows))
    message = refused(made, tmp_path, maybe)
    assert f"claim claim_0: {column} 'maybe'; allowed: {allowed}" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paper": "nobody"}, r"words\.json: paper: got 'nobody'; allowed: railx, .*, all$"),
        ({"caption": None}, r"words\.json: caption: is missing; allowed: a text each$"),
    ],
)
def test_figures_without_their_words_are_refused(
    made: Made, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    figure = made.parts["figures"][0]
    words = {**read_json(figure.words), **change}
    write_json(tmp_path / "words.json", {k: v for k, v in words.items() if v is not None})
    wrong = ReportFigure("all", figure.image, tmp_path / "words.json")
    with pytest.raises(ValueError, match=message):
        made.write(tmp_path / "page.html", figures=[wrong])


@pytest.mark.parametrize(
    ("reason", "words", "command"),
    [
        (
            "plan.flexsp_7b.groups is not among the results of this experiment; none decides it",
            "this run has not the plan flexsp_7b, and no recorded run decides it",
            "make claim CLAIM=faster OVERRIDES='plans.flexsp_7b=flexsp_7b'",
        ),
        (
            "tenancy.largest is not among the results of this experiment",
            "this run has no stage tenancy, and no recorded run decides it",
            "",
        ),
        ("the table has no row", "", ""),
        (None, "", ""),
    ],
)
def test_what_is_missing_is_said_without_names_of_tables(
    reason: str | None, words: str, command: str
) -> None:
    assert missing_in_words({"claim": "faster", "reason": reason}) == (words, command)


def test_a_caption_shows_its_first_statement_and_folds_its_numbers(report: Path) -> None:
    caption = part(text_of(report), 'id="figure-all"', "</figure>")
    assert "The bound of network , 2 < 3. In numbers, and the tables behind it The bound" in caption


def test_the_page_of_recorded_verdicts_has_all_of_them(tmp_path: Path) -> None:
    resources = ROOT / "resources"
    write_recorded_report(tmp_path / "paper.html", "paper", resources, "c0ffee" * 7, "2026-01-02")
    html = text_of(tmp_path / "paper.html")
    expected = read_expected(resources / "expected" / "paper.yaml")
    shown = dict(re.findall(r'id="claim-(\w+)" .*?data-verdict="([^"]*)"', html))
    for claim, recorded in expected.items():
        assert shown[claim] == recorded.verdict
    assert f"commit <code>{('c0ffee' * 7)[:12]}</code> · 2026-01-02" in html
    figures = re.findall(r'<figure id="figure-([^"]+)"', html)
    assert figures == ["all_claims", *(f"claims_{paper}" for paper in read_papers(ROOT / PAPERS))]
