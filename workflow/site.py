"""Pages of the site that are made from the code: commands and tables (mkdocs.yml).

MkDocs calls the functions ``on_...`` by their names while it builds.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["commands_page", "on_files", "on_page_content", "on_page_markdown", "tables_page"]

#: Links of pages to files of the repository that are no pages.
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]+)\)")
#: Roles of docstrings, as they come out of a reader that knows none.
_ROLE = re.compile(r":(?:func|class|mod|data|meth|attr):<code>~?([^<]*)</code>")
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

    for name, text in (("commands.md", commands_page()), ("tables.md", tables_page())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files outside docs/ instead of linking to what the site has not."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Names in docstrings stand for themselves."""
    return _ROLE.sub(r"<code>\1</code>", html)


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
    from workflow.reference import unit_of
    from workflow.stage import Table
    from workflow.stages import STAGES

    lines = [
        "# Tables",
        "",
        "What the stages write, as their declarations have it. A table's name in",
        "`railx sql` is STAGE.TABLE.",
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
