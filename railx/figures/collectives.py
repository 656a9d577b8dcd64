"""Collectives over the payload by topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from railx.figures.figure import Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.panels import entries, share_legend, ticks, tiles
from railx.figures.tables import refuse, refuse_unknown, where
from railx.figures.theme import GREY, PALETTE, colours, dot, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, fidelity_line, listed, ordered, phrases, span, spoken
from railx.settings import Between, NotEmpty

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
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
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
            time.plot(line["payload_bytes"], line["time_ms"], label=_name(line, several), **style)
            share.plot(line["payload_bytes"], 100 * line["bandwidth_over_injection"], **style)
        time.set_ylabel("Time (ms)")
        share.set_ylabel("Bandwidth (% of injection)")
        share.set_ylim(bottom=0)
        for axes in (time, share):
            ticks(axes.xaxis, text=_bytes, base=10)
        ticks(time.yaxis, text="{x:g}", base=10)
        share_legend(page, entries(time), 2)
    # The largest payload of each line.
    ends = rows.sort_values("payload_bytes").groupby(["topology", "scope"], sort=False).tail(1)
    ends = ends.assign(percent=100 * ends["bandwidth_over_injection"])
    row = """{topology:spoken} {time_ms:q} ms, {percent:.1f} % of {injection_gb_s_per_chip:,.0f}
        GB/s"""
    alternative = f"""Lines of all-reduce time and bandwidth over the payload. At the largest:
        {phrases(ends, row)}."""
    return Drawn(_ring_caption(rows, ends, kinds), alternative, rows)


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


def _ring_caption(rows: DataFrame, ends: DataFrame, kinds: str) -> str:
    ends = ends.sort_values("bandwidth_over_injection", ascending=False)
    payloads = rows["payload_bytes"]
    small = where(rows, payload_bytes=payloads.min()).sort_values("time_ms")
    small = small.assign(time_us=1000 * small["time_ms"])
    reached = "{percent:.1f} % of its injection ({algorithm_gb_s:q} GB/s)"
    speeds = f"All have {kinds} GB/s of injection a chip."
    if rows["injection_gb_s_per_chip"].nunique() > 1:
        speeds = f"""The networks differ in speed, {kinds} GB/s of injection a chip: times of unlike
            speeds do not compare, shares do."""
    return f"""Ring all-reduce on {counted(rows["topology"].nunique(), "topology", "topologies")},
        from {_bytes(payloads.min())} to {_bytes(payloads.max())}. On RailX, HammingMesh and tori
        the payload is split over the rings of all lines; other networks run one ring over the chips
        in order, on all ports of a chip. With the largest payload
        {phrases(ends.head(1), "{topology:spoken} reaches " + reached)} and
        {phrases(ends.tail(1), "{topology:spoken} {percent:.1f} % ({algorithm_gb_s:q} GB/s)")}. With
        the smallest {phrases(small.head(1), "{topology:spoken} takes {time_us:q} µs")} and
        {phrases(small.tail(1), "{topology:spoken} {time_us:q} µs")}. {speeds}"""


def _bytes(value: float) -> str:
    from matplotlib.ticker import EngFormatter

    return str(EngFormatter(unit="B", places=1)(float(value))).replace(".0 ", " ")


def _name(line: DataFrame, several: bool) -> str:
    first = line.iloc[0]
    scope = f", {label(first['scope']).lower()}" if several else ""
    return (
        f"{label(first['topology'])}{scope}: {first['injection_gb_s_per_chip']:,.0f} GB/s a chip,"
        f" {first['participants']:,} chips, {counted(first['rings'], 'ring')}"
    )


# Every collective, a panel for each topology

#: A collective has the same colour whatever else is drawn.
_ORDER = (
    "ring_all_reduce",
    "hierarchical_all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
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
    colour = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate((*_ORDER, *others))}
    topologies = dict(iter(rows.groupby("topology", sort=False)))
    titles = [
        f"{label(name)} ({int(part['participants'].max()):,} participants)"
        for name, part in topologies.items()
    ]
    across = min(settings.columns, len(titles))
    subtitle = """Payload of a participant over the time of the collective. Reduce-scatter and
        all-gather take the same time."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        panels = tiles(page, titles, across, settings, "Payload", "GB/s", sharex=True, sharey=True)
        for axes, part in zip(panels, topologies.values(), strict=True):
            _panel(axes, part, colour)
            ticks(axes.xaxis, text=_bytes, base=10)
            ticks(axes.yaxis, text="{x:g}", base=10)
        legend: dict[str, Any] = {label(name): _line(name, colour) for name in (*names, *others)}
        if "flow" in set(rows["fidelity"]):
            legend["Messages on the links"] = dot(GREY, 5, fillstyle="none")
        share_legend(page, legend, 3)
    row = "{topology:spoken}, {collective:lower} {algorithm_gb_s:q}"
    alternative = f"""Rising lines of bandwidth over payload, a panel a topology. In the end, GB/s:
        {phrases(_ends(rows), row)}."""
    return Drawn(_all_caption(rows), alternative, rows[tables.columns("collectives")])


def _line(name: str, colour: dict[str, str]) -> dict[str, Any]:
    # Reduce-scatter and all-gather lie on one another: the second is dashed.
    style = "--" if name == "all_gather" else "-"
    return {"color": colour[name], "linestyle": style}


def _panel(axes: Axes, rows: DataFrame, colour: dict[str, str]) -> None:
    for (name, fidelity), points in rows.groupby(["collective", "fidelity"], sort=False):
        line = points.sort_values("payload_bytes")
        style = _line(str(name), colour)
        if fidelity != "analytic":
            size = 8 if name == "all_gather" else 5
            style = dot(colour[str(name)], size, fillstyle="none")
        axes.plot(line["payload_bytes"], line["algorithm_gb_s"], **style)


def _ends(rows: DataFrame) -> DataFrame:
    """The largest payload of each collective, in the closed form where there is one."""
    closed = rows[rows["fidelity"] == "analytic"] if "analytic" in set(rows["fidelity"]) else rows
    falling = closed.sort_values("payload_bytes")
    return falling.groupby(["topology", "collective"], sort=False).tail(1)


def _all_caption(rows: DataFrame) -> str:
    parts = []
    for name, ends in _ends(rows).groupby("collective", sort=False):
        falling = ends.sort_values("algorithm_gb_s", ascending=False)
        extremes = falling.iloc[sorted({0, len(falling) - 1})]
        reached = phrases(extremes, "{algorithm_gb_s:q} on {topology:spoken}", " and ")
        parts.append(f"{label(name)} {reached}")
    topologies = [spoken(name) for name in dict.fromkeys(rows["topology"])]
    return f"""Payload over time of each collective on {listed(topologies)}. With the largest
        payload, most and least in GB/s: {"; ".join(parts)}. {_against(rows)}"""


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
