"""Writing a figure: SVG with real text, light and dark, PNG and PDF.

Equal tables give equal files: no file has a date, and each SVG has identifiers of its
name, so that one page can hold several.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from railx.figures.contrast import dark_colour
from railx.io import atomic_path, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FONTS", "IMAGES", "dark_svg", "save", "save_narrow", "settle", "tidy_svg"]


#: The endings of a figure's images.
IMAGES: tuple[str, ...] = (".svg", ".dark.svg", ".png", ".pdf")
#: What a viewer shows the text in: the first is what the figure is laid out with, the
#: others are as wide or narrower.
FONTS = "'DejaVu Sans', Verdana, Geneva, sans-serif"


def save(figure: Figure, output: Path, dpi: int) -> None:
    """Write the figure as ``output`` with each ending of ``IMAGES``."""
    light = _svg(figure, output.stem)
    write_text(output.with_suffix(".svg"), light)
    write_text(output.with_suffix(".dark.svg"), dark_svg(light, output.stem))
    with atomic_path(output.with_suffix(".png")) as beside:
        figure.savefig(beside, format="png", dpi=dpi, metadata={"Software": None})
    undated = {"CreationDate": None, "Creator": None, "Producer": None}
    with atomic_path(output.with_suffix(".pdf")) as beside:
        figure.savefig(beside, format="pdf", metadata=undated)


def save_narrow(figure: Figure, output: Path) -> None:
    """Write the narrow form of a figure beside ``output``, as an SVG alone."""
    write_text(output.with_suffix(".narrow.svg"), _svg(figure, f"{output.stem}-narrow"))


def _svg(figure: Figure, name: str) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return tidy_svg(drawn.getvalue(), name)


def tidy_svg(text: str, name: str) -> str:
    """An SVG of matplotlib's that a page can embed beside others.

    Only elements that are referred to have an identifier, which starts with ``name``.
    Style rules of the document become attributes. Comments and metadata are removed.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    look = f"font-family: {FONTS}; stroke-linejoin: round; stroke-linecap: butt"
    text = text.replace("<svg ", f'<svg style="{look}" ', 1)
    text = re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 inherit", text)
    used = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    identifiers = {old: f"{name}-{i}" for i, old in enumerate(used)}
    text = re.sub(
        r' id="([^"]+)"',
        lambda match: f' id="{identifiers[match[1]]}"' if match[1] in identifiers else "",
        text,
    )
    return re.sub(
        r'(url\(#|href="#)([^)"]+)',
        lambda match: match[1] + identifiers.get(match[2], match[2]),
        text,
    )


def dark_svg(light: str, name: str) -> str:
    """The same SVG with the colours of a dark page."""
    text = re.sub(r"(?<=[:\"\s])#[0-9a-f]{6}\b", lambda match: dark_colour(match[0]), light)
    return re.sub(rf'(id="|url\(#|href="#){re.escape(name)}-', rf"\1{name}-dark-", text)


def settle(figure: Figure) -> None:
    """Lay the panels out once and round their positions.

    The solver's last digits depend on the order of objects in memory. Rounded positions
    give equal files for equal tables.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (
            round(float(value), 5) for value in axes.get_position(original=True).bounds
        )
        axes.set_position((left, bottom, width, height))
