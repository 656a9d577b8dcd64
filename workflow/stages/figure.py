"""Stage figure: tables -> one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.figures import CanvasSettings, FigureSettings, draw_figure
from railx.settings import load

__all__ = ["run"]


def run(
    settings: Mapping[str, Any], *, inputs: Mapping[str, Sequence[str]], svg_path: str | Path
) -> None:
    """Draw the figure that ``settings`` describe as ``svg_path``, and a .png beside."""
    figure: CanvasSettings = load(FigureSettings, settings, "figure")
    draw_figure(
        figure,
        {key: [Path(file) for file in files] for key, files in inputs.items()},
        Path(svg_path),
    )
