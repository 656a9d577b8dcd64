"""``railx findings``: the numbers of docs/findings, computed from values in git."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.errors import UserError, unwound_by_sigterm
from railx.places import in_repository
from workflow.commands import shared

if TYPE_CHECKING:
    from railx.evidence import Recorded
    from railx.evidence.findings import FindingsTable, Sources

#: The rows of a query.
Rows = list[dict[str, Any]]

_INDEX = Path("docs/findings.md")
_PAGES = Path("docs/findings")
_TABLES = Path("resources/findings.yaml")
_ROWS = Path("resources/recorded/findings.yaml")
_EXPECTED = Path("resources/expected")
_CSV_FOLDERS = ("resources/published", "resources/measured")
#: Two runs of one query agree to so much: recorded verdicts have six digits.
_CLOSE = 1e-5


def add(commands: Any) -> None:
    parser = shared.command(
        commands,
        "findings",
        "the numbers of docs/findings",
        "Compare the numbers of docs/findings with the recorded values that they come from (exit"
        " code 1 where one differs), or write them anew.",
        "example:\n  railx findings --record rails",
    )
    shape = parser.add_mutually_exclusive_group()
    shared.add_flag(shape, "--write", "write the pages anew from what is recorded")
    shape.add_argument(
        "--record", metavar="EXPERIMENT", help="first record the tables that this run makes"
    )
    shape.add_argument(
        "--compare", metavar="EXPERIMENT", help="compare what is recorded with this run instead"
    )
    shared.add_flag(
        shape, "--open", "list what has numbers and no source (exit code 1 where there is any)"
    )
    shared.add_results(parser)
    parser.set_defaults(action=_findings)


def _findings(options: argparse.Namespace) -> int:
    from railx.evidence.findings import computed_page, open_blocks
    from railx.io import write_text

    pages = [in_repository(_INDEX), *sorted(in_repository(_PAGES).glob("*.md"))]
    if options.open:
        lines = [f"{page.name}: {line}" for page in pages for line in open_blocks(_text(page))]
        print("\n".join([*lines, f"{len(lines)} bullets, paragraphs and tables name no source"]))
        return 1 if lines else 0
    if options.compare is not None:
        return _compare(options.results, options.compare, pages)
    if options.record is not None:
        _record(options.results, options.record)
    sources, changes = findings_sources(), []
    for page in pages:
        text, changed = computed_page(_text(page), sources, page.name)
        changes += changed
        if options.write or options.record is not None:
            write_text(page, text)
    for line in changes:
        print(line, file=sys.stderr)
    if options.write or options.record is not None:
        print(f"{len(changes)} numbers of {_PAGES} changed")
        return 0
    print(f"{len(changes)} numbers of {_PAGES} are not as recorded (make findings)")
    return 1 if changes else 0


def findings_sources() -> Sources:
    """The values in git that a page may name."""
    from railx.evidence import read_expected
    from railx.evidence.findings import VERDICTS, Sources, csv_rows, recorded_rows
    from railx.evidence.papers import read_yaml
    from workflow.resources import all_claims

    tables, claims = _tables(), all_claims()
    expected = {file.stem: read_expected(file) for file in in_repository(_EXPECTED).glob("*.yaml")}
    recorded = read_yaml(in_repository(_ROWS))
    rows = {
        name: recorded_rows(recorded, name, table.query)
        for name, table in tables.items()
        if table.query is not None and table.experiment != VERDICTS
    }
    published = {c.id: c.published.value for c in claims if c.published.available}
    rows |= {f"findings.{name}": table for name, table in rows.items()}
    for folder in map(in_repository, _CSV_FOLDERS):
        rows |= {
            f"{folder.name}.{f.stem}": csv_rows(_text(f)) for f in sorted(folder.glob("*.csv"))
        }
    rows |= _of_git(tables, expected, published, rows)
    return Sources(
        expected, published, tables, rows, cache(lambda file: read_yaml(in_repository(file)))
    )


def _of_git(
    tables: Mapping[str, FindingsTable],
    expected: Mapping[str, Mapping[str, Recorded]],
    published: Mapping[str, float | None],
    rows: Mapping[str, Rows],
) -> dict[str, Rows]:
    """The rows of the queries over recorded verdicts and CSV files."""
    import pyarrow as pa

    from railx.evidence import open_database
    from railx.evidence.findings import VERDICTS, verdicts_table
    from railx.io import write_table

    queries = {n: t.query for n, t in tables.items() if t.query and t.experiment == VERDICTS}
    asked = " ".join(queries.values())
    git_tables = {
        f"{VERDICTS}.{name}": verdicts_table(claims, published) for name, claims in expected.items()
    } | {name: pa.Table.from_pylist(rows[name]) for name in rows if "." in name and name in asked}
    with unwound_by_sigterm(), tempfile.TemporaryDirectory(prefix="railx-") as folder:
        files = [name.replace(".", "/") + ".parquet" for name in git_tables]
        for file, table in zip(files, git_tables.values(), strict=True):
            Path(folder, file).parent.mkdir(exist_ok=True)
            write_table(Path(folder, file), table)
        with open_database(folder, files) as database:
            return {name: database.query(query).to_pylist() for name, query in queries.items()}


def _tables() -> dict[str, FindingsTable]:
    from railx.evidence.findings import read_findings_tables

    return read_findings_tables(in_repository(_TABLES))


def _asked(results: Path, experiment: str) -> dict[str, tuple[Rows, tuple[str, ...]]]:
    """The rows of each query over a run, and the tables that it reads."""
    from railx.evidence import NotAvailable, open_database
    from workflow.stages import claim_tables

    shared.check_experiment(results, experiment)
    composed, folder = shared.experiment_of(results, experiment), results / experiment
    asked = {}
    with open_database(folder, claim_tables(composed, folder)) as database:
        for name, table in _tables().items():
            if table.query is None or table.experiment != experiment:
                continue
            try:
                asked[name] = (
                    database.query(table.query).to_pylist(),
                    tuple(database.named(table.query)),
                )
            except NotAvailable as missing:
                print(f"{name}: {missing}; make it: {shared.how_to_make(experiment)}")
                continue
            if not asked[name][0]:
                raise UserError(f"{name}: the query finds no row; allowed: one or more")
    return asked


def _record(results: Path, experiment: str) -> None:
    from railx.evidence.findings import recorded_table, recorded_tables_text
    from railx.evidence.papers import read_yaml
    from railx.io import write_text

    tables, recorded = _tables(), read_yaml(in_repository(_ROWS))
    asked = _asked(results, experiment)
    for name, (rows, read) in asked.items():
        jobs = _jobs(results / experiment, read)
        recorded[name] = {
            "experiment": experiment,
            "commit": " ".join(sorted({str(job["commit"])[:12] for job in jobs})),
            "dirty": any(job["dirty"] for job in jobs),
            "made_utc": max(job["ended_utc"] for job in jobs),
            "tables": " ".join(sorted(read)),
            **recorded_table(rows, tables[name].query or ""),
        }
    write_text(in_repository(_ROWS), recorded_tables_text(recorded))
    print(f"{len(asked)} tables of {experiment} recorded in {_ROWS}")


def _jobs(folder: Path, tables: Iterable[str]) -> list[dict[str, Any]]:
    from railx.io import read_json

    jobs = []
    for table in tables:
        *names, _ = table.split(".")
        path = folder.joinpath("provenance", *names).with_suffix(".json")
        if not path.is_file():
            raise UserError(f"{path}: is not there; allowed: the record of a job of this run")
        jobs.append(read_json(path))
    return jobs


def _compare(results: Path, experiment: str, pages: list[Path]) -> int:
    from railx.evidence.findings import references
    from railx.io import read_rows

    recorded, lines = findings_sources(), []
    for name, (rows, _) in _asked(results, experiment).items():
        if not _same(rows, recorded.rows[name]):
            lines.append(f"table {name}: {rows}; recorded: {list(recorded.rows[name])}")
    rows = read_rows(results / experiment / "evidence" / "claims.parquet")
    ours = {row["claim"]: row["ours"] for row in rows}
    entries = (recorded.tables[name] for page in pages for name in references(_text(page)))
    named = {
        words[1]
        for entry in entries
        for words in map(str.split, entry.numbers)
        if words[0] == experiment
    }
    for claim in sorted(named):
        entry = recorded.expected[experiment][claim]
        if not entry.timed and not _close(ours.get(claim), entry.ours):
            lines.append(f"{claim}: {ours.get(claim)}; recorded: {entry.ours}")
    for line in lines:
        print(line, file=sys.stderr)
    print(f"{len(lines)} values of docs/findings are not those of this run of {experiment}")
    return 1 if lines else 0


def _same(rows: Any, recorded: Any) -> bool:
    return len(rows) == len(recorded) and all(
        _close(value, number)
        for row, other in zip(rows, recorded, strict=True)
        for value, number in zip(row.values(), other.values(), strict=True)
    )


def _close(value: Any, other: Any) -> bool:
    if isinstance(value, int | float) and isinstance(other, int | float):
        return abs(value - other) <= _CLOSE * max(abs(value), abs(other))
    return (value in (None, "")) == (other in (None, "")) and str(value or "") == str(other or "")


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")
