"""Tables of tests have the columns that the stages declare, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from railx.io import read_metadata, read_rows
from tests.builders import stage_columns, write_corpus, write_result, write_stage_table


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
