"""Figures inside the page: an SVG as a data URL, as small as it can be mailed.

What a drawing program leaves in an SVG for people (comments, indentation, metadata, six
decimals of a point) is left out; the marks and the text stay as they are.
"""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from pathlib import Path

from railx.errors import UserError

_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
#: An SVG with more bytes than this is replaced by its PNG.
_LARGEST_SVG_BYTES = 500_000
_REMOVED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_BETWEEN_TAGS = re.compile(r">\s+<")
_TEXT = re.compile(r"(<text\b.*?</text>|<style\b.*?</style>)", re.DOTALL)
#: Attributes in points, where a hundredth is finer than any screen or printer.
_IN_POINTS = re.compile(r' (d|x|y|x1|x2|y1|y2|cx|cy|width|height|points)="([^"]*)"')
_DECIMALS = re.compile(r"(-?\d+\.\d{3,})(?!\d|e)")
#: Beside a letter of a path no space is needed.
_AROUND_LETTERS = re.compile(r"\s*([MLHVCSQTAZmlhvcsqtaz])\s*")
_TAG = re.compile(r"<svg\b[^>]*>")
_GROUP = re.compile(r"<g\b[^>]*>|</g>")
_NAME = re.compile(r' id="([^"]+)"')
_REFERENCE = re.compile(r'( id="|url\(#|href="#)([^")]+)(["\)])')
_LOOK = re.compile(r' style="([^"]+)"')
#: A style that occurs fewer times than this is no shorter as a class.
_OFTEN = 3
_SIDE = re.compile(r'\b(width|height)="([\d.]+)pt"')
#: Characters that a data URL inside single quotes and a list of sources must escape.
_ESCAPED = str.maketrans(
    {
        "%": "%25", "#": "%23", "'": "%27", "<": "%3C", ">": "%3E", "&": "%26",
        " ": "%20", "\n": "%0A", "\r": "", "\t": "%09",
    }
)  # fmt: skip


def image_source(path: Path) -> str:
    """The image as a data URL for an attribute in single quotes.

    A very large SVG is replaced by the PNG beside it. Raises ValueError for another
    type of file.
    """
    chosen = path.with_suffix(".png") if rastered(path) else path
    if chosen.suffix not in _TYPES:
        allowed = ", ".join(_TYPES)
        raise UserError(f"{chosen}: not an image that a report can hold; allowed: {allowed}")
    kind = _TYPES[chosen.suffix]
    if chosen.suffix == ".png":
        return f"data:{kind};base64,{base64.b64encode(chosen.read_bytes()).decode('ascii')}"
    text = slim_svg(chosen.read_text(encoding="utf-8"))
    return f"data:{kind},{text.translate(_ESCAPED)}"


def rastered(path: Path) -> bool:
    """Whether an SVG is so large that the PNG beside it replaces it."""
    return (
        path.suffix == ".svg"
        and path.stat().st_size > _LARGEST_SVG_BYTES
        and path.with_suffix(".png").exists()
    )


def image_size(path: Path) -> tuple[int, int] | None:
    """Width and height of an SVG in CSS pixels, as its first tag says in points."""
    if path.suffix != ".svg":
        return None
    tag = _TAG.search(path.read_text(encoding="utf-8"))
    sides = dict(_SIDE.findall(tag.group())) if tag else {}
    if len(sides) != 2:
        return None
    return round(float(sides["width"]) * 96 / 72), round(float(sides["height"]) * 96 / 72)


def slim_svg(text: str) -> str:
    """The same picture in fewer bytes, as a separate document.

    Looks that repeat become classes, groups that group nothing go, names become short.
    """
    text = _REMOVED.sub("", text).strip()
    parts = _TEXT.split(text)
    # Spaces inside a text are words, those between other tags nothing.
    tags = (_BETWEEN_TAGS.sub("><", part.strip()) for part in parts[::2])
    parts[::2] = [_IN_POINTS.sub(_rounded, part) for part in tags]
    return _classes(_short_names(_without_bare_groups("".join(parts))))


def _rounded(attribute: re.Match[str]) -> str:
    name, value = attribute.groups()
    short = _DECIMALS.sub(lambda number: f"{round(float(number.group()), 2) + 0.0:g}", value)
    if name == "d":
        short = _AROUND_LETTERS.sub(r"\1", short).strip().replace(" ", ",")
    return f' {name}="{short}"'


def _without_bare_groups(text: str) -> str:
    stays: list[bool] = []

    def group(tag: re.Match[str]) -> str:
        if tag.group() == "</g>":
            return "</g>" if stays.pop() else ""
        if tag.group().endswith("/>"):
            return ""
        stays.append(tag.group() != "<g>")
        return tag.group() if stays[-1] else ""

    return _GROUP.sub(group, text)


def _short_names(text: str) -> str:
    names = {name: f"n{i}" for i, name in enumerate(dict.fromkeys(_NAME.findall(text)))}
    return _REFERENCE.sub(
        lambda match: f"{match[1]}{names.get(match[2], match[2])}{match[3]}", text
    )


def _classes(text: str) -> str:
    """Frequent styles as rules of one sheet."""
    looks = Counter(_LOOK.findall(text))
    often = [look for look, times in looks.items() if times >= _OFTEN]
    classes = {look: f"c{i}" for i, look in enumerate(often)}
    if not classes or "class=" in text or "<style" in text:
        return text
    short = _LOOK.sub(
        lambda match: f' class="{classes[match[1]]}"' if match[1] in classes else match[0], text
    )
    sheet = "".join(f".{name}{{{html.unescape(look)}}}" for look, name in classes.items())
    tag = _TAG.search(short)
    if tag is None or "<" in sheet or "&" in sheet:
        return text
    return f"{short[: tag.end()]}<style>{sheet}</style>{short[tag.end() :]}"
