"""What many tests share: tables have the columns that the stages declare, or are
refused, and the loop over entries reports every failure.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from railx.io import read_metadata, read_rows
from tests.builders import stage_columns, write_corpus, write_result, write_stage_table
from tests.loops import for_every


def test_what_rows_leave_out_is_null_under_the_declared_type(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"traffic": "uniform", "chips": 4}, {"traffic": "neighbour"}]
    path = write_result(tmp_path, "network.bounds", rows, "ring", family="ring")
    assert path == tmp_path / "network" / "ring" / "bounds.parquet"
    first, second = read_rows(path)
    assert list(first) == stage_columns("network.bounds")
    assert {name: value for name, value in first.items() if value is not None} == {
        "family": "ring",
        "chips": 4,
        "traffic": "uniform",
    }
    assert (second["family"], second["chips"]) == ("ring", None)


def test_optional_columns_stand_where_a_row_has_one(tmp_path: Path) -> None:
    plain = write_result(tmp_path, "topology.graph", [{"src": 1}], "mesh")
    switched = write_result(tmp_path, "topology.graph", [{"src": 1}, {"ocs": 2}], "railx")
    assert set(read_rows(switched)[0]) - set(read_rows(plain)[0]) >= {"ocs", "port_a", "line"}


def test_other_columns_types_and_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bounds.parquet"
    with pytest.raises(ValueError, match=r"network\.bounds: got load; allowed: topology, family"):
        write_stage_table(path, "network.bounds", [{"load": 1.0}])
    for chips in (1.5, "4"):
        with pytest.raises(pa.ArrowInvalid):
            write_stage_table(path, "network.bounds", [{"chips": chips}])
    with pytest.raises(ValueError, match=r"network\.bound: no such output; allowed: bounds"):
        write_stage_table(path, "network.bound", [{}])
    assert not path.exists()


def test_a_corpus_has_texts_or_lengths(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus.parquet", [b"ab", 7], beginning_of_sequence=256)
    assert read_metadata(path) == {"beginning_of_sequence": 256}
    assert read_rows(path) == [
        {"sequence": 0, "length_tokens": 3, "tokens": b"ab"},
        {"sequence": 1, "length_tokens": 7, "tokens": None},
    ]


def test_all_failures_are_named_and_all_entries_checked(tmp_path: Path) -> None:
    checked = []

    @for_every("number", [1, 2, 3, 4], name=lambda number: f"n{number}")
    def check(number: int, tmp_path: Path) -> None:
        checked.append((number, tmp_path))
        assert number != 2, "two"
        if number == 3:
            with pytest.raises(ValueError, match="none"):
                pass

    assert list(inspect.signature(check).parameters) == ["tmp_path"]
    with pytest.raises(pytest.fail.Exception) as failure:
        check(tmp_path=tmp_path)
    assert checked == [(number, tmp_path) for number in (1, 2, 3, 4)]
    first, *others = str(failure.value).splitlines()
    assert first == "2 of 4 fail:"
    assert any(line.startswith("n2: AssertionError: two") for line in others)
    assert any(line.startswith("n3: Failed: DID NOT RAISE") for line in others)


def test_no_entries_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no path to check"):
        for_every("path", [])
