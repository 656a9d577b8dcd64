"""A grid of nodes with failures and a stream of jobs by system, and networks under a
trace of faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import dot
from railx.figures.panels import beside, panel_title, share_legend, tiles
from railx.figures.tables import refuse, stack, to_frame, where
from railx.figures.theme import GREY, INK, PALETTE, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import phrase_list
from railx.settings import Between, NotEmpty

# Largest job beside failed nodes

#: Systems: colour, and words for their largest job and their stream of jobs.
_SYSTEMS = {
    "railx": (PALETTE[0], "RailX, any rows x any columns", "RailX"),
    "hammingmesh": (PALETTE[1], "HammingMesh, the same rule", "HammingMesh (same rule)"),
    "torus": (PALETTE[5], "Torus, contiguous block", "Torus (contiguous blocks)"),
}


@dataclass(frozen=True)
class LargestJobSettings(CanvasSettings):
    """Largest usable job against failed nodes."""

    lower_quantile: Annotated[float, Between(0, 0.5)] = 0.05
    """Lower end of the band over the random draws."""
    upper_quantile: Annotated[float, Between(0.5, 1)] = 0.95
    """Upper end of the band over the random draws."""


@figure("Largest job against failed nodes", "railx", height=5)
@reads(
    faults="tenancy.faults: system placement failed_nodes usable_share healthy_share formula_share"
    " nodes fidelity"
)
def largest_job(settings: LargestJobSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Means over the random draws with a band between two quantiles.

    Beside them is the formula for failures in distinct lines.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    frame = tables.read("faults")
    drawn = where(frame, placement="random")
    if drawn.empty:
        refuse("placement: no rows with randomly drawn failures", "a table with placement random")
    ends = (settings.lower_quantile, settings.upper_quantile)
    shares = drawn.groupby(["system", "failed_nodes"], sort=False)["usable_share"]
    bands = {"low": shares.quantile(ends[0]), "high": shares.quantile(ends[1])}
    lines = to_frame({"mean": shares.mean(), **bands, "draws": shares.size()}).reset_index()
    formula = where(frame, placement="distinct_lines", system="railx")
    draws, failed = int(lines["draws"].max()), int(drawn["failed_nodes"].max())
    nodes = int(frame["nodes"].iloc[0])
    subtitle = f"""Exact optimum for one job on {nodes:,} nodes, failed nodes drawn uniformly: mean,
        band from the {100 * ends[0]:g} % to the {100 * ends[1]:g} % quantile of {draws} draws."""
    with canvas(subtitle, drawn["fidelity"]) as page:
        axes = page.subplots()
        healthy = drawn.groupby("failed_nodes")["healthy_share"].first()
        dotted: dict[str, Any] = {"color": GREY, "linewidth": 1, "linestyle": ":"}
        axes.plot(healthy.index, healthy, label="All healthy nodes", **dotted)
        for system, (colour, words, _) in _SYSTEMS.items():
            rows = where(lines, system=system).sort_values("failed_nodes")
            # HammingMesh lies on RailX; a dashed line on top leaves both visible.
            same = system == "hammingmesh"
            style: dict[str, Any] = {"linestyle": (0, (4, 4))} if same else {"linewidth": 2.4}
            if len(rows):
                axes.plot(rows["failed_nodes"], rows["mean"], color=colour, label=words, **style)
            if not same:
                band = rows["failed_nodes"], rows["low"], rows["high"]
                axes.fill_between(*band, color=colour, alpha=0.18, linewidth=0)
        dashed: dict[str, Any] = {"color": INK, "linewidth": 1.2, "linestyle": "--"}
        dashed["label"] = "No two failures in one line, (1 - f / R)²"
        closed = formula.sort_values("failed_nodes")
        axes.plot(closed["failed_nodes"], closed["formula_share"], **dashed)
        axes.set(xlabel="Failed nodes", ylabel="Nodes of the largest job / all nodes")
        axes.set(xlim=(0, max(failed, 1)), ylim=(0, 1.03))
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        share_legend(page, {}, 2, axes)
    means = where(lines, failed_nodes=failed).set_index("system")["mean"]
    usable = {name: f"{100 * float(means[name]):.3g} %" for name in _SYSTEMS if name in means}
    worst = where(formula, failed_nodes=failed)["formula_share"]
    closed_form = ""
    if len(worst):
        closed_form = f"""The closed form for failures of which no two share a row or a column gives
            {100 * float(worst.iloc[0]):.3g} %, the worst case while there are at most as many as
            lines."""
    caption = f"""Nodes that one job can still take when {failed} of {nodes:,} have failed, mean of
        {draws} draws: {", ".join(f"{_SYSTEMS[name][1]} {text}" for name, text in usable.items())}.
        {closed_form} RailX and HammingMesh let a job take any rows times any columns, a torus only
        a contiguous block. The optimum is exact for every draw."""
    alternative = f"""Lines of the share of nodes that the largest job can use, falling from 100 %
        with no failed node; at {failed} failed nodes:
        {", ".join(f"{label(name)} {text}" for name, text in usable.items())}. Bands show the spread
        of the draws."""
    closed = formula[["system", "failed_nodes", "formula_share"]]
    data = stack([lines.assign(shows="draws"), closed.assign(shows="closed form")])
    return Drawn(caption, alternative, data)


# Use of the grid by a stream of jobs

_QUEUES = {
    "reject": "jobs that do not fit are rejected",
    "fifo": "jobs wait in order",
    "backfill": "jobs wait, later ones may pass",
}


@dataclass(frozen=True)
class UtilisationSettings(CanvasSettings):
    """Use of the grid by a stream of jobs."""

    policy: Annotated[str, NotEmpty()] = "best_fit"
    """Placement policy of the rows to show."""
    offered_load: float | None = None
    """Offered load of the rows to show, as a share of the grid; null: the highest."""


@figure("Use of the grid by a stream of jobs", "railx", height=6.4)
@reads(
    utilisation="tenancy.utilisation: system policy queue scenario failed_nodes offered_load"
    " utilisation rejected_share wait_mean_hours fidelity"
)
def utilisation(settings: UtilisationSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One column per queue: utilisation above, below it what it costs the jobs.

    That is rejected jobs (reject) or the mean wait; dots are the single draws.
    """
    frame = tables.read("utilisation")
    load = frame["offered_load"].max() if settings.offered_load is None else settings.offered_load
    rows = frame[(frame["policy"] == settings.policy) & np.isclose(frame["offered_load"], load)]
    if rows.empty:
        pairs = sorted(set(phrase_list(frame, "{policy} with {offered_load:g}")))
        refuse(f"policy: no rows for {settings.policy} with offered load {load:g}", pairs)
    queues = [queue for queue in _QUEUES if queue in set(rows["queue"])]
    streams = int(rows.groupby(["system", "queue", "scenario"]).size().max())
    subtitle = f"""Offered load {100 * load:.3g} % of the whole grid,
        {label(settings.policy).lower()}; bars are means of {streams} streams of jobs, dots the
        single ones."""
    note = """Event-driven simulation of placements in units of nodes, no network; sizes and
        durations are our own choice"""
    with canvas(subtitle, rows["fidelity"], note) as page:
        panels = page.subplots(2, len(queues), sharex=True, squeeze=False)
        for upper, lower, queue in zip(*panels, queues, strict=True):
            part = where(rows, queue=queue)
            _bars(upper, part, "utilisation")
            title = f"{label(queue)}: {_QUEUES[queue]}"
            upper.set_title(panel_title(title, len(queues), settings))
            upper.set(ylim=(0, 100), ylabel="Busy nodes (%)")
            _bars(lower, part, "rejected_share" if queue == "reject" else "wait_mean_hours")
            lower.set_ylabel("Rejected jobs (%)" if queue == "reject" else "Mean wait (h)")
        share_legend(page, {}, 3, panels[0, 0])
    means = {queue: _means(where(rows, queue=queue)) for queue in queues}
    caption = f"""Share of the grid that is busy under random streams of jobs that ask for
        {100 * load:.3g} % of it, means of {streams}.
        {" ".join(f"{_QUEUES[queue].capitalize()}: {text}." for queue, text in means.items())} All
        systems see the same arrivals and failures. {_apart(rows)} On the torus with failed nodes
        the largest jobs may never find a block; they then count as rejected even where jobs wait,
        and are missing from its mean wait. The paper prints no numbers: sizes, durations and
        failure rates are choices of this project."""
    alternative = f"""Bars of the share of busy nodes by system, and below them of rejected jobs or
        the mean wait, a column per queue. Busy nodes,
        {"; ".join(f"{queue}: {text}" for queue, text in means.items())}."""
    return Drawn(caption, alternative, rows)


def _bars(axes: Axes, rows: DataFrame, column: str) -> None:
    scenarios = list(rows["scenario"].unique())
    systems = [system for system in _SYSTEMS if system in set(rows["system"])]
    width = 0.8 / len(systems)
    scale = 1 if column == "wait_mean_hours" else 100
    rows = rows.assign(value=scale * rows[column].astype(float))
    for i, system in enumerate(systems):
        colour, _, words = _SYSTEMS[system]
        parts = [where(rows, system=system, scenario=name)["value"] for name in scenarios]
        at = np.arange(len(scenarios)) + (i - (len(systems) - 1) / 2) * width
        means = [part.mean() for part in parts]
        axes.bar(at, means, 0.92 * width, color=colour, label=words)
        for x, part, mean in zip(at, parts, means, strict=True):
            axes.plot([x] * len(part), part, **dot(INK, 2.6, alpha=0.7))
            if np.isfinite(mean):
                style = {"ha": "center", "va": "baseline"}
                beside(axes, f"{mean:.2g}", float(x), float(part.max()), 0, 3, **style)
    if column != "utilisation":  # room for the numbers above the dots
        axes.set_ylim(0, max(1.2 * float(rows["value"].max()), 0.1))
    names = [_scenario(where(rows, scenario=name)) for name in scenarios]
    axes.set_xticks(np.arange(len(scenarios)), names)
    axes.grid(visible=False, axis="x")


def _scenario(rows: DataFrame) -> str:
    """Words for the scenario of the rows."""
    failed = int(rows["failed_nodes"].iloc[0])
    return f"{failed} nodes failed" if failed else label(rows["scenario"].iloc[0])


def _means(rows: DataFrame) -> str:
    """Mean use by scenario and system."""
    parts = []
    for _, scenario in rows.groupby("scenario", sort=False):
        means = 100 * scenario.groupby("system")["utilisation"].mean()
        shown = [system for system in _SYSTEMS if system in means.index]
        values = ", ".join(f"{label(system)} {means[system]:.3g} %" for system in shown)
        parts.append(f"{_scenario(scenario)} {values}")
    return "; ".join(parts)


def _apart(rows: DataFrame) -> str:
    """How far RailX and HammingMesh are apart; empty where one is missing."""
    means = rows.groupby(["system", "queue", "scenario"])["utilisation"].mean().unstack("system")
    if not {"railx", "hammingmesh"} <= set(means.columns):
        return ""
    apart = float((means["railx"] - means["hammingmesh"]).abs().max())
    words = "come out equal" if apart < 1e-9 else f"differ by {100 * apart:.2g} points"
    return f"""RailX and HammingMesh place by the same rule and {words}; they differ in the
        switches, which node counts do not show."""


# Networks under a trace of faults


@dataclass(frozen=True)
class FaultTraceSettings(Choice):
    """Usable share of networks over a trace of faults."""

    draw: Annotated[int, Between(0, 999)] = 0
    """Places of the servers, of those drawn."""


@figure("Usable chips over a trace of faults", "networks", height=7)
@reads(
    trace="tenancy.trace: network draw from_days days healthy_share job_chips usable_share"
    " largest_share fidelity"
)
def fault_trace(settings: FaultTraceSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel per network: chips in jobs of each size, and in the largest."""
    from matplotlib.ticker import PercentFormatter

    frame = tables.read("trace", "network", settings.only)
    rows = where(frame, draw=settings.draw)
    if rows.empty:
        refuse(f"draw: got {settings.draw}", sorted(set(frame["draw"])))
    networks, sizes = list(rows["network"].unique()), sorted(set(rows["job_chips"]))
    subtitle = """Servers of a published trace fail and come back; a server takes its chips, cables
        do not fail. Jobs of one size fill the network, or a single job is as large as can be."""
    lowest = float(rows[["usable_share", "largest_share"]].min().min())
    with canvas(subtitle, rows["fidelity"]) as page:
        names = list(map(label, networks))
        panels = tiles(page, names, 2, settings, "Days", "Share of chips", sharex=True, sharey=True)
        for axes, network in zip(panels, networks, strict=True):
            part = where(rows, network=network)
            single = where(part, job_chips=sizes[0])
            words = "All working chips"
            _over_days(axes, single, "healthy_share", label=words, color=GREY, linestyle=":")
            for size, colour in zip(sizes, cycle(PALETTE), strict=False):
                jobs = where(part, job_chips=size)
                _over_days(axes, jobs, "usable_share", label=f"Jobs of {size} chips", color=colour)
            words = "Largest job"
            _over_days(axes, single, "largest_share", label=words, color=INK, linestyle="--")
            axes.set(ylim=(max(0.0, lowest - 0.03), 1.02))
            axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
            axes.locator_params(axis="x", nbins=4, steps=None)
        share_legend(page, {}, 3, panels[0])
    parts = []
    for network, part in where(rows, job_chips=sizes[-1]).groupby("network", sort=False):
        jobs, largest = (
            100 * np.average(part[column], weights=part["days"])
            for column in ("usable_share", "largest_share")
        )
        parts.append(f"{label(network)} {jobs:.3g} and {largest:.3g} %")
    means = "; ".join(parts)
    caption = f"""Share of the chips that jobs use while servers fail, mean over the trace: in jobs
        of {sizes[-1]} chips, and in the largest job, {means}. Where servers stand is drawn, the
        same for all networks; each fits the trace's servers."""
    alternative = f"""Lines of the share of chips in jobs over days, a panel for each of
        {len(networks)} networks. Means in jobs of {sizes[-1]} chips and in the largest job:
        {means}."""
    return Drawn(caption, alternative, rows)


def _over_days(axes: Axes, rows: DataFrame, column: str, **style: Any) -> None:
    rows = rows.sort_values("from_days")
    days = [*rows["from_days"], float((rows["from_days"] + rows["days"]).max())]
    axes.stairs(rows[column], days, baseline=None, linewidth=1.2, **style)
