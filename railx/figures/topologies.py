"""Topologies: rail rings, hops, bisection, all-to-all bandwidth and loads of channels.

The ideal bandwidth spreads the load evenly over the external channels. The bound
divides the capacity by the largest static channel load under the routing (RailX,
all-to-all formulas); how fast the loads fall shows how much is idle at that bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from railx.errors import UserError
from railx.figures.figure import AxisScale, Canvas, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import DERIVED, PUBLISHED, PUBLISHED_LINE, dot, published_mark
from railx.figures.panels import beside, name_rows, share_legend, ticks, tiles
from railx.figures.tables import read_frame, records, refuse_unknown, stack, to_frame, where
from railx.figures.theme import GREY, INK, PALETTE, colours, label, lighter, readable
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import counted, listed, phrase, phrases, quantity, spoken
from railx.settings import Between, NonNegative, NotEmpty, mapping

# Hops between nodes, and what crosses their middle

_TICKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@figure("Hops and bisection by topology", "railx", height=7)
@reads(
    topologies="metrics.topologies: topology family chips diameter_node_hops mean_node_hops"
    " bisection_gb_s_per_chip injection_gb_s_per_chip fidelity",
    published="railx.csv: id value",
)
def topology_metrics(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Hops between nodes and bisection, one row per topology."""
    frame = tables.read("topologies", "topology", settings.only)
    share = frame["bisection_gb_s_per_chip"] / frame["injection_gb_s_per_chip"]
    data = frame[tables.columns("topologies")].assign(bisection_over_injection=share)
    cut = data["bisection_over_injection"].notna()
    published = tables.values("published")
    limits = [float(published[f"diameter_{end}"]) for end in ("least", "most")]
    subtitle = """A hop is a link that leaves a node (board, server or single chip). Bisection: one
        direction of the family's natural cut."""
    title = "Hops between nodes and bisection by topology"
    with canvas(subtitle, frame["fidelity"], title=title) as page:
        hops, bisection = page.subplots(1, 2, sharey=True, width_ratios=[1.15, 1])
        colour = colours(frame["family"])
        _hops(hops, data, colour, limits)
        percent = 100 * data["bisection_over_injection"]
        shades = list(data["family"].map(colour))
        bars = bisection.barh(range(len(data)), percent, height=0.6, color=shades)
        # A family without a natural cut has no bar.
        texts = [f"{quantity(share)} %" if share == share else "" for share in percent]
        bisection.bar_label(bars, texts, padding=4)
        bisection.set_title("Bisection over injection")
        bisection.set_xlabel("Bisection per chip (% of injection bandwidth)")
        bisection.set_xlim(0, 1.2 * (percent.max() if cut.any() else 100.0))
        sizes = zip(data["topology"], data["chips"], strict=True)
        name_rows(hops, [f"{label(name)} ({chips:,})" for name, chips in sizes])
        bisection.grid(axis="y", visible=False)
        shade = next(iter(colour.values()))
        legend = {
            "mean over all pairs": dot(shade, 6),
            "diameter": dot(shade, 11, marker="|", mew=2.4),
            f"{PUBLISHED}: diameters of RailX": PUBLISHED_LINE,
        }
        share_legend(page, legend, 3)
    row = "{topology:spoken}: diameter {diameter_node_hops:.0f}, mean {mean_node_hops:q}"
    rows = [(cut, f"{row}, bisection {{bisection_over_injection:q%}}"), (~cut, row)]
    alternative = f"""Hops between nodes and bisection over injection, a row per topology.
        {"; ".join(phrases(data[of], text) for of, text in rows if of.any())}."""
    near, far = _ends(data, "diameter_node_hops")
    bisected = data[cut]
    of_railx = data[data["family"].astype(str).str.startswith("railx")]
    within = of_railx["diameter_node_hops"].between(limits[0], limits[1])
    text = "{topology:spoken} with {diameter_node_hops:.0f}"
    beyond = listed([phrase(text, row) for row in records(of_railx[~within])])
    stated = ""
    if len(of_railx):
        stated = f"""RailX states {limits[0]:.0f} to {limits[1]:.0f} hops for its reconfigurable
            settings (dashed): {within.sum()} of the {len(of_railx)} RailX networks here lie
            within{f"; beyond are {beyond}" if beyond else ""}."""
    links, percents = "{diameter_node_hops:.0f}", "{bisection_over_injection:q%}"
    ends, name = "", "({topology:label})"
    if len(bisected):
        narrow, wide = _ends(bisected, "bisection_over_injection")
        ends = f"""The bisection, counted on the family's natural cut, goes from
            {phrase(f"{percents} of the injection bandwidth {name}", narrow)} to
            {phrase(f"{percents} {name}", wide)}."""
    count = counted(len(data), "topology", "topologies")
    caption = f"""{count}. A hop is a link that leaves a node; the dot is the mean over all pairs of
        chips in different places, the line ends at the diameter. Diameters go from
        {phrase(f"{links} hops {name}", near)} to {phrase(f"{links} {name}", far)}. {stated}
        {ends}"""
    return Drawn(caption, alternative, data)


def _hops(axes: Axes, data: DataFrame, colour: dict[str, str], limits: list[float]) -> None:
    largest = float(data["diameter_node_hops"].max())
    for limit in limits:
        axes.axvline(limit, zorder=1, **PUBLISHED_LINE)
    for position, row in enumerate(records(data)):
        shade = colour[str(row["family"])]
        mean, diameter = row["mean_node_hops"], row["diameter_node_hops"]
        axes.plot([mean, diameter], [position] * 2, color=shade, linewidth=1.3)
        axes.plot([diameter], [position], **dot(shade, 11, marker="|", markeredgewidth=2.4))
        axes.plot([mean], [position], **dot(shade, 6))
        words = phrase("{mean_node_hops:q} to {diameter_node_hops:.0f}", row)
        axes.text(4.6 * largest, position, words, ha="right", va="center")
    axes.set(title="Hops: mean to diameter", xlabel="Hops between nodes", xscale="log")
    axes.set_xlim(0.85 * min(1.0, float(data["mean_node_hops"].min())), 5 * largest)
    ticks(axes.xaxis, [hops for hops in _TICKS if hops <= 1.5 * largest], "{x:g}")


def _ends(data: DataFrame, column: str) -> tuple[Series[Any], Series[Any]]:
    """The rows with the lowest and the highest value."""
    values = data[column].to_numpy()
    return data.iloc[int(values.argmin())], data.iloc[int(values.argmax())]


# All-to-all bandwidth per chip: the ideal and the bound of the routing

#: Shares of the injection in percent, by topology and ideal or routing.
Derived = dict[tuple[str, str], float]


@dataclass(frozen=True)
class BandwidthSettings(Choice):
    """All-to-all bandwidth by topology for one traffic pattern."""

    traffic: Annotated[str, NotEmpty()] = "uniform"
    """Traffic pattern of the rows to show."""
    scale: AxisScale = "linear"
    """Scale of the bandwidth axes."""
    derived: dict[str, str] = mapping(
        railx_hyperx="m2_n2", railx_hyperx_m4n2="m4_n2", railx_hyperx_full="m7_n9"
    )
    """Topologies for which a bound under uniform traffic follows from the paper, and
    the published row that holds it; it counts where both have as many chips."""


@figure("All-to-all bandwidth by topology", "railx", height=6.6)
@reads(
    bounds="network.bounds: topology family chips traffic routing injection_gb_s_per_chip"
    " ideal_gb_s_per_chip bound_gb_s_per_chip fidelity",
    derived="railx_uniform_bounds.csv: id m n chips ideal_flits_per_chip_cycle"
    " min_bound_flits_per_chip_cycle",
)
def all_to_all_bandwidth(settings: BandwidthSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A group of bars per topology: the ideal, then the bound under each routing."""
    frame = tables.read("bounds", "topology", settings.only)
    refuse_unknown("traffic", [settings.traffic], sorted(set(frame["traffic"])))
    rows = where(frame, traffic=settings.traffic).reset_index(drop=True)
    injection, ends = rows["injection_gb_s_per_chip"], ("ideal", "bound")
    bandwidth = rows.assign(**{name: rows[f"{name}_gb_s_per_chip"] for name in ends})
    share = rows.assign(**{name: 100 * bandwidth[name] / injection for name in ends})
    derived = _derived(settings, rows, tables.read("derived"))
    speeds = [f"{speed:,.0f}" for speed in sorted(set(injection))]
    subtitle = f"""{label(settings.traffic)} traffic, one direction. Ideal: even load on all
        external channels. Bound: set by the most loaded channel."""
    if len(speeds) > 1:
        subtitle += f""" Injection differs, {listed(speeds)} GB/s a chip: shares compare, bandwidths
            do not."""
    with canvas(subtitle, rows["fidelity"]) as page:
        left, right = page.subplots(1, 2, sharey=True, width_ratios=[1.1, 1])
        _bandwidth_groups(left, bandwidth, "", {})
        _bandwidth_groups(right, share, " %", derived)
        left.set(title="Bandwidth", xlabel="All-to-all bandwidth per chip (GB/s)")
        right.set(title="Share of injection", xlabel="Share of injection bandwidth (%)")
        for panel in (left, right):
            panel.set_xscale(settings.scale)
            panel.margins(x=0.0)
            low, high = panel.get_xlim()
            panel.set_xlim(low, high * (1.62 if settings.scale == "linear" else 6.0))
        if derived:
            share_legend(page, {DERIVED: published_mark(GREY)}, 1)
    data = rows[tables.columns("bounds")].copy()
    routings = {"ideal": ["ideal"] * len(data), "bound": list(data["routing"])}
    for name, chosen in routings.items():
        data[f"{name}_over_injection"] = bandwidth[name] / injection
        stated = [derived.get(key, math.nan) for key in zip(data["topology"], chosen, strict=True)]
        data[f"{name}_over_injection_derived_from_paper"] = [value / 100 for value in stated]
    row = """{topology:spoken} under {routing}: ideal {ideal_gb_s_per_chip:q}, bound
        {bound_gb_s_per_chip:q} of {injection_gb_s_per_chip:,.0f}"""
    alternative = f"Bars of all-to-all bandwidth per chip in GB/s. {phrases(rows, row)}."
    return Drawn(_bandwidth_caption(share, derived), alternative, data)


def _derived(settings: BandwidthSettings, rows: DataFrame, published: DataFrame) -> Derived:
    """What follows from the paper, for uniform traffic."""
    stated = {row["id"]: row for row in records(published)}
    shares: Derived = {}
    for row in records(rows[rows["traffic"] == "uniform"]):
        bounds = stated.get(settings.derived.get(str(row["topology"]), ""))
        if bounds is None or bounds["chips"] != row["chips"]:
            continue
        # Four sides of n ports take 4 n flits a cycle out of a chip.
        injection = 4 * float(bounds["n"]) / 100
        ideal, bound = "ideal_flits_per_chip_cycle", "min_bound_flits_per_chip_cycle"
        shares[row["topology"], "ideal"] = float(bounds[ideal]) / injection
        if row["routing"] == "min":
            shares[row["topology"], "min"] = float(bounds[bound]) / injection
    return shares


def _bandwidth_caption(rows: DataFrame, derived: Derived) -> str:
    best = rows.groupby("topology")["bound"].max().sort_values()
    low, high = (f"{quantity(best.iloc[i])} %" for i in (0, -1))
    over = rows["ideal_gb_s_per_chip"] / rows["bound_gb_s_per_chip"]
    ours = rows.set_index(["topology", "routing"])["bound"].to_dict()
    ours |= rows.assign(way="ideal").set_index(["topology", "way"])["ideal"].to_dict()
    apart = [abs(ours[key] / theirs - 1) for key, theirs in derived.items() if key in ours]
    costs = "On all of them routing reaches the ideal."
    if over.max() > 1 + 1e-9:
        costs = phrase(
            """Routing costs most on {topology:spoken} under {routing}: a bound of
            {bound_gb_s_per_chip:q} GB/s of an ideal {ideal_gb_s_per_chip:q}.""",
            rows.iloc[int(over.to_numpy().argmax())],
        )
    diamonds = ""
    if apart:
        diamonds = f"""Diamonds are the {counted(len(derived), "value")} that follow from the paper
            and its authors' simulator; ours are within {quantity(100 * max(apart))} %."""
    return f"""{label(rows["traffic"].iloc[0])} traffic on {len(best)} networks. The *ideal*
        spreads the load evenly over the external channels, the *bound* divides the capacity by the
        load of the busiest channel under the given routing. The best bound of a network goes from
        {low} of its injection bandwidth ({label(best.index[0])}) to {high}
        ({label(best.index[-1])}). {costs} {diamonds}"""


def _bandwidth_groups(axes: Axes, rows: DataFrame, unit: str, derived: Derived) -> None:
    """Horizontal bars in groups, with what follows from the paper as diamonds.

    Routings with the same bound share one bar.
    """
    colour = colours(rows["family"])
    y, middles, names = 0.0, [], []
    for _, group in rows.groupby("topology", sort=False):
        first = group.iloc[0]
        shade = colour[str(first["family"])]
        # Text, ideal or routing, value and lightness of a bar.
        bars = [("ideal", "ideal", float(first["ideal"]), 0.65)]
        alike = group["bound"].max() <= group["bound"].min() * (1 + 1e-9)
        for i, row in enumerate(records(group.head(1) if alike else group)):
            text = "bound" if alike else f"bound, {row['routing']} routing"
            bars.append((text, row["routing"], row["bound"], 0.3 * i / len(group)))
        middles.append(y + (len(bars) - 1) / 2)
        for text, name, value, light in bars:
            bar = axes.barh(y, value, height=0.9, color=lighter(shade, light))
            stated = derived.get((str(first["topology"]), name))
            if stated is not None:
                axes.plot([stated], [y], zorder=5, **published_mark(GREY))
            padding = 3 if stated is None else 8
            axes.bar_label(bar, [f"{quantity(value)}{unit} {text}"], padding=padding)
            y += 1
        text = "{topology:label}\n{chips:,} chips, {injection_gb_s_per_chip:q} GB/s injection"
        names.append(phrase(text, first))
        y += 0.8
    axes.set_yticks(middles, names)
    axes.set_ylim(y - 1.1, -0.8)
    axes.grid(axis="y", visible=False)


# Channel loads in descending order, by kind of channel

_MOST_STEPS = 800


@dataclass(frozen=True)
class ChannelLoadsSettings(Choice):
    """Channel loads in descending order, one panel per topology."""

    only: tuple[str, ...] = ("railx_hyperx", "railx_hyperx_m4n2")

    columns: Annotated[int, Between(1, 64)] = 2
    """Panels side by side."""
    scale: AxisScale = "linear"
    """Scale of the load axes."""


@figure("Channel loads under uniform all-to-all traffic", "railx", height=6)
@reads(channels="network.channels: topology routing src dst kind rail load fidelity")
def channel_loads(settings: ChannelLoadsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One panel per topology and routing."""
    frame = tables.read("channels", "topology", settings.only)
    data = _stairs(frame)
    groups = list(data.groupby(["topology", "routing"], sort=False))
    titles = [
        f"{label(topology)}, {label(routing)}\nlargest {quantity(rows['load'].max())}"
        for (topology, routing), rows in groups
    ]
    columns = min(settings.columns, len(groups))
    x = "Share of channels of the kind (%)"
    subtitle = """Every channel in descending order of its load. Load: flits per cycle on a channel
        when each chip offers one flit per cycle."""
    with canvas(subtitle, frame["fidelity"]) as page:
        panels = tiles(page, titles, columns, settings, x, "Load", sharex=True)
        colour = colours(sorted(set(frame["kind"])))
        for axes, (_, rows) in zip(panels, groups, strict=True):
            for i, (kind, line) in enumerate(rows.groupby("kind")):
                stairs = line["share_of_channels_percent"], line["load"]
                # Lines that lie on one another stay visible: each is thinner.
                style = {"color": colour[str(kind)], "linewidth": max(3.2 - i, 1.0)}
                axes.step(*stairs, where="post", **style)
            axes.margins(y=0.14)
            axes.set_xlim(0, 100)
            axes.set_yscale(settings.scale)
            if settings.scale == "linear":
                axes.set_ylim(bottom=0)
        legend = {label(kind): {"color": shade} for kind, shade in colour.items()}
        share_legend(page, legend, len(colour))
    row = """{topology:spoken}, {routing} routing: {load:q} on a link of kind {kind:lower}, {over:q}
        times the mean of its kind"""
    caption = f"""Load of every channel under uniform all-to-all traffic, in descending order, by
        kind of channel. The largest load bounds the throughput; the further a line falls, the more
        capacity is idle at that bound. The largest loads: {phrases(_largest(frame), row)}."""
    row = "{topology:spoken}, {routing} routing from {load:q}"
    alternative = f"""Falling lines of channel loads, one per kind of channel:
        {phrases(_largest(frame), row)}."""
    return Drawn(caption, alternative, data)


def _stairs(frame: DataFrame) -> DataFrame:
    """Channels of a kind in descending order of load, as shares of them in percent.

    A step for each channel while there are few, else as many as the page can show.
    """
    parts = []
    keys = ["topology", "routing", "kind"]
    for names, rows in frame.groupby(keys, sort=False):
        falling, count = np.sort(rows["load"])[::-1], len(rows)
        chosen = np.unique(np.linspace(0, count - 1, min(count, _MOST_STEPS)).astype(int))
        share = 100 * np.append(chosen, count) / count
        load = np.append(falling[chosen], falling[-1])
        head = dict(zip(keys, names, strict=True)) | {"channels": count}
        parts.append(to_frame({**head, "share_of_channels_percent": share, "load": load}))
    return stack(parts)


def _largest(frame: DataFrame) -> DataFrame:
    """The busiest channel by topology and routing; its load over its kind's mean."""
    keys = ["topology", "routing"]
    means = frame.groupby([*keys, "kind"])["load"].transform("mean")
    frame = frame.assign(over=frame["load"] / means)
    return frame.loc[frame.groupby(keys, sort=False)["load"].idxmax()]


# Rail rings of one RailX line: Hamiltonian cycles over its nodes. A decomposition makes
# the rings together join every ordered pair of nodes exactly once (RailX, Theorem 3.1
# and Appendix A.1). Each rail has one optical circuit switch (OCS) per line.


@dataclass(frozen=True)
class RailRingsSettings(Choice):
    """Rail rings of one line of nodes."""

    only: tuple[str, ...] = ("railx_hyperx",)
    """Topologies to look in, in that order; empty: in all that there are. The first
    with circuits in the line is drawn."""
    dimension: Literal["x", "y"] = "x"
    """Whether the line is a row (x) or a column (y) of nodes."""
    line: Annotated[int, NonNegative()] = 0
    """Index of the line in its dimension."""
    max_rails: Annotated[int, Between(1, 8)] = 4
    """Most rails that are drawn one by one; the overview has all of them together."""


@figure("Rail rings and optical switch ports", "railx", height=5.6)
@reads(graph="topology.graph: element ocs port_a port_b rail dimension line node_a node_b")
def rail_rings(settings: RailRingsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The line of the settings, of the first topology that has circuits there."""
    name, circuits = _circuits(settings, tables)
    nodes = sorted({*circuits["node_a"], *circuits["node_b"]})
    rails = sorted(set(circuits["rail"]))
    shown = rails[: settings.max_rails]
    joined = len(circuits[["node_a", "node_b"]].drop_duplicates())
    pairs = len(nodes) * (len(nodes) - 1)
    subtitle = f"""{label(name)}, dimension {settings.dimension.upper()}, line {settings.line}:
        {len(rails)} rails, one optical circuit switch (OCS) each. The rings join {joined:,} of
        {pairs:,} ordered pairs of nodes with {len(circuits):,} circuits."""
    note = f"Rails {shown[0]} to {shown[-1]} of {len(rails)} are shown one by one"
    note = note if len(shown) < len(rails) else ""
    title = f"Rail rings of one line of {len(nodes)} nodes"
    colours = dict(zip(rails, PALETTE * len(rails), strict=False))
    with canvas(subtitle, ["analytic"], note, title=title) as page:
        lines: list[Any] = [
            ["all", *(f"{part} {rail}" for rail in shown)] for part in ("ring", "switch")
        ]
        widths = [1.7] + [1.0] * len(shown)
        panels = page.subplot_mosaic(lines, width_ratios=widths, height_ratios=[1, 1.15])
        _ring(panels["all"], circuits, nodes, colours, arrows=False)
        panels["all"].set_title("All rails together")
        for rail in shown:
            rows = where(circuits, rail=rail)
            ring = panels[f"ring {rail}"]
            _ring(ring, rows, nodes, colours, arrows=True)
            ring.set_title(f"Rail {rail}", color=readable(colours[rail]), loc="center")
            _switch(panels[f"switch {rail}"], rows, colours[rail])
    ports = [end for side in ("port_a", "port_b") for end in _rows(circuits, "ocs", side)]
    used = len(set(ports))
    rings = int((circuits.groupby("rail").size() == len(nodes)).sum())
    every = joined == pairs
    serves = ", so that the same wiring serves ring collectives and all-to-all" if every else ""
    caption = f"""A line of {len(nodes)} nodes of {spoken(name)}: {rings} of its {len(rails)}
        rails visit every node once. Together they join {"" if every else "only "}{joined:,} of the
        {pairs:,} ordered pairs of nodes with {len(circuits):,} circuits{serves}. Below each ring
        are the ports of its optical circuit switch (OCS), on the left those that lead out of a
        node, on the right those that lead in, and the circuits that join them; {used:,} ports are
        used, {len(ports) - used or "none"} twice."""
    parts = "; ".join(
        f"rail {rail}: {phrases(where(circuits, rail=rail), '{node_a} to {node_b}', ', ')}"
        for rail in shown
    )
    alternative = f"""Circles of nodes joined by rail rings, and the circuits of their switches.
        {parts}."""
    return Drawn(caption, alternative, circuits[tables.columns("graph")[1:]])


def _rows(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[column] for column in columns), strict=True))


def _circuits(settings: RailRingsSettings, tables: Tables) -> tuple[str, DataFrame]:
    files = tables.files("graph", settings.only)
    for name, path in files:
        if not (read_frame(path, ["element"])["element"] == "circuit").any():
            continue
        rows = read_frame(path, tables.columns("graph"))
        rows = where(rows, element="circuit", line=settings.line)
        rows = rows[rows["dimension"].astype(str).str.lower() == settings.dimension]
        if len(rows):
            numbers = ["ocs", "port_a", "port_b", "rail", "node_a", "node_b"]
            return name, rows.astype(dict.fromkeys(numbers, int))
    paths = ", ".join(str(path) for _, path in files)
    got = f"{paths}: no circuits in dimension {settings.dimension}, line {settings.line}"
    raise UserError(f"{got}; allowed: a topology with optical switches and a line that it has")


def _ring(
    axes: Axes, rows: DataFrame, nodes: Sequence[int], colours: dict[int, str], *, arrows: bool
) -> None:
    """Nodes on a circle, clockwise from the top; bent arcs show both senses."""
    angles = [2 * math.pi * i / len(nodes) for i in range(len(nodes))]
    x, y = ([function(angle) for angle in angles] for function in (math.sin, math.cos))
    position = dict(zip(nodes, zip(x, y, strict=True), strict=True))
    few = len(nodes) <= 16
    size = (9 if arrows else 11) if few else max(2.0, 150 / len(nodes))
    arrow = {
        "arrowstyle": "-|>" if few else "-",
        "linewidth": (1.6 if arrows else 1.3) if few else 0.6,
        "alpha": 1.0 if few else 0.6,
        "mutation_scale": 9,
        **dict.fromkeys(("shrinkA", "shrinkB"), size * 0.62),
        "connectionstyle": f"arc3,rad={0.0 if arrows else 0.09}",
    }
    for rail, start, end in _rows(rows, "rail", "node_a", "node_b"):
        style = {**arrow, "color": colours[rail]}
        axes.annotate("", position[end], position[start], arrowprops=style)
    hollow = dot("white", size * 1.25, markeredgecolor=INK, markeredgewidth=1.0, zorder=3)
    axes.plot(x, y, **hollow)
    for node in nodes if few else ():
        axes.text(*position[node], str(node), ha="center", va="center", zorder=4)
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.set_axis_off()


def _switch(axes: Axes, rows: DataFrame, colour: str) -> None:
    """The ports of one optical switch in two columns, a line for each circuit."""
    columns = ("port_a", "port_b")
    left, right = ({port: i for i, port in enumerate(sorted(rows[side]))} for side in columns)
    count = max(len(left), len(right))
    few = count <= 16
    style: dict[str, Any] = {"linewidth": 1.5 if few else 0.5, "solid_capstyle": "round"}
    for a, b in _rows(rows, *columns):
        axes.plot([0, 1], [left[a], right[b]], color=colour, **style)
    for x, side, ports in ((0, "a", left), (1, "b", right)):
        square = dot(INK, 5.5 if few else 1.5, marker="s", zorder=3)
        axes.plot([x] * len(ports), [*ports.values()], **square)
        align, aside = ("left", 7) if x else ("right", -7)
        for port, node in sorted(_rows(rows, f"port_{side}", f"node_{side}")) if few else ():
            text = f"p{port} · {node}" if x else f"{node} · p{port}"
            beside(axes, text, x, ports[port], aside, ha=align, color=GREY)
    switches = ", ".join(map(str, sorted(set(rows["ocs"]))))
    axes.set_title(f"OCS {switches}", loc="center", fontweight="normal", color=INK)
    axes.set(xlim=(-0.85, 1.85) if few else (-0.2, 1.2), ylim=(count - 0.4, -0.6))
    axes.fill_between([-0.12, 1.12], -0.5, count - 0.5, color=lighter(GREY, 0.88), zorder=0)
    below = "node · port      port · node" if few else "ports"
    axes.text(0.5, count - 0.45, below, ha="center", va="top", color=GREY)
    axes.set_axis_off()
