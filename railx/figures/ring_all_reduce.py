"""Ring all-reduce over the payload: its time, and its bandwidth over the injection.

Every rail of a RailX line is a ring in the torus and in the all-to-all setting, so the
rings of all rails share the payload (RailX, section on collectives).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from railx.errors import UserError
from railx.figures.figure import Canvas, DataFrame, Drawn, Height, Series, TopologyChoice, declare
from railx.figures.panels import entries, share_legend, ticks
from railx.figures.tables import Tables, records, where
from railx.figures.theme import colours, label
from railx.figures.words import counted, fidelity_line, listed, ordered, quantity, sentence, spoken

__all__ = ["FIGURE", "RingAllReduceSettings"]

_MARKERS = "osD^vP"


@dataclass(frozen=True)
class RingAllReduceSettings(TopologyChoice):
    """Ring all-reduce over the payload, one line per topology."""

    figure: Literal["ring_all_reduce"] = "ring_all_reduce"
    height_inches: Height = 4.9

    scope: str | None = "chips"
    """Scope of the collectives to show (row, column, pillar, nodes, chips); null:
    all."""


def draw(settings: RingAllReduceSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line per topology and scope.

    Raises ValueError when no row has ``settings.scope``.
    """
    from matplotlib.ticker import EngFormatter

    rows = _rows(settings, tables)
    speeds = rows.groupby("injection_gb_s_per_chip")["topology"].nunique()
    usual: Any = speeds.idxmax()
    kinds = listed([f"{kind:,.0f}" for kind in speeds.index])
    subtitle = (
        "Left: time of one all-reduce. Right: payload over that time, as a share of injection."
    )
    if len(speeds) > 1:
        subtitle += (
            f" Unlike speeds: injection is {kinds} GB/s a chip; dashed is all but {usual:,.0f}."
        )
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        time, share = page.subplots(1, 2)
        colour = colours(rows["topology"])
        several = rows["scope"].nunique() > 1
        groups = list(rows.groupby(["topology", "scope"], sort=False))
        for i, ((topology, _), group) in enumerate(groups):
            line = group.sort_values("payload_bytes")
            # Lines that lie on one another stay visible: each is thinner than the one
            # before.
            wide = 1.2 + 2.0 * (len(groups) - 1 - i) / max(len(groups) - 1, 1)
            common = line["injection_gb_s_per_chip"].iloc[0] == usual
            style: dict[str, Any] = {"color": colour[str(topology)], "linewidth": wide}
            style |= {"linestyle": "-" if common else (0, (4, 2))}
            style |= {"marker": _MARKERS[i % len(_MARKERS)], "markersize": 3 + wide}
            time.plot(line["payload_bytes"], line["time_ms"], label=_name(line, several), **style)
            share.plot(line["payload_bytes"], 100 * line["bandwidth_over_injection"], **style)
        time.set(yscale="log", title="Time", ylabel="Time (ms)")
        share.set(title="Bandwidth", ylabel="Bandwidth (% of injection)")
        share.set_ylim(bottom=0)
        for axes in (time, share):
            axes.set(xscale="log", xlabel="Payload")
            ticks(axes.xaxis, text=EngFormatter(unit="B"))
        ticks(time.yaxis, text="{x:g}")
        share_legend(page, entries(time), 2)
    return Drawn(_caption(rows, kinds), _alternative(rows), rows)


def _rows(settings: RingAllReduceSettings, tables: Tables) -> DataFrame:
    """The all-reduces of the scope with the injection of their topologies.

    Where a table holds several fidelities, the closed form is taken.
    """
    frame = tables.read("collectives", "topology", settings.only)
    rows = where(frame, collective="ring_all_reduce")
    if settings.scope is not None:
        rows = where(rows, scope=settings.scope)
    if rows.empty:
        raise UserError(
            f"scope: no ring all-reduce in scope {settings.scope!r}; allowed:"
            f" {', '.join(sorted(set(frame['scope'])))}"
        )
    rows = where(rows, fidelity=ordered(rows["fidelity"])[0])
    speeds = tables.read("topologies")[tables.columns("topologies")].drop_duplicates("topology")
    rows = rows.merge(speeds, on="topology", how="left", validate="many_to_one")
    injection = rows["injection_gb_s_per_chip"]
    unknown = rows.loc[injection.isna(), "topology"]
    if len(unknown):
        raise UserError(
            f"input topologies: no injection of {', '.join(dict.fromkeys(unknown))}; allowed:"
            " every topology of the collectives"
        )
    return rows.assign(bandwidth_over_injection=rows["algorithm_gb_s"] / injection)


def _largest(rows: DataFrame) -> DataFrame:
    """The row of the largest payload of each line."""
    return rows.sort_values("payload_bytes").groupby(["topology", "scope"], sort=False).tail(1)


def _caption(rows: DataFrame, kinds: str) -> str:
    ends = _largest(rows).sort_values("bandwidth_over_injection", ascending=False)
    best, worst = ends.iloc[0], ends.iloc[-1]
    payloads = rows["payload_bytes"]
    small = where(rows, payload_bytes=payloads.min()).sort_values("time_ms")
    fast, slow = small.iloc[0], small.iloc[-1]
    return sentence(
        f"Ring all-reduce on {counted(rows['topology'].nunique(), 'topology', 'topologies')}, from"
        f" {_bytes(payloads.min())} to {_bytes(payloads.max())}. On RailX, HammingMesh and tori the"
        " payload is split over the rings of all lines; other networks run one ring over the chips"
        " in order, on all ports of a chip.",
        f"With the largest payload {_spoken(best)} reaches"
        f" {100 * best['bandwidth_over_injection']:.1f} % of its injection"
        f" ({quantity(best['algorithm_gb_s'])} GB/s) and {_spoken(worst)}"
        f" {100 * worst['bandwidth_over_injection']:.1f} %"
        f" ({quantity(worst['algorithm_gb_s'])} GB/s).",
        f"With the smallest {_spoken(fast)} takes {quantity(1000 * fast['time_ms'])} µs and"
        f" {_spoken(slow)} {quantity(1000 * slow['time_ms'])} µs.",
        f"The networks differ in speed, {kinds} GB/s of injection a chip: times of unlike speeds do"
        " not compare, shares do."
        if rows["injection_gb_s_per_chip"].nunique() > 1
        else f"All have {kinds} GB/s of injection a chip.",
    )


def _alternative(rows: DataFrame) -> str:
    ends = "; ".join(
        f"{_spoken(row)} {quantity(row['time_ms'])} ms,"
        f" {100 * row['bandwidth_over_injection']:.1f} % of {row['injection_gb_s_per_chip']:,.0f}"
        " GB/s"
        for row in records(_largest(rows))
    )
    return f"Lines of all-reduce time and bandwidth over the payload. At the largest: {ends}."


def _spoken(row: Mapping[str, Any] | Series) -> str:
    return spoken(label(row["topology"]))


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


FIGURE = declare(
    RingAllReduceSettings,
    "Ring all-reduce by topology",
    "railx",
    draw,
    collectives="network.collectives: topology family collective scope participants rings"
    " payload_bytes time_ms algorithm_gb_s fidelity",
    topologies="metrics.topologies: topology injection_gb_s_per_chip",
)
