"""Plans of sequence parallelism on different networks: times and degrees.

A bar is as long as an iteration and parted by degree: the device time that groups of
each degree take. No paper has this comparison; the subtitle says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import at_edge, panel_title, patch, share_legend
from railx.figures.tables import Tables, records, stack, to_frame, where
from railx.figures.theme import INK, PALETTE, degree_colours, dot
from railx.figures.words import fidelity_line, quantity
from railx.settings import NotEmpty

__all__ = ["FIGURE", "UnderlayFigureSettings"]

_WAITING = "#dfe3e8"
_MADE, _LISTED, _BEST = "made for it", "made for the published bandwidths", "best single degree"
_CARRIED, _SINGLE = dot(INK, marker="x"), dot(PALETTE[1], 11, marker="|")
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
        plan, plans = getattr(settings, key), sorted(set(frame["plan"]))
        if plan not in plans:
            raise UserError(f"{key}: got {plan!r}; allowed: {', '.join(plans)}")
    rows = _rows(frame, settings)
    panels = list(rows["panel"].unique())
    degrees = sorted({int(degree) for degree in rows["degree"].dropna() if degree > 0})
    shades = degree_colours(degrees, max(degrees))
    longest = float(rows.loc[rows["mark"] != "degree", "seconds"].max())
    subtitle = f"""{_OURS} Length of a bar, and number: predicted iteration of the plan that is made
        for the network; its parts: device time by degree. Links inside nodes are equally fast
        everywhere."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        drawn = page.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        names = list(rows["label"].unique())
        for axes, panel in zip(drawn, panels, strict=True):
            _panel(axes, where(rows, panel=panel), names, shades)
            axes.set(title=panel_title(panel, len(panels), settings), xlim=(0, 1.3 * longest))
            axes.set_xlabel("Iteration (s)")
        drawn[0].set_yticks(range(len(names)), names)
        drawn[0].invert_yaxis()
        legend: dict[str, Any] = {
            f"degree {degree}": patch(shades[degree], edgecolor="none") for degree in degrees
        }
        legend["waiting"] = patch(_WAITING, edgecolor="none")
        share_legend(page, legend | {f"plan {_LISTED}": _CARRIED, _BEST: _SINGLE}, 5)
    parts = {
        str(panel): "; ".join(
            f"{label!s}: {_words(bar)}" for label, bar in part.groupby("label", sort=False)
        )
        for panel, part in rows.groupby("panel", sort=False)
    }
    caption = f"""What the network under a cluster does to plans of sequence parallelism. {_OURS}
        Bars are predicted iterations of plans made for each network, parted by the degree of the
        groups that take the device time; crosses are the plan that was made for the published
        bandwidths, on this network."""
    alternative = "Stacked bars of the iteration time by network."
    for panel, text in parts.items():
        caption += f" {panel}. {text}."
        alternative += f" {panel}: {text}."
    return Drawn(caption, alternative, rows)


def _rows(frame: DataFrame, settings: UnderlayFigureSettings) -> DataFrame:
    """A row for each part of a bar, and one for each bar and mark as a whole.

    Means over the batches, in seconds. The bandwidths that the cluster lists are
    drawn beside the networks of the first rate, which is the cluster's.
    """
    rates = where(frame, basis="equal_rate")["outside_gb_s"]
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
        rows = where(frame, basis=basis)
        if rate is not None:
            rows = where(rows, outside_gb_s=rate)
        if rate == first:
            listed = where(frame, basis="own")
            rows = stack([listed, listed.assign(made_for="network"), rows])
        for (network, label), bar in rows.groupby(["network", "label"], sort=False):
            head = {"panel": panel, "network": network, "label": label}
            head |= {"outside_gb_s": bar["outside_gb_s"].iloc[0]}
            parts += [head | row for row in _bar(bar, settings)]
    return to_frame(parts)


def _bar(bar: DataFrame, settings: UnderlayFigureSettings) -> list[dict[str, Any]]:
    marks: list[dict[str, Any]] = []
    for mark, plan, made_for in (
        (_MADE, settings.adaptive, "network"),
        (_LISTED, settings.adaptive, "cluster"),
        (_BEST, settings.single, "network"),
    ):
        rows = where(bar, plan=plan, made_for=made_for)
        seconds = float(rows.drop_duplicates("iteration")["iteration_ms"].mean()) / 1e3
        marks.append({"mark": mark, "degree": None, "seconds": seconds, "share": 1.0})
        if mark == _MADE:
            busy = rows.groupby("degree")["device_ms"].sum()
            for degree, share in (busy / busy.sum()).items():
                part = {"mark": "degree", "degree": int(str(degree))}
                marks.append(part | {"seconds": share * seconds, "share": share})
    return [mark | {"fidelity": str(bar["fidelity"].iloc[0])} for mark in marks]


def _panel(axes: Axes, rows: DataFrame, names: list[str], shades: dict[int, str]) -> None:
    for label, bar in rows.groupby("label", sort=False):
        position = names.index(str(label))
        parts = where(bar, mark="degree").set_index("degree")["seconds"]
        left = 0.0
        for degree in [*sorted(degree for degree in parts.index if degree), 0]:
            width = float(parts.get(degree, 0.0))
            colour = shades[int(degree)] if degree else _WAITING
            axes.barh(position, width, left=left, height=0.7, color=colour, linewidth=0)
            left += width
        total = bar.set_index("mark")["seconds"]
        axes.plot(float(total[_LISTED]), position, **_CARRIED, markersize=5, zorder=4)
        axes.plot(float(total[_BEST]), position, **_SINGLE, markeredgewidth=2, zorder=4)
        at_edge(axes, quantity(left), position, 4)
    axes.grid(visible=False, axis="y")


def _words(bar: DataFrame) -> str:
    total = bar.set_index("mark")["seconds"]
    parts = bar[(bar["mark"] == "degree") & (bar["degree"] > 0)].sort_values("share")
    degrees = " and ".join(
        f"degree {int(row['degree'])} {quantity(100 * row['share'])} %"
        for row in records(parts.iloc[::-1].head(2))
    )
    return f"""{quantity(total[_MADE])} s (best single degree {quantity(total[_BEST])} s; most in
        {degrees})"""


FIGURE = declare(
    UnderlayFigureSettings,
    "The network under adaptive sequence parallelism",
    "flexsp",
    draw,
    mix="underlay.mix: network label plan basis outside_gb_s made_for iteration iteration_ms"
    " degree device_ms fidelity",
)
