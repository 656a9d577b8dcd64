"""What a figure may not hide: compressed axes, cut bars, curves under a legend.

``say_compressed`` writes on an axis that it is compressed. ``cut_bars`` marks bars that
are drawn shorter than they are. ``refuse_hidden`` checks the finished figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from railx.figures.panels import beside
from railx.figures.words import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def say_compressed(figure: Figure) -> None:
    """Name the scale in the label of every axis that is not linear.

    Raises ValueError where neither the axis nor one that shares it has a label.
    """
    for axes in figure.axes:
        if not axes.get_visible() or not axes.axison:
            continue
        for axis in (axes.xaxis, axes.yaxis):
            note = _compression(axis)
            if not note:
                continue
            labels = [axis.label, *_shared_labels(axes, axis.axis_name)]
            said = [label for label in labels if label.get_text()]
            if not said:
                raise ValueError(
                    f"panel {_title(axes)!r}: the {axis.axis_name} axis is compressed and has no"
                    " label; allowed: a label"
                )
            for label in said:
                if note not in label.get_text():
                    label.set_text(f"{label.get_text()}, {note}")


def cut_bars(axes: Axes, values: Iterable[float], limit: float) -> int:
    """Mark the horizontal bars, at 0, 1 and so on, that are drawn only up to ``limit``.

    Each value beyond it gets a break in its bar, and is written at the end. How many
    bars are cut is returned, for the caption.
    """
    cut = [(position, value) for position, value in enumerate(values) if value > limit]
    look: dict[str, Any] = {"color": "white", "linewidth": 2.2, "solid_capstyle": "butt"}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for position, value in cut:
        for back in (0.03, 0.055):
            ends = [limit * (1 - back - 0.012), limit * (1 - back + 0.012)]
            axes.plot(ends, [position + 0.5, position - 0.5], zorder=3, **look)
        beside(axes, quantity(value), limit, position, 4, bbox=box)
    return len(cut)


def refuse_hidden(figure: Figure) -> None:
    """Raise ValueError for a legend that covers a panel and for a bar cut by an edge.

    The figure is laid out.
    """
    from matplotlib.legend import Legend

    panels = [axes for axes in figure.axes if axes.get_visible()]
    for axes in panels:
        for legend in axes.findobj(Legend):
            _refuse_over_panels(legend, panels, f"panel {_title(axes)!r}")
        _refuse_cut(axes)
    for legend in figure.legends:
        _refuse_over_panels(legend, panels, "figure")


def _title(axes: Axes) -> str:
    return axes.get_title(loc="left") or axes.get_title()


def _refuse_over_panels(legend: Any, panels: Sequence[Axes], where: str) -> None:
    extent = legend.get_window_extent()
    for axes in panels:
        panel = axes.get_window_extent()
        across = min(extent.x1, panel.x1) - max(extent.x0, panel.x0)
        along = min(extent.y1, panel.y1) - max(extent.y0, panel.y0)
        if across > 1 and along > 1:
            raise ValueError(
                f"{where}: the legend covers a panel; allowed: share_legend, or a place outside"
            )


def _refuse_cut(axes: Axes) -> None:
    from matplotlib.container import BarContainer

    right, top = max(axes.get_xlim()), max(axes.get_ylim())
    for bars in axes.containers:
        if not isinstance(bars, BarContainer):
            continue
        for bar in bars.patches:
            across = bars.orientation == "horizontal"
            start = bar.get_x() if across else bar.get_y()
            end = start + (bar.get_width() if across else bar.get_height())
            high = right if across else top
            if max(start, end) > high + 1e-9 * abs(high):
                raise ValueError(
                    f"panel {_title(axes)!r}: a bar of {max(start, end):g} ends at the edge,"
                    f" {high:g}; allowed: wider limits, or cut_bars"
                )


def _compression(axis: Axis) -> str:
    """What is said of an axis that is not linear; empty for a linear one."""
    kind = axis.get_scale()
    if kind == "symlog":
        scale: Any = axis.get_transform()
        return f"logarithmic above {scale.linthresh:g}"
    return "" if kind == "linear" else "logarithmic"


def _shared_labels(axes: Axes, way: str) -> Iterable[Any]:
    """Labels of the axes that share this one, and of the figure they stand in."""
    group = getattr(axes, f"get_shared_{way}_axes")()
    for other in group.get_siblings(axes):
        if other is not axes and other.get_visible():
            yield getattr(other, f"{way}axis").label
    holder: Any = axes.figure
    while holder is not None:
        total = getattr(holder, f"_sup{way}label", None)
        if total is not None:
            yield total
        holder = getattr(holder, "_parent", None)
