"""All-to-all bandwidth against the degree of sequence parallelism.

The cliff between a node and several is what FlexSP lives on. Published are the tables
of its public code; ours is the bandwidth that the plans of this experiment were costed
with, calculated back from their predicted times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame, published_series
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, INK, PALETTE, canvas, quantity, share_legend
from railx.settings import AtLeast, NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "AllToAllDegreeSettings"]

_PUBLISHED = ("table", "degree", "gb_s")
_CONSTANTS = ("model", "quantity", "value")
_GROUPS = ("plan", "degree", "tokens", "predicted_all_to_all_ms", "fidelity")
#: Bytes of an element, all-to-alls of a layer, and both directions of a step.
_BYTES_PER_TOKEN_LAYER_AND_WIDTH = 2 * 4 * 2


@dataclass(frozen=True)
class AllToAllDegreeSettings(CanvasSettings):
    """All-to-all bandwidth against the degree of sequence parallelism."""

    figure: Literal["all_to_all_degree"]
    """Which figure it is."""

    tables: dict[str, str]
    """Published tables to show, in that order, and the words for each."""

    plans: tuple[str, ...]
    """Plans of the model below to calculate back; those that the experiment lacks are
    left out."""

    model: Annotated[str, NotEmpty()]
    """Model of the plans among the published cost constants."""

    devices_per_node: Annotated[int, AtLeast(1)]
    """Highest degree inside a node."""


def draw(settings: AllToAllDegreeSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A line per published table and dots of the plans.

    Raises ValueError for a table or model that is not published.
    """
    from matplotlib.lines import Line2D

    published = published_frame(inputs, "bandwidth", _PUBLISHED)
    known = list(dict.fromkeys(published["table"]))
    unknown = [name for name in settings.tables if name not in known]
    if unknown:
        raise UserError(f"tables: got {', '.join(unknown)}; allowed: {', '.join(known)}")
    ours = _ours(settings, inputs)
    points = _points(settings, published, ours)
    subtitle = (
        "Bandwidth of an all-to-all among the GPUs of a group. Hollow diamonds: published; dots:"
        " calculated back from the predicted times of this experiment's plans."
    )
    fidelity = fidelity_line(ours["fidelity"] if len(ours) else [], _NOTE)
    with canvas(
        settings,
        output,
        "All-to-all bandwidth by degree of sequence parallelism",
        subtitle,
        fidelity,
    ) as figure:
        axes = figure.subplots()
        colours = dict(zip(settings.tables, PALETTE, strict=False))
        _lines(axes, points, colours, settings.devices_per_node)
        handles = [Line2D([], [], **published_series(colours[key])) for key in colours]
        texts = [f"Published, {words}" for words in settings.tables.values()]
        if len(ours):
            handles.append(Line2D([], [], linestyle="none", marker="o", color=INK))
            texts.append(f"Ours, {len(set(ours['plan']))} plans")
        share_legend(figure, handles, texts, 2)
    return Drawn(_caption(settings, points), _alternative(settings, points), points)


_NOTE = "Published on A100 nodes of 8 with two InfiniBand links; nothing is measured here"


def _ours(settings: AllToAllDegreeSettings, inputs: FigureFiles) -> pd.DataFrame:
    """The bandwidth that each plan's predicted all-to-all times imply, by degree."""
    constants = published_frame(inputs, "constants", _CONSTANTS)
    own = constants[constants["model"] == settings.model].set_index("quantity")["value"]
    if not {"layers", "hidden"} <= set(own.index):
        raise UserError(
            f"model: got {settings.model}; allowed: one with layers and hidden among"
            f" {', '.join(dict.fromkeys(constants['model']))}"
        )
    # The published table counts 2^20 bytes a millisecond as a GB/s.
    mib = _BYTES_PER_TOKEN_LAYER_AND_WIDTH * float(own["layers"]) * float(own["hidden"]) / 2**20
    groups = read_frames(inputs, "groups", _GROUPS)
    chosen = groups[groups["plan"].isin(settings.plans) & (groups["predicted_all_to_all_ms"] > 0)]
    rows = chosen.assign(
        gb_s=mib * chosen["tokens"] / chosen["degree"] / chosen["predicted_all_to_all_ms"]
    )
    medians = rows.groupby(["plan", "degree", "fidelity"], sort=False)["gb_s"].median()
    return medians.reset_index()


def _points(
    settings: AllToAllDegreeSettings, published: pd.DataFrame, ours: pd.DataFrame
) -> pd.DataFrame:
    import pandas as pd

    lines = published[published["table"].isin(settings.tables)][list(_PUBLISHED)]
    parts = [
        lines.rename(columns={"table": "name"}).assign(source="published"),
        ours.rename(columns={"plan": "name"})[["name", "degree", "gb_s"]].assign(source="ours"),
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _lines(axes: Axes, points: pd.DataFrame, colours: dict[str, str], node: int) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    for name, colour in colours.items():
        own = points[(points["source"] == "published") & (points["name"] == name)].sort_values(
            "degree"
        )
        axes.plot(own["degree"], own["gb_s"], **published_series(colour))
    ours = points[points["source"] == "ours"]
    axes.plot(ours["degree"], ours["gb_s"], "o", color=INK, markersize=4.5, zorder=3)
    degrees = sorted({int(degree) for degree in points["degree"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(degrees))
    axes.yaxis.set_major_locator(FixedLocator([2, 5, 10, 20, 50, 100, 200]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: quantity(value))
    low, high = float(points["gb_s"].min()), float(points["gb_s"].max())
    axes.set(xlim=(0.85 * degrees[0], 1.18 * degrees[-1]), ylim=(0.8 * low, 1.6 * high))
    axes.set(xlabel="Degree of sequence parallelism (GPUs of a group)", ylabel="All-to-all (GB/s)")
    border = node * 2**0.5
    axes.axvline(border, color=GREY, linewidth=1, linestyle=":")
    for text, offset, align in (("inside a node", -6, "right"), ("across nodes", 6, "left")):
        axes.annotate(
            text,
            (border, 1),
            xycoords=("data", "axes fraction"),
            xytext=(offset, -6),
            textcoords="offset points",
            ha=align,
            va="top",
            color=GREY,
        )


def _caption(settings: AllToAllDegreeSettings, points: pd.DataFrame) -> str:
    parts = []
    node = settings.devices_per_node
    published = points[points["source"] == "published"]
    for name, words in settings.tables.items():
        own = published[published["name"] == name].set_index("degree")["gb_s"]
        if {node, 2 * node} <= set(own.index):
            drop = float(own[node] / own[2 * node])
            parts.append(
                f"{words} {quantity(float(own[node]))} to {quantity(float(own[2 * node]))} GB/s,"
                f" {quantity(drop)} times less"
            )
    text = f"From degree {node} to {2 * node}, out of the node: {'; '.join(parts)}."
    ours = points[points["source"] == "ours"]
    if not len(ours):
        return f"{text} This experiment has no plan for the published cluster."
    first = next(iter(settings.tables))
    table = published[published["name"] == first].set_index("degree")["gb_s"]
    both = ours[ours["degree"].isin(table.index)]
    off = (both["gb_s"] / both["degree"].map(table) - 1).abs().max()
    exact = "exactly with" if off < 1e-6 else f"within {100 * off:.2g} % of"
    return (
        f"{text} The {ours['name'].nunique()} plans of this experiment for the published cluster"
        f" were costed {exact} the first of these tables, which shows that they rest on it, not"
        " that it holds."
    )


def _alternative(settings: AllToAllDegreeSettings, points: pd.DataFrame) -> str:
    parts = []
    for name, words in settings.tables.items():
        own = points[(points["source"] == "published") & (points["name"] == name)]
        ends = own.sort_values("degree").iloc[[0, -1]]
        parts.append(
            f"{words} from {quantity(float(ends['gb_s'].iloc[0]))} GB/s at degree"
            f" {ends['degree'].iloc[0]} to {quantity(float(ends['gb_s'].iloc[1]))} at"
            f" {ends['degree'].iloc[1]}"
        )
    return (
        "Lines of the all-to-all bandwidth over the degree of sequence parallelism, with a cliff"
        f" between a node and several: {'; '.join(parts)}."
    )


FIGURE = Figure(
    settings=AllToAllDegreeSettings,
    title="All-to-all bandwidth by degree of sequence parallelism",
    paper="flexsp",
    inputs=(
        FigureInput("groups", "plan.groups", columns=_GROUPS, plan_kind="sequence_parallel"),
        FigureInput("bandwidth", published="flexsp_all_to_all_bandwidth.csv", columns=_PUBLISHED),
        FigureInput("constants", published="flexsp_cost_constants.csv", columns=_CONSTANTS),
    ),
    draw=draw,
)
