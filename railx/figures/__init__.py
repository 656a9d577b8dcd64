"""Figures from tables: one module per figure, a common theme, a registry that names
what each figure needs.

No drawing module is imported here, so that settings are checked without a plotting
library and a changed figure redraws itself alone.
"""

from railx.figures.registry import FIGURES, FigureInput, FigureKind, draw_figure
from railx.figures.settings import FigureSettings

__all__ = ["FIGURES", "FigureInput", "FigureKind", "FigureSettings", "draw_figure"]
