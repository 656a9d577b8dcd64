"""Figures from tables: one module per figure or subject, and one list of them.

No plotting library is imported here, and none to check a figure's settings.
"""

from railx.figures.figure import CanvasSettings, Figure
from railx.figures.registry import FIGURES, FigureSettings, draw_figure, figure_module, figure_of
from railx.figures.tables import FigureFiles, FigureInput

__all__ = [
    "FIGURES",
    "CanvasSettings",
    "Figure",
    "FigureFiles",
    "FigureInput",
    "FigureSettings",
    "draw_figure",
    "figure_module",
    "figure_of",
]
