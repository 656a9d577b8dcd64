"""Step times of RailX and Opus over switching latency, and bars of cost and power.

Circuits set once for a job, switched between its phases, or both, at equal bandwidth
and at equal cost, beside electrical rails: priced for jobs of ours
(``switched_circuits``) and replayed for the jobs of Opus (``rail_steps``). No paper
compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, Texts, figure, reads
from railx.figures.panels import beside, share_legend, ticks
from railx.figures.tables import records, refuse, refuse_unknown, stack, where
from railx.figures.theme import BASES, GREY, PALETTE
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrase, phrases
from railx.settings import mapping

_DRAWN = "latency_ms changes step_ms stall_ms"
_BILL = "cost_per_gpu_usd watts_per_gpu reason fidelity"
_MARKS = "os^vDPX"
#: Those of the palette that are far from each other and from grey.
_COLOURS = (0, 5, 4, 7, 2, 1)
#: Latency 0 on a logarithmic axis is drawn at the shortest latency over this.
_ZERO = 10


@dataclass(frozen=True)
class SwitchedLine:
    """A network in one of its modes."""

    words: str
    """Words for it."""
    network: str
    """Network of the table."""
    mode: str
    """Mode of the table: set_once, every_phase, where_it_pays or packets."""
    rule: str = "provisioned"
    """Rule of the table: provisioned or on_demand."""
    dashed: bool = False
    """Whether the line is dashed."""


@dataclass(frozen=True, kw_only=True)
class CircuitPanelsSettings(CanvasSettings):
    """Step times over the latency of the switches."""

    jobs: dict[str, str]
    """Jobs of the table with words for each, a column of panels each."""
    lines: tuple[SwitchedLine, ...]
    """What is drawn; the first is what times are divided by, at equal bandwidth."""
    bars: dict[str, str]
    """Networks with words, for the bars of cost and power of the last job at equal
    bandwidth."""
    below: float
    """Lower edge of the panels, in times of the first line."""
    above: dict[str, float]
    """Upper edge of the panels by job; lines go on beyond it."""


_BARS = {
    "railx": "RailX",
    "photonic_rails": "Photonic rails",
    "electrical_rails_alone": "Rails, no spine",
    "electrical_rails": "Rails, spine",
    "electrical_rails_artifact": "As artifact counts",
}


@dataclass(frozen=True, kw_only=True)
class SwitchedCircuitsSettings(CircuitPanelsSettings):
    """Step times over the latency of the switches."""

    jobs: dict[str, str] = mapping(dense="Dense", dense_long="Long sequences", experts="Experts")
    lines: tuple[SwitchedLine, ...] = (
        SwitchedLine("RailX set once", "railx", "set_once"),
        SwitchedLine("Opus, every phase, asked for ahead", "photonic_rails", "every_phase"),
        SwitchedLine(
            "Opus, every phase, on demand", "photonic_rails", "every_phase", "on_demand", True
        ),
        SwitchedLine("Both: RailX switched where it pays", "railx", "where_it_pays", dashed=True),
        SwitchedLine("Opus switched where it pays", "photonic_rails", "where_it_pays", dashed=True),
        SwitchedLine("Electrical rails with a spine", "electrical_rails", "packets"),
        SwitchedLine(
            "Electrical rails without a spine", "electrical_rails_alone", "packets", dashed=True
        ),
    )
    bars: dict[str, str] = field(default_factory=_BARS.copy)
    below: float = 0.5
    above: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("dense", "dense_long", "experts"), 1.5)
    )


@dataclass(frozen=True, kw_only=True)
class RailStepsSettings(CircuitPanelsSettings):
    """Step times of generated steps over the latency of the switches."""

    jobs: dict[str, str] = mapping(
        llama16="Llama-3 8B, 16 GPUs",
        llama64="Llama-3 8B, 64 GPUs",
        deepseek_236b="DeepSeek-V2 236B",
    )
    lines: tuple[SwitchedLine, ...] = (
        SwitchedLine("Electrical rails", "electrical_rails", "packets"),
        SwitchedLine("RailX set once", "railx", "set_once"),
        SwitchedLine("RailX set once with 8 rails", "railx_8_rails", "set_once"),
        SwitchedLine(
            "Both: RailX of 8 rails switched where it pays",
            "railx_8_rails",
            "where_it_pays",
            dashed=True,
        ),
        SwitchedLine("Opus, asked for ahead", "photonic_rails", "every_phase"),
        SwitchedLine("Opus, on demand", "photonic_rails", "every_phase", "on_demand", True),
        SwitchedLine(
            "Opus with 4 ports, set once", "photonic_rails_4_ports", "set_once", dashed=True
        ),
    )
    bars: dict[str, str] = field(
        default_factory=lambda: {
            "railx": _BARS["railx"],
            "photonic_rails": _BARS["photonic_rails"],
            "photonic_rails_4_ports": "Photonic rails, 4 ports",
            **_BARS,
        }
    )
    below: float = 0.95
    above: dict[str, float] = mapping(llama16=1.2, llama64=1.2, deepseek_236b=4.0)


@figure("Circuits set once for a job, switched in it, or both", "all", height=9.6)
@reads(steps=f"switched.steps: network job gpus basis mode rule {_DRAWN} {_BILL}")
def switched_circuits(settings: SwitchedCircuitsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per basis, and bars of cost and power."""
    table = tables.read("steps")
    subtitle = f"""Time of a training step on {int(table["gpus"].max()):,} GPUs over the latency of
        the optical switches, in times of RailX set once. No paper compares these: nothing is
        published here. Equal bandwidth: as many ports a GPU, of which RailX's mostly end in its
        node. Equal cost: ports as fast as RailX's bill buys. Lines may leave the panels."""
    note = "Nothing overlaps but switching with its windows"
    return _draw(settings, table, canvas, subtitle, note, "at equal bandwidth")


@figure(
    "RailX meets Opus: published jobs on rings set once, on rails switched, or both",
    "all",
    height=9.6,
)
@reads(
    generated="switched.generated: step reconfigurations network gpus basis mode rule latency_ms"
    f" step_ms stall_ms {_BILL}"
)
def rail_steps(settings: RailStepsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per basis, and bars of cost and power."""
    # Jobs of the table are variants of the steps.
    table = tables.read("generated").drop(columns="job", errors="ignore")
    table = table.rename(columns={"step": "job", "reconfigurations": "changes"})
    subtitle = """Time of a generated training step over the latency of the optical switches, in
        times of electrical rails at the same rate. No paper compares these: nothing is published
        here. Equal bandwidth: the rate that leaves the job's servers. Equal cost: the rate that the
        bill of photonic rails buys. Bars are at equal bandwidth. Lines may leave the panels."""
    note = "Servers are the same everywhere, and what overlaps in the step overlaps here"
    bars_of = f"of {list(settings.jobs.values())[-1]}"
    return _draw(settings, table, canvas, subtitle, note, bars_of)


def _draw(
    settings: CircuitPanelsSettings,
    table: DataFrame,
    canvas: Canvas,
    subtitle: str,
    note: str,
    bars_of: str,
) -> Drawn:
    points = _points(settings, table)
    last = where(table, basis="equal_bandwidth", job=list(settings.jobs)[-1])
    bars = last.drop_duplicates("network").set_index("network").loc[list(settings.bars)]
    bars = bars.assign(words=list(settings.bars.values()))
    base, wide = settings.lines[0].words, len(settings.jobs)
    with canvas(subtitle, fidelity_line(table["fidelity"], note)) as page:
        lines: list[Any] = [
            [f"{basis} {job}" for job in settings.jobs for _ in "  "] for basis in BASES
        ]
        bar_line: Any = ["cost"] * wide + ["power"] * wide
        panels = page.subplot_mosaic(
            [*lines, bar_line], height_ratios=[1, 1, 0.62], width_ratios=[1] * 2 * wide
        )
        for basis, basis_words in BASES.items():
            for column, (job, name) in enumerate(settings.jobs.items()):
                axes = panels[f"{basis} {job}"]
                _panel(axes, settings, where(points, basis=basis, job=job))
                axes.set(title=name, xlabel="Switching latency (ms)")
                axes.set_ylim(settings.below, settings.above[job])
                if column == 0:
                    axes.set_ylabel(f"{basis_words.capitalize()}\nstep time ({base}: 1)")
        _bar_panel(panels["cost"], bars, "cost_per_gpu_usd", f"Cost {bars_of} (USD per GPU)")
        _bar_panel(panels["power"], bars, "watts_per_gpu", f"Power {bars_of} (W per GPU)")
        legend = {line.words: _style(settings, i) for i, line in enumerate(settings.lines)}
        share_legend(page, legend, 2)
    return Drawn(*_texts(settings, points, bars, bars_of), points)


def _style(settings: CircuitPanelsSettings, number: int) -> dict[str, Any]:
    line = settings.lines[number]
    colour = GREY
    if line.mode != "packets":
        # A colour for each network and mode; rules of one mode differ in the dashes.
        modes = dict.fromkeys(
            (other.network, other.mode) for other in settings.lines if other.mode != "packets"
        )
        position = list(modes).index((line.network, line.mode))
        colour = PALETTE[_COLOURS[position % len(_COLOURS)]]
    return {
        "color": colour,
        "linestyle": (0, (4, 2)) if line.dashed else "solid",
        "marker": _MARKS[number % len(_MARKS)],
        "markersize": 4,
    }


def _points(settings: CircuitPanelsSettings, table: DataFrame) -> DataFrame:
    """A row for each job, basis, line and latency; times over the first line's."""
    refuse_unknown("jobs", settings.jobs, table["job"])
    refuse_unknown("bars", settings.bars, table["network"])
    refuse_unknown("lines", [line.network for line in settings.lines], table["network"])
    if set(settings.above) != set(settings.jobs):
        refuse(f"above: got {', '.join(settings.above)}", "the jobs")
    steps = table[table["step_ms"].notna()]
    parts = []
    for job, basis in product(settings.jobs, BASES):
        drawn = where(steps, job=job, basis=basis)
        for number, line in enumerate(settings.lines):
            chosen = where(drawn, network=line.network, mode=line.mode, rule=line.rule)
            if chosen.empty:
                refuse(
                    f"lines[{number}]: no {line.mode} of {line.network} for {job}",
                    sorted(set(drawn["mode"])),
                )
            parts.append(chosen.sort_values("latency_ms").assign(line=number, words=line.words))
    columns = f"job basis line words mode rule {_DRAWN} cost_per_gpu_usd watts_per_gpu"
    points = stack(parts)[columns.split()]
    lowest = where(points, line=0, basis="equal_bandwidth").groupby("job")["step_ms"].min()
    return points.assign(relative=points["step_ms"] / points["job"].map(lowest))


def _panel(axes: Axes, settings: CircuitPanelsSettings, points: DataFrame) -> None:
    latencies = sorted({value for value in points["latency_ms"] if value > 0})
    zero = latencies[0] / _ZERO
    for number in range(len(settings.lines)):
        rows = where(points, line=number)
        x = rows["latency_ms"].where(rows["latency_ms"] > 0, zero)
        axes.plot(x, rows["relative"], **_style(settings, number))
    powers = [power for power in (0.1, 10.0, 1000.0) if latencies[0] <= power <= latencies[-1]]

    def text(latency: float) -> str:
        return "0" if abs(latency / zero - 1) < 1e-6 else f"{latency:,g}"

    ticks(axes.xaxis, [zero, *powers], text, 10)


def _bar_panel(axes: Axes, bars: DataFrame, column: str, title: str) -> None:
    axes.barh(range(len(bars)), bars[column], color=GREY, height=0.62)
    for position, row in enumerate(records(bars)):
        beside(axes, phrase(f"{{words}}: {{{column}:q}}", row), row[column], position, 3)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.8 * float(bars[column].max())), xticks=[], yticks=[], title=title)


def _texts(
    settings: CircuitPanelsSettings, points: DataFrame, bars: DataFrame, bars_of: str
) -> Texts:
    parts = []
    for (basis, basis_words), (job, name) in product(BASES.items(), settings.jobs.items()):
        rows = where(points, basis=basis, job=job)
        at = float(rows.loc[rows["latency_ms"] >= 10, "latency_ms"].min())
        fastest = where(rows, latency_ms=at).sort_values("step_ms")
        best, optical = fastest.iloc[0], fastest[fastest["mode"] != "packets"].iloc[0]
        text = "{words} is the fastest optical network at {relative:q}"
        text = f"{name} at {basis_words} and {at:g} ms: {phrase(text, optical)}"
        packets = phrase(", {words} at {relative:q}", best) if best["mode"] == "packets" else ""
        parts.append(f"{text}{packets}.")
    cost = "{words} {cost_per_gpu_usd:q} USD and {watts_per_gpu:q} W per GPU"
    costs = f"{bars_of.capitalize()}: {phrases(bars, cost)}."
    caption = f"Ours alone, no paper has this comparison. {' '.join(parts)} {costs}"
    wide = where(points, basis="equal_bandwidth")
    wide = wide.assign(name=wide["job"].map(settings.jobs))
    ends = wide.groupby(["job", "line"], sort=False).agg(
        name=("name", "first"),
        words=("words", "first"),
        first=("relative", "first"),
        last=("relative", "last"),
        latency_ms=("latency_ms", "last"),
    )
    text = "{name}, {words}: {first:q} without latency, {last:q} at {latency_ms:g} ms"
    alternative = f"""Step times over switching latency at equal bandwidth and at equal cost, with
        bars of cost and power of {len(settings.bars)} networks. {phrases(ends, text)}."""
    return caption, alternative
