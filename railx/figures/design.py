"""Networks for a job: cost against step time, and the front of those none beats."""

from __future__ import annotations

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.panels import ticks
from railx.figures.theme import PALETTE, label
from railx.figures.words import counted, fidelity_line, phrases, spoken

__all__ = ["design_front"]


@figure("Cost against step time of networks for a job", "networks", height=4.4)
@reads(
    points="design.points: model gpus_asked network chips step_s step_low_s step_high_s usd_chip"
    " usd_chip_low usd_chip_high on_front usable_share fidelity"
)
def design_front(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A point a network; those on the front are filled and joined."""
    rows = tables.read("points").sort_values("step_s", kind="stable")
    front = rows[rows["on_front"]]
    job = f"{spoken(label(str(rows['model'].iloc[0])))} on {rows['gpus_asked'].iloc[0]:,} devices"
    subtitle = """Filled: no other network is better in step time, dollars, watts and usable share
        at once. Bars: dollars over price lists."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        axes = page.subplots()
        for on_front, part in rows.groupby("on_front"):
            colour = PALETTE[0] if on_front else PALETTE[5]
            low, high = (
                part["usd_chip"] - part["usd_chip_low"],
                part["usd_chip_high"] - part["usd_chip"],
            )
            axes.errorbar(
                part["step_s"],
                part["usd_chip"],
                yerr=[low, high],
                fmt="o",
                color=colour,
                markerfacecolor=colour if on_front else "white",
                elinewidth=0.8,
            )
        cheaper = front[front["usd_chip"] == front["usd_chip"].cummin()]
        axes.step(cheaper["step_s"], cheaper["usd_chip"], where="post", color=PALETTE[0], lw=1)
        for row in front.itertuples():
            axes.annotate(
                label(str(row.network)),
                (float(str(row.step_s)), float(str(row.usd_chip))),
                xytext=(5, 4),
                textcoords="offset points",
            )
        axes.set(yscale="log", xlabel="Step (s)", ylabel="Network (USD a chip)")
        axes.margins(x=0.18, y=0.1)
        low, high = rows["usd_chip_low"].min(), rows["usd_chip_high"].max()
        at = [m * 10**k for k in range(1, 7) for m in (1, 2, 5) if low <= m * 10**k <= high]
        ticks(axes.yaxis, at or [low])
    best = phrases(
        front, "{network:spoken} {step_s:q} s at {usd_chip:q} USD a chip, {usable_share:q%} usable"
    )
    caption = f"""{job}: {counted(len(rows), "network")}, each with its best plan, step times in
        closed form over exact loads. On the front: {best}."""
    return Drawn(caption, f"Points of cost over step time. On the front: {best}.", rows)
