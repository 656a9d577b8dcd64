"""All-to-all bandwidth against the degree of sequence parallelism.

The cliff between a node and several is what FlexSP lives on. Published are the tables
of its public code; ours is the bandwidth that the plans of this experiment were costed
with, calculated back from their predicted times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import beside, share_legend, ticks
from railx.figures.tables import Tables, refuse_unknown, to_frame
from railx.figures.theme import GREY, INK, PALETTE, dot, published_series
from railx.figures.words import fidelity_line, quantity
from railx.settings import AtLeast, NotEmpty

__all__ = ["FIGURE", "AllToAllDegreeSettings"]

#: Bytes of an element, all-to-alls of a layer, and both directions of a step.
_BYTES_PER_TOKEN_LAYER_AND_WIDTH = 2 * 4 * 2
_NOTE = "Published on A100 nodes of 8 with two InfiniBand links; nothing is measured here"


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

    Raises UserError for a table or model that is not published.
    """
    refuse_unknown("tables", settings.tables, tables.read("bandwidth")["table"])
    points = _points(settings, tables)
    ours = points[points["source"] == "ours"]
    subtitle = """Bandwidth of an all-to-all among the GPUs of a group. Hollow diamonds: published;
        dots: calculated back from the predicted times of this experiment's plans."""
    with canvas(subtitle, fidelity_line(ours["fidelity"], _NOTE)) as page:
        colour = dict(zip(settings.tables, PALETTE, strict=False))
        _lines(page.subplots(), points, colour, settings.devices_per_node)
        legend: dict[str, Any] = {
            f"Published, {words}": published_series(colour[key])
            for key, words in settings.tables.items()
        }
        if len(ours):
            legend[f"Ours, {ours['name'].nunique()} plans"] = dot(INK)
        share_legend(page, legend, 2)
    caption, alternative = _caption(settings, points), _alternative(settings, points)
    return Drawn(caption, alternative, points.drop(columns="fidelity"))


def _points(settings: AllToAllDegreeSettings, tables: Tables) -> DataFrame:
    """The published tables, and the bandwidth that the plans' predicted times imply."""
    constants = tables.read("constants")
    model = constants[constants["model"] == settings.model].set_index("quantity")["value"]
    if not {"layers", "hidden"} <= set(model.index):
        raise UserError(
            f"model: got {settings.model}; allowed: one with layers and hidden among"
            f" {', '.join(dict.fromkeys(constants['model']))}"
        )
    # The published table counts 2^20 bytes a millisecond as a GB/s.
    width = float(model["layers"]) * float(model["hidden"])
    mib = _BYTES_PER_TOKEN_LAYER_AND_WIDTH * width / 2**20
    return tables.query(
        """
        with numbered as (
            select *, mib * tokens / degree / predicted_all_to_all_ms as gb_s
            from groups, constant
            where plan in (select name from chosen) and predicted_all_to_all_ms > 0
        ), plans as (
            select 'ours' as source, plan as name, degree, median(gb_s) as gb_s, fidelity,
                min(rowid_) as number from numbered group by plan, degree, fidelity
            union all
            select 'published', "table", degree, gb_s, null, rowid_ from bandwidth
            where "table" in (select name from chosen)
        )
        select name, degree, gb_s, source, fidelity from plans order by source desc, number
        """,
        constant=to_frame([{"mib": mib}]),
        chosen=to_frame({"name": [*settings.plans, *settings.tables]}),
    )


def _lines(axes: Axes, points: DataFrame, colour: dict[str, str], node: int) -> None:
    ours = points["source"] == "ours"
    for name, shade in colour.items():
        line = points[~ours & (points["name"] == name)].sort_values("degree")
        axes.plot(line["degree"], line["gb_s"], **published_series(shade))
    axes.plot(points["degree"][ours], points["gb_s"][ours], **dot(INK, 4.5, zorder=3))
    degrees = sorted({int(degree) for degree in points["degree"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks(axes.xaxis, degrees)
    ticks(axes.yaxis, [2, 5, 10, 20, 50, 100, 200])
    low, high = float(points["gb_s"].min()), float(points["gb_s"].max())
    axes.set(xlim=(0.85 * degrees[0], 1.18 * degrees[-1]), ylim=(0.8 * low, 1.6 * high))
    axes.set(xlabel="Degree of sequence parallelism (GPUs of a group)", ylabel="All-to-all (GB/s)")
    border = node * 2**0.5
    axes.axvline(border, color=GREY, linewidth=1, linestyle=":")
    style: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "top", "color": GREY}
    beside(axes, "inside a node", border, 1, -6, -6, ha="right", **style)
    beside(axes, "across nodes", border, 1, 6, -6, ha="left", **style)


def _caption(settings: AllToAllDegreeSettings, points: DataFrame) -> str:
    node = settings.devices_per_node
    published = points[points["source"] == "published"].set_index(["name", "degree"])["gb_s"]
    parts = []
    for name, words in settings.tables.items():
        table = published[name]
        if {node, 2 * node} <= set(table.index):
            inside, outside = float(table[node]), float(table[2 * node])
            parts.append(f"""{words} {quantity(inside)} to {quantity(outside)} GB/s,
                {quantity(inside / outside)} times less""")
    text = f"From degree {node} to {2 * node}, out of the node: {'; '.join(parts)}."
    ours = points[points["source"] == "ours"]
    if not len(ours):
        return f"{text} This experiment has no plan for the published cluster."
    table = published[next(iter(settings.tables))]
    off = (ours["gb_s"] / ours["degree"].map(table) - 1).abs().max()
    exact = "exactly with" if off < 1e-6 else f"within {100 * off:.2g} % of"
    return f"""{text} The {ours["name"].nunique()} plans of this experiment for the published
        cluster were costed {exact} the first of these tables, which shows that they rest on it, not
        that it holds."""


def _alternative(settings: AllToAllDegreeSettings, points: DataFrame) -> str:
    parts = []
    for name, words in settings.tables.items():
        line = points[(points["source"] == "published") & (points["name"] == name)]
        first, last = (line.sort_values("degree").iloc[end] for end in (0, -1))
        parts.append(f"""{words} from {quantity(float(first["gb_s"]))} GB/s at degree
            {first["degree"]} to {quantity(float(last["gb_s"]))} at {last["degree"]}""")
    return f"""Lines of the all-to-all bandwidth over the degree of sequence parallelism, with a
        cliff between a node and several: {"; ".join(parts)}."""


FIGURE = declare(
    AllToAllDegreeSettings,
    "All-to-all bandwidth by degree of sequence parallelism",
    "flexsp",
    draw,
    groups="plan.groups (sequence_parallel): plan degree tokens predicted_all_to_all_ms fidelity",
    bandwidth="flexsp_all_to_all_bandwidth.csv: table degree gb_s",
    constants="flexsp_cost_constants.csv: model quantity value",
)
