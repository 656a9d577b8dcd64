"""All-to-all bandwidth against the degree of sequence parallelism.

The cliff between a node and several is what FlexSP lives on. Published are the tables
of its public code; ours is the bandwidth that the plans of this experiment were costed
with, calculated back from their predicted times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from railx.errors import UserError
from railx.figures.canvas import share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, FigureInput, Height
from railx.figures.panels import beside
from railx.figures.tables import Tables, stack
from railx.figures.theme import GREY, INK, PALETTE, dot, published_series
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity
from railx.settings import AtLeast, NotEmpty

__all__ = ["FIGURE", "AllToAllDegreeSettings"]

_PUBLISHED = ("table", "degree", "gb_s")
#: Bytes of an element, all-to-alls of a layer, and both directions of a step.
_BYTES_PER_TOKEN_LAYER_AND_WIDTH = 2 * 4 * 2


@dataclass(frozen=True)
class AllToAllDegreeSettings(CanvasSettings):
    """All-to-all bandwidth against the degree of sequence parallelism."""

    figure: Literal["all_to_all_degree"] = "all_to_all_degree"
    height_inches: Height = 5.2

    tables: dict[str, str] = field(
        default_factory=lambda: {
            "4k_seq_2_ib": "in use by solver and training",
            "4k_seq_comment": "a comment, sequences of 4K",
            "2k_seq_comment": "a comment, sequences of 2K",
            "rounded_comment": "a comment, older round numbers",
        }
    )
    """Published tables to show, in that order, and the words for each."""

    plans: tuple[str, ...] = (
        "flexsp_7b_192k_wikipedia",
        "static_7b_192k_wikipedia",
        "static_per_batch_7b_192k_wikipedia",
        "flexsp_7b_192k_github",
        "static_7b_192k_github",
    )
    """Plans of the model below to calculate back; those that the experiment lacks are
    left out."""

    model: Annotated[str, NotEmpty()] = "gpt_7b"
    """Model of the plans among the published cost constants."""

    devices_per_node: Annotated[int, AtLeast(1)] = 8
    """Highest degree inside a node."""


def draw(settings: AllToAllDegreeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A line per published table and dots of the plans.

    Raises ValueError for a table or model that is not published.
    """

    published = tables.read("bandwidth")
    allowed = list(dict.fromkeys(published["table"]))
    unknown = [name for name in settings.tables if name not in allowed]
    if unknown:
        raise UserError(f"tables: got {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    ours = _ours(settings, tables)
    points = _points(settings, published, ours)
    subtitle = (
        "Bandwidth of an all-to-all among the GPUs of a group. Hollow diamonds: published; dots:"
        " calculated back from the predicted times of this experiment's plans."
    )
    fidelity = fidelity_line(ours["fidelity"] if len(ours) else [], _NOTE)
    with canvas(subtitle, fidelity) as page:
        axes = page.subplots()
        colours = dict(zip(settings.tables, PALETTE, strict=False))
        _lines(axes, points, colours, settings.devices_per_node)
        handles = [published_series(colours[key]) for key in colours]
        texts = [f"Published, {words}" for words in settings.tables.values()]
        if len(ours):
            handles.append(dot(INK))
            texts.append(f"Ours, {len(set(ours['plan']))} plans")
        share_legend(page, dict(zip(texts, handles, strict=True)), 2)
    return Drawn(_caption(settings, points), _alternative(settings, points), points)


_NOTE = "Published on A100 nodes of 8 with two InfiniBand links; nothing is measured here"


def _ours(settings: AllToAllDegreeSettings, tables: Tables) -> DataFrame:
    """The bandwidth that each plan's predicted all-to-all times imply, by degree."""
    constants = tables.read("constants")
    part = constants[constants["model"] == settings.model].set_index("quantity")["value"]
    if not {"layers", "hidden"} <= set(part.index):
        raise UserError(
            f"model: got {settings.model}; allowed: one with layers and hidden among"
            f" {', '.join(dict.fromkeys(constants['model']))}"
        )
    # The published table counts 2^20 bytes a millisecond as a GB/s.
    mib = _BYTES_PER_TOKEN_LAYER_AND_WIDTH * float(part["layers"]) * float(part["hidden"]) / 2**20
    groups = tables.read("groups")
    chosen = groups[groups["plan"].isin(settings.plans) & (groups["predicted_all_to_all_ms"] > 0)]
    rows = chosen.assign(
        gb_s=mib * chosen["tokens"] / chosen["degree"] / chosen["predicted_all_to_all_ms"]
    )
    medians = rows.groupby(["plan", "degree", "fidelity"], sort=False)["gb_s"].median()
    return medians.reset_index()


def _points(settings: AllToAllDegreeSettings, published: DataFrame, ours: DataFrame) -> DataFrame:
    lines = published[published["table"].isin(settings.tables)][list(_PUBLISHED)]
    parts = [
        lines.rename(columns={"table": "name"}).assign(source="published"),
        ours.rename(columns={"plan": "name"})[["name", "degree", "gb_s"]].assign(source="ours"),
    ]
    return stack([part for part in parts if len(part)])


def _lines(axes: Axes, points: DataFrame, colours: dict[str, str], node: int) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    for name, colour in colours.items():
        rows = points[(points["source"] == "published") & (points["name"] == name)].sort_values(
            "degree"
        )
        axes.plot(rows["degree"], rows["gb_s"], **published_series(colour))
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
        beside(
            axes,
            text,
            border,
            1,
            offset,
            -6,
            xycoords=("data", "axes fraction"),
            ha=align,
            va="top",
            color=GREY,
        )


def _caption(settings: AllToAllDegreeSettings, points: DataFrame) -> str:
    parts = []
    node = settings.devices_per_node
    published = points[points["source"] == "published"]
    for name, words in settings.tables.items():
        rows = published[published["name"] == name].set_index("degree")["gb_s"]
        if {node, 2 * node} <= set(rows.index):
            drop = float(rows[node] / rows[2 * node])
            parts.append(
                f"{words} {quantity(float(rows[node]))} to {quantity(float(rows[2 * node]))} GB/s,"
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


def _alternative(settings: AllToAllDegreeSettings, points: DataFrame) -> str:
    parts = []
    for name, words in settings.tables.items():
        rows = points[(points["source"] == "published") & (points["name"] == name)]
        ends = rows.sort_values("degree").iloc[[0, -1]]
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
    AllToAllDegreeSettings,
    "All-to-all bandwidth by degree of sequence parallelism",
    "flexsp",
    (
        FigureInput(
            "groups",
            "plan.groups",
            "plan degree tokens predicted_all_to_all_ms fidelity",
            plan_kind="sequence_parallel",
        ),
        FigureInput(
            "bandwidth", columns="table degree gb_s", published="flexsp_all_to_all_bandwidth.csv"
        ),
        FigureInput(
            "constants", columns="model quantity value", published="flexsp_cost_constants.csv"
        ),
    ),
    draw,
)
