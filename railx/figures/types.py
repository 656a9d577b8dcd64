"""Types of the plotting libraries for annotations, without importing the libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Axes", "DataFrame", "Page", "Series"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page
    from pandas import DataFrame, Series
else:
    Axes = Page = DataFrame = Series = Any
