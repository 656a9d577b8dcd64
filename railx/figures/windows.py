"""How long networks idle between phases, beside how long optical switches take.

Windows and phases are those that Opus publishes for its jobs, and those of generated
steps; most switching times are recalled and drawn as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.marks import DERIVED, PUBLISHED_MARK, dot, published_mark
from railx.figures.panels import beside, name_rows, patch, share_legend, ticks, tiles
from railx.figures.tables import records, refuse_unknown, stack, where
from railx.figures.theme import GREY, INK, OPUS_JOBS, PALETTE, label, lighter
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import counted, phrases, quantity

# Published windows beside switching times

_JOBS = {**OPUS_JOBS, "deepseek2d": "DeepSeek, PP and TP"}
_PHASES = {
    "PP": ("Pipeline (PP)", PALETTE[3]),
    "DP": ("Data (DP)", PALETTE[2]),
    "EP": ("Expert (EP)", PALETTE[1]),
}
_LINE = PALETTE[0]
_UNITS_MS = {"min": 6e4, "s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_NOTE = """All numbers are published or derived from published ones: the windows are the artifact's
    analytical model of DeepSeek-V2 236B on 256 GPUs, the phases its traces of rank 0 on Perlmutter;
    pale switching times are recalled, not verified"""


@figure("Idle windows between phases, and how fast switches are", "opus", height=8.6)
@reads(
    windows="opus_deepseek236b_windows.csv: transition count_per_step mean_window_ms min_window_ms"
    " max_window_ms",
    technologies="opus_ocs_technologies.csv: technology example_device ports switching_time"
    " confidence",
    phases="opus_phase_pattern.csv: case phase_sequence transitions_per_iteration",
)
def switching_windows(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Windows between phases against switching times."""
    windows = _windows(tables.read("windows"))
    switches = tables.read("technologies")
    switches["switching_ms"] = switches["switching_time"].map(milliseconds)
    switches = switches.dropna(subset="switching_ms").sort_values("switching_ms")
    switches["hidden"] = [_longer(windows, time) for time in switches["switching_ms"]]
    phases = _phases(tables.read("phases"))
    subtitle = """Right of a switch's diamond lie the windows that hide its switching. Both axes of
        time are the same. Below, the phases of one iteration, as wide as they have operations."""
    with canvas(subtitle, [], _NOTE) as page:
        jobs = list(dict.fromkeys(phases["job"]))
        heights = [0.30 * len(switches) + 0.2, 2.6, 0.34 * len(jobs) + 0.3]
        above, middle, below = page.subplots(3, 1, height_ratios=heights)
        _technologies(above, switches)
        _published_distribution(middle, windows)
        above.set_xlim(middle.get_xlim())
        _pattern(below, phases, jobs)
        legend = {
            f"{name} phase": patch(lighter(colour, 0.35))
            for kind, (name, colour) in _PHASES.items()
            if kind in set(phases["phase"])
        }
        share_legend(page, legend, len(legend))
    columns = ["technology", "example_device", "switching_ms", "hidden", "confidence"]
    shown = {"window": windows, "switch": switches[columns], "phase": phases}
    data = stack(rows.assign(shows=shows) for shows, rows in shown.items())
    steps = windows.groupby("window_ms")["count"].sum().reset_index()
    alternative = f"""A staircase of the lengths of windows under diamonds of the switching times of
        optical switches, on one logarithmic axis of time; windows:
        {phrases(steps, "{count} of {window_ms:q} ms", ", ")}. Below, blocks of the phases of an
        iteration of four jobs."""
    longer = (f"{100 * _longer(windows, ms):.0f} % last {ms:g} ms or more" for ms in (1, 2, 10))
    text = f"Of {windows['count'].sum()} windows between unlike phases {', '.join(longer)}."
    verified = switches[switches["confidence"] != "low"]
    if len(verified):
        times = verified.assign(
            time=verified["switching_ms"].map(_time), percent=100 * verified["hidden"]
        )
        fits = phrases(times, "{example_device} ({time}) {percent:.0f} %")
        text += f" Share of the windows that hide a switch's time, times that were read: {fits}."
    counts = phrases(phases.drop_duplicates("job"), "{job} {transitions}")
    caption = f"""{text} {len(switches) - len(verified)} of the {len(switches)} switching times are
        recalled and drawn pale. Switches of an iteration: {counts}. A transition with two lengths
        is split by its mean."""
    return Drawn(caption, alternative, data)


def _windows(table: DataFrame) -> DataFrame:
    """Length and number of the windows between phases of different kinds.

    Sums over transitions and those that change nothing are left out.
    """
    names = table["transition"]
    kinds = names.str.extract(r"(\w+)->(\w+)")
    summed = [names.str.startswith(f"{name} ").any() for name in names]
    between = (kinds[0] != kinds[1]) & ~np.array(summed) & ~names.str.endswith(" all")
    windows = _split(table[between].rename(columns={"count_per_step": "count"}))
    windows = windows[["transition", "window_ms", "count"]]
    return windows.sort_values("window_ms", kind="stable", ignore_index=True)


def _split(rows: DataFrame) -> DataFrame:
    """A row for each length of a transition, two at most; the mean gives the counts."""
    low, high, mean = (rows[f"{end}_window_ms"].astype(float) for end in ("min", "max", "mean"))
    apart = (high - low).where(high - low > 1e-9)
    longer = (rows["count"] * (mean - low) / apart).round().fillna(0).astype(int)
    short = rows.assign(window_ms=low, count=rows["count"] - longer)
    both = stack([short, rows.assign(window_ms=high, count=longer)])
    return both[both["count"] > 0]


def _longer(windows: DataFrame, time_ms: float) -> float:
    """The share of windows at least as long as a time."""
    total = windows["count"].sum()
    return float(windows.loc[windows["window_ms"] >= time_ms, "count"].sum() / total)


def _phases(table: DataFrame) -> DataFrame:
    # One phase for the run is written otherwise: "PP only: one 84-op stage".
    parts = table["phase_sequence"].str.extractall(r"\b([A-Z]P)(?:\(| only.*?)(\d+)")
    parts = parts.set_axis(["phase", "operations"], axis="columns").droplevel(1)
    rows = table.join(parts.astype({"operations": int}), how="inner")
    rows = rows.assign(job=[_JOBS.get(case, label(case)) for case in rows["case"]])
    rows = rows.rename(columns={"transitions_per_iteration": "transitions"})
    return rows[["job", "phase", "operations", "transitions"]]


def _technologies(axes: Axes, switches: DataFrame) -> None:
    names = []
    for position, row in enumerate(records(switches)):
        colour = GREY if row["confidence"] == "low" else INK
        axes.plot(row["switching_ms"], position, **published_mark(colour))
        text = f"{_time(row['switching_ms'])}: {100 * row['hidden']:.0f} %"
        beside(axes, text, row["switching_ms"], position, 8, color=colour)
        device = row["example_device"].split(" (")[0]
        names.append(f"{row['technology'].split(' (')[0]}, {device}")
    name_rows(axes, names, above=0.6, below=0.6)
    axes.set_xscale("log")
    axes.set(title="Switching time, and the share of windows it fits into", xlabel="Switching time")
    axes.xaxis.set_major_formatter(lambda value, _: _time(value))


def milliseconds(text: object) -> float:
    """The first time with a unit in ``text``; NaN where there is none."""
    match = re.search(r"([0-9.]+) (ns|us|ms|s)\b", str(text))
    return float(match[1]) * _UNITS_MS[match[2]] if match else float("nan")


def _time(time_ms: float) -> str:
    for unit, scale in _UNITS_MS.items():
        if time_ms >= scale:
            return f"{quantity(time_ms / scale)} {unit}"
    return f"{quantity(time_ms)} ms"


def _published_distribution(axes: Axes, windows: DataFrame) -> None:
    drawn = _staircase(axes, windows, (5e-6, 1e4), _LINE)
    axes.plot(drawn.index, drawn, **published_mark(_LINE))
    before = drawn.shift(fill_value=100 - 100 * _longer(windows, 1e-12))
    far = drawn[drawn - before >= 10]  # the others are too near
    for length, share in zip(far.index, far, strict=True):
        beside(axes, f"{quantity(length)} ms", length, share, -7, 3, ha="right", va="bottom")
    axes.set(xscale="log", xlim=(5e-6, 1e4), ylim=(0, 112))
    axes.set(xlabel="Window", ylabel="Windows not longer (%)")
    axes.set_title(f"{int(windows['count'].sum())} windows between unlike phases of a step")
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.xaxis.set_major_formatter(lambda value, _: _time(value))


def _shares(windows: DataFrame) -> Series[Any]:
    """The share of windows not longer than each length, in percent."""
    cumulated = windows.groupby("window_ms")["count"].sum().cumsum()
    shares: Series[Any] = 100 * cumulated / cumulated.iloc[-1]
    return shares


def _staircase(
    axes: Axes, windows: DataFrame, ends: tuple[float, float], colour: str
) -> Series[Any]:
    """The distribution of windows between two ends of the axis; its shares above 0."""
    shares = _shares(windows)
    drawn: Series[Any] = shares[shares.index > 0]
    start = 100 - 100 * _longer(windows, 1e-12)
    stairs = ([ends[0], *drawn.index, ends[1]], [start, *drawn, 100])
    axes.step(*stairs, where="post", color=colour)
    return drawn


def _pattern(axes: Axes, phases: DataFrame, jobs: list[str]) -> None:
    for position, job in enumerate(jobs):
        rows = where(phases, job=job)
        count = rows["operations"]
        start = count.cumsum() - count
        fills = [lighter(_PHASES.get(kind, ("", GREY))[1], 0.35) for kind in rows["phase"]]
        style: dict[str, Any] = {"height": 0.8, "color": fills, "edgecolor": "white"}
        axes.barh([position] * len(rows), count, left=start, **style)
        for left, width in zip(start, count, strict=True):
            axes.text(left + width / 2, position, str(width), ha="center", va="center")
        beside(axes, f"{rows['transitions'].iloc[0]} switches", int(count.sum()), position, 6)
    name_rows(axes, jobs)
    axes.set_xlim(0, 1.14 * float(phases.groupby("job")["operations"].sum().max()))
    axes.set_xlabel("Network operations of rank 0, one iteration (the last job: its whole run)")
    axes.grid(visible=False)


# Windows of generated steps: within passes, and on the clock

#: Published finite windows of figs. 12 and 13: the rows and of how many they are sums.
_FINITE = {
    "h200_128": (("windows_hidden_h200_ms", 3),),
    "gb200_512": (("windows_short_gb200_ms", 3), ("windows_hidden_gb200_ms", 4)),
}
_GRADIENTS = {"overlapped": "behind computation", "in_line": "in line", "sharded": "FSDP"}


@dataclass(frozen=True)
class StepWindowsSettings(CanvasSettings):
    """Windows of generated steps."""

    passes: str = "deepseek_236b"
    """The step whose windows within passes are drawn beside the published ones."""
    timeline: tuple[str, ...] = ("h200_128", "gb200_512", "perlmutter_llama")
    """Steps whose windows on the clock are drawn."""


@figure("Windows of generated steps", "opus", height=5)
@reads(
    windows="steps.windows: step transition within_layer count mean_ms min_ms max_ms",
    timeline="steps.timeline: step job gradients device gpus transition window_ms fidelity",
    published="opus_deepseek236b_windows.csv: transition count_per_step mean_window_ms"
    " min_window_ms max_window_ms",
    headline="opus.csv: id value",
)
def step_windows(settings: StepWindowsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The distribution within passes, and every window of some jobs."""
    windows = tables.read("windows", "step", (settings.passes,))
    between = windows["transition"].isin(("PP->EP", "EP->PP"))
    ours = windows[between & ~windows["within_layer"].astype(bool)]
    ours = _steps(ours.rename(columns=lambda name: name.replace("_ms", "_window_ms")))
    published = tables.read("published").rename(columns={"count_per_step": "count"})
    names = published["transition"].str
    theirs = _steps(published[names.contains("fwd|bwd") & ~names.startswith("EP->EP")])
    clock = tables.read("timeline", "step", settings.timeline)
    clock = clock[clock["gradients"] != "at_end"]
    subtitle = """Left: computation between pipeline and expert traffic of DeepSeek-V2 236B. Right:
        idle time between operations of unlike kind on one rank of each stage, packet switches."""
    sides = {"analytic": "left", "replay": "right"}
    with canvas(subtitle, sides, "Generated jobs, no recordings", shows=sides) as page:
        titles = ("Within passes, 256 windows", "On the replay's clock")
        left, right = tiles(page, titles, 2, settings, width_ratios=(1, 1.25))
        lengths = stack([ours, theirs])["window_ms"]
        _staircase(left, ours, (lengths.min() / 2, 2 * lengths.max()), GREY)
        left.plot(theirs["window_ms"], _shares(theirs), **published_mark(GREY))
        left.set(xscale="log", xlabel="Window (ms)", ylabel="Windows not longer (%)", ylim=(0, 105))
        left.xaxis.set_major_formatter(lambda value, _: quantity(value))
        hues = dict(zip(dict.fromkeys(clock["transition"]), PALETTE, strict=False))
        jobs = _on_the_clock(right, clock, hues, tables.values("headline"))
        legend: dict[str, Any] = {"Ours, within passes": {"color": GREY}}
        legend |= {kind.replace("->", " to "): dot(colour) for kind, colour in hues.items()}
        share_legend(page, legend | {DERIVED.capitalize(): PUBLISHED_MARK}, 4)
    data = stack([ours.assign(shows="pass"), clock.assign(shows="clock")])
    apart = max(abs(a - b) / b for a, b in zip(ours["window_ms"], theirs["window_ms"], strict=True))
    groups = clock.groupby(["step", "job"], sort=False)["window_ms"]
    parts = "; ".join(
        f"{job} {quantity(times.clip(lower=0).median())} ms in the middle ({len(times)} windows)"
        for job, (_, times) in zip(jobs, groups, strict=True)
    )
    caption = f"""Windows of generated steps. Within passes of DeepSeek-V2 236B ours differ from the
        published by {quantity(100 * apart)} % at most. On the clock: {parts}. The diamonds are the
        finite windows behind the published latency sweeps, about half of ours, whose operations
        count twice. Negative windows overlap."""
    stairs = phrases(ours, "{count:.0f} of {window_ms:q} ms", ", ")
    alternative = f"""A staircase of windows ({stairs}) beside dots of the windows of
        {", ".join(jobs)}."""
    return Drawn(caption, alternative, data)


def _steps(rows: DataFrame) -> DataFrame:
    """Window lengths and how many there are."""
    return _split(rows).groupby("window_ms", as_index=False)[["count"]].sum()


def _on_the_clock(
    axes: Axes, clock: DataFrame, hues: dict[str, str], values: Series[Any]
) -> list[str]:
    names: list[str] = []
    for (step, _), rows in clock.groupby(["step", "job"], sort=False):
        y, first = len(names), rows.iloc[0]
        gradients = _GRADIENTS[str(first["gradients"])]
        names.append(f"{int(first['gpus'])} {first['device']},\n{gradients}")
        spread = np.linspace(-0.25, 0.25, max(2, len(rows)))[: len(rows)]
        fills = [hues[kind] for kind in rows["transition"]]
        axes.scatter(rows["window_ms"], y + spread, s=18, color=fills, zorder=3)
        for row, count in _FINITE.get(str(step), ()):
            axes.plot([float(values[row]) / count], [y], **published_mark("black"))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=1, linscale=0.4)
    low, high = axes.dataLim.intervalx
    axes.set(xlim=(2 * min(low, -1), 2 * max(high, 1)), xlabel="Window (ms)")
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    return [name.replace("\n", " ") for name in names]


# Devices: ports, switching time and the largest job; hollow, as none is measured here

#: Marks and words by confidence; high is the diamond of every published number.
_CONFIDENCE = {
    "high": ("D", "read in the source"),
    "medium": ("s", "read in part"),
    "low": ("o", "recalled, not verified"),
}
_SERVERS = tuple(PALETTE[position] for position in (2, 7, 1, 3, 4, 6))
_STATUS = {"commercial": INK, "deployed": PALETTE[0], "research": PALETTE[5]}
#: Position of a name: points right and up, alignments.
_SIDES: dict[str, dict[str, Any]] = {
    "right": {"ha": "left"},
    "left": {"right": -7, "ha": "right"},
    "above": {"right": 0, "up": 7, "ha": "center", "va": "bottom"},
    "below": {"right": 0, "up": -7, "ha": "center", "va": "top"},
}
#: Ticks of the axis of time in milliseconds.
_TIMES = (1e-5, 1e-3, 0.1, 10, 1e3, 6e4)


@dataclass(frozen=True)
class TechnologiesSettings(CanvasSettings):
    """Ports and switching times of optical switches."""

    chips_per_server: tuple[int, ...] = (8, 32)
    """Sizes of a server for which the largest job on one switch a rail is drawn."""
    sides: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            ("polatis_6000n", "google_palomar", "calient", "calient_s320", "telescent"), "left"
        )
    )
    """Where a device's name stands (left, right, above or below), if not right."""


@figure("Optical switches: ports, switching time and the job that fits", "opus", height=6.2)
@reads(
    technologies="opus_ocs_technologies.csv: id technology example_device port_count switching_ms"
    " status source confidence"
)
def switch_technologies(settings: TechnologiesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Switching time over ports, and the largest job by device beside it."""
    points = tables.read("technologies")[tables.columns("technologies")]
    points = points.astype({"port_count": int, "switching_ms": float})
    for chips in settings.chips_per_server:
        points[f"gpus_in_servers_of_{chips}"] = points["port_count"] // 2 * chips
    refuse_unknown("sides", settings.sides, points["id"])
    subtitle = """Left: ports and switching time of devices; those without a time stand on the upper
        edge. Right: GPUs of the largest job where each rail has one such switch and a GPU two ports
        (arithmetic). Shapes: confidence in the values."""
    note = """Published and recalled values, none measured here; the paper's own table was not at
        hand."""
    with canvas(subtitle, [], note) as page:
        left, right = page.subplots(1, 2, width_ratios=[1.5, 1])
        top = 10 * float(points["switching_ms"].max())
        for row in records(points):
            y = top if row["switching_ms"] != row["switching_ms"] else row["switching_ms"]
            mark = _CONFIDENCE.get(str(row["confidence"]), "o")[0]
            style = published_mark(_STATUS.get(str(row["status"]), GREY)) | {"marker": mark}
            left.plot(row["port_count"], y, clip_on=False, **style | {"markersize": 7})
            side = _SIDES[settings.sides.get(str(row["id"]), "right")]
            beside(left, str(row["example_device"]), row["port_count"], y, **side)
        ticks(left.xaxis, [16, 32, 64, 128, 256, 512, 1024], "{x:,.0f}", 2)
        ticks(left.yaxis, [*_TIMES, top], lambda ms: "not given" if ms == top else _time(ms), 10)
        left.set(xlabel="Ports", ylabel="Switching time", xlim=(11, 3000), ylim=(3e-6, 2.5 * top))
        order = points.sort_values("port_count")
        for chips, colour in zip(settings.chips_per_server, _SERVERS, strict=False):
            right.plot(order[f"gpus_in_servers_of_{chips}"], range(len(order)), **dot(colour, 5))
        right.set_yticks(range(len(order)), list(order["example_device"]))
        right.set_xscale("log", base=2)
        right.xaxis.set_major_formatter("{x:,.0f}")
        right.set_xlabel("GPUs of the largest job")
        legend: dict[str, Any] = {}
        for confidence, (mark, words) in _CONFIDENCE.items():
            if confidence in set(points["confidence"]):
                legend[f"{confidence} confidence: {words}"] = PUBLISHED_MARK | {"marker": mark}
        for status in dict.fromkeys(points["status"]):
            legend[status] = published_mark(_STATUS.get(status, GREY)) | {"marker": "_"}
        for chips, colour in zip(settings.chips_per_server, _SERVERS, strict=False):
            legend[f"ours: in servers of {chips}"] = dot(colour)
        share_legend(page, legend, 3)
    times = [f"{ms:g} ms" if ms == ms else "no time given" for ms in points["switching_ms"]]
    rows = points.assign(time=times)
    text = "{example_device}, {port_count:,} ports, {time}, {confidence} confidence"
    alternative = f"Switching time over ports of optical switches: {phrases(rows, text)}."
    recalled = points["confidence"] == "low"
    large = points.sort_values("port_count").iloc[-1]
    chips = settings.chips_per_server[0]
    caption = f"""{counted(len(points), "device")}, {points["switching_ms"].notna().sum()} with a
        switching time; {recalled.sum()} are recalled and not verified. No price but that of one
        switch has a source: 520 USD per port, of the artifact's 192-port switch, which holds
        {192 // 2 * chips:,} GPUs in servers of {chips}. The largest, {large["example_device"]},
        would hold {int(large[f"gpus_in_servers_of_{chips}"]):,} and takes minutes to switch.
        Sources: {phrases(points[~recalled], "{example_device}, {source}")}; all others recalled."""
    return Drawn(caption, alternative, points)
