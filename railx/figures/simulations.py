"""Simulated networks: collectives over the payload, latency over the offered load."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import dot
from railx.figures.panels import name_rows, share_legend, ticks, tiles
from railx.figures.tables import records, refuse, refuse_unknown, where
from railx.figures.theme import GREY, INK, PALETTE, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, listed, ordered, phrase, phrases, quantity, span, spoken
from railx.settings import AtLeast, Between, NotEmpty

# Ring all-reduce: the rings of all rails share the payload (RailX)

_MARKERS = "osD^vP"


@dataclass(frozen=True)
class RingAllReduceSettings(Choice):
    """Ring all-reduce over the payload, one line per topology."""

    scope: str | None = "chips"
    """Scope of the collectives to show (row, column, pillar, nodes, chips); null:
    all."""


@figure("Ring all-reduce by topology", "railx", height=4.9)
@reads(
    collectives="network.collectives: topology family collective scope participants rings"
    " payload_bytes time_ms algorithm_gb_s fidelity",
    topologies="metrics.topologies: topology injection_gb_s_per_chip",
)
def ring_all_reduce(settings: RingAllReduceSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line per topology and scope."""
    rows = _rows(settings, tables)
    speeds = rows.groupby("injection_gb_s_per_chip")["topology"].nunique()
    usual: Any = speeds.idxmax()
    kinds = listed([f"{kind:,.0f}" for kind in speeds.index])
    subtitle = """Left: time of one all-reduce. Right: payload over that time, as a share of
        injection."""
    if len(speeds) > 1:
        subtitle += f""" Unlike speeds: injection is {kinds} GB/s a chip; dashed is all but
            {usual:,.0f}."""
    with canvas(subtitle, rows["fidelity"]) as page:
        time, share = tiles(page, ("Time", "Bandwidth"), 2, settings, "Payload")
        colour = colours(rows["topology"])
        several = rows["scope"].nunique() > 1
        groups = list(rows.groupby(["topology", "scope"], sort=False))
        for i, ((topology, _), group) in enumerate(groups):
            line = group.sort_values("payload_bytes")
            # Lines that lie on one another stay visible: the next one is thinner.
            wide = 1.2 + 2.0 * (len(groups) - 1 - i) / max(len(groups) - 1, 1)
            common = line["injection_gb_s_per_chip"].iloc[0] == usual
            style: dict[str, Any] = {"color": colour[str(topology)], "linewidth": wide}
            style |= {"linestyle": "-" if common else (0, (4, 2))}
            style |= {"marker": _MARKERS[i % len(_MARKERS)], "markersize": 3 + wide}
            scope = ", {scope:lower}" if several else ""
            speed = "{injection_gb_s_per_chip:,.0f} GB/s a chip, {participants:,} chips"
            name = phrase(f"{{topology:label}}{scope}: {speed}", line.iloc[0])
            name += f", {counted(line['rings'].iloc[0], 'ring')}"
            time.plot(line["payload_bytes"], line["time_ms"], label=name, **style)
            share.plot(line["payload_bytes"], 100 * line["bandwidth_over_injection"], **style)
        time.set_ylabel("Time (ms)")
        share.set_ylabel("Bandwidth (% of injection)")
        share.set_ylim(bottom=0)
        for axes in (time, share):
            ticks(axes.xaxis, text=_bytes, base=10)
        ticks(time.yaxis, text="{x:g}", base=10)
        share_legend(page, {}, 2, time)
    # The largest payload of each line.
    ends = rows.sort_values("payload_bytes").groupby(["topology", "scope"], sort=False).tail(1)
    ends = ends.assign(percent=100 * ends["bandwidth_over_injection"])
    row = """{topology:spoken} {time_ms:q} ms, {percent:.1f} % of {injection_gb_s_per_chip:,.0f}
        GB/s"""
    alternative = f"""Lines of all-reduce time and bandwidth over the payload. At the largest:
        {phrases(ends, row)}."""
    falling = ends.sort_values("bandwidth_over_injection", ascending=False)
    payloads = rows["payload_bytes"]
    small = where(rows, payload_bytes=payloads.min()).sort_values("time_ms")
    small = small.assign(time_us=1000 * small["time_ms"])
    reached = "{percent:.1f} % of its injection ({algorithm_gb_s:q} GB/s)"
    of_speed = f"All have {kinds} GB/s of injection a chip."
    if len(speeds) > 1:
        of_speed = f"""The networks differ in speed, {kinds} GB/s of injection a chip: times of
            unlike speeds do not compare, shares do."""
    count = counted(rows["topology"].nunique(), "topology", "topologies")
    caption = f"""Ring all-reduce on {count},
        from {_bytes(payloads.min())} to {_bytes(payloads.max())}. On RailX, HammingMesh and tori
        the payload is split over the rings of all lines; other networks run one ring over the chips
        in order, on all ports of a chip. With the largest payload
        {phrases(falling.head(1), "{topology:spoken} reaches " + reached)} and
        {phrases(falling.tail(1), "{topology:spoken} {percent:.1f} % ({algorithm_gb_s:q} GB/s)")}.
        With the smallest {phrases(small.head(1), "{topology:spoken} takes {time_us:q} µs")} and
        {phrases(small.tail(1), "{topology:spoken} {time_us:q} µs")}. {of_speed}"""
    return Drawn(caption, alternative, rows)


def _rows(settings: RingAllReduceSettings, tables: Tables) -> DataFrame:
    """The all-reduces of the scope with the injection of their topologies.

    Where a table holds several fidelities, the closed form is taken.
    """
    frame = tables.read("collectives", "topology", settings.only)
    rows = where(frame, collective="ring_all_reduce")
    if settings.scope is not None:
        rows = where(rows, scope=settings.scope)
    if rows.empty:
        got = f"scope: no ring all-reduce in scope {settings.scope!r}"
        refuse(got, sorted(set(frame["scope"])))
    rows = where(rows, fidelity=ordered(rows["fidelity"])[0])
    speeds = tables.read("topologies")[tables.columns("topologies")].drop_duplicates("topology")
    rows = rows.merge(speeds, on="topology", how="left", validate="many_to_one")
    injection = rows["injection_gb_s_per_chip"]
    unknown = rows.loc[injection.isna(), "topology"]
    if len(unknown):
        got = f"input topologies: no injection of {', '.join(dict.fromkeys(unknown))}"
        refuse(got, "every topology of the collectives")
    return rows.assign(bandwidth_over_injection=rows["algorithm_gb_s"] / injection)


def _bytes(value: float) -> str:
    from matplotlib.ticker import EngFormatter

    return str(EngFormatter(unit="B", places=1)(float(value))).replace(".0 ", " ")


# Every collective, a panel for each topology

#: A collective has the same colour whatever else is drawn.
_ORDER = (
    *("ring_all_reduce", "hierarchical_all_reduce"),
    *("reduce_scatter", "all_gather", "all_to_all"),
)


@dataclass(frozen=True)
class CollectiveTimeSettings(Choice):
    """Bandwidth of every collective over the payload, one panel per topology."""

    scope: Annotated[str, NotEmpty()] = "chips"
    """Scope of the collectives to show (row, column, pillar, nodes, chips)."""
    columns: Annotated[int, Between(1, 64)] = 2
    """Panels side by side."""


@figure("Collectives by topology", "railx", height=6.6)
@reads(
    collectives="network.collectives: topology collective scope participants payload_bytes"
    " algorithm_gb_s fidelity"
)
def collective_time(settings: CollectiveTimeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One panel per topology."""
    frame = tables.read("collectives", "topology", settings.only)
    refuse_unknown("scope", [settings.scope], sorted(set(frame["scope"])))
    rows = where(frame, scope=settings.scope)
    names = [name for name in _ORDER if name in set(rows["collective"])]
    others = sorted(set(rows["collective"]) - set(names))
    colour = dict(zip((*_ORDER, *others), cycle(PALETTE), strict=False))
    topologies = dict(iter(rows.groupby("topology", sort=False)))
    titles = [
        f"{label(name)} ({int(part['participants'].max()):,} participants)"
        for name, part in topologies.items()
    ]
    across = min(settings.columns, len(titles))
    subtitle = """Payload of a participant over the time of the collective. Reduce-scatter and
        all-gather take the same time."""
    with canvas(subtitle, rows["fidelity"]) as page:
        panels = tiles(page, titles, across, settings, "Payload", "GB/s", sharex=True, sharey=True)
        for axes, part in zip(panels, topologies.values(), strict=True):
            for (name, fidelity), points in part.groupby(["collective", "fidelity"], sort=False):
                line, style = points.sort_values("payload_bytes"), _line(str(name), colour)
                if fidelity != "analytic":
                    size = 8 if name == "all_gather" else 5
                    style = dot(colour[str(name)], size, fillstyle="none")
                axes.plot(line["payload_bytes"], line["algorithm_gb_s"], **style)
            ticks(axes.xaxis, text=_bytes, base=10)
            ticks(axes.yaxis, text="{x:g}", base=10)
        legend: dict[str, Any] = {label(name): _line(name, colour) for name in (*names, *others)}
        if "flow" in set(rows["fidelity"]):
            legend["Messages on the links"] = dot(GREY, 5, fillstyle="none")
        share_legend(page, legend, 3)
    ends, parts = _ends(rows), []
    for name, part in ends.groupby("collective", sort=False):
        falling = part.sort_values("algorithm_gb_s", ascending=False)
        extremes = falling.iloc[sorted({0, len(falling) - 1})]
        reached = phrases(extremes, "{algorithm_gb_s:q} on {topology:spoken}", " and ")
        parts.append(f"{label(name)} {reached}")
    caption = f"""Payload over time of each collective on {listed([*map(spoken, topologies)])}. With
        the largest payload, most and least in GB/s: {"; ".join(parts)}. {_against(rows)}"""
    row = "{topology:spoken}, {collective:lower} {algorithm_gb_s:q}"
    alternative = f"""Rising lines of bandwidth over payload, a panel a topology. In the end, GB/s:
        {phrases(ends, row)}."""
    return Drawn(caption, alternative, rows[tables.columns("collectives")])


def _line(name: str, colour: dict[str, str]) -> dict[str, Any]:
    # Reduce-scatter and all-gather lie on one another: the second is dashed.
    style = "--" if name == "all_gather" else "-"
    return {"color": colour[name], "linestyle": style}


def _ends(rows: DataFrame) -> DataFrame:
    """The largest payload of each collective, in the closed form where there is one."""
    closed = rows[rows["fidelity"] == "analytic"] if "analytic" in set(rows["fidelity"]) else rows
    falling = closed.sort_values("payload_bytes")
    return falling.groupby(["topology", "collective"], sort=False).tail(1)


def _against(rows: DataFrame) -> str:
    """How far messages on the links are from the closed form."""
    keys = ["topology", "collective", "payload_bytes"]
    both = rows.pivot_table(index=keys, columns="fidelity", values="algorithm_gb_s")
    if not {"analytic", "flow"} <= set(both.columns):
        return ""
    ratios = (both["flow"] / both["analytic"]).dropna()
    return f"""Lines add up latency and serialisation in closed form; circles send the messages of
        every step over the links, which they share max-min fairly, and reach {span(100 * ratios)} %
        of the lines."""


# Latency against offered load, and where each network saturates

_OFFERED = "offered_flits_per_chip_cycle"
_LIMITS = {
    "saturation": "saturation point",
    "accepted": "largest rate accepted",
    "bound": "static bound: busiest channel full",
    "ideal": "ideal: external links evenly loaded",
}
_TORI = ("hammingmesh", "railx_torus", "railx_twisted_torus", "torus_2d")
#: Rows of text that the limits need besides one per sweep.
_ROWS_AROUND = 4.5


@dataclass(frozen=True)
class LatencyLoadSettings(Choice):
    """Latency over the offered load, one line per sweep, and the saturation points.

    The points are drawn beside the static limits.
    """

    panels: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "RailX, all-to-all rails": ("railx_hyperx",),
            "HammingMesh and tori": _TORI,
            "Fat trees": ("fat_tree",),
        }
    )
    """Title of each panel, with the families that it shows. Sweeps of families that
    are not named share one more panel."""
    max_latency_cycles: Annotated[float, AtLeast(10)] | None = 1000
    """Top of the latency axis in cycles; null: the largest latency."""


@figure("Latency against offered load", "railx", height=8.6)
@reads(
    points="packets.points: sweep topology family chips traffic routing"
    " offered_flits_per_chip_cycle accepted_flits_per_chip_cycle latency_mean_cycles"
    " latency_ci95_cycles saturated saturation_flits_per_chip_cycle bound_flits_per_chip_cycle"
    " ideal_flits_per_chip_cycle seed fidelity"
)
def latency_load(settings: LatencyLoadSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Above, the mean latency over the offered load by group of families.

    Below, saturation and limits of every sweep. Over several seeds lines are medians
    and bands reach from the least to the most.
    """
    frame = tables.read("points", "sweep", settings.only)
    points, sweeps, names = _points(frame), _sweeps(frame), _names(frame)
    seeds = int(sweeps["seeds"].max())
    repeats = f"line: median, band: least to most of {seeds} seeds"
    subtitle = f"""Above: creation to arrival of the tail, queueing at the source included;
        {repeats if seeds > 1 else "one seed, bars: 95 % confidence"}; hollow: saturated; dotted:
        the saturation point. Below: the loads at which each network saturates and would at best."""
    panels = _panels(frame, settings.panels)
    colour: dict[str, str] = {}
    for members in panels.values():
        colour |= zip(members, cycle(PALETTE), strict=False)
    drawn = {"colour": list(colour.values()), "name": [names[sweep] for sweep in colour]}
    shown = sweeps.loc[[*colour]].assign(**drawn)
    with canvas(subtitle, frame["fidelity"]) as page:
        below = min(0.6, max(0.28, (len(sweeps) + _ROWS_AROUND) * 0.21 / settings.height_inches))
        halves: Any = page.subfigures(2, 1, height_ratios=[1 - below, below])
        row = halves[0].subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, members) in zip(row, panels.items(), strict=True):
            _latencies(axes, title, points, shown.loc[members])
        lowest = 0.8 * float(points["least"].min())
        highest = settings.max_latency_cycles or 1.2 * float(points["most"].max())
        row[0].set(yscale="log", ylabel="Mean latency (cycles)", ylim=(lowest, highest))
        row[0].yaxis.set_major_formatter(lambda value, _: quantity(value))
        row[0].yaxis.set_minor_formatter(
            lambda value, _: quantity(value) if f"{value:.0e}"[0] in "25" else ""
        )
        halves[0].supxlabel("Offered load (flits/chip/cycle)")
        _limits(halves[1].subplots(), shown)
        marks = _limit_marks(INK)
        share_legend(page, {words: marks[column] for column, words in _LIMITS.items()}, 2)
    limits = sweeps.drop(columns="seeds")
    data = points.merge(limits, left_on="sweep", right_index=True, validate="many_to_one")
    rows = sweeps.assign(name=[spoken(names[str(sweep)]) for sweep in sweeps.index])
    row = "{name}: saturates at {saturation:q}, bound {bound:q}, ideal {ideal:q}"
    alternative = f"""Lines of mean latency over offered load that turn up at saturation, and the
        saturation points in flits per chip and cycle. {phrases(rows, row)}."""
    return Drawn(_caption(rows), alternative, data)


def _points(frame: DataFrame) -> DataFrame:
    """A row for each sweep and load: medians over the seeds, and how far they go."""
    latency = "latency_mean_cycles"
    groups = frame.groupby(["sweep", _OFFERED], sort=False)
    shares = {"latency": "median", "least": "min", "most": "max"}
    points = groups.agg(
        **{name: (latency, how) for name, how in shares.items()},
        confidence=("latency_ci95_cycles", "max"),
        accepted=("accepted_flits_per_chip_cycle", "median"),
        saturated=("saturated", "mean"),
        seeds=("seed", "nunique"),
    ).reset_index()
    return points.assign(saturated=points["saturated"] >= 0.5)


def _sweeps(frame: DataFrame) -> DataFrame:
    """A row for each sweep: saturation and limits as medians over the seeds."""
    frame = frame.rename(columns=lambda name: name.removesuffix("_flits_per_chip_cycle"))
    limits = {"saturation": "first", "bound": "first", "ideal": "first", "accepted": "max"}
    seeds = frame.groupby(["sweep", "seed"], sort=False).agg(limits)
    over = seeds.groupby("sweep", sort=False)
    return over.median().assign(
        saturation_least=over["saturation"].min(),
        saturation_most=over["saturation"].max(),
        seeds=over.size(),
    )


def _panels(frame: DataFrame, families: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """The sweeps of each panel that has any, in the order of the files."""
    family = frame.groupby("sweep", sort=False)["family"].first()
    named = {name for names in families.values() for name in names}
    panels = {title: list(family.index[family.isin(names)]) for title, names in families.items()}
    others = "Other networks" if any(panels.values()) else "Latency"
    panels[others] = list(family.index[~family.isin(named)])
    return {title: members for title, members in panels.items() if members}


def _latencies(axes: Axes, title: str, points: DataFrame, sweeps: DataFrame) -> None:
    for sweep, look in sweeps.iterrows():
        colour = look["colour"]
        line = where(points, sweep=sweep).sort_values(_OFFERED)
        load, latency = line[_OFFERED], line["latency"]
        axes.plot(load, latency, label=look["name"], linewidth=1.6, color=colour)
        if line["seeds"].max() > 1:
            band = (line["least"], line["most"])
            axes.fill_between(load, *band, color=colour, alpha=0.25, linewidth=0)
        else:
            width = np.minimum(line["confidence"].fillna(0.0), 0.9 * latency)
            style: dict[str, Any] = {"linestyle": "none", "elinewidth": 1, "capsize": 2}
            axes.errorbar(load, latency, yerr=width, color=colour, **style)
        for saturated, face in ((False, colour), (True, "white")):
            marks = where(line, saturated=saturated)
            axes.plot(marks[_OFFERED], marks["latency"], **dot(colour, 4.5, markerfacecolor=face))
        axes.axvline(look["saturation"], color=colour, linestyle=":", lw=1)
    axes.set_xlim(0, 1.25 * float(sweeps["saturation"].max()))
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0)}
    above |= {"handlelength": 1.4, "labelspacing": 0.25, "borderaxespad": 0.2}
    bold = {"weight": "bold"}
    axes.legend(title=title, title_fontproperties=bold, alignment="left", **above)


def _limit_marks(shade: str) -> dict[str, dict[str, Any]]:
    return {
        "ideal": dot(GREY, 7, marker="s", markerfacecolor="none"),
        "bound": dot(INK, 11, marker="|", markeredgewidth=1.8),
        "accepted": dot(shade, 5.5, markerfacecolor="none"),
        "saturation": dot(shade, 5.5),
    }


def _limits(axes: Axes, sweeps: DataFrame) -> None:
    for row, limits in enumerate(records(sweeps)):
        shade, best = limits["colour"], max(limits["ideal"], limits["bound"])
        axes.hlines(row, limits["saturation"], best, color=shade, linewidth=1)
        ends = (limits["saturation_least"], limits["saturation_most"])
        axes.hlines(row, *ends, color=shade, linewidth=4)
        for column, style in _limit_marks(shade).items():
            axes.plot(limits[column], row, **style)
    name_rows(axes, list(sweeps["name"]), above=0.6, below=0.6)
    axes.set(xlabel="Offered load (flits/chip/cycle)", title="Saturation and limits")
    rates = axes.secondary_yaxis("right")
    shares = sweeps["accepted"] / sweeps["bound"]
    rates.set_yticks(range(len(sweeps)), [f"{share:.0%}" for share in shares])
    rates.set_ylabel("Largest rate / bound")
    low = 0.75 * float(sweeps["saturation_least"].min())
    high = 1.2 * float(sweeps[["ideal", "bound", "accepted"]].max().max())
    axes.set_xlim(low, high)
    rounded = [step * 10.0**power for power in range(-4, 5) for step in (1, 2, 3, 5, 7)]
    shown = [load for load in rounded if low < load < high]
    if len(shown) > 3:  # networks far apart; else a linear axis says more
        ticks(axes.xaxis, shown, base=10)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))


def _caption(rows: DataFrame) -> str:
    seeds = int(rows["seeds"].max())
    rows = rows.assign(share=rows["saturation"] / rows["bound"])
    late, early = (rows.loc[getattr(rows["saturation"], end)()] for end in ("idxmax", "idxmin"))
    far, near = (rows.sort_values("share").iloc[end] for end in (0, -1))
    over = list(rows.loc[rows["accepted"] > 1.005 * rows["bound"], "name"])
    spread = float((rows["saturation_most"] / rows["saturation_least"] - 1).max())
    agree = f"Saturation points lie within {quantity(100 * spread)} % over the seeds."
    overload = f"""Under overload more than the bound arrives on {listed(over)}: traffic that does
        not cross the busiest channel goes on."""
    return f"""{counted(len(rows), "sweep")} of the offered load, packet by packet, under
        {counted(seeds, "seed")}. {agree if seeds > 1 else ""}
        {phrase("{name} saturates last, at {saturation:q} flits per chip and cycle", late)},
        {phrase("{name} first, at {saturation:q}", early)}. Packets come nearest to the static
        bound, the load at which the busiest channel is full, on
        {phrase("{name} with {share:.0%} of it", near)}, and stay farthest below on
        {phrase("{name} with {share:.0%}", far)}: a buffer is first in, first out, and a blocked
        head holds up what stands behind it. {overload if over else ""} The ideal is the load at
        which the external links would be full if they were evenly loaded. The paper's own curves
        are not available as numbers. Saturated points may lie outside the panels."""


def _names(frame: DataFrame) -> dict[str, str]:
    """Topology, and what tells a sweep from the others on the same topology."""
    first = frame.groupby("sweep", sort=False).first()
    several = first.groupby("topology")[["traffic", "routing"]].nunique() > 1
    templates = {"traffic": ", {traffic:lower}", "routing": ", {routing}"}
    names = {}
    for sweep, row in first.iterrows():
        extra = [text for key, text in templates.items() if several.loc[row["topology"], key]]
        names[str(sweep)] = phrase("".join(["{topology:label}", *extra]), row)
    return names
