"""Networks for a job: cost against step time, and the front of those none beats.

In the arena: price of the network against the time of a token, for every network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.panels import beside, panel_title, ticks, tiles
from railx.figures.tables import records, refuse, where
from railx.figures.theme import GREY, PALETTE, RAIL_FAMILIES, dot, label
from railx.figures.words import counted, fidelity_line, phrases, spoken
from railx.settings import AtLeast


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
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
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
        ticks(axes.yaxis, _round(low, high) or [low])
    best = phrases(
        front, "{network:spoken} {step_s:q} s at {usd_chip:q} USD a chip, {usable_share:q%} usable"
    )
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
    with canvas(subtitle, fidelity_line(points["fidelity"])) as page:
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
                    beside(axes, label(row["network"]), row["usd"], row["chip_us"])
            ticks(axes.xaxis, _round(part["usd"].min() / 2, 2 * part["usd"].max()), base=10)
            axes.set(xlabel="USD a chip", ylabel="Chip-µs a token")
    best = points[points["front"]].sort_values(["subject", "usd"])
    words = "{network:label} {chip_us:q} chip-µs at {usd:q} USD"
    on_front = "; ".join(
        f"{label(job)}: {phrases(part, words, ', ')}"
        for job, part in best.groupby("subject", sort=False)
    )
    caption = f"Networks of {size:,} chips or the next size. On the front: {on_front}."
    columns = ["subject", "network", "chips", "usd", "chip_us", "front", "fidelity"]
    return Drawn(caption, f"Price against time. On the front: {on_front}.", points[columns])


def _round(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten in a range."""
    values = [digit * 10.0**power for power in range(8) for digit in (1, 2, 5)]
    return [value for value in values if low <= value <= high]
