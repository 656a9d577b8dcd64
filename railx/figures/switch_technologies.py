"""Technologies of optical switches: how many ports, and how long a change takes.

Nothing here is ours but the jobs: every value is published or recalled, so every mark
is hollow, and its shape says how far it is to be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame
from railx.figures.settings import CanvasSettings
from railx.figures.theme import (
    GREY,
    INK,
    PALETTE,
    PUBLISHED_MARK,
    canvas,
    share_legend,
)
from railx.figures.words import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "SwitchTechnologiesSettings"]

_COLUMNS = (
    "id",
    "technology",
    "example_device",
    "port_count",
    "switching_ms",
    "status",
    "source",
    "confidence",
)
#: Marks by confidence; high is the diamond of every published number.
_MARKS = {"high": "D", "medium": "s", "low": "o"}
_WORDS = {
    "high": "read in the source",
    "medium": "read in part",
    "low": "recalled, not verified",
}
_SERVERS = (PALETTE[2], PALETTE[7])
_STATUS = {"commercial": INK, "deployed": PALETTE[0], "research": PALETTE[5]}


@dataclass(frozen=True)
class SwitchTechnologiesSettings(CanvasSettings):
    """Ports and switching times of optical switches."""

    figure: Literal["switch_technologies"]
    """Which figure it is."""

    chips_per_server: tuple[int, ...]
    """Sizes of a server for which the largest job on one switch a rail is drawn."""

    sides: dict[str, str]
    """Where a device's name stands (left, right, above or below), if not right."""


def draw(settings: SwitchTechnologiesSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Switching time over ports, and the largest job by device beside it."""
    from matplotlib.lines import Line2D

    table = published_frame(inputs, "technologies", _COLUMNS)
    points = _points(settings, table)
    subtitle = (
        "Left: ports and switching time of devices; those without a time stand on the upper edge."
        " Right: GPUs of the largest job where each rail has one such switch and a GPU two ports"
        " (arithmetic). Shapes: confidence in the values."
    )
    with canvas(
        settings,
        output,
        "Optical switches: ports, switching time and the job that fits",
        subtitle,
        "Published and recalled values, none measured here; the paper's own table was not at hand.",
    ) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
        _times(left, settings, points)
        _jobs(right, settings, points)
        known = [one for one in _MARKS if one in set(points["confidence"])]
        handles: list[Any] = [
            Line2D([], [], **{**PUBLISHED_MARK, "marker": _MARKS[one]}) for one in known
        ]
        texts = [f"{one} confidence: {_WORDS[one]}" for one in known]
        for status in dict.fromkeys(points["status"]):
            colour = _STATUS.get(status, GREY)
            handles.append(
                Line2D([], [], **{**PUBLISHED_MARK, "marker": "_", "markeredgecolor": colour})
            )
            texts.append(status)
        for chips, colour in zip(settings.chips_per_server, _SERVERS, strict=False):
            handles.append(Line2D([], [], linestyle="none", marker="o", color=colour))
            texts.append(f"ours: in servers of {chips}")
        share_legend(figure, handles, texts, 3)
    return Drawn(_caption(settings, points), _alternative(points), points)


def _points(settings: SwitchTechnologiesSettings, table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    points = table[list(_COLUMNS)].copy()
    for column in ("port_count", "switching_ms"):
        points[column] = pd.to_numeric(points[column])
    for chips in settings.chips_per_server:
        points[f"gpus_in_servers_of_{chips}"] = points["port_count"] // 2 * chips
    unknown = [name for name in settings.sides if name not in set(points["id"])]
    if unknown:
        raise UserError(f"sides: got {', '.join(unknown)}; allowed: {', '.join(points['id'])}")
    return points


def _style(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        **PUBLISHED_MARK,
        "marker": _MARKS.get(str(row["confidence"]), "o"),
        "markeredgecolor": _STATUS.get(str(row["status"]), GREY),
        "markersize": 7,
    }


def _times(axes: Axes, settings: SwitchTechnologiesSettings, points: pd.DataFrame) -> None:
    import pandas as pd
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    top = 10 * float(points["switching_ms"].max())
    offsets = {
        "right": (7, 0, "left", "center"),
        "left": (-7, 0, "right", "center"),
        "above": (0, 7, "center", "bottom"),
        "below": (0, -7, "center", "top"),
    }
    for row in points.to_dict("records"):
        known = not pd.isna(row["switching_ms"])
        y = row["switching_ms"] if known else top
        axes.plot(row["port_count"], y, clip_on=False, **_style(row))
        dx, dy, across, along = offsets[settings.sides.get(str(row["id"]), "right")]
        axes.annotate(
            str(row["example_device"]),
            (row["port_count"], y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha=across,
            va=along,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([16, 32, 64, 128, 256, 512, 1024]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    ticks = {1e-5: "10 ns", 1e-3: "1 us", 1e-1: "100 us", 10: "10 ms", 1e3: "1 s", 6e4: "1 min"}
    axes.yaxis.set_major_locator(FixedLocator([*ticks, top]))
    axes.yaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: next(
                (text for at, text in ticks.items() if abs(value / at - 1) < 1e-6), "not given"
            )
        )
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="Ports", ylabel="Switching time", xlim=(11, 3000), ylim=(3e-6, 2.5 * top))


def _jobs(axes: Axes, settings: SwitchTechnologiesSettings, points: pd.DataFrame) -> None:
    order = points.sort_values("port_count").to_dict("records")
    for place, row in enumerate(order):
        for chips, colour in zip(settings.chips_per_server, _SERVERS, strict=False):
            gpus = row[f"gpus_in_servers_of_{chips}"]
            axes.plot(gpus, place, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(order)), [str(row["example_device"]) for row in order])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="GPUs of the largest job")


def _caption(settings: SwitchTechnologiesSettings, points: pd.DataFrame) -> str:
    timed = points.dropna(subset=["switching_ms"])
    low = int((points["confidence"] == "low").sum())
    large = points.sort_values("port_count").iloc[-1]
    chips = settings.chips_per_server[0]
    sources = [
        f"{row['example_device']}, {row['source']}"
        for row in points[points["confidence"] != "low"].to_dict("records")
    ]
    return (
        f"{counted(len(points), 'device')}, {len(timed)} with a switching time; {low} are recalled"
        " and not verified. No price but that of one switch has a source: 520 USD per port, of the"
        f" artifact's 192-port switch, which holds {192 // 2 * chips:,} GPUs in servers of {chips}."
        f" The largest, {large['example_device']}, would hold"
        f" {int(large[f'gpus_in_servers_of_{chips}']):,} and takes minutes to switch. Sources:"
        f" {'; '.join(sources)}; all others recalled."
    )


def _alternative(points: pd.DataFrame) -> str:
    return (
        "Switching time over ports of optical switches: "
        + "; ".join(
            f"{row['example_device']}, {int(row['port_count']):,} ports,"
            f" {_time(row['switching_ms'])}, {row['confidence']} confidence"
            for row in points.to_dict("records")
        )
        + "."
    )


def _time(ms: float) -> str:
    if ms != ms:
        return "no time given"
    return f"{ms:g} ms"


FIGURE = Figure(
    settings=SwitchTechnologiesSettings,
    title="Optical switches: ports, switching time and the job that fits",
    paper="opus",
    inputs=(FigureInput("technologies", published="opus_ocs_technologies.csv", columns=_COLUMNS),),
    draw=draw,
)
