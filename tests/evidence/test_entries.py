"""Entries of claim files are joined with the published rows that they select, and what
is wrong with the query of a claim is found without any result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from railx.evidence import Claim, ClaimError, check_queries, load_claims
from railx.evidence.claims import ClaimSettings, NotTestable, PublishedReference
from railx.evidence.published import Published
from tests.builders import ROOT

ROWS = """\
id,model,corpus,system,value,watts,source,confidence
7b_github_fast,7b,github,fast,1.25,3,a paper,high
7b_github_slow,7b,github,slow,1,4,a paper,high
7b_wiki_fast,7b,wiki,fast,1.385,5,a paper,high
13b_wiki_fast,13b,wiki,fast,1.5,,a paper,high
"""
ENTRY: dict[str, Any] = {
    "id": "speed_{{ model }}_{{ corpus }}",
    "kind": "published",
    "sentence": "On {{ corpus_name }} {{ model | upper }} is {{ number | rounded(2) }} x faster.",
    "place": "fig. 1, {{ corpus_name }}",
    "published": {"file": "speeds.csv", "where": {"system": "fast"}},
    "query": "speed",
    "with": {"plan": "{{ planner }}_{{ model }}_{{ corpus }}"},
    "comparison": "ratio",
    "tolerance": 0.1,
    "fidelity_required": "analytic",
    "notes": "{{ lengths }}",
}
QUERIES = {"speed": "select ms as ours, fidelity from plan.{{ plan }}.groups"}
LOOKUPS = {
    "corpus": {
        "github": {
            "corpus_name": "GitHub",
            "lengths": "Lengths of {{ corpus_name }} are not published.",
        },
        "wiki": {"corpus_name": "Wikipedia", "lengths": "Drawn."},
    },
    "system": {"fast": {"planner": "flexsp"}, "slow": {"planner": "static"}},
}


def load(
    folder: Path, *entries: dict[str, Any], rows: str = ROWS, **file: Any
) -> tuple[Claim, ...]:
    """The claims of a file with these entries; ``file`` replaces its other keys."""
    for name in ("claims", "published"):
        (folder / name).mkdir(exist_ok=True)
    content = {"paper": "paper", "queries": QUERIES, "lookups": LOOKUPS, **file}
    (folder / "claims/paper.yaml").write_text(
        yaml.safe_dump({**content, "claims": list(entries)}, sort_keys=False), encoding="utf-8"
    )
    (folder / "published/speeds.csv").write_text(rows, encoding="utf-8")
    (folder / "papers.yaml").write_text("paper: {name: Paper, arxiv: ['0'], idea: to be fast}\n")
    return load_claims(folder / "claims", folder / "published", folder / "papers.yaml")


def test_an_entry_makes_a_claim_of_each_row_that_it_selects(tmp_path: Path) -> None:
    claims = load(tmp_path, ENTRY)
    assert [claim.id for claim in claims] == ["speed_7b_github", "speed_7b_wiki", "speed_13b_wiki"]
    assert [claim.published.value for claim in claims] == [1.25, 1.385, 1.5]
    assert [claim.published.id for claim in claims] == [
        "7b_github_fast",
        "7b_wiki_fast",
        "13b_wiki_fast",
    ]
    assert [claim.settings.query for claim in claims] == [
        f"select ms as ours, fidelity from plan.flexsp_{setting}.groups"
        for setting in ("7b_github", "7b_wiki", "13b_wiki")
    ]
    assert claims[1].settings.sentence == "On Wikipedia 7B is 1.39 x faster."
    assert claims[0].settings.notes == "Lengths of GitHub are not published."
    assert {claim.shape for claim in claims} == {"speed"}


def test_a_new_row_is_judged_without_another_line(tmp_path: Path) -> None:
    before = load(tmp_path, ENTRY)
    after = load(tmp_path, ENTRY, rows=f"{ROWS}30b_github_fast,30b,github,fast,1.7,,a paper,high\n")
    assert after[:-1] == before
    assert after[-1].settings.place == "fig. 1, GitHub"
    assert "plan.flexsp_30b_github.groups" in (after[-1].settings.query or "")


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        ({"where": {"corpus": ["github"], "system": "slow"}}, ["7b_github_slow"]),
        ({"where_not": {"corpus": "github"}}, ["7b_wiki_fast", "13b_wiki_fast"]),
        # Not both of these, though either of them.
        ({"where_not": {"corpus": "wiki", "model": "7b"}, "where": {"system": "fast"}},
         ["7b_github_fast", "13b_wiki_fast"]),
        ({"id": "7b_github_slow"}, ["7b_github_slow"]),
        ({"where": {"watts": [3, 5]}}, ["7b_github_fast", "7b_wiki_fast"]),
    ],
)  # fmt: skip
def test_rows_are_selected_by_the_values_of_columns(
    tmp_path: Path, selection: dict[str, Any], ids: list[str]
) -> None:
    claims = load(tmp_path, {**ENTRY, "published": {"file": "speeds.csv", **selection}})
    assert [claim.published.id for claim in claims] == ids


def test_several_columns_are_a_claim_each(tmp_path: Path) -> None:
    published = {"file": "speeds.csv", "where": {"corpus": "github"}, "column": ["value", "watts"]}
    claims = load(
        tmp_path, {**ENTRY, "id": "{{ column }}_{{ id }}", "unit": "W", "published": published}
    )
    assert [(claim.id, claim.published.value) for claim in claims] == [
        ("value_7b_github_fast", 1.25),
        ("watts_7b_github_fast", 3),
        ("value_7b_github_slow", 1),
        ("watts_7b_github_slow", 4),
    ]


def test_each_mapping_is_a_claim_and_may_replace_its_keys(tmp_path: Path) -> None:
    entry = {
        **ENTRY,
        "id": "{{ planner }}",
        "published": {"file": "speeds.csv", "id": "7b_wiki_{{ speed }}"},
        "query": "select {{ least }} as ours, fidelity from plan.a.groups",
        "each": [{"speed": "fast", "tolerance": 0.5}],
        "with": {"least": 2},
    }
    (claim,) = load(tmp_path, entry, queries={})
    assert (claim.id, claim.settings.tolerance, claim.shape) == ("flexsp", 0.5, "")
    assert claim.settings.query == "select 2 as ours, fidelity from plan.a.groups"


def test_a_query_crosses_lists(tmp_path: Path) -> None:
    query = (
        "{% for model, corpus in product(models, corpora) %}{{ 'union all ' if not loop.first }}"
        "from plan.{{ model }}_{{ corpus }}.groups {% endfor %}"
    )
    lists = {"models": ["7b", 13], "corpora": ["wiki"]}
    (claim, *_) = load(tmp_path, {**ENTRY, "query": query, "with": lists}, queries={})
    assert claim.settings.query == "from plan.7b_wiki.groups union all from plan.13_wiki.groups "


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "sped"}, "query: got 'sped'; allowed: one SELECT, or one of queries: speed"),
        ({"with": {"plan": "{{ planer }}"}}, "plan: 'planer' is undefined; allowed: a template"),
        ({"with": {"plan": "a", "tolerence": 1}}, "tolerence: unknown key; allowed: a key of a"),
        ({"each": []}, "each: got (); allowed: not empty"),
        ({"each": [3]}, "each[0]: got 3; allowed: a mapping"),
        ({"with": {"plan": "a; drop"}}, "query: got 'a; drop'; allowed: letters, digits,"),
        ({"with": {"plan": "a'"}}, "query: got \"a'\"; allowed: letters, digits,"),
        ({"with": {"plan": "a --"}}, "query: got 'a --'; allowed: letters, digits,"),
        ({"sentence": "{{ number"}, "sentence: unexpected end of template"),
        ({"sentence": "{{ model | rounded }}"}, "sentence: [<class 'decimal.ConversionSyntax'>]"),
        ({"sentence": "{{ ().__class__ }}"}, "sentence: access to attribute '__class__'"),
        ({"published": {"file": "speeds.csv", "where": {"corpora": "a"}}},
         "published.where.corpora: speeds.csv has no such column; allowed: id, model,"),
        ({"published": {"file": "speeds.csv", "where": {"corpus": "a"}}},
         "published.where: selects no row of speeds.csv; allowed: at least one"),
        ({"published": {"file": "speeds.csv", "were": {}}}, "published.were: unknown key"),
        ({"published": {"file": "speeds.csv", "column": "watts"}},
         "published.column: watts of 13b_wiki_fast in speeds.csv is ''; allowed: a number"),
    ],
)  # fmt: skip
def test_mistakes_in_an_entry_are_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClaimError) as error:
        load(tmp_path, {**ENTRY, **changes})
    assert str(error.value).startswith("paper.yaml: claim speed_{{ model }}_{{ corpus }}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_without_its_lookup_is_named_with_its_row(tmp_path: Path) -> None:
    rows = f"{ROWS}7b_arxiv_fast,7b,arxiv,fast,1.7,,a paper,high\n"
    with pytest.raises(ClaimError) as error:
        load(tmp_path, ENTRY, rows=rows)
    assert str(error.value) == (
        "paper.yaml: claim speed_{{ model }}_{{ corpus }}:"
        " sentence: got 'arxiv' for corpus; allowed: github, wiki (row 7b_arxiv_fast of speeds.csv)"
    )


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"queries": {**QUERIES, "other": "select 1"}}, "paper.yaml: queries.other: no claim uses"),
        (
            {"lookups": {**LOOKUPS, "model": {"7b": {"corpus": "all"}}}},
            "lookups.corpus: is a column already; allowed: another name",
        ),
        ({"lookup": LOOKUPS}, "paper.yaml: lookup: unknown key; allowed: paper, claims, queries,"),
    ],
)
def test_mistakes_in_what_claims_share_are_one_line(
    tmp_path: Path, file: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClaimError) as error:
        load(tmp_path, ENTRY, **file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_names_of_queries_are_used_once(tmp_path: Path) -> None:
    load(tmp_path, ENTRY)
    text = (tmp_path / "claims/paper.yaml").read_text(encoding="utf-8")
    (tmp_path / "claims/second.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ClaimError, match=r"second\.yaml: queries\.speed: is used twice"):
        load(tmp_path, ENTRY)


def test_no_query_is_stored_twice() -> None:
    texts = []
    for path in (ROOT / "resources/claims").glob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        texts += content.get("queries", {}).values()
        # Entries that inherit a query with an anchor share its text.
        texts += {
            entry["query"] for entry in content["claims"] if " " in (entry.get("query") or "")
        }
    stored = [" ".join(text.split()) for text in texts]
    assert len(stored) == len(set(stored))
    assert len(stored) < 130


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
