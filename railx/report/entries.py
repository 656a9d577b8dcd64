"""Entries of a page: figures, tables, published tables, other results.

Each entry names the files that it is read from: a page needs files alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from railx.errors import UserError
from railx.io import read_json

#: Where the first statement of a caption ends.
_FIRST = re.compile(r"[.:;](?=\s|$)")
_WORDS = ("title", "paper", "caption", "alternative_text", "published", "tables")


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the page.

    Its name, its image (.svg or .png), the same for dark pages and for narrow screens
    where there is one, and the file with its words.
    """

    name: str
    image: Path
    words: Path
    dark: Path | None = None
    narrow: Path | None = None


@dataclass(frozen=True)
class ReportTable:
    """A table to print.

    The file, its name as the report shows it (relative to the results folder) and the
    columns (empty: all). Tables of one ``kind`` differ in their subject only.
    """

    title: str
    name: str
    path: Path
    columns: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class OtherResult:
    """The verdicts of another experiment: its claims table and where it comes from.

    ``recorded``: whether they are measurements recorded with their provenance.
    """

    name: str
    claims: Path
    provenance: Path | None = None
    recorded: bool = False


def figure_words(figure: ReportFigure) -> dict[str, Any]:
    """Title, paper, caption (safe HTML), alternative text and sources.

    ``shows`` is the beginning of the caption, before its numbers.

    Raises ValueError naming the file that lacks one of them.
    """
    words = read_json(figure.words)
    missing = [key for key in _WORDS if not isinstance(words, Mapping) or key not in words]
    if missing:
        raise UserError(f"{figure.words}: {', '.join(missing)}: is missing; allowed: a text each")
    return {
        **{key: words[key] for key in _WORDS},
        "name": figure.name,
        "shows": caption_html(_FIRST.split(words["caption"].strip(), maxsplit=1)[0] + "."),
        "caption": caption_html(words["caption"]),
    }


def caption_html(caption: str) -> Markup:
    """A caption as HTML: paragraphs, ``literals`` and *emphasis*.

    Captions use nothing else.
    """
    paragraphs = re.split(r"\n\s*\n", caption.strip())
    return Markup("\n").join(
        Markup("<p>{}</p>").format(_inline(" ".join(part.split())))
        for part in paragraphs
        if part.strip()
    )


def _inline(text: str) -> Markup:
    marked = re.sub(r"``(.+?)``", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"(?<![\w*])\*(?!\s)(.+?)(?<!\s)\*(?![\w*])", r"<em>\1</em>", marked))
