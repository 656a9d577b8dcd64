"""Technologies of optical switches: how many ports, and how long a change takes.

Nothing here is ours but the jobs: every value is published or recalled, so every mark
is hollow, and its shape gives the confidence in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import beside, share_legend, ticks
from railx.figures.tables import Tables, records, refuse_unknown
from railx.figures.theme import GREY, INK, PALETTE, PUBLISHED_MARK, dot
from railx.figures.words import counted, phrases

__all__ = ["FIGURE", "SwitchTechnologiesSettings"]

#: Marks and words by confidence; high is the diamond of every published number.
_CONFIDENCE = {
    "high": ("D", "read in the source"),
    "medium": ("s", "read in part"),
    "low": ("o", "recalled, not verified"),
}
_SERVERS = (PALETTE[2], PALETTE[7])
_STATUS = {"commercial": INK, "deployed": PALETTE[0], "research": PALETTE[5]}
#: Position of a name: points right and up, alignments.
_SIDES = {
    "right": (7, 0, "left", "center"),
    "left": (-7, 0, "right", "center"),
    "above": (0, 7, "center", "bottom"),
    "below": (0, -7, "center", "top"),
}
_TIMES = {1e-5: "10 ns", 1e-3: "1 us", 1e-1: "100 us", 10: "10 ms", 1e3: "1 s", 6e4: "1 min"}


@dataclass(frozen=True)
class SwitchTechnologiesSettings(CanvasSettings):
    """Ports and switching times of optical switches."""

    figure: Literal["switch_technologies"] = "switch_technologies"
    height_inches: Height = 6.2

    chips_per_server: tuple[int, ...] = (8, 32)
    """Sizes of a server for which the largest job on one switch a rail is drawn."""

    sides: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            ("polatis_6000n", "google_palomar", "calient", "calient_s320", "telescent"), "left"
        )
    )
    """Where a device's name stands (left, right, above or below), if not right."""


def draw(settings: SwitchTechnologiesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Switching time over ports, and the largest job by device beside it."""
    points = tables.read("technologies")[tables.columns("technologies")]
    points = points.astype({"port_count": int, "switching_ms": float})
    for chips in settings.chips_per_server:
        points[f"gpus_in_servers_of_{chips}"] = points["port_count"] // 2 * chips
    refuse_unknown("sides", settings.sides, points["id"])
    subtitle = """Left: ports and switching time of devices; those without a time stand on the upper
        edge. Right: GPUs of the largest job where each rail has one such switch and a GPU two ports
        (arithmetic). Shapes: confidence in the values."""
    line = (
        "Published and recalled values, none measured here; the paper's own table was not at hand."
    )
    with canvas(subtitle, line) as page:
        left, right = page.subplots(1, 2, width_ratios=[1.5, 1])
        _times(left, settings, points)
        _jobs(right, settings, points)
        legend: dict[str, Any] = {}
        for confidence, (mark, words) in _CONFIDENCE.items():
            if confidence in set(points["confidence"]):
                legend[f"{confidence} confidence: {words}"] = PUBLISHED_MARK | {"marker": mark}
        for status in dict.fromkeys(points["status"]):
            dash = {"marker": "_", "markeredgecolor": _STATUS.get(status, GREY)}
            legend[status] = PUBLISHED_MARK | dash
        for chips, colour in zip(settings.chips_per_server, _SERVERS, strict=False):
            legend[f"ours: in servers of {chips}"] = dot(colour)
        share_legend(page, legend, 3)
    return Drawn(_caption(settings, points), _alternative(points), points)


def _style(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        **PUBLISHED_MARK,
        "marker": _CONFIDENCE.get(str(row["confidence"]), "o")[0],
        "markeredgecolor": _STATUS.get(str(row["status"]), GREY),
        "markersize": 7,
    }


def _times(axes: Axes, settings: SwitchTechnologiesSettings, points: DataFrame) -> None:
    top = 10 * float(points["switching_ms"].max())
    for row in records(points):
        y = top if row["switching_ms"] != row["switching_ms"] else row["switching_ms"]
        axes.plot(row["port_count"], y, clip_on=False, **_style(row))
        right, up, ha, va = _SIDES[settings.sides.get(str(row["id"]), "right")]
        beside(axes, str(row["example_device"]), row["port_count"], y, right, up, ha=ha, va=va)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks(axes.xaxis, [16, 32, 64, 128, 256, 512, 1024], "{x:,.0f}")

    def time(value: float) -> str:
        texts = (text for at, text in _TIMES.items() if abs(value / at - 1) < 1e-6)
        return next(texts, "not given")

    ticks(axes.yaxis, [*_TIMES, top], time)
    axes.set(xlabel="Ports", ylabel="Switching time", xlim=(11, 3000), ylim=(3e-6, 2.5 * top))


def _jobs(axes: Axes, settings: SwitchTechnologiesSettings, points: DataFrame) -> None:
    order = points.sort_values("port_count")
    for position, row in enumerate(records(order)):
        for chips, colour in zip(settings.chips_per_server, _SERVERS, strict=False):
            axes.plot(row[f"gpus_in_servers_of_{chips}"], position, **dot(colour, 5))
    axes.set_yticks(range(len(order)), [str(device) for device in order["example_device"]])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="GPUs of the largest job")


def _caption(settings: SwitchTechnologiesSettings, points: DataFrame) -> str:
    recalled = points["confidence"] == "low"
    large = points.sort_values("port_count").iloc[-1]
    chips = settings.chips_per_server[0]
    return f"""{counted(len(points), "device")}, {points["switching_ms"].notna().sum()} with a
        switching time; {recalled.sum()} are recalled and not verified. No price but that of one
        switch has a source: 520 USD per port, of the artifact's 192-port switch, which holds
        {192 // 2 * chips:,} GPUs in servers of {chips}. The largest, {large["example_device"]},
        would hold {int(large[f"gpus_in_servers_of_{chips}"]):,} and takes minutes to switch.
        Sources: {phrases(points[~recalled], "{example_device}, {source}")}; all others recalled."""


def _alternative(points: DataFrame) -> str:
    rows = points.assign(
        time=[f"{ms:g} ms" if ms == ms else "no time given" for ms in points["switching_ms"]]
    )
    row = "{example_device}, {port_count:,} ports, {time}, {confidence} confidence"
    return f"Switching time over ports of optical switches: {phrases(rows, row)}."


FIGURE = declare(
    SwitchTechnologiesSettings,
    "Optical switches: ports, switching time and the job that fits",
    "opus",
    draw,
    technologies="opus_ocs_technologies.csv: id technology example_device port_count switching_ms"
    " status source confidence",
)
