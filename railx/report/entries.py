"""What goes into a report: figures and tables to print.

Figures come with their captions and the tables behind them.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from railx.io import read_json

__all__ = ["ReportFigure", "ReportTable", "caption_html", "figure_entry", "image_source"]

_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
#: An SVG with more bytes than this is slower to show than its PNG.
_LARGEST_SVG_BYTES = 3_000_000


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report.

    Its image file (.svg or .png), caption (safe HTML), the words for a reader who
    cannot see it, and the files behind it.
    """

    name: str
    title: str
    caption: Markup
    alternative_text: str
    image: Path
    tables: tuple[str, ...]


@dataclass(frozen=True)
class ReportTable:
    """A table to print.

    The file, its name as the report shows it (relative to the results folder) and the
    columns (empty: all).
    """

    title: str
    name: str
    path: Path
    columns: tuple[str, ...] = ()


def figure_entry(name: str, image: str | Path, words: str | Path) -> ReportFigure:
    """A figure as its job left it: the image, and the file with the words to it."""
    said = read_json(words)
    return ReportFigure(
        name,
        said["title"],
        caption_html(said["caption"]),
        said["alternative_text"],
        Path(image),
        tuple(said["tables"]),
    )


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


def image_source(path: Path) -> str:
    """The image as a data URL; a very large SVG is replaced by the PNG beside it.

    Raises ValueError for another type of file.
    """
    chosen = path
    if (
        path.suffix == ".svg"
        and path.stat().st_size > _LARGEST_SVG_BYTES
        and path.with_suffix(".png").exists()
    ):
        chosen = path.with_suffix(".png")
    if chosen.suffix not in _TYPES:
        raise ValueError(
            f"{chosen}: not an image that a report can hold; allowed: {', '.join(_TYPES)}"
        )
    encoded = base64.b64encode(chosen.read_bytes()).decode("ascii")
    return f"data:{_TYPES[chosen.suffix]};base64,{encoded}"


def _inline(text: str) -> Markup:
    marked = re.sub(r"``(.+?)``", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"(?<![\w*])\*(?!\s)(.+?)(?<!\s)\*(?![\w*])", r"<em>\1</em>", marked))
