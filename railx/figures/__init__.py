"""Figures from tables: one module per figure or subject, and one list of them.

No plotting library is imported here, and none to check a figure's settings.
"""

from railx.figures.figure import CanvasSettings
from railx.figures.registry import FIGURES, FigureSettings, draw_figure, figure_module, figure_of

__all__ = [
    "FIGURES",
    "CanvasSettings",
    "FigureSettings",
    "draw_figure",
    "figure_module",
    "figure_of",
]
