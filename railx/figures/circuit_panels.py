"""Step times of RailX and Opus over switching latency, and bars of cost and power.

Circuits set once for a job, switched between its phases, or both, at equal bandwidth
and at equal cost, beside electrical rails: priced for jobs of ours
(``switched_circuits``) and replayed for the jobs of Opus (``rail_steps``). No paper
compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, Texts, figure, reads
from railx.figures.panels import beside, share_legend, ticks
from railx.figures.tables import records, refuse, refuse_unknown, stack, where
from railx.figures.theme import BASES, GREY, OPUS_JOBS, PALETTE
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrase, phrases

_DRAWN = "latency_ms changes step_ms stall_ms"
_BILL = "cost_per_gpu_usd watts_per_gpu reason fidelity"
_MARKS = "os^vDPX"
#: Those of the palette that are far from each other and from grey.
_COLOURS = (0, 5, 4, 7, 2, 1)
#: Latency 0 on a logarithmic axis is drawn at the shortest latency over this.
_ZERO = 10


@dataclass(frozen=True)
class _Line:
    """A network in one of its modes.

    ``mode`` (set_once, every_phase, where_it_pays or packets) and ``rule`` (provisioned
    or on_demand) are those of the table.
    """

    words: str
    network: str
    mode: str
    rule: str = "provisioned"
    dashed: bool = False


@dataclass(frozen=True)
class _Look:
    """What a figure shows.

    ``jobs`` have words and a column of panels each, with the edges ``below`` and
    ``above`` in times of the first of the ``lines`` at equal bandwidth; lines go on
    beyond them. ``bars`` are networks with words, for the bars of cost and power of the
    last job at equal bandwidth.
    """

    jobs: dict[str, str]
    lines: tuple[_Line, ...]
    bars: dict[str, str]
    below: float
    above: tuple[float, ...]


_BARS = {
    "railx": "RailX",
    "photonic_rails": "Photonic rails",
    "electrical_rails_alone": "Rails, no spine",
    "electrical_rails": "Rails, spine",
    "electrical_rails_artifact": "As artifact counts",
}
_SWITCHED = _Look(
    {"dense": "Dense", "dense_long": "Long sequences", "experts": "Experts"},
    (
        _Line("RailX set once", "railx", "set_once"),
        _Line("Opus, every phase, asked for ahead", "photonic_rails", "every_phase"),
        _Line("Opus, every phase, on demand", "photonic_rails", "every_phase", "on_demand", True),
        _Line("Both: RailX switched where it pays", "railx", "where_it_pays", dashed=True),
        _Line("Opus switched where it pays", "photonic_rails", "where_it_pays", dashed=True),
        _Line("Electrical rails with a spine", "electrical_rails", "packets"),
        _Line("Electrical rails without a spine", "electrical_rails_alone", "packets", dashed=True),
    ),
    _BARS,
    below=0.5,
    above=(1.5, 1.5, 1.5),
)
_GENERATED = _Look(
    {
        "llama16": OPUS_JOBS["llama16"],
        "llama64": OPUS_JOBS["llama64"],
        "deepseek_236b": "DeepSeek-V2 236B",
    },
    (
        _Line("Electrical rails", "electrical_rails", "packets"),
        _Line("RailX set once", "railx", "set_once"),
        _Line("RailX set once with 8 rails", "railx_8_rails", "set_once"),
        _Line(
            "Both: RailX of 8 rails switched where it pays",
            *("railx_8_rails", "where_it_pays"),
            dashed=True,
        ),
        _Line("Opus, asked for ahead", "photonic_rails", "every_phase"),
        _Line("Opus, on demand", "photonic_rails", "every_phase", "on_demand", True),
        _Line("Opus with 4 ports, set once", "photonic_rails_4_ports", "set_once", dashed=True),
    ),
    {
        **{name: _BARS[name] for name in ("railx", "photonic_rails")},
        "photonic_rails_4_ports": "Photonic rails, 4 ports",
        **_BARS,
    },
    below=0.95,
    above=(1.2, 1.2, 4.0),
)


@figure("Circuits set once for a job, switched in it, or both", "all", height=9.6)
@reads(steps=f"switched.steps: network job gpus basis mode rule {_DRAWN} {_BILL}")
def switched_circuits(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per basis, and bars of cost and power."""
    table = tables.read("steps")
    subtitle = f"""Time of a training step on {int(table["gpus"].max()):,} GPUs over the latency of
        the optical switches, in times of RailX set once. No paper compares these: nothing is
        published here. Equal bandwidth: as many ports a GPU, of which RailX's mostly end in its
        node. Equal cost: ports as fast as RailX's bill buys. Lines may leave the panels."""
    note = "Nothing overlaps but switching with its windows"
    return _draw(_SWITCHED, table, canvas, subtitle, note, "at equal bandwidth")


@figure(
    "RailX meets Opus: published jobs on rings set once, on rails switched, or both",
    "all",
    height=9.6,
)
@reads(
    generated="switched.generated: step reconfigurations network gpus basis mode rule latency_ms"
    f" step_ms stall_ms {_BILL}"
)
def rail_steps(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per basis, and bars of cost and power."""
    # Jobs of the table are variants of the steps.
    table = tables.read("generated").drop(columns="job", errors="ignore")
    table = table.rename(columns={"step": "job", "reconfigurations": "changes"})
    subtitle = """Time of a generated training step over the latency of the optical switches, in
        times of electrical rails at the same rate. No paper compares these: nothing is published
        here. Equal bandwidth: the rate that leaves the job's servers. Equal cost: the rate that the
        bill of photonic rails buys. Bars are at equal bandwidth. Lines may leave the panels."""
    note = "Servers are the same everywhere, and what overlaps in the step overlaps here"
    bars_of = f"of {list(_GENERATED.jobs.values())[-1]}"
    return _draw(_GENERATED, table, canvas, subtitle, note, bars_of)


def _draw(
    look: _Look, table: DataFrame, canvas: Canvas, subtitle: str, note: str, bars_of: str
) -> Drawn:
    points = _points(look, table)
    last = where(table, basis="equal_bandwidth", job=list(look.jobs)[-1])
    bars = last.drop_duplicates("network").set_index("network").loc[list(look.bars)]
    bars = bars.assign(words=list(look.bars.values()))
    base, wide = look.lines[0].words, len(look.jobs)
    with canvas(subtitle, fidelity_line(table["fidelity"], note)) as page:
        lines: list[Any] = [
            [f"{basis} {job}" for job in look.jobs for _ in "  "] for basis in BASES
        ]
        bar_line: Any = ["cost"] * wide + ["power"] * wide
        panels = page.subplot_mosaic(
            [*lines, bar_line], height_ratios=[1, 1, 0.62], width_ratios=[1] * 2 * wide
        )
        for basis, basis_words in BASES.items():
            for column, (job, name) in enumerate(look.jobs.items()):
                axes = panels[f"{basis} {job}"]
                _panel(axes, look, where(points, basis=basis, job=job))
                axes.set(title=name, xlabel="Switching latency (ms)")
                axes.set_ylim(look.below, look.above[column])
                if column == 0:
                    axes.set_ylabel(f"{basis_words.capitalize()}\nstep time ({base}: 1)")
        _bar_panel(panels["cost"], bars, "cost_per_gpu_usd", f"Cost {bars_of} (USD per GPU)")
        _bar_panel(panels["power"], bars, "watts_per_gpu", f"Power {bars_of} (W per GPU)")
        legend = {line.words: _style(look, i) for i, line in enumerate(look.lines)}
        share_legend(page, legend, 2)
    return Drawn(*_texts(look, points, bars, bars_of), points)


def _style(look: _Look, number: int) -> dict[str, Any]:
    line = look.lines[number]
    colour = GREY
    if line.mode != "packets":
        # A colour for each network and mode; rules of one mode differ in the dashes.
        modes = dict.fromkeys(
            (other.network, other.mode) for other in look.lines if other.mode != "packets"
        )
        position = list(modes).index((line.network, line.mode))
        colour = PALETTE[_COLOURS[position % len(_COLOURS)]]
    return {
        "color": colour,
        "linestyle": (0, (4, 2)) if line.dashed else "solid",
        "marker": _MARKS[number % len(_MARKS)],
        "markersize": 4,
    }


def _points(look: _Look, table: DataFrame) -> DataFrame:
    """A row for each job, basis, line and latency; times over the first line's."""
    refuse_unknown("jobs", look.jobs, table["job"])
    refuse_unknown("bars", look.bars, table["network"])
    refuse_unknown("lines", [line.network for line in look.lines], table["network"])
    steps = table[table["step_ms"].notna()]
    parts = []
    for job, basis in product(look.jobs, BASES):
        drawn = where(steps, job=job, basis=basis)
        for number, line in enumerate(look.lines):
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


def _panel(axes: Axes, look: _Look, points: DataFrame) -> None:
    latencies = sorted({value for value in points["latency_ms"] if value > 0})
    zero = latencies[0] / _ZERO
    for number in range(len(look.lines)):
        rows = where(points, line=number)
        x = rows["latency_ms"].where(rows["latency_ms"] > 0, zero)
        axes.plot(x, rows["relative"], **_style(look, number))
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


def _texts(look: _Look, points: DataFrame, bars: DataFrame, bars_of: str) -> Texts:
    parts = []
    for (basis, basis_words), (job, name) in product(BASES.items(), look.jobs.items()):
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
    wide = wide.assign(name=wide["job"].map(look.jobs))
    lines = wide.groupby(["job", "line"], sort=False)
    ends = lines.last().assign(first=lines["relative"].first())
    text = "{name}, {words}: {first:q} without latency, {relative:q} at {latency_ms:g} ms"
    alternative = f"""Step times over switching latency at equal bandwidth and at equal cost, with
        bars of cost and power of {len(look.bars)} networks. {phrases(ends, text)}."""
    return caption, alternative
