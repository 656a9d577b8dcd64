"""The notebooks of the docs run, and print what they store."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.commands import ROOT, python

pytestmark = pytest.mark.system

FOLDER = ROOT / "docs" / "notebooks"
SCRIPT = ROOT / "scripts" / "notebooks.py"
#: What `reading_results` reads of a run.
TABLES = ("economics/summary", "metrics/topologies", "agreement/comparison")


def _prints_what_it_stores(name: str, folder: Path) -> None:
    done = python(SCRIPT, "check", FOLDER / f"{name}.ipynb", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_what_if_study_prints_what_it_stores(tmp_path: Path) -> None:
    _prints_what_it_stores("what_if_network", tmp_path)


@pytest.mark.slow
def test_the_reading_of_results_prints_what_it_stores(pipeline_copy: Any) -> None:
    pipeline_copy.snakemake(*(f"results/quick/{table}.parquet" for table in TABLES))
    _prints_what_it_stores("reading_results", pipeline_copy.folder)


def test_there_are_no_other_notebooks_and_each_is_complete() -> None:
    found = sorted(FOLDER.glob("*"))
    assert [path.name for path in found] == ["reading_results.ipynb", "what_if_network.ipynb"]
    for path in found:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)], path.name
        kinds = [
            kind for cell in cells for output in cell.outputs for kind in output.get("data", ())
        ]
        assert kinds == ["image/png"], path.name
        assert sum(bool(cell.outputs) for cell in cells) >= 6, path.name


def test_the_commands_of_the_reading_make_what_it_reads() -> None:
    text = (FOLDER / "reading_results.ipynb").read_text(encoding="utf-8")
    assert all(f"results/quick/{table}.parquet" in text for table in TABLES)


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _written(path: Path, *sources: str) -> Path:
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), path)
    return path


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_what_cells_give_is_stored_and_then_agrees(
    notebooks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _written(tmp_path / "a.ipynb", "x = 2\nprint('x', x)", "x + 1", "y = x", "None")
    assert notebooks.main(["check", str(path)]) == 1
    assert "+cell 0: x 2\n+cell 1: 3" in capsys.readouterr().out
    assert notebooks.main(["write", str(path)]) == 0
    assert notebooks.main(["check", str(path)]) == 0
    stored = nbformat.read(path, as_version=4)
    assert list(notebooks.shown(stored)) == ["cell 0: x 2", "cell 1: 3"]
    assert [cell.execution_count for cell in stored.cells] == [1, 2, 3, 4]


def test_another_output_is_shown_line_by_line(
    notebooks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _written(tmp_path / "a.ipynb", "print('one\\ntwo')")
    notebooks.main(["write", str(path)])
    _edit(path, '"two\\n"', '"three\\n"')
    before = path.read_bytes()
    assert notebooks.main(["check", str(path)]) == 1
    assert "-cell 0: three\n+cell 0: two\n" in capsys.readouterr().out
    assert path.read_bytes() == before


def test_a_cell_that_fails_is_named_and_nothing_is_stored(
    notebooks: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _written(tmp_path / "a.ipynb", "print('one')", "print(1 / 0)")
    before = path.read_bytes()
    for action in ("check", "write"):
        assert notebooks.main([action, str(path)]) == 1
        said = capsys.readouterr().err
        assert "cell 2 fails" in said
        assert "ZeroDivisionError" in said
    assert path.read_bytes() == before


def test_figures_are_counted_and_not_compared(notebooks: ModuleType, tmp_path: Path) -> None:
    draw = "from matplotlib import pyplot\n_ = pyplot.figure(figsize=(1, 1))"
    path = _written(tmp_path / "a.ipynb", draw, "print('after')")
    notebooks.main(["write", str(path)])
    stored = nbformat.read(path, as_version=4)
    assert list(notebooks.shown(stored)) == ["cell 0: a figure", "cell 1: after"]
    (image,) = stored.cells[0].outputs
    _edit(path, image.data["image/png"].strip(), "b3RoZXI=")
    assert notebooks.main(["check", str(path)]) == 0
    _edit(path, "_ = pyplot.figure(figsize=(1, 1))", "")
    assert notebooks.main(["check", str(path)]) == 1
