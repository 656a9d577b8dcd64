"""Time of a training step by topology, stacked by what it is spent on, and the node
prices at which its ranking flips.

One column per job, equal bandwidth above equal cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.honest import cut_bars
from railx.figures.panels import beside, entries, few_ticks, name_rows, share_legend, tiles
from railx.figures.tables import where
from railx.figures.theme import FAINT, GREY, PALETTE, dot, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrases, quantity
from railx.settings import AtLeast

_METHOD = """\
All groups of one kind of parallelism communicate at once; exact channel loads of their
traffic give the rate, and each transfer takes the fastest of sending directly, round a
ring, or one axis after the other. Nothing overlaps but the stages of the pipeline: an
upper bound for schedules that hide communication. Equal cost scales the ports of a
network to what the reference costs per chip; links inside nodes, boards and servers
(copper and scale-up switches) stand in no bill, which favours the networks with such
servers, and keep their rate. Networks without such links carry tensor parallelism on
their ports. The paper prints no step times: jobs and layouts are choices of this
project."""

_BASES = {"equal_bandwidth": "equal injection bandwidth", "equal_cost": "equal cost of the network"}
#: What a step is spent on, in the order of the stack.
_PARTS = {
    "compute": ("Compute", "#c3c8cf"),
    "bubble": ("Pipeline bubble", "#e3e6ea"),
    "tensor": ("Tensor", PALETTE[0]),
    "sequence": ("Sequence", PALETTE[4]),
    "expert": ("Expert (all-to-all)", PALETTE[1]),
    "data": ("Data", PALETTE[2]),
    "pipeline": ("Pipeline", PALETTE[3]),
}


@dataclass(frozen=True)
class StepTimeSettings(Choice):
    """Time of a training step by topology and job, stacked by what it is spent on."""

    cut_over_shortest: Annotated[float, AtLeast(1)] | None = 3.0
    """How many times longer than the shortest of its panel a bar is cut; null: none
    is."""
    named: tuple[str, ...] = ("railx_hyperx_m4n2", "railx_hyperx")
    """Topologies that the words name beside the shortest and longest step; those that
    are not mapped are left out."""


@figure("Time of a training step by topology", "railx", height=11)
@reads(steps="mapping.steps: topology job basis part ms step_ms reason chips fidelity")
def step_time(settings: StepTimeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Horizontal bars in seconds, cut where much longer than the shortest.

    A note replaces the bar where there is no room or no price.
    """
    rows = tables.read("steps", "topology", settings.only)
    jobs = list(rows["job"].unique())
    bases = [basis for basis in _BASES if basis in set(rows["basis"])]
    chips = ", ".join(f"{count:,}" for count in sorted(set(rows["chips"])))
    subtitle = f"""Jobs of {chips} chips: tensor parallelism in a node, the others along rows and
        columns of nodes. Nothing overlaps. Equal cost: ports scaled to the reference's cost; links
        inside nodes, boards and servers in no bill, one rate on both bases. A bar with a break is
        cut: its number is the whole time."""
    cut, spans = 0, []
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        titles = [f"{label(job)}, {_BASES[basis]}" for basis, job in product(bases, jobs)]
        panels = tiles(page, titles, len(jobs), settings, sharey=True)
        for (column, job), (line, basis) in product(enumerate(jobs), enumerate(bases)):
            axes = panels[line * len(jobs) + column]
            cut += _panel(axes, rows, job, basis, settings.cut_over_shortest)
            span = _span(rows, job, basis, settings.named)
            spans += [(label(job), _BASES[basis], span)] if span else []
        share_legend(page, entries(panels[0]), len(_PARTS))
    shortened = f"{cut} bars are cut and have their whole time as a number." if cut else ""
    caption = f"""Estimated time of a training step.
        {" ".join(f"{job} at {basis}: {span}." for job, basis, span in spans)} {shortened}
        {_METHOD}"""
    alternative = f"""Bars of the step time of {rows["topology"].nunique()} topologies, a panel per
        job and basis, stacked by compute, bubble and communication. Shortest, named and longest:
        {"; ".join(map(", ".join, spans))}."""
    return Drawn(caption, alternative, rows)


def _panel(axes: Axes, rows: DataFrame, job: str, basis: str, cut: float | None) -> int:
    """The bars of a job; how many of them are cut is returned."""
    names = list(rows["topology"].unique())
    without_room = set(where(rows, job=job, basis=basis).dropna(subset="reason")["topology"])
    group = where(rows, job=job, basis=basis).dropna(subset="part")
    table = group.pivot_table(index="topology", columns="part", values="ms", aggfunc="sum")
    seconds = table.reindex(index=names, columns=list(_PARTS)).fillna(0) / 1e3
    total = seconds.sum(axis=1)
    drawn = total[total > 0]
    limit = float(drawn.max()) if len(drawn) else 1.0
    if cut is not None and len(drawn):
        limit = min(limit, cut * float(drawn.min()))
    left = 0 * total
    for part, (title, colour) in _PARTS.items():
        end = (left + seconds[part]).clip(upper=limit)
        axes.barh(range(len(names)), end - left, left=left, color=colour, label=title, height=0.74)
        left = end
    shortened = cut_bars(axes, total, limit)
    for position, name in enumerate(names):
        if not total[name]:
            words = "no room for the job" if name in without_room else "no price"
            beside(axes, words, 0, position, 3, color=GREY)
        elif total[name] <= limit:
            beside(axes, quantity(total[name]), float(total[name]), position, 3)
    axes.set(xlim=(0, 1.2 * limit), xlabel="Step time (s)")
    few_ticks(axes.xaxis, 5)
    name_rows(axes, list(map(label, names)), above=None)
    return shortened


def _span(rows: DataFrame, job: str, basis: str, named: Sequence[str]) -> str:
    """The shortest and longest step of a panel, and those of named topologies."""
    part = where(rows, job=job, basis=basis).dropna(subset="part")
    steps = part.groupby("topology", sort=False)["step_ms"].first().sort_values() / 1e3
    chosen = [name for name in named if name in steps]
    names = dict.fromkeys([*steps.index[:1], *chosen, *steps.index[-1:]])
    return ", ".join(f"{quantity(steps[name])} s on {label(name)}" for name in names)


# Prices of nodes


@figure("Prices of nodes at which the ranking flips", "railx", height=7)
@reads(
    prices="mapping.node_prices: topology reference job difference_usd_per_chip"
    " difference_low_usd_per_chip difference_high_usd_per_chip break_even_usd_per_chip faster_free"
    " faster_priced flips fidelity"
)
def node_prices(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """A row per network: what its node costs beyond the reference's, and may cost."""
    rows = tables.read("prices", "topology", settings.only)
    jobs, names = list(rows["job"].unique()), list(rows["topology"].unique())
    reference = ", ".join(map(label, rows["reference"].unique()))
    subtitle = f"""Networks of equal cost, nodes included. A diamond right of the price: the network
        trains faster than {reference}; left of it: slower. Its ranking flips where the diamond is
        within the range of the price. Without one, no rate of its ports makes both equally fast."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        titles = list(map(label, jobs))
        panels = tiles(page, titles, len(jobs), settings, sharex=True, sharey=True)
        for axes, job in zip(panels, jobs, strict=True):
            _node_prices(axes, where(rows, job=job).set_index("topology").reindex(names))
        name_rows(panels[0], list(map(label, names)))
        share_legend(page, entries(panels[0]), 3)
    flips = phrases(rows[rows["flips"]], "{topology:label} for {job:label}") or "none"
    caption = f"""What the node of a network costs beyond the node of {reference} (dot and range of
        prices, whose middle is an assumption), and with which difference both train equally fast
        (diamond), in dollars a chip. Within the range these rankings flip: {flips}."""
    alternative = f"""Ranges of the price of a node beyond the reference's and a diamond for the
        break-even price, a row for each of {len(names)} networks and a panel for each of
        {len(jobs)} jobs. Rankings that flip: {flips}."""
    return Drawn(caption, alternative, rows)


def _node_prices(axes: Axes, rows: DataFrame) -> None:
    """The rows of a job; those without room are empty."""
    at = range(len(rows))
    low, high = (rows[f"difference_{end}_usd_per_chip"] for end in ("low", "high"))
    axes.axvline(0, color=FAINT, linewidth=0.8)
    axes.hlines(at, low, high, color=GREY, linewidth=4, label="Price of the node, range")
    axes.plot(rows["difference_usd_per_chip"], at, label="Its middle", **dot(GREY, 7))
    style = {**dot(PALETTE[5], 7), "marker": "D"}
    axes.plot(rows["break_even_usd_per_chip"], at, label="Equally fast", **style)
    axes.set_xlabel("Beyond the reference (USD a chip)")
    axes.margins(x=0.12)
    few_ticks(axes.xaxis, 3)
