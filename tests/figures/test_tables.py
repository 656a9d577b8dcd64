"""Tables as figures read them: rows by name, files by their metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from railx.figures.tables import FigureInput, Tables
from railx.io import write_table


def bounds(paths: list[Path], columns: str) -> Tables:
    return Tables((FigureInput.of("bounds", f"network.bounds: {columns}"),), {"bounds": paths})


def test_only_picks_rows_by_their_column_in_its_order(tmp_path: Path) -> None:
    """The names of the files say nothing."""
    for number, topology in enumerate("abc"):
        write_table(tmp_path / f"{number}.parquet", [{"topology": topology, "value": number}] * 2)
    tables = bounds([tmp_path / f"{number}.parquet" for number in range(3)], "topology value")
    chosen = tables.read("bounds", "topology", ["c", "a"])
    assert chosen["topology"].tolist() == ["c", "c", "a", "a"]
    assert chosen["value"].tolist() == [2, 2, 0, 0]
    everything = tables.read("bounds", "topology")
    assert everything["topology"].tolist() == ["a", "a", "b", "b", "c", "c"]
    with pytest.raises(ValueError, match="only: no topology x in the bounds tables; allowed: a, b"):
        tables.read("bounds", "topology", ["c", "x"])


def test_a_table_without_rows_may_be_that_of_any_name(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", [{"topology": "a"}])
    write_table(tmp_path / "none.parquet", {"topology": []})
    paths = [tmp_path / "a.parquet", tmp_path / "none.parquet"]
    tables = bounds(paths, "topology")
    chosen = tables.read("bounds", "topology", ["large", "a"])
    assert chosen["topology"].tolist() == ["a"]
    with pytest.raises(ValueError, match="only: no topology large, x in the bounds tables"):
        tables.read("bounds", "topology", ["large", "a", "x"])
    with pytest.raises(ValueError, match=r"none.parquet: no rows; allowed: one row or more"):
        bounds(paths[1:], "topology").read("bounds")


def test_files_are_named_by_their_metadata(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        write_table(tmp_path / f"{number}.parquet", {"x": [1]}, metadata={"name": name})
    tables = bounds([tmp_path / "0.parquet", tmp_path / "1.parquet"], "x")
    assert tables.files("bounds", ["b"]) == [("b", tmp_path / "1.parquet")]
    assert [name for name, _ in tables.files("bounds")] == ["a", "b"]
