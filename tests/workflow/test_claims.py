"""What stands in resources/ is checked before any job; ``railx claim``, ``railx
verdicts`` and ``railx findings``: the pages in git have the numbers that stand in git.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from railx.evidence import (
    VERDICTS,
    Claim,
    ClaimError,
    claims_table,
    judge,
    open_database,
    read_expected,
)
from railx.evidence.findings import references
from railx.io import write_table
from railx.settings import SettingsError
from tests.builders import ROOT
from tests.loops import for_every
from tests.workflow.conftest import PipelineCopy
from workflow.cli import main
from workflow.commands import verdicts
from workflow.commands.findings import findings_sources
from workflow.experiment import checked_experiment
from workflow.resources import all_claims, all_papers, check_resources, declared_tables
from workflow.stages import claim_files, results_folder

CLAIMS = all_claims()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of resources/."""
    shutil.copytree(ROOT / "resources", tmp_path / "resources")
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


DIAMETER = "railx.yaml: claim railx_diameter_at_full_scale: query:"
FAULTS = {
    "claims/railx.yaml": [
        (
            "from metrics.topologies",
            "from metrics.topology",
            f"{DIAMETER} no stage makes a table metrics.topology; allowed: metrics.topologies",
        ),
        (
            "select diameter_node_hops as ours",
            "select diameter_hops as ours",
            f"{DIAMETER} no column diameter_hops;",
        ),
        (
            "select diameter_node_hops as ours",
            "select diameter_node_hops as hops",
            f"{DIAMETER} gives the columns hops,",
        ),
        ("paper: railx", "paper: rails", "railx.yaml: paper: got 'rails'; allowed: railx, opus"),
        ("paper: railx", "paper: [railx", "railx.yaml, line "),
    ],
    "claims/railx_tenancy.yaml": [
        (
            "select usable_share as",
            "select usable as",
            "railx_tenancy.yaml: claim railx_largest_job_1_failed: query: no column",
        ),
    ],
    "published/railx.csv": [
        (
            ",paper; stated as over 100K,",
            ",,",
            "railx.csv, line 2 (chips_one_flat_layer): source: is missing",
        ),
    ],
    "papers.yaml": [("idea:", "ideas:", "papers.yaml: railx.ideas: unknown key; allowed: name")],
    "published/tables.yaml": [("paper: ", "papers: ", "tables.yaml: ")],
    "expected/quick.yaml": [(": reproduced", ": maybe", "quick.yaml: ")],
}


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [(file, *fault) for file, faults in FAULTS.items() for fault in faults],
)
def test_what_is_wrong_in_resources_is_one_line(
    copied: Path, file: str, before: str, after: str, message: str
) -> None:
    change(copied / "resources" / file, before, after)
    with pytest.raises((ClaimError, SettingsError)) as error:
        check_resources(copied)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_what_is_wrong_is_looked_at_again(copied: Path) -> None:
    change(copied / "resources" / "papers.yaml", "idea:", "ideas:")
    for _ in range(2):
        with pytest.raises(ValueError, match="ideas"):
            check_resources(copied)


def test_what_is_in_order_is_looked_at_once(copied: Path) -> None:
    check_resources(copied)
    (kept,) = (copied / ".cache" / "resources").iterdir()
    check_resources(copied)
    change(copied / "resources" / "papers.yaml", "idea:", "ideas:")
    with pytest.raises(ValueError, match="ideas"):
        check_resources(copied)
    assert [kept] == list((copied / ".cache" / "resources").iterdir())


@pytest.mark.system
def test_a_dry_run_ends_at_a_query_that_does_not_fit(tmp_path: Path) -> None:
    pipeline = PipelineCopy(tmp_path)
    change(
        tmp_path / "resources" / "claims" / "railx.yaml",
        "select diameter_node_hops as ours",
        "select diameter_hops as ours",
    )
    process = pipeline.start("--dry-run")
    output, _ = process.communicate()
    assert process.returncode != 0
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "railx.yaml: claim railx_diameter_at_full_scale: query: no column" in line
    assert "Traceback" not in output
    assert "Job stats" not in output


def test_every_table_that_claims_may_read_is_declared() -> None:
    declared = declared_tables()
    assert declared["economics.summary"] is not None
    assert declared["network.*.bounds"] is not None
    assert declared["training.*.result"] is None
    assert declared["tenancy.summary"] is not None
    assert "mix_ports_shared" in declared["tenancy.summary"].names
    assert "topology.*.graph" not in declared


# Composing every experiment for the first time takes minutes on a busy machine.
def test_every_item_that_a_claim_names_is_in_an_experiment() -> None:
    from railx.evidence import table_name

    made: set[str] = set()
    for path in (ROOT / "conf" / "experiment").glob("*.yaml"):
        experiment = checked_experiment([f"experiment={path.stem}"])
        folder = results_folder(experiment)
        made |= {table_name(str(file.relative_to(folder))) for file in claim_files(experiment)}
    with open_database(ROOT, []) as database:
        for claim in CLAIMS:
            if claim.settings.query is not None:
                named = set(database.named(claim.settings.query))
                assert named, claim.id
                assert named <= made, claim.id


# railx verdicts


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results without a table: no claim is attempted."""
    rows = judge(CLAIMS, tmp_path, [])
    write_table(tmp_path / "quick" / "evidence" / "claims.parquet", claims_table(rows))
    return tmp_path


def asked(results: Path, *options: str) -> tuple[str, ...]:
    return ("verdicts", "--experiment", "quick", "--results", str(results), *options)


def test_verdicts_are_listed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(results)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["claim", "paper", "kind", "verdict"]
    assert len(lines) == len(CLAIMS) + 1
    assert main(asked(results, "--paper", "opus", "--json")) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["paper"] for row in rows} == {"opus"}
    assert {row["verdict"] for row in rows} == {"not here", "not testable"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--paper", "no"), "--paper: got 'no'; allowed: railx, opus"),
        (("--paper", "opus", "--expected"), "--paper: allowed: alone or with --json"),
        (("--experiment", "paper"), "is not there; make it with: railx reproduce paper\n"),
        (("--experiment", "nope"), "--experiment: got 'nope'; allowed: "),
        (("--experiment", ""), "--experiment: got ''; allowed: "),
        (("--experiment", ".."), "--experiment: got '..'; allowed: "),
    ],
)
def test_verdicts_refuse_in_one_line(
    results: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert main(asked(results, *options)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_expected_verdicts_are_written_and_compared(
    results: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdicts, "_EXPECTED", tmp_path)
    assert main(asked(results, "--write")) == 0
    assert main(asked(results, "--expected")) == 0
    assert f"all {len(CLAIMS)} verdicts are as expected" in capsys.readouterr().out
    path = tmp_path / "quick.yaml"
    change(
        path, "railx_absolute_cost: {verdict: not here", "railx_absolute_cost: {verdict: depends"
    )
    assert main(asked(results, "--expected")) == 1
    line, count = capsys.readouterr().err.splitlines()
    assert line.startswith("railx_absolute_cost: not here; ours: none; published: 1.3 billion")
    assert "economics.summary is not among the results" in line
    assert line.endswith("; expected: depends")
    assert count == "1 verdicts are not as quick.yaml has them"


def test_the_expected_verdicts_of_quick_are_of_claims_that_exist() -> None:
    path = ROOT / "resources" / "expected" / "quick.yaml"
    expected = read_expected(path, [claim.id for claim in CLAIMS])
    assert {other.verdict for other in expected.values()} <= set(VERDICTS)
    assert {"reproduced", "not here", "not testable"} < {
        other.verdict for other in expected.values()
    }


# railx claim


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_claim_that_the_experiment_cannot_make_names_those_that_can(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = answer(capsys, "claim", "flexsp_speedup_github", "--experiment", "quick")
    assert (code, out) == (2, "")
    assert err.startswith(
        "error: claim flexsp_speedup_github: the experiment quick makes no table "
    )
    allowed = err.rstrip().partition("allowed: --experiment ")[2].split(" or ")
    assert "paper" in allowed
    assert not {"quick", "virtual_channels"} & set(allowed)
    assert err.count("\n") == 1


def test_an_unknown_claim_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, "claim", "railx_absolute_cots", "--experiment", "quick")
    assert (code, out) == (2, "")
    assert err.startswith("error: ID: got 'railx_absolute_cots'; allowed: railx_absolute_cost, ")


@pytest.mark.system
def test_a_claim_is_made_and_judged(tmp_path: Path) -> None:
    """In a copy of the pipeline: the one job that the claim needs, and its verdict."""
    from tests.commands import python

    PipelineCopy(tmp_path)
    command = ("-m", "workflow.cli", "claim", "railx_absolute_cost", "--experiment", "quick")
    done = python(*command, "--cores", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    assert (row["claim"], row["verdict"]) == ("railx_absolute_cost", "direction only")
    assert "Bill of materials" in done.stderr
    made = {path.name for path in (tmp_path / "results" / "quick").iterdir()}
    assert made >= {"economics"}
    assert not made & {"network", "plan", "training", "evidence"}
    again = python(*command, "--cores", "1", cwd=tmp_path)
    assert "Nothing to be done" in again.stderr
    lines = dict(line.split("  ", 1) for line in again.stdout.splitlines())
    assert lines["verdict"].strip() == "direction only"
    assert "1.444 billion USD" in lines["ours"]
    assert "analytic" in lines["fidelity"]


# Units


#: What a column's suffix says, as a claim says it.
UNITS = {"ms": "ms", "ns": "ns", "usd": "USD", "watts": "W", "gbps": "Gbit/s", "bytes": "byte"}


def columns_in(node: Any) -> set[str]:
    """The columns that an expression of a parsed query names."""
    if isinstance(node, list):
        return set().union(*map(columns_in, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    own = {node["column_names"][-1]} if node.get("type") == "COLUMN_REF" else set()
    return own.union(*map(columns_in, node.values()))


def units_in(node: Any) -> set[str]:
    """The units of the columns in an expression; those of rates count as rates."""
    names = {name for name in columns_in(node) if "_per_" not in name}
    return {UNITS[name.rpartition("_")[2]] for name in names if name.rpartition("_")[2] in UNITS}


def wrong_unit(query: str, unit: str) -> str:
    """What is wrong with the unit of a query's value; nothing where it may be right.

    Only what the outermost expression shows is judged: a division of two columns of one
    unit has lost it, a column alone keeps it.
    """
    parsed = json.loads(duckdb.execute("select json_serialize_sql(?)", [query]).fetchall()[0][0])
    node = parsed["statements"][0]["node"]
    while "select_list" not in node:  # a union: its first part names the columns
        node = node["children"][0]
    selected = node["select_list"]
    (ours,) = [node for node in selected if node["alias"] == "ours"]
    first = unit.split(" ")[0]
    if ours.get("function_name") == "/":
        over, under = map(units_in, ours["arguments"])
        if first in over & under and " per " not in unit:
            return f"{first} divided by {first} is called {unit}"
    if ours["type"] == "COLUMN_REF" and units_in(ours) and first not in units_in(ours):
        return f"{units_in(ours)} is called {unit!r}"
    return ""


@pytest.mark.parametrize(
    ("value", "unit", "wrong"),
    [
        ("a_ms / b_ms", "ms", True),
        ("a_ms / b_ms", "times faster", False),
        ("sum(a_ms) / max(b_ms)", "ms", True),
        ("a_ms / b_ms", "ms per ms", False),
        ("a_ms / count(*)", "ms", False),
        ("a_usd", "USD", False),
        ("a_usd", "ms", True),
        ("a_usd", "", True),
    ],
)
def test_a_unit_that_a_division_lost_is_noticed(value: str, unit: str, wrong: bool) -> None:
    query = f"select {value} as ours, fidelity from a.t group by all"
    assert bool(wrong_unit(query, unit)) == wrong


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """The rows of all claims where there is no result."""
    return {row["claim"]: row for row in judge(CLAIMS, ROOT / "nowhere", [])}


@for_every("claim", CLAIMS, name=lambda claim: claim.id)
def test_the_unit_of_a_claim_is_that_of_its_values(
    claim: Claim, rows: dict[str, dict[str, Any]]
) -> None:
    row = rows[claim.id]
    known = row["published"] is not None
    assert row["published_text"].endswith(claim.unit if known else "not available")
    assert row["unit"] == claim.unit
    if claim.settings.query is not None:
        assert wrong_unit(claim.settings.query, claim.unit) == ""


def test_papers_are_read_in_their_order() -> None:
    assert list(all_papers()) == list(yaml.safe_load((ROOT / "resources/papers.yaml").read_text()))


PAGES = [ROOT / "docs/findings.md", *sorted((ROOT / "docs/findings").glob("*.md"))]
NAMED = [name for page in PAGES for name in references(page.read_text(encoding="utf-8"))]


def test_the_pages_have_the_recorded_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Where this fails, `make findings` writes the pages anew."""
    assert main(["findings"]) == 0, capsys.readouterr().err


def test_every_entry_is_named_by_a_page() -> None:
    tables = findings_sources().tables
    used = set(NAMED)
    for entry in tables.values():
        used |= {reference.split()[0] for reference in entry.numbers}
        used |= set(re.findall(r"\bfindings\.(\w+)", entry.query or ""))
    assert set(tables) <= used
    assert len(NAMED) == len(set(NAMED))


def test_a_run_is_compared_with_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = findings_sources().tables
    words = [reference.split() for name in NAMED for reference in tables[name].numbers]
    quick = {
        claim
        for experiment, claim, *_ in filter(lambda w: len(w) > 1, words)
        if experiment == "quick"
    }
    recorded = findings_sources().expected["quick"]
    values = {claim: recorded[claim].ours for claim in sorted(quick)}
    assert values
    path = tmp_path / "quick/evidence/claims.parquet"
    path.parent.mkdir(parents=True)

    def run(changed: float) -> int:
        first, *_ = values
        ours = [v if c != first else v * changed for c, v in values.items()]  # type: ignore[operator]
        write_table(path, pa.table({"claim": list(values), "ours": ours}))
        return main(["findings", "--compare", "quick", "--results", str(tmp_path)])

    assert run(1.0) == 0
    assert run(1.01) == 1
    assert next(iter(values)) in capsys.readouterr().err


def test_all_numbers_name_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bullet, paragraph and table with numbers names its entry."""
    assert main(["findings", "--open"]) == 0, capsys.readouterr().out
    (tmp_path / "page.md").write_text("It is 3.\n", encoding="utf-8")
    monkeypatch.setattr("workflow.commands.findings._PAGES", tmp_path)
    assert main(["findings", "--open"]) == 1
    assert "page.md: It is 3." in capsys.readouterr().out
