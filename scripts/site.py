"""Pages of the site that are generated: commands, settings and tables from the code,
notebooks from their stored outputs (mkdocs.yml).

MkDocs calls the functions ``on_...`` by their names while it builds.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workflow.reference import reference, unit_of

#: Links of pages to other places than those beside and below them.
_ABOVE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)]+)\)")
#: Roles of docstrings, as they come out of a reader that knows none.
_ROLE = re.compile(r":(?:func|class|mod|data|meth|attr):<code>~?([^<]*)</code>")
#: The experiment whose recorded verdicts are a page of the site.
_RECORDED = "paper"
#: Characters of a line that a page has room for.
_WIDTH = "76"
_WORDS = {
    "string": "text",
    "category": "text",
    "int32": "whole number",
    "int64": "whole number",
    "double": "number",
    "bool": "true or false",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made; MkDocs' event after it has found the files."""
    from mkdocs.structure.files import File

    pages = {
        "commands.md": commands_page(),
        "reference.md": reference(),
        "tables.md": tables_page(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name, content in recorded_pages().items():
        files.append(File.generated(config, f"recorded/{name}", content=content))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        source = Path(notebook.abs_src_path)
        text, images = notebook_page(source.stem, json.loads(source.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"{notebook.src_uri[:-6]}.md", content=text))
        for name, image in images.items():
            target = f"{Path(notebook.src_uri).parent.as_posix()}/{name}"
            files.append(File.generated(config, target, content=image))
    return files


def recorded_pages() -> dict[str, bytes]:
    """The page of `paper` from its recorded verdicts; as PDF where a Chromium is here.

    It is made of what is in the repository: no page of megabytes is stored. Its commit
    is that of the recorded verdicts.
    """
    from railx.errors import UserError
    from railx.places import CODE
    from railx.report.pdf import print_pdf
    from railx.report.recorded import write_recorded_report

    resources = CODE / "resources"
    commit, date = _last_change(resources / "expected" / f"{_RECORDED}.yaml")
    with tempfile.TemporaryDirectory(prefix="railx-site-") as folder:
        page, pdf = (Path(folder) / f"{_RECORDED}{ending}" for ending in (".html", ".pdf"))
        write_recorded_report(page, _RECORDED, resources, commit, date)
        with contextlib.suppress(UserError):
            print_pdf(page, pdf)
        return {file.name: file.read_bytes() for file in (page, pdf) if file.is_file()}


def _last_change(file: Path) -> tuple[str, str]:
    """Commit and day of a file's last change; empty without a history."""
    done = subprocess.run(
        ["git", "log", "-1", "--format=%H %cs", "--", file.name],
        cwd=file.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    commit, _, date = done.stdout.strip().partition(" ")
    return commit, date


def on_page_markdown(markdown: str, page: Any = None, **_: Any) -> str:
    """Name files outside docs/ instead of linking to what the site has not."""
    folders = 0 if page is None else page.file.src_uri.count("/")

    def named(match: re.Match[str]) -> str:
        words, up, target = match.groups()
        return match.group() if len(up) // 3 <= folders else f"{words} (`{target}`)"

    return _ABOVE.sub(named, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Names in docstrings stand for themselves."""
    return _ROLE.sub(r"<code>\1</code>", html)


def notebook_page(name: str, notebook: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page with the outputs that it stores, and its images by name."""
    lines: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                image = f"{name}_{len(images) + 1}.png"
                images[image] = base64.b64decode("".join(data["image/png"]))
                lines += [f"![What the cell above draws]({image})", ""]
            else:
                text = "".join(data.get("text/plain", output.get("text", "")))
                lines += ["```text", text.rstrip(), "```", ""]
    lines += [f"This page is a notebook: [{name}.ipynb]({name}.ipynb).", ""]
    return "\n".join(lines), images


def commands_page() -> str:
    """What every command says of itself, ``railx`` and the commands below it."""
    from workflow.cli import _parser

    # argparse asks for the width of the terminal.
    os.environ["COLUMNS"] = _WIDTH
    lines = ["# Commands", "", "`railx COMMAND --help`, on one page.", ""]
    for words, parser in _parsers(("railx",), _parser()):
        lines += [f"{'#' * min(len(words) + 1, 3)} {' '.join(words)}", ""]
        lines += ["```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def _parsers(
    words: tuple[str, ...], parser: argparse.ArgumentParser
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _parsers((*words, name), below)


def tables_page() -> str:
    """The tables of every stage with their columns, types and units."""
    from workflow.outputs import Table
    from workflow.stages import STAGES

    lines = [
        "# Tables",
        "",
        "The tables that stages write. A table's name in",
        "`railx sql` is STAGE.TABLE, or STAGE.ITEM.TABLE for one topology, plan or run. Without",
        "the item it is all of them, with a column `item`.",
        "",
    ]
    for name, stage in STAGES.items():
        tables = {key: output for key, output in stage.outputs.items() if isinstance(output, Table)}
        if not tables:
            continue
        lines += [f"## {name}", "", f"{stage.help[:1].upper()}{stage.help[1:]}.", ""]
        for key, table in tables.items():
            lines += [f"### {name}.{key}", "", "| column | type | unit |", "|---|---|---|"]
            lines += [
                f"| `{column}` | {_WORDS.get(word, word)} | {unit_of(column)} |"
                for column, word in {**table.declared(), **table.optional}.items()
            ]
            lines.append("")
    return "\n".join(lines)
