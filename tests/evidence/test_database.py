"""Tables of a run as a database: their names, their types, and everything that a query
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from railx.evidence import ClaimError, Database, NotAvailable, open_database, table_name
from railx.io import FIDELITIES, write_json, write_table
from tests.builders import stage_columns, write_result

FILES = (
    "network/small_hyperx/bounds.parquet",
    "economics/summary.parquet",
    "training/run/result.json",
    "plan/absent/groups.parquet",
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    bounds = [
        {"routing": "min", "bound_over_ideal": 1.5, "fidelity": "flow"},
        {"routing": "balanced", "bound_over_ideal": 2.5, "fidelity": "analytic"},
    ]
    write_result(folder, "network.bounds", bounds, "small_hyperx")
    costs = [
        {"topology": "a", "cost_usd": 10, "fidelity": "packet"},
        {"topology": "b", "cost_usd": 20},
    ]
    write_result(folder, "economics.summary", costs)
    result = {
        "device": "cpu",
        "mix": {"jobs": 3, "deep": {"er": 4}},
        "a.dotted": 5,
        "nothing": None,
        "empty": {},
        "peak": [3, 2],
        "planned": [3, 3],
        "settings": [{"ms": 1.5}, {"ms": 2.5}],
    }
    write_json(folder / FILES[2], result)
    write_table(folder / "secret.parquet", {"word": ["found"]})
    return folder


def value_of(database: Database, sql: str) -> Any:
    """The only value of a query with one row and one column."""
    (column,) = database.query(sql).to_pydict().values()
    (value,) = column
    return value


@pytest.fixture
def database(results: Path) -> Iterator[Database]:
    with open_database(results, FILES) as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("network/railx_hyperx/bounds.parquet", "network.railx_hyperx.bounds"),
        ("economics/summary.parquet", "economics.summary"),
        ("training/Run/result.json", "training.run.result"),
    ],
)
def test_the_name_of_a_table_is_its_path(path: str, name: str) -> None:
    assert table_name(path) == name


@pytest.mark.parametrize(
    "path",
    [
        "config.json",
        "a/b/c/d.parquet",
        "/etc/t.parquet",
        "../t/a.parquet",
        "a/../t.parquet",
        "a/t.csv",
    ],
)
def test_other_paths_are_no_tables(path: str) -> None:
    with pytest.raises(ValueError, match="table: got") as error:
        table_name(path)
    assert repr(path) in str(error.value)


def test_two_and_three_part_names_resolve(database: Database) -> None:
    assert database.tables == (
        "economics.summary",
        "network.small_hyperx.bounds",
        "training.run.result",
    )
    assert value_of(database, "select sum(cost_usd) from economics.summary") == 30
    assert (
        value_of(
            database,
            "select bound_over_ideal from network.small_hyperx.bounds where routing = 'min'",
        )
        == 1.5
    )
    assert (
        value_of(database, "SELECT max(bound_over_ideal) FROM Network.Small_HyperX.Bounds") == 2.5
    )
    joined = database.query(
        "with bill as (select cost_usd from economics.summary where topology = 'b')"
        " select cost_usd / bound_over_ideal as ours from bill, network.small_hyperx.bounds"
        " where routing = 'balanced'"
    )
    assert joined.to_pydict() == {"ours": [8.0]}


def test_without_the_item_a_table_is_that_of_all_items(results: Path) -> None:
    flow = [{"routing": "min", "bound_over_ideal": 4.5, "fidelity": "flow"}]
    write_result(results, "network.bounds", flow, "torus's")
    write_json(results / "training/other/result.json", {"device": "cuda", "item": "mine"})
    files = (*FILES, "network/torus's/bounds.parquet", "training/other/result.json")
    with open_database(results, files) as database:
        rows = database.query(
            "select item, bound_over_ideal, fidelity > 'analytic' as simulated from network.bounds"
            " order by bound_over_ideal"
        )
        assert [tuple(row.values()) for row in rows.to_pylist()] == [
            ("small_hyperx", 1.5, True),
            ("small_hyperx", 2.5, False),
            ("torus's", 4.5, True),
        ]
        assert database.named("select 1 from network.bounds, economics.summary") == (
            "network.small_hyperx.bounds",
            "network.torus's.bounds",
            "economics.summary",
        )
        # A column of that name stays what it is; keys that a table lacks are null.
        rows = database.query("select item, device, mix_jobs from training.result order by device")
        assert [tuple(row.values()) for row in rows.to_pylist()] == [
            (None, "cpu", 3),
            ("mine", "cuda", None),
        ]
        with pytest.raises(ClaimError, match="no column load; allowed: item, topology, family"):
            database.query("select load from network.bounds")
        with pytest.raises(NotAvailable, match=r"network\.loads is not among the results"):
            database.query("select 1 from network.loads")


def test_every_named_table_is_named_once_and_without_the_querys_own(database: Database) -> None:
    query = (
        "with own as (select * from plan.absent.groups), more as (from own)"
        " select * from more, economics.summary as a, economics.summary as b"
        " where a.cost_usd in (select bound_over_ideal from network.small_hyperx.bounds)"
    )
    found = database.named(query)
    assert len(found) == 3
    assert set(found) == {
        "economics.summary",
        "network.small_hyperx.bounds",
        "plan.absent.groups",
    }


def test_a_json_object_is_one_row(database: Database) -> None:
    row = database.query(
        "select device, mix_jobs, mix_deep_er, a_dotted, nothing from training.run.result"
    ).to_pylist()
    assert row == [
        {"device": "cpu", "mix_jobs": 3, "mix_deep_er": 4, "a_dotted": 5, "nothing": None}
    ]
    lists = database.query(
        "select unnest(peak) as peak, unnest(planned) as planned from training.run.result"
    )
    assert lists.to_pydict() == {"peak": [3, 2], "planned": [3, 3]}
    nested = "select sum(item.ms) from (select unnest(settings) as item from training.run.result)"
    assert value_of(database, nested) == 4.0


def test_fidelity_is_ordered_from_the_least_faithful(tmp_path: Path) -> None:
    # In the order of the alphabet emulated would come before flow, replay after packet.
    pairs = list(combinations(FIDELITIES, 2))
    columns = {"lower": [low for low, _ in pairs], "upper": [high for _, high in pairs]}
    write_table(
        tmp_path / "a/low.parquet", {"row": range(len(pairs)), "fidelity": columns["lower"]}
    )
    write_table(
        tmp_path / "b/high.parquet", {"row": range(len(pairs)), "fidelity": columns["upper"]}
    )
    with open_database(tmp_path, ("a/low.parquet", "b/high.parquet")) as database:
        found = database.query(
            "select low.fidelity as own, low.fidelity < high.fidelity as less,"
            " lowest(high.fidelity, low.fidelity) as lowest"
            " from a.low as low join b.high as high using (row) order by row"
        ).to_pydict()
        assert found["own"] == columns["lower"]
        assert set(found["less"]) == {True}
        assert found["lowest"] == columns["lower"]
        every = "(from a.low union all from b.high)"
        assert value_of(database, f"select lowest(fidelity) from {every}") == "analytic"
        assert (
            value_of(database, f"select lowest(fidelity) from {every} where fidelity <> 'analytic'")
            == "flow"
        )
        assert (
            value_of(database, "select min(fidelity) from b.high where fidelity > 'flow'")
            == "packet"
        )


def test_an_unknown_fidelity_is_the_lowest_of_all(database: Database) -> None:
    assert value_of(database, "select lowest(fidelity) from economics.summary") is None
    assert (
        value_of(database, "select lowest(fidelity) from economics.summary where cost_usd = 10")
        == "packet"
    )
    both = "from economics.summary as a, economics.summary as b"
    both += " where a.cost_usd = 10 and b.cost_usd = 20"
    assert value_of(database, f"select lowest(a.fidelity, b.fidelity) {both}") is None
    assert value_of(database, f"select lowest(b.fidelity, a.fidelity) {both}") is None
    assert (
        value_of(database, "select lowest(fidelity) from economics.summary where cost_usd > 99")
        is None
    )


def test_fidelity_of_repeated_words_is_read_too(tmp_path: Path) -> None:
    words = pa.array(["replay", "packet"]).dictionary_encode()
    write_table(tmp_path / "a/t.parquet", pa.table({"fidelity": words}))
    with open_database(tmp_path, ["a/t.parquet"]) as database:
        assert value_of(database, "select lowest(fidelity) from a.t") == "packet"


NO_COLUMN = "query: no column cost; allowed: " + ", ".join(stage_columns("economics.summary"))
ATTACKS = {
    "several statements": "select 1; select 2",
    "nothing": " ",
    "copy out": "copy (select 1) to '{out}'",
    "copy in": "copy economics.summary from '{secret}'",
    "export": "export database '{out}'",
    "attach": "attach '{out}' as other",
    "detach": "detach economics",
    "use": "use economics",
    "install": "install httpfs",
    "load": "load httpfs",
    "set": "set enable_external_access = true",
    "reset": "reset lock_configuration",
    "pragma": "pragma database_list",
    "call": "call pragma_version()",
    "create table": "create table memory.main.t as select 1",
    "create view": "create view memory.main.v as select 1",
    "create function": "create macro one() as 1",
    "insert": "insert into economics.summary (topology, cost_usd) values ('c', 1)",
    "update": "update economics.summary set cost_usd = 0",
    "delete": "delete from economics.summary",
    "drop": "drop table economics.summary",
    "delete inside with": (
        "with gone as (delete from economics.summary returning *) select * from gone"
    ),
    "insert inside with": (
        "with more as (insert into economics.summary (topology, cost_usd) values ('c', 1)"
        " returning *) select * from more"
    ),
    "update inside with": (
        "with gone as (update economics.summary set cost_usd = 0 returning *) select * from gone"
    ),
    "explain": "explain select 1",
    "prepare": "prepare p as select 1",
    "begin": "begin transaction",
    "describe": "describe economics.summary",
    "show": "show all tables",
    "summarize": "summarize economics.summary",
    "pivot": "pivot economics.summary on topology using sum(cost_usd)",
    "a file's name": "from '{secret}'",
    "a file's name quoted": 'select * from "{secret}"',
    "a pattern of files": "from '{folder}/*.parquet'",
    "a text file": "from '/etc/passwd'",
    "an address": "from 'https://example.org/a.parquet'",
    "read_parquet": "select * from read_parquet('{secret}')",
    "parquet_scan": "select * from parquet_scan('{secret}')",
    "read_csv": "select * from read_csv('/etc/passwd')",
    "read_json": "select * from read_json('{secret}')",
    "read_text": "select * from read_text('/etc/passwd')",
    "read_blob": "select * from read_blob('{secret}')",
    "glob": "select * from glob('/*')",
    "sniff_csv": "select * from sniff_csv('/etc/passwd')",
    "parquet_metadata": "select * from parquet_metadata('{secret}')",
    "inside a subquery": (
        "select (select count(*) from read_text('/etc/passwd')) from economics.summary"
    ),
    "inside with": "with t as (from read_csv('/etc/passwd')) select * from t",
    "lateral": "select * from economics.summary, lateral (from read_text(topology))",
    "scalar read_text": "select read_text('/etc/passwd')",
    "a query made of text": "select * from query('select 1')",
    "a table named by text": "select * from query_table('local_table')",
    "a serialised query": (
        "select * from json_execute_serialized_sql(json_serialize_sql('select 1'))"
    ),
    "memory by its address": "select * from arrow_scan(1::ubigint, 2::ubigint, 3::ubigint)",
    "a python object": "select * from pandas_scan(1::ubigint)",
    "a python variable": "select * from local_table",
    "environment": "select getenv('HOME')",
    "secrets": "select * from duckdb_secrets()",
    "settings": "select * from duckdb_settings()",
    "one setting": "select current_setting('home_directory')",
    "variable": "select getvariable('x')",
    "catalogue": "select * from information_schema.tables",
    "duckdb's tables": "select * from duckdb_tables()",
    "chance": "select random()",
    "chance in the order": "select cost_usd from economics.summary order by random()",
    "chance in a window": "select sum(cost_usd) over (order by uuid()) from economics.summary",
    "time": "select now()",
    "today": "select current_date",
    "time without brackets": "select current_timestamp as ours",
    "user": "select current_user",
    "waiting": "select sleep_ms(1)",
    "log": "select write_log('a')",
    "sequence": "select nextval('s')",
    "unknown function": "select no_such_function(cost_usd) from economics.summary",
    "not sql": "selec cost_usd from economics.summary",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_but_one_select_over_the_tables(results: Path, attack: str) -> None:
    local_table = pa.table({"word": ["found"]})
    names = {"secret": results / "secret.parquet", "out": results / "out", "folder": results}
    sql = ATTACKS[attack].format(**names)
    before = sorted(results.rglob("*"))
    with open_database(results, FILES) as database:
        with pytest.raises((ClaimError, NotAvailable)) as error:
            database.query(sql)
        assert "\n" not in str(error.value)
        # What was refused changed nothing, and the next query is answered.
        assert value_of(database, "select sum(cost_usd) from economics.summary") == 30
    assert sorted(results.rglob("*")) == before
    assert local_table.num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('/etc/passwd')",
        "from '/etc/hostname.csv'",
        "copy (select 1) to '{out}'",
        "set threads = 2",
        "set enable_external_access = true",
        "attach '{out}' as other",
        "install httpfs",
    ],
)
def test_the_database_itself_opens_no_file(results: Path, sql: str) -> None:
    """Behind the reading of the statement stands DuckDB's own lock."""
    import duckdb

    with open_database(results, FILES) as database, pytest.raises(duckdb.Error):
        database._connection.execute(sql.format(out=results / "out"))
    assert not (results / "out").exists()


def test_a_query_cannot_write_even_where_its_text_passes(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries run in a transaction that may only read."""
    from railx.evidence import database as module

    monkeypatch.setattr(module, "tables_of", lambda *_: ("economics.summary",))
    with open_database(results, FILES) as database:
        with pytest.raises(ClaimError, match="read-only"):
            database.query("delete from economics.summary returning *")
        assert value_of(database, "select count(*) from economics.summary") == 2


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("select count(*) from generate_series(1, 4)", 4),
        (
            (
                "with recursive t as (select 1 as x union all select x + 1 from t where x < 5)"
                " select max(x) from t"
            ),
            5,
        ),
        (
            (
                "select regr_slope(bound_over_ideal, cost_usd)"
                " from network.small_hyperx.bounds, economics.summary"
                " where (routing = 'min') = (cost_usd = 10)"
            ),
            0.1,
        ),
        ("select nullif(cost_usd, 20) from economics.summary where cost_usd = 10", 10),
        ("select list_sum(list_transform(peak, lambda c: 2 * c)) from training.run.result", 10),
        ("values (3)", 3),
        ("select 1 -- ;\n", 1),
        ("select 7;", 7),
    ],
)
def test_what_a_query_may_do(database: Database, sql: str, value: Any) -> None:
    assert float(value_of(database, sql)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select cost from economics.summary", NO_COLUMN),
        ("select a.cost from economics.summary as a", NO_COLUMN),
        ("select 1; select 2", "query: got 2 statements; allowed: one SELECT"),
        (
            "drop table economics.summary",
            "query: got a statement of type DROP; allowed: one SELECT",
        ),
        (
            "from '/etc/passwd'",
            "query: no table /etc/passwd; allowed: STAGE.TABLE or STAGE.ITEM.TABLE",
        ),
        (
            "select now()",
            "query: got the function now; allowed: functions of their arguments alone",
        ),
        ("select * from glob('*')", "query: got the table function glob; allowed: one SELECT"),
        ("select cost_usd frm economics.summary", "query: got Parser Error"),
        (
            "selec 1",
            'query: got Parser Error: syntax error at or near "selec"; allowed: one SELECT over',
        ),
    ],
)
def test_mistakes_are_one_line_and_say_what_is_allowed(
    database: Database, sql: str, message: str
) -> None:
    with pytest.raises(ClaimError) as error:
        database.query(sql)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "there_is"),
    [
        ("economics.absent", ("economics.summary",)),
        ("network.other.bounds", ("network.small_hyperx.bounds",)),
        (
            "plan.absent.groups",
            ("economics.summary", "network.small_hyperx.bounds", "training.run.result"),
        ),
    ],
)
def test_a_missing_table_is_a_finding_that_says_what_there_is(
    database: Database, name: str, there_is: tuple[str, ...]
) -> None:
    with pytest.raises(NotAvailable) as error:
        database.query(f"select * from economics.summary, {name}")
    assert str(error.value) == f"{name} is not among the results of this experiment"
    assert error.value.there_is == there_is


def test_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    write_json(tmp_path / "a/list.json", [1])
    write_json(tmp_path / "a/twice.json", {"b_c": 1, "b": {"c": 2}})
    write_json(tmp_path / "a/mixed.json", {"b": [1, "x"]})
    write_table(tmp_path / "a/guess.parquet", {"fidelity": ["guessed"]})
    files = [f"a/{name}" for name in ("list.json", "twice.json", "mixed.json", "guess.parquet")]
    expected = {
        "a.list": "table: a.list holds no JSON object",
        "a.twice": "table: a.twice has two keys b_c",
        "a.mixed": "table: a.mixed is no table",
        "a.guess": "fidelity: a.guess has 'guessed'; allowed: analytic, flow",
    }
    with open_database(tmp_path, files) as database:
        for name, message in expected.items():
            with pytest.raises(ClaimError) as error:
                database.query(f"select * from {name}")
            assert str(error.value).startswith(message)
            assert "\n" not in str(error.value)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"table: a\.t is the name of two files"),
        open_database(tmp_path, ["a/t.json", "a/t.parquet"]),
    ):
        pass


def test_the_same_query_gives_the_same_rows(results: Path) -> None:
    query = "select topology, sum(cost_usd) over () as total from economics.summary"
    found = []
    for _ in range(3):
        with open_database(results, FILES) as database:
            found.append(database.query(query))
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])


def test_the_database_leaves_no_file(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty := results / "empty").mkdir()
    monkeypatch.chdir(empty)
    with open_database(results, FILES) as database:
        database.query("select * from generate_series(1, 100000) order by 1 desc")
    assert list(empty.iterdir()) == []
