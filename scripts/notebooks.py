"""Runs a notebook of docs/notebooks, and holds what it prints against what it stores:
`make notebooks`.

The cells run in this process, in their order, without Jupyter. What a cell prints, the
value that it ends with and the figures that it leaves open are its outputs. ``write``
stores them in the notebook; ``check`` prints the lines that differ. Of figures it asks
only whether there are as many.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import difflib
import io
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_output

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

_FIGURE = "a figure"
_DOTS_PER_INCH = 90


class CellError(Exception):
    """A cell that fails; the message is its traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a cell fails or prints what is not stored."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("check", "write"))
    parser.add_argument("notebook", type=Path)
    options = parser.parse_args(arguments)
    notebook = nbformat.read(options.notebook, as_version=4)
    stored = list(shown(notebook))
    try:
        run(notebook)
    except CellError as error:
        print(f"{options.notebook}: {error}", file=sys.stderr)
        return 1
    if options.action == "write":
        nbformat.validate(notebook)
        nbformat.write(notebook, options.notebook)
        return 0
    differ = list(difflib.unified_diff(stored, list(shown(notebook)), "stored", "run", lineterm=""))
    print(*differ, sep="\n" if differ else "")
    return 1 if differ else 0


def run(notebook: Any) -> None:
    """Run all code cells as one program, and put what each one gives in its place."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                value = _value(cell.source, f"cell {number}", names)
        except Exception:
            raise CellError(f"cell {number} fails\n{traceback.format_exc()}") from None
        cell.execution_count = number
        cell.outputs = []
        if printed.getvalue():
            cell.outputs.append(new_output("stream", name="stdout", text=printed.getvalue()))
        if value is not None:
            plain = {"text/plain": repr(value)}
            cell.outputs.append(new_output("execute_result", plain, execution_count=number))
        cell.outputs += [new_output("display_data", data) for data in _figures()]


def shown(notebook: Any) -> Iterator[str]:
    """The outputs of all cells as lines; a figure is a word."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = _FIGURE if "image/png" in data else data.get("text/plain", output.get("text"))
            for line in str(text).splitlines():
                yield f"cell {number}: {line}"


def _value(source: str, name: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of the expression that it ends with, else None."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), names)


def _figures() -> Iterator[dict[str, str]]:
    """The open figures as images, and closed."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        image = io.BytesIO()
        pyplot.figure(number).savefig(
            image, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None}
        )
        yield {"image/png": base64.b64encode(image.getvalue()).decode() + "\n"}
    pyplot.close("all")


if __name__ == "__main__":
    raise SystemExit(main())
