"""Plans of sequence parallelism on different networks: times and degrees.

A bar is as long as an iteration and parted by degree: the device time that groups of
each degree take. No paper has this comparison, and the figure says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.canvas import panel_title, share_legend
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.panels import patch
from railx.figures.tables import FigureInput, Tables, records, stack, to_frame
from railx.figures.theme import INK, PALETTE, degree_colours, dot
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity
from railx.settings import NotEmpty

__all__ = ["FIGURE", "UnderlayFigureSettings"]

_WAITING = "#dfe3e8"
_SINGLE, _CARRIED = PALETTE[1], INK
_OURS = "No paper has this comparison; it is ours."


@dataclass(frozen=True)
class UnderlayFigureSettings(CanvasSettings):
    """Iteration time and degrees of a plan made for each network."""

    figure: Literal["underlay"] = "underlay"
    height_inches: Height = 4.4

    adaptive: Annotated[str, NotEmpty()] = "flexsp_7b_384k_commoncrawl"
    """Plan whose groups adapt; its degrees are shown."""

    single: Annotated[str, NotEmpty()] = "static_per_batch_7b_384k_commoncrawl"
    """Plan with a single degree for each batch, shown as a mark."""

    only: tuple[str, ...] = ()
    """Networks to show, in that order; empty: all that there are."""


def draw(settings: UnderlayFigureSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each rate that networks are compared at, a bar for each network.

    Raises ValueError where one of the plans is not there.
    """

    frame = tables.read("mix", "network", settings.only)
    for key in ("adaptive", "single"):
        plan = getattr(settings, key)
        if not (frame["plan"] == plan).any():
            raise UserError(
                f"{key}: got {plan!r}; allowed: {', '.join(sorted(set(frame['plan'])))}"
            )
    rows = _rows(frame, settings)
    panels = list(dict.fromkeys(rows["panel"]))
    degrees = sorted({int(degree) for degree in rows["degree"].dropna() if degree > 0})
    shades = degree_colours(degrees, max(degrees))
    longest = float(rows.loc[rows["mark"] != "degree", "seconds"].max())
    subtitle = (
        f"{_OURS} Length of a bar, and number: predicted iteration of the plan that is made for"
        " the network; its parts: device time by degree. Links inside nodes are equally fast"
        " everywhere."
    )
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        drawn = page.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        names = list(dict.fromkeys(rows["label"]))
        for axes, panel in zip(drawn, panels, strict=True):
            _panel(axes, rows[rows["panel"] == panel], names, shades)
            axes.set_title(panel_title(panel, len(panels), settings))
            axes.set_xlim(0, 1.3 * longest)
            axes.set_xlabel("Iteration (s)")
        drawn[0].set_yticks(range(len(names)), names)
        drawn[0].invert_yaxis()
        legend: dict[str, Any] = {
            f"degree {degree}": patch(shades[degree], edgecolor="none") for degree in degrees
        }
        legend["waiting"] = patch(_WAITING, edgecolor="none")
        legend["plan made for the published bandwidths"] = dot(_CARRIED, marker="x")
        legend["best single degree"] = dot(_SINGLE, 11, marker="|")
        share_legend(page, legend, 5)
    return Drawn(_caption(rows, panels), _alternative(rows, panels), rows)


def _rows(frame: DataFrame, settings: UnderlayFigureSettings) -> DataFrame:
    """A row for each part of a bar, and one for each bar and mark as a whole.

    Means over the batches, in seconds. The bandwidths that the cluster lists stand
    beside the networks of the first rate, which is the cluster's.
    """
    rates = frame.loc[frame["basis"] == "equal_rate", "outside_gb_s"]
    first = float(rates.min())
    order = [
        ("equal_rate", first, f"Equal rate: {quantity(first)} GB/s a device"),
        ("equal_cost", None, "Equal cost: as InfiniBand"),
        *(
            ("equal_rate", rate, f"Equal rate: {quantity(rate)} GB/s a device")
            for rate in sorted(set(rates) - {first})
        ),
    ]
    parts = []
    for basis, rate, panel in order:
        rows = frame[frame["basis"] == basis]
        if rate is not None:
            rows = rows[rows["outside_gb_s"] == rate]
        if rate == first:
            listed = frame[frame["basis"] == "own"]
            rows = stack([listed, listed.assign(made_for="network"), rows])
        for (network, label), bar in rows.groupby(["network", "label"], sort=False):
            head = {"panel": panel, "network": network, "label": label}
            head |= {"outside_gb_s": bar["outside_gb_s"].iloc[0]}
            parts += [head | row for row in _bar(bar, settings)]
    return to_frame(parts)


def _bar(bar: DataFrame, settings: UnderlayFigureSettings) -> list[dict[str, Any]]:
    fidelity = str(bar["fidelity"].iloc[0])
    marks = []
    for mark, plan, made_for in (
        ("made for it", settings.adaptive, "network"),
        ("made for the published bandwidths", settings.adaptive, "cluster"),
        ("best single degree", settings.single, "network"),
    ):
        rows = bar[(bar["plan"] == plan) & (bar["made_for"] == made_for)]
        seconds = float(rows.drop_duplicates("iteration")["iteration_ms"].mean()) / 1e3
        marks.append({"mark": mark, "degree": None, "seconds": seconds, "share": 1.0})
        if mark == "made for it":
            busy = rows.groupby("degree")["device_ms"].sum()
            shares = busy / busy.sum()
            marks += [
                {
                    "mark": "degree",
                    "degree": int(str(degree)),
                    "seconds": share * seconds,
                    "share": share,
                }
                for degree, share in shares.items()
            ]
    return [row | {"fidelity": fidelity} for row in marks]


def _panel(axes: Axes, rows: DataFrame, names: list[str], shades: dict[int, str]) -> None:
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    style["xycoords"] = axes.get_yaxis_transform()
    for label, bar in rows.groupby("label", sort=False):
        position = names.index(str(label))
        parts = bar[bar["mark"] == "degree"].set_index("degree")["seconds"]
        left = 0.0
        for degree in [*sorted(degree for degree in parts.index if degree), 0]:
            width = float(parts.get(degree, 0.0))
            colour = shades[int(degree)] if degree else _WAITING
            axes.barh(position, width, left=left, height=0.7, color=colour, linewidth=0)
            left += width
        total = bar.set_index("mark")["seconds"]
        carried = float(total["made for the published bandwidths"])
        single = float(total["best single degree"])
        axes.plot(carried, position, "x", color=_CARRIED, markersize=5, zorder=4)
        axes.plot(single, position, "|", color=_SINGLE, markersize=11, markeredgewidth=2, zorder=4)
        axes.annotate(quantity(left), (1, position), (-4, 0), ha="right", **style)
    axes.grid(visible=False, axis="y")


def _words(bar: DataFrame) -> str:
    total = bar.set_index("mark")["seconds"]
    parts = bar[(bar["mark"] == "degree") & (bar["degree"] > 0)].sort_values("share")
    most = parts.iloc[::-1].head(2)
    degrees = " and ".join(
        f"degree {int(row['degree'])} {quantity(100 * row['share'])} %" for row in records(most)
    )
    return (
        f"{quantity(total['made for it'])} s (best single degree"
        f" {quantity(total['best single degree'])} s; most in {degrees})"
    )


def _caption(rows: DataFrame, panels: list[str]) -> str:
    sentences = " ".join(f"{panel}. {_of_panel(rows, panel)}." for panel in panels)
    return (
        f"What the network under a cluster does to plans of sequence parallelism. {_OURS}"
        " Bars are predicted iterations of plans made for each network, parted by the degree of"
        " the groups that take the device time; crosses are the plan that was made for the"
        f" published bandwidths, on this network. {sentences}"
    )


def _of_panel(rows: DataFrame, panel: str) -> str:
    part = rows[rows["panel"] == panel]
    return "; ".join(f"{label}: {_words(bar)}" for label, bar in part.groupby("label", sort=False))


def _alternative(rows: DataFrame, panels: list[str]) -> str:
    return "Stacked bars of the iteration time by network. " + " ".join(
        f"{panel}: {_of_panel(rows, panel)}." for panel in panels
    )


FIGURE = Figure(
    UnderlayFigureSettings,
    "The network under adaptive sequence parallelism",
    "flexsp",
    (
        FigureInput(
            "mix",
            "underlay.mix",
            "network label plan basis outside_gb_s made_for iteration iteration_ms degree "
            "device_ms fidelity",
        ),
    ),
    draw,
)
