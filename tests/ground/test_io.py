"""Atomic files and tables that carry their own metadata."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from railx.errors import UserError
from railx.io import (
    atomic_path,
    read_json,
    read_metadata,
    read_rows,
    read_table,
    write_json,
    write_table,
    write_text,
)
from railx.places import check_writable


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "result.txt"
    write_text(target, "old")

    def fail_half_way() -> None:
        with atomic_path(target) as beside:
            beside.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail_half_way()
    assert target.read_text() == "old"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_names_the_file_that_was_to_be(tmp_path: Path, number: int) -> None:
    target = tmp_path / "result.json"
    # A write names no file, making the temporary one names that.
    for named in ((), (str(tmp_path / ".result.json.x.part"),)):
        with pytest.raises(OSError) as failed, atomic_path(target):
            raise OSError(number, "no room", *named)
        assert (failed.value.errno, failed.value.filename) == (number, str(target))
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_the_system_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError) as failed, atomic_path(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no", "other")
    assert failed.value.filename == "other"


def test_no_file_takes_the_place_of_a_device(tmp_path: Path) -> None:
    """As that of /dev/null where root writes; a pipe stands for it here."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="pipe: is a device or a pipe; allowed: a file"):
        write_text(pipe, "lost")
    with pytest.raises(UserError, match=r"--out: got .*pipe; allowed: a file that can be written"):
        check_writable(pipe, tmp_path)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_the_target_is_never_seen_half_written(tmp_path: Path) -> None:
    target = tmp_path / "result.txt"
    with atomic_path(target) as beside:
        beside.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"


def test_rows_come_back_with_metadata(tmp_path: Path) -> None:
    rows = [{"node": 1, "load": 0.5, "rail": None}, {"node": 2, "load": 1.5, "rail": 3}]
    write_table(tmp_path / "t.parquet", rows, metadata={"family": "ring", "chips": 4})
    assert read_rows(tmp_path / "t.parquet") == rows
    assert read_metadata(tmp_path / "t.parquet") == {"family": "ring", "chips": 4}


def test_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", {"node": pa.array([], pa.int64())})
    assert read_rows(tmp_path / "t.parquet") == []
    with pytest.raises(ValueError, match="at least one row"):
        write_table(tmp_path / "t.parquet", [])


def test_rows_with_different_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rail"):
        write_table(tmp_path / "t.parquet", [{"node": 1}, {"node": 1, "rail": 2}])


def test_json_refuses_not_a_number_and_names_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(ValueError, match=r"b\.json: not valid JSON"):
        read_json(tmp_path / "b.json")
    (tmp_path / "b.json").write_bytes(b'"\xff')
    with pytest.raises(UserError, match=r"b\.json: byte 1 is no text; allowed: JSON"):
        read_json(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match=r"c\.json: JSON nested too deeply; allowed: a few levels"):
        read_json(tmp_path / "c.json")
    (tmp_path / "d.json").write_text("9" * 5_000)
    with pytest.raises(ValueError, match=r"d\.json: not valid JSON"):
        read_json(tmp_path / "d.json")


@pytest.mark.parametrize("stored", [b"null", b"[]", b"{", b"\xff", b"[" * 200_000])
def test_metadata_that_are_no_object_are_refused(tmp_path: Path, stored: bytes) -> None:
    path = tmp_path / "t.parquet"
    write_table(path, pa.table({"node": [1]}).replace_schema_metadata({b"railx": stored}))
    with pytest.raises(UserError, match=f"^{path}: metadata: got .*; allowed: a JSON object$"):
        read_metadata(path)


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_a_damaged_table_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}: not a Parquet table"):
        read_table(path)
    with pytest.raises(FileNotFoundError) as missing:
        read_table(tmp_path / "none.parquet")
    assert missing.value.filename == str(tmp_path / "none.parquet")
