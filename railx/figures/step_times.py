"""Training steps by network and plan: their times and parts, and what networks cost.

Step times stacked by what they are spent on, the node prices at which rankings flip,
networks for a job by cost and time, and plans of many devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import dot
from railx.figures.panels import (
    beside,
    beside_apart,
    name_rows,
    panel_title,
    round_numbers,
    share_legend,
    stacked,
    ticks,
    tiles,
)
from railx.figures.tables import records, refuse, where
from railx.figures.theme import FAINT, GREY, PALETTE, RAIL_FAMILIES, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, phrases, quantity, spoken
from railx.settings import AtLeast

# Time of a step by topology, stacked by what it is spent on: a column per job, equal
# bandwidth above equal cost

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
    "compute": "#c3c8cf",
    "pipeline bubble": "#e3e6ea",
    "tensor": PALETTE[0],
    "sequence": PALETTE[4],
    "expert (all-to-all)": PALETTE[1],
    "data": PALETTE[2],
    "pipeline": PALETTE[3],
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
    with canvas(subtitle, rows["fidelity"]) as page:
        titles = [f"{label(job)}, {_BASES[basis]}" for basis, job in product(bases, jobs)]
        panels = tiles(page, titles, len(jobs), settings, sharey=True)
        for (column, job), (line, basis) in product(enumerate(jobs), enumerate(bases)):
            axes = panels[line * len(jobs) + column]
            cut += _panel(axes, rows, job, basis, settings.cut_over_shortest)
            span = _span(rows, job, basis, settings.named)
            spans += [(label(job), _BASES[basis], span)] if span else []
        share_legend(page, {}, len(_PARTS), panels[0])
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
    table = table.rename(columns={"bubble": "pipeline bubble", "expert": "expert (all-to-all)"})
    seconds = table.reindex(index=names, columns=list(_PARTS)).fillna(0) / 1e3
    total = seconds.sum(axis=1)
    drawn = total[total > 0]
    limit = float(drawn.max()) if len(drawn) else 1.0
    if cut is not None and len(drawn):
        limit = min(limit, cut * float(drawn.min()))
    ends = seconds.cumsum(axis=1).clip(upper=limit)
    stacked(axes, ends.diff(axis=1).fillna(ends), _PARTS, 0.74)
    shortened = cut_bars(axes, total, limit)
    for position, name in enumerate(names):
        if not total[name]:
            words = "no room for the job" if name in without_room else "no price"
            beside(axes, words, 0, position, 3, color=GREY)
        elif total[name] <= limit:
            beside(axes, quantity(total[name]), float(total[name]), position, 3)
    axes.set(xlim=(0, 1.2 * limit), xlabel="Step time (s)")
    axes.locator_params(axis="x", nbins=5, steps=None)
    name_rows(axes, list(map(label, names)), above=None)
    return shortened


def cut_bars(axes: Axes, values: Iterable[float], limit: float) -> int:
    """Mark the horizontal bars, at 0, 1 and so on, that are drawn only up to ``limit``.

    Each value beyond it gets a break in its bar, and is written at the end. How many
    bars are cut is returned, for the caption.
    """
    cut = [(position, value) for position, value in enumerate(values) if value > limit]
    look: dict[str, Any] = {"color": "white", "linewidth": 2.2, "solid_capstyle": "butt"}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for position, value in cut:
        for back in (0.03, 0.055):
            ends = [limit * (1 - back - 0.012), limit * (1 - back + 0.012)]
            axes.plot(ends, [position + 0.5, position - 0.5], zorder=3, **look)
        beside(axes, quantity(value), limit, position, 4, bbox=box)
    return len(cut)


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
    with canvas(subtitle, rows["fidelity"]) as page:
        titles = list(map(label, jobs))
        panels = tiles(page, titles, len(jobs), settings, sharex=True, sharey=True)
        for axes, job in zip(panels, jobs, strict=True):
            part = where(rows, job=job).set_index("topology").reindex(names)
            at, usd = range(len(names)), part.filter(like="_usd_per_chip")
            usd = usd.rename(columns=lambda name: name.removesuffix("_usd_per_chip"))
            ends = usd["difference_low"], usd["difference_high"]
            axes.axvline(0, color=FAINT, linewidth=0.8)
            axes.hlines(at, *ends, color=GREY, linewidth=4, label="Price of the node, range")
            axes.plot(usd["difference"], at, label="Its middle", **dot(GREY, 7))
            axes.plot(usd["break_even"], at, label="Equally fast", **dot(PALETTE[5], 7, marker="D"))
            axes.set_xlabel("Beyond the reference (USD a chip)")
            axes.margins(x=0.12)
            axes.locator_params(axis="x", nbins=3, steps=None)
        name_rows(panels[0], list(map(label, names)))
        share_legend(page, {}, 3, panels[0])
    flips = phrases(rows[rows["flips"]], "{topology:label} for {job:label}") or "none"
    caption = f"""What the node of a network costs beyond the node of {reference} (dot and range of
        prices, whose middle is an assumption), and with which difference both train equally fast
        (diamond), in dollars a chip. Within the range these rankings flip: {flips}."""
    alternative = f"""Ranges of the price of a node beyond the reference's and a diamond for the
        break-even price, a row for each of {len(names)} networks and a panel for each of
        {len(jobs)} jobs. Rankings that flip: {flips}."""
    return Drawn(caption, alternative, rows)


# Networks for a job: cost against step time, and the front of those none beats


@figure("Cost against step time of networks for a job", "networks", height=4.4)
@reads(
    points="design.points: model gpus_asked network chips step_s step_low_s step_high_s usd_chip"
    " usd_chip_low usd_chip_high on_front usable_share fidelity"
)
def design_front(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A point a network; those on the front are filled and joined."""
    rows = tables.read("points").sort_values("step_s", kind="stable")
    front = rows[rows["on_front"]]
    job = f"{spoken(rows['model'].iloc[0])} on {rows['gpus_asked'].iloc[0]:,} devices"
    subtitle = """Filled: no other network is better in step time, dollars, watts and usable share
        at once. Bars: dollars over price lists."""
    with canvas(subtitle, rows["fidelity"]) as page:
        axes = page.subplots()
        for on_front, part in rows.groupby("on_front"):
            colour = PALETTE[0] if on_front else PALETTE[5]
            usd = part["usd_chip"]
            bars = [usd - part["usd_chip_low"], part["usd_chip_high"] - usd]
            style = dot(colour, markerfacecolor=colour if on_front else "white", elinewidth=0.8)
            axes.errorbar(part["step_s"], usd, yerr=bars, **style)
        cheaper = front[front["usd_chip"] == front["usd_chip"].cummin()]
        axes.step(cheaper["step_s"], cheaper["usd_chip"], where="post", color=PALETTE[0], lw=1)
        for row in records(front):
            name = label(row["network"])
            beside(axes, name, row["step_s"], row["usd_chip"], 5, 4, va="baseline")
        axes.set(yscale="log", xlabel="Step (s)", ylabel="Network (USD a chip)")
        axes.margins(x=0.18, y=0.1)
        low, high = rows["usd_chip_low"].min(), rows["usd_chip_high"].max()
        ticks(axes.yaxis, round_numbers(low, high) or [low])
    words = "{network:spoken} {step_s:q} s at {usd_chip:q} USD a chip, {usable_share:q%} usable"
    best = phrases(front, words)
    caption = f"""{job}: {counted(len(rows), "network")}, each with its best plan, step times in
        closed form over exact loads. On the front: {best}."""
    return Drawn(caption, f"Points of cost over step time. On the front: {best}.", rows)


@dataclass(frozen=True)
class ArenaFigureSettings(Choice):
    """Price of the network against the time of a token, by job."""

    chips: Annotated[int, AtLeast(2)] = 4096
    """The size; the largest that there is where no network has it."""
    charged: bool = True
    """Whether the links inside nodes are charged."""
    marked: tuple[str, ...] = RAIL_FAMILIES
    """Beginnings of the families that are marked whether on the front or not."""


@figure("Price of the network against the time of a token", "networks", height=9)
@reads(
    comparison="arena.comparison: network family asked_chips chips subject measure value fidelity"
)
def arena(settings: ArenaFigureSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each job; the line joins the networks that no other beats in both."""
    rows = tables.read("comparison", "network", settings.only)
    price = "usd_chip_with_node" if settings.charged else "usd_chip"
    points = rows[rows["measure"].eq("tokens_per_s") & rows["value"].notna()]
    if points.empty:
        refuse("no time of a job", "an arena with jobs")
    sizes = sorted(points["asked_chips"].unique())
    size = settings.chips if settings.chips in sizes else sizes[-1]
    prices = where(rows, measure=price, asked_chips=size).set_index("network")["value"].dropna()
    points = where(points, asked_chips=size)
    points = points.assign(
        usd=points["network"].map(prices), chip_us=1e6 * points["chips"] / points["value"]
    )
    points = points.dropna(subset=["usd"])
    rising = points.sort_values(["subject", "usd", "chip_us"])
    fastest = rising.groupby("subject")["chip_us"].cummin()
    # On the front is what is faster than all that is as cheap or cheaper.
    before = fastest.groupby(rising["subject"]).shift(fill_value=float("inf"))
    points = points.assign(front=rising["chip_us"] < before)
    jobs = list(dict.fromkeys(points["subject"]))
    paid = "with links inside nodes" if settings.charged else "without links inside nodes"
    subtitle = f"""Dollars of the network a chip ({paid}) and chip-time a token by the best plan on
        each. The line joins the networks that no other beats in both."""
    with canvas(subtitle, points["fidelity"]) as page:
        titles = [panel_title(label(job), len(jobs), settings) for job in jobs]
        for axes, job in zip(tiles(page, titles, 2, settings), jobs, strict=True):
            part = where(points, subject=job).sort_values("usd")
            front = part[part["front"]]
            axes.plot(front["usd"], front["chip_us"], color=PALETTE[0], linewidth=1.2)
            for row in records(part):
                marked = str(row["family"]).startswith(settings.marked)
                colour = PALETTE[1] if marked else PALETTE[0] if row["front"] else GREY
                shown = row["front"] or marked
                axes.plot(row["usd"], row["chip_us"], **dot(colour, 5 if shown else 3))
                if shown:
                    beside_apart(axes, label(row["network"]), row["usd"], row["chip_us"])
            ticks(axes.xaxis, round_numbers(part["usd"].min() / 2, 2 * part["usd"].max()), base=10)
            axes.set(xlabel="USD a chip", ylabel="Chip-µs a token")
        legend = {"On the line": dot(PALETTE[0])}
        if settings.marked:
            legend[", ".join(map(label, settings.marked))] = dot(PALETTE[1])
        share_legend(page, legend | {"Other networks": dot(GREY, 3)}, 3)
    best = points[points["front"]].sort_values(["subject", "usd"])
    words = "{network:label} {chip_us:q} chip-µs at {usd:q} USD"
    on_front = "; ".join(
        f"{label(job)}: {phrases(part, words, ', ')}"
        for job, part in best.groupby("subject", sort=False)
    )
    caption = f"Networks of {size:,} chips or the next size. On the front: {on_front}."
    data = points[["subject", "network", "chips", "usd", "chip_us", "front", "fidelity"]]
    return Drawn(caption, f"Price against time. On the front: {on_front}.", data)


# Best plans of arXiv 2410.00273: sizes, the fast domain, resources

#: Sweeps over a resource by the name that the table gives them.
_RESOURCES = ("operations", "memory bandwidth", "memory capacity", "network bandwidth")


@dataclass(frozen=True)
class PlansAtScaleSettings(CanvasSettings):
    """Throughput of the best plans over devices, fast domains and resources."""

    model: str = "gpt3_1T"
    """The model of the panel of resources."""


@figure("Best plans over devices, fast domain and resources", "performance", height=4.4)
@reads(
    sweeps="scaling.sweeps: sweep model division devices domain_devices factor sequences_per_s"
    " fidelity"
)
def plans_at_scale(settings: PlansAtScaleSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line a model: the best of all divisions of its products."""
    # Of every point the division with the most throughput.
    point = ["sweep", "model", "devices", "domain_devices", "factor"]
    rows = tables.read("sweeps").sort_values("sequences_per_s", ascending=False, kind="stable")
    rows = rows.drop_duplicates(point).sort_values(point, kind="stable")
    colour = colours(rows["model"])
    subtitle = """Left: sequences a second over devices. Middle: over the size of the fast domain,
        against the smallest. Right: one resource scaled."""
    with canvas(subtitle, rows["fidelity"]) as page:
        titles = ("Strong scaling", "Fast domain", "Resources")
        sizes, domains, resources = tiles(page, titles, 3, settings)
        for model, shade in colour.items():
            part = where(rows, model=model)
            style = {"color": shade, "marker": "o", "label": label(model)}
            line, domain = (where(part, sweep=sweep) for sweep in ("devices", "domain"))
            sizes.plot(line["devices"], line["sequences_per_s"], **style)
            over_first = domain["sequences_per_s"] / domain["sequences_per_s"].iloc[0]
            domains.plot(domain["domain_devices"], over_first, **style)
        of_model = where(rows, model=settings.model)
        for shade, resource in zip(PALETTE[2:], _RESOURCES, strict=False):
            line = where(of_model, sweep=resource)
            usual = where(line, factor=1.0)["sequences_per_s"].iloc[0]
            style = {"color": shade, "marker": "s", "label": label(resource)}
            resources.plot(line["factor"], line["sequences_per_s"] / usual, **style)
        _logarithmic(sizes, where(rows, sweep="devices")["devices"])
        sizes.set(yscale="log", xlabel="Devices", ylabel="Sequences/s")
        ticks(sizes.yaxis)
        _logarithmic(domains, where(rows, sweep="domain")["domain_devices"])
        domains.set(xlabel="Devices of the domain", ylabel="Throughput over the first")
        _logarithmic(resources, where(of_model, sweep=_RESOURCES[0])["factor"])
        resources.set(xlabel="Times the resource", ylabel="Throughput over that of 1 x")
        share_legend(page, {}, 3, sizes, resources)
    largest = rows[rows["sweep"] == "devices"].groupby("model", sort=False).tail(1)
    best = phrases(largest, "{model:spoken} {sequences_per_s:q} sequences/s on {devices:,.0f}")
    # Throughput with the largest factor over that with factor 1, by resource.
    scaled = of_model[of_model["sweep"].isin(_RESOURCES)]
    ends = [where(scaled, factor=factor) for factor in (scaled["factor"].max(), 1.0)]
    most, usual = (rows.set_index("sweep")["sequences_per_s"] for rows in ends)
    gains = phrases((most / usual).rename("gain").reset_index(), "{sweep} {gain:.2f} times")
    caption = f"""The fastest of all plans (1D, SUMMA or context, degrees, micro-batch, placement in
        the fast domain) on B200 with the constants of arXiv 2410.00273. At the largest size:
        {best}. {label(settings.model)} with the most of a resource: {gains}."""
    alternative = f"Lines of throughput. {best}. With the most of a resource: {gains}."
    return Drawn(caption, alternative, rows)


def _logarithmic(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis with a tick at every value, or at every second of many."""
    at = sorted(set(values))
    ticks(axes.xaxis, at[:: 1 if len(at) <= 5 else 2], "{x:g}", 2)


# FSDP among many devices


@dataclass(frozen=True)
class ShardedReplicasSettings(CanvasSettings):
    """Throughput of a device under FSDP and with small degrees, by network."""

    device: str = "h100_80gb"
    """The device."""


@figure(
    "FSDP from one node to 2,048 devices, and small degrees beside it", "performance", height=4.2
)
@reads(
    sharded="scaling.sharded: network device devices tensor pipeline tokens_per_s_device"
    " exposed_share fastest fidelity"
)
def sharded_replicas(settings: ShardedReplicasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """FSDP dashed, the best degrees solid; a colour for a network."""
    rows = where(tables.read("sharded"), device=settings.device)
    alone = where(rows, tensor=1, pipeline=1)
    fastest = where(rows, fastest=True)
    colour = colours(rows["network"])
    subtitle = """Left: throughput of a device over devices; dashed is FSDP alone, solid the fastest
        degrees. Right: the share of the step that is exposed under FSDP alone."""
    with canvas(subtitle, rows["fidelity"]) as page:
        titles = ("Throughput", "Exposed, FSDP alone")
        speed, exposed = tiles(page, titles, 2, settings, "Devices")
        for network, shade in colour.items():
            line = where(fastest, network=network)
            style = {"color": shade, "marker": "o", "label": label(network)}
            speed.plot(line["devices"], line["tokens_per_s_device"], **style)
            line = where(alone, network=network)
            dashed = {"color": shade, "marker": "o", "linestyle": "--", "fillstyle": "none"}
            speed.plot(line["devices"], line["tokens_per_s_device"], **dashed)
            exposed.plot(line["devices"], 100 * line["exposed_share"], **dashed)
        for axes in (speed, exposed):
            _logarithmic(axes, rows["devices"])
            axes.set_ylim(bottom=0)
        speed.set_ylabel("Tokens/s of a device")
        exposed.set_ylabel("Share of the step (%)")
        share_legend(page, {}, 4, speed)
    last = rows["devices"].max()
    ends = where(alone, devices=last)
    at_end = phrases(ends, "{network:spoken} {tokens_per_s_device:q} tokens/s of a device")
    best = where(fastest, devices=last)
    degrees = phrases(best, "{network:spoken} {tensor} x {pipeline}")
    caption = f"""Llama 2 7B, two sequences of 4,096 tokens a device, on
        {label(settings.device)}; all networks with the same bandwidth a device, so that those
        with one ring over all devices lie on one line. FSDP alone on {last:,} devices:
        {at_end}. Fastest tensor x pipeline degrees there: {degrees}."""
    return Drawn(caption, f"Lines of throughput. {at_end}. Degrees: {degrees}.", rows)
