"""Where the claims on the cost and the power of photonic rails hold.

The map is over what the electrical rails are built of: switch ports of a GPU, and the
price or the power of a transceiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    INK,
    PALETTE,
    canvas,
    lighter,
    quantity,
    share_legend,
)
from railx.figures.words import sentence

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "RailBoundary", "RailClaimsSettings", "RailPoint"]

_COLUMNS = (
    "platform",
    "transceivers_per_gpu",
    "claim",
    "transceiver",
    "switch_ports_per_gpu",
    "ratio",
    "limit",
    "holds",
    "ports_at_boundary",
    "fidelity",
)
_HOLDS = (PALETTE[2], 0.78)
_TITLES = {"cost": "Cost", "power": "Power"}
_UNITS = {"cost": "Transceiver (USD)", "power": "Transceiver (W)"}
_DASHES = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_MARKS = "osv^DP"


@dataclass(frozen=True)
class RailBoundary:
    """A platform whose boundary is drawn."""

    words: str
    """Words for it."""

    platform: str
    """Platform of the map."""

    transceivers_per_gpu: int
    """Transceivers of a GPU on photonic rails."""


@dataclass(frozen=True)
class RailPoint:
    """A point of the map at the first boundary's platform."""

    words: str
    """Words for it."""

    usd: float
    """USD of a transceiver."""

    watts: float
    """W of a transceiver."""

    ports: float
    """Switch ports of a GPU."""


@dataclass(frozen=True)
class RailClaimsSettings(CanvasSettings):
    """Where the claims on cost and power of photonic rails hold."""

    figure: Literal["rail_claims"]
    """Which figure it is."""

    boundaries: tuple[RailBoundary, ...]
    """Boundaries; the region of the first is shaded and has contours."""

    points: tuple[RailPoint, ...]
    """Points that are marked, filled where the claim holds at the first boundary."""

    contours: dict[str, tuple[float, ...]]
    """Ratios with a contour line, by claim (cost, power)."""


def draw(settings: RailClaimsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel for cost and one for power.

    Raises ValueError for a boundary that the table does not have.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    table = read_frames(inputs, "map", _COLUMNS)
    points = _points(settings, table)
    limits = {str(claim): float(rows["limit"].iloc[0]) for claim, rows in table.groupby("claim")}
    subtitle = (
        "Electrical over photonic rails. Shaded: the claim holds"
        f" ({settings.boundaries[0].words}). Lines: where it just holds; grey contours: times lower"
        " with photonic rails. Marks: filled where the claim holds."
    )
    with canvas(
        settings,
        output,
        "What the saving of photonic rails rests on",
        subtitle,
        fidelity_line(table["fidelity"], "Port prices and power: the artifact's"),
    ) as figure:
        panels = figure.subplots(1, 2)
        for axes, (claim, title) in zip(panels, _TITLES.items(), strict=True):
            _panel(axes, settings, table[table["claim"] == claim], claim, points)
            axes.set(
                title=f"{title}: {quantity(limits[claim])} times lower",
                xlabel=_UNITS[claim],
                ylabel="Electrical switch ports per GPU",
            )
        handles: list[Any] = [Patch(facecolor=lighter(*_HOLDS))]
        texts = ["Claim holds"]
        for number, one in enumerate(settings.boundaries):
            handles.append(Line2D([], [], **_line(number)))
            texts.append(one.words)
        for mark, point in zip(_MARKS, settings.points, strict=False):
            handles.append(Line2D([], [], linestyle="none", marker=mark, color=INK, markersize=7))
            texts.append(point.words)
        share_legend(figure, handles, texts, 2)
    return Drawn(_caption(settings, points, limits), _alternative(settings, points), points)


def _line(number: int) -> dict[str, Any]:
    colour = INK if number == 0 else PALETTE[(0, 5, 7)[number % 3]]
    return {"color": colour, "linestyle": _DASHES[number % 4], "linewidth": 1.8}


def _of(table: pd.DataFrame, boundary: RailBoundary) -> pd.DataFrame:
    own = table[
        (table["platform"] == boundary.platform)
        & (table["transceivers_per_gpu"] == boundary.transceivers_per_gpu)
    ]
    if own.empty:
        known = table.drop_duplicates(["platform", "transceivers_per_gpu"])
        raise UserError(
            f"boundaries: got {boundary.platform} with {boundary.transceivers_per_gpu}; allowed: "
            + ", ".join(
                f"{name} with {count}"
                for name, count in zip(
                    known["platform"], known["transceivers_per_gpu"], strict=True
                )
            )
        )
    return own


def _points(settings: RailClaimsSettings, table: pd.DataFrame) -> pd.DataFrame:
    """The marked points and the boundaries: what the words are made of."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    base = _of(table, settings.boundaries[0])
    for point in settings.points:
        for claim, level in (("cost", point.usd), ("power", point.watts)):
            found = base[
                (base["claim"] == claim)
                & np.isclose(base["transceiver"], level)
                & np.isclose(base["switch_ports_per_gpu"], point.ports)
            ]
            if found.empty:
                raise UserError(
                    f"points: no {claim} at {level:g} and {point.ports:g} ports; allowed: points of"
                    " the map"
                )
            rows.append(
                {
                    "kind": "point",
                    "words": point.words,
                    "claim": claim,
                    "transceiver": level,
                    "switch_ports_per_gpu": point.ports,
                    "ratio": float(found["ratio"].iloc[0]),
                    "holds": bool(found["holds"].iloc[0]),
                }
            )
    for boundary in settings.boundaries:
        own = _of(table, boundary).drop_duplicates(["claim", "transceiver"])
        rows += [
            {
                "kind": "boundary",
                "words": boundary.words,
                "claim": row["claim"],
                "transceiver": row["transceiver"],
                "switch_ports_per_gpu": row["ports_at_boundary"],
                "ratio": row["limit"],
                "holds": True,
            }
            for row in own.to_dict("records")
        ]
    return pd.DataFrame(rows)


def _panel(
    axes: Axes,
    settings: RailClaimsSettings,
    table: pd.DataFrame,
    claim: str,
    points: pd.DataFrame,
) -> None:
    base = _of(table, settings.boundaries[0])
    edge = base.drop_duplicates("transceiver").sort_values("transceiver")
    right = float(edge["transceiver"].max())
    top = float(base["switch_ports_per_gpu"].max())
    axes.fill_between(
        edge["transceiver"],
        edge["ports_at_boundary"],
        max(top, float(edge["ports_at_boundary"].max())) + 1,
        color=lighter(*_HOLDS),
        linewidth=0,
        zorder=0,
    )
    for ratio in settings.contours[claim]:
        x, y = _contour(base, ratio)
        axes.plot(x, y, color=GREY, linewidth=0.9)
        inside = [place for place in range(len(x)) if 0.3 < y[place] < 0.96 * top]
        if inside:
            last = inside[-1] if x[inside[-1]] < 0.97 * right else inside[-2]
            axes.annotate(
                f"{ratio:g}x",
                (x[last], y[last]),
                ha="center",
                va="center",
                color=GREY,
                bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            )
    for number, boundary in enumerate(settings.boundaries):
        own = _of(table, boundary).drop_duplicates("transceiver").sort_values("transceiver")
        axes.plot(own["transceiver"], own["ports_at_boundary"], **_line(number))
    marked = points[(points["kind"] == "point") & (points["claim"] == claim)]
    for mark, row in zip(_MARKS, marked.to_dict("records"), strict=False):
        axes.plot(
            row["transceiver"],
            row["switch_ports_per_gpu"],
            mark,
            color=INK,
            markerfacecolor=INK if row["holds"] else "white",
            markersize=7.5,
            zorder=5,
        )
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _contour(base: pd.DataFrame, ratio: float) -> tuple[list[float], list[float]]:
    """Ports at which a ratio is reached, by transceiver: it is linear in the ports."""
    x, y = [], []
    for level, rows in base.sort_values("switch_ports_per_gpu").groupby("transceiver"):
        low, high = rows.iloc[0], rows.iloc[-1]
        slope = (high["ratio"] - low["ratio"]) / (
            high["switch_ports_per_gpu"] - low["switch_ports_per_gpu"]
        )
        x.append(float(level))  # type: ignore[arg-type]
        y.append(float(low["switch_ports_per_gpu"] + (ratio - low["ratio"]) / slope))
    return x, y


def _caption(settings: RailClaimsSettings, points: pd.DataFrame, limits: dict[str, float]) -> str:
    parts = []
    for claim, title in _TITLES.items():
        marked = points[(points["kind"] == "point") & (points["claim"] == claim)]
        ratios = [
            f"{quantity(row['ratio'])} times at {row['words']}" for row in marked.to_dict("records")
        ]
        edge = points[
            (points["kind"] == "boundary")
            & (points["claim"] == claim)
            & (points["words"] == settings.boundaries[0].words)
        ]
        level = float(marked["transceiver"].iloc[0])
        needed = float(
            edge.loc[np.isclose(edge["transceiver"], level), "switch_ports_per_gpu"].iloc[0]
        )
        unit = "USD" if claim == "cost" else "W"
        parts.append(
            f"{title}: {'; '.join(ratios)}. With transceivers of {quantity(level)} {unit} the"
            f" {quantity(limits[claim])} times of the abstract take {quantity(needed)} switch ports"
            " a GPU."
        )
    return sentence(*parts)


def _alternative(settings: RailClaimsSettings, points: pd.DataFrame) -> str:
    marked = points[points["kind"] == "point"]
    return (
        "Two maps of switch ports per GPU over the price and over the power of a transceiver, with"
        f" the region where photonic rails save as much as claimed and {len(settings.boundaries)}"
        " boundaries. "
        + "; ".join(
            f"{row['words']}: {quantity(row['ratio'])} times lower {row['claim']},"
            f" {'holds' if row['holds'] else 'does not hold'}"
            for row in marked.to_dict("records")
        )
        + "."
    )


FIGURE = Figure(
    settings=RailClaimsSettings,
    title="What the saving of photonic rails rests on",
    paper="opus",
    inputs=(FigureInput("map", "economics.rail_map", columns=_COLUMNS),),
    draw=draw,
)
