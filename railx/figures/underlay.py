"""Plans of sequence parallelism on different networks: times and degrees.

A bar is as long as an iteration and parted by degree: the device time that groups of
each degree take. No paper has this comparison, and the figure says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    INK,
    PALETTE,
    canvas,
    degree_colours,
    panel_title,
    quantity,
    share_legend,
)
from railx.settings import NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "UnderlayFigureSettings"]

_COLUMNS = (
    *("network", "label", "plan", "basis", "outside_gb_s", "made_for", "iteration"),
    *("iteration_ms", "degree", "device_ms", "fidelity"),
)
_WAITING = "#dfe3e8"
_SINGLE, _CARRIED = PALETTE[1], INK
_OURS = "No paper has this comparison; it is ours."


@dataclass(frozen=True)
class UnderlayFigureSettings(CanvasSettings):
    """Iteration time and degrees of a plan made for each network."""

    figure: Literal["underlay"]
    """Which figure it is."""

    adaptive: Annotated[str, NotEmpty()]
    """Plan whose groups adapt; its degrees are shown."""

    single: Annotated[str, NotEmpty()]
    """Plan with a single degree for each batch, shown as a mark."""

    only: tuple[str, ...]
    """Networks to show, in that order; empty: all that there are."""


def draw(settings: UnderlayFigureSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel for each rate that networks are compared at, a bar for each network.

    Raises ValueError where one of the plans is not there.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    frame = read_frames(inputs, "mix", _COLUMNS, "network", settings.only)
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
    with canvas(
        settings,
        output,
        "The network under adaptive sequence parallelism",
        subtitle,
        fidelity_line(rows["fidelity"]),
    ) as figure:
        drawn = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        names = list(dict.fromkeys(rows["label"]))
        for axes, panel in zip(drawn, panels, strict=True):
            _panel(axes, rows[rows["panel"] == panel], names, shades)
            axes.set_title(panel_title(panel, len(panels), settings))
            axes.set_xlim(0, 1.3 * longest)
            axes.set_xlabel("Iteration (s)")
        drawn[0].set_yticks(range(len(names)), names)
        drawn[0].invert_yaxis()
        handles: list[Any] = [
            Patch(facecolor=shades[degree], edgecolor="none") for degree in degrees
        ]
        handles += [
            Patch(facecolor=_WAITING, edgecolor="none"),
            Line2D([], [], linestyle="none", marker="x", color=_CARRIED),
            Line2D([], [], linestyle="none", marker="|", markersize=11, color=_SINGLE),
        ]
        texts = [f"degree {degree}" for degree in degrees]
        texts += ["waiting", "plan made for the published bandwidths", "best single degree"]
        share_legend(figure, handles, texts, 5)
    return Drawn(_caption(rows, panels), _alternative(rows, panels), rows)


def _rows(frame: pd.DataFrame, settings: UnderlayFigureSettings) -> pd.DataFrame:
    """A row for each part of a bar, and one for each bar and mark as a whole.

    Means over the batches, in seconds. The bandwidths that the cluster lists stand
    beside the networks of the first rate, which is the cluster's.
    """
    import pandas as pd

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
        own = frame[frame["basis"] == basis]
        if rate is not None:
            own = own[own["outside_gb_s"] == rate]
        if rate == first:
            listed = frame[frame["basis"] == "own"]
            own = pd.concat([listed, listed.assign(made_for="network"), own])
        for (network, label), bar in own.groupby(["network", "label"], sort=False):
            head = {"panel": panel, "network": network, "label": label}
            head |= {"outside_gb_s": bar["outside_gb_s"].iloc[0]}
            parts += [head | row for row in _bar(bar, settings)]
    return pd.DataFrame(parts)


def _bar(bar: pd.DataFrame, settings: UnderlayFigureSettings) -> list[dict[str, Any]]:
    fidelity = str(bar["fidelity"].iloc[0])
    found = []
    for mark, plan, made_for in (
        ("made for it", settings.adaptive, "network"),
        ("made for the published bandwidths", settings.adaptive, "cluster"),
        ("best single degree", settings.single, "network"),
    ):
        own = bar[(bar["plan"] == plan) & (bar["made_for"] == made_for)]
        seconds = float(own.drop_duplicates("iteration")["iteration_ms"].mean()) / 1e3
        found.append({"mark": mark, "degree": None, "seconds": seconds, "share": 1.0})
        if mark == "made for it":
            busy = own.groupby("degree")["device_ms"].sum()
            shares = busy / busy.sum()
            found += [
                {
                    "mark": "degree",
                    "degree": int(str(degree)),
                    "seconds": share * seconds,
                    "share": share,
                }
                for degree, share in shares.items()
            ]
    return [row | {"fidelity": fidelity} for row in found]


def _panel(axes: Axes, rows: pd.DataFrame, names: list[str], shades: dict[int, str]) -> None:
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    style["xycoords"] = axes.get_yaxis_transform()
    for label, bar in rows.groupby("label", sort=False):
        place = names.index(str(label))
        parts = bar[bar["mark"] == "degree"].set_index("degree")["seconds"]
        left = 0.0
        for degree in [*sorted(degree for degree in parts.index if degree), 0]:
            width = float(parts.get(degree, 0.0))
            colour = shades[int(degree)] if degree else _WAITING
            axes.barh(place, width, left=left, height=0.7, color=colour, linewidth=0)
            left += width
        whole = bar.set_index("mark")["seconds"]
        carried = float(whole["made for the published bandwidths"])
        single = float(whole["best single degree"])
        axes.plot(carried, place, "x", color=_CARRIED, markersize=5, zorder=4)
        axes.plot(single, place, "|", color=_SINGLE, markersize=11, markeredgewidth=2, zorder=4)
        axes.annotate(quantity(left), (1, place), (-4, 0), ha="right", **style)
    axes.grid(visible=False, axis="y")


def _words(bar: pd.DataFrame) -> str:
    whole = bar.set_index("mark")["seconds"]
    parts = bar[(bar["mark"] == "degree") & (bar["degree"] > 0)].sort_values("share")
    most = parts.iloc[::-1].head(2)
    degrees = " and ".join(
        f"degree {int(row['degree'])} {quantity(100 * row['share'])} %"
        for row in most.to_dict("records")
    )
    return (
        f"{quantity(whole['made for it'])} s (best single degree"
        f" {quantity(whole['best single degree'])} s; most in {degrees})"
    )


def _caption(rows: pd.DataFrame, panels: list[str]) -> str:
    sentences = " ".join(f"{panel}. {_of_panel(rows, panel)}." for panel in panels)
    return (
        f"What the network under a cluster does to plans of sequence parallelism. {_OURS}"
        " Bars are predicted iterations of plans made for each network, parted by the degree of"
        " the groups that take the device time; crosses are the plan that was made for the"
        f" published bandwidths, on this network. {sentences}"
    )


def _of_panel(rows: pd.DataFrame, panel: str) -> str:
    own = rows[rows["panel"] == panel]
    return "; ".join(f"{label}: {_words(bar)}" for label, bar in own.groupby("label", sort=False))


def _alternative(rows: pd.DataFrame, panels: list[str]) -> str:
    return "Stacked bars of the iteration time by network. " + " ".join(
        f"{panel}: {_of_panel(rows, panel)}." for panel in panels
    )


FIGURE = Figure(
    settings=UnderlayFigureSettings,
    title="The network under adaptive sequence parallelism",
    paper="flexsp",
    inputs=(FigureInput("mix", "underlay.mix", columns=_COLUMNS),),
    draw=draw,
)
