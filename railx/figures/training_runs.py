"""Training runs: losses, planning that training hides, wall time and cluster time.

Plans that distribute the same batches in different ways should train alike. Wall time
is measured on ranks that share the machine. Cluster time is replayed: the computation
of each rank, communication at the bandwidth of a topology.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.panels import beside, entries, name_rows, share_legend, tiles
from railx.figures.tables import records, refuse, stack, where
from railx.figures.theme import INK, LINE_POINTS, PALETTE, colours, dot, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, fidelity_line, phrase, phrase_list, phrases, quantity
from railx.settings import NotEmpty, mapping

# Losses, and how far they are from those of the first run (InfiniPipe, convergence)

# Curves that coincide would hide each other: each is narrower than the one below it.
_LINES: tuple[tuple[float, Any], ...] = ((3.2, "-"), (2.0, (0, (5, 3))), (1.0, (0, (1, 2))))
#: The words give the mean of so many steps at the start and at the end.
_MEAN_STEPS = 5


@dataclass(frozen=True)
class LossCurvesSettings(CanvasSettings):
    """Loss against step for several runs on the same batches."""

    runs: Annotated[dict[str, str], NotEmpty()] = mapping(
        static_stdlib="One degree for all",
        flexsp_stdlib="Groups that adapt",
        pipeline_stdlib="Elastic pipelines",
    )
    """Training runs to show, in that order, and the words for each; the others are held
    against the first."""


@figure("One loss curve for every plan", "infinipipe", height=5.8)
@reads(iterations="training.iterations: run mode iteration repeat rank loss fidelity")
def loss_curves(settings: LossCurvesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """The losses above, below their distance from those of the first run."""
    frame = tables.read("iterations", "run", tuple(settings.runs))
    frame = where(frame, mode="electrical")
    points = _points(frame, list(settings.runs))
    repeats = int(frame.groupby("run")["repeat"].nunique().min())
    times = "once" if repeats == 1 else f"{repeats} times"
    subtitle = f"""Mean loss of a token at each step; every run trained {times} under electrical
        switching, lines are medians of repeats. Below, steps at which the losses are equal to the
        last digit have no mark."""
    colour = colours(settings.runs)
    with canvas(subtitle, fidelity_line(frame["fidelity"])) as page:
        above, below = page.subplots(2, 1, sharex=True, height_ratios=[1.8, 1])
        for number, (run, words) in enumerate(settings.runs.items()):
            rows, (width, dashes) = where(points, run=run), _LINES[number % len(_LINES)]
            style = {"linewidth": width * LINE_POINTS, "linestyle": dashes, "label": words}
            above.plot(rows["step"], rows["loss"], color=colour[run], **style)
            apart = rows[rows["difference"] > 0]
            if number:
                below.plot(apart["step"], apart["difference"], **dot(colour[run], 4))
            if number and len(apart):  # logarithmic as soon as one step differs
                below.set_yscale("log")
                below.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
                below.yaxis.set_minor_formatter("")
        above.set_ylabel("Loss (nats)")
        below.set(ylabel="Difference / loss", xlabel="Step")
        share_legend(page, entries(above), len(settings.runs))
    reference, *others = settings.runs.items()
    largest = ", ".join(
        f"{words.lower()} {quantity(where(points, run=run)['difference'].max())}"
        for run, words in others
    )
    steps = sorted(set(points["step"]))
    first, last = (
        quantity(points[points["step"].isin(chosen)]["loss"].mean())
        for chosen in (steps[:_MEAN_STEPS], steps[-_MEAN_STEPS:])
    )
    shown = min(_MEAN_STEPS, len(steps))
    caption = f"""Loss of {len(settings.runs)} runs on the same batches over {len(steps)} steps:
        from {first} (mean of the first {shown}) to {last} (mean of the last {shown})."""
    if others:
        caption += f""" Largest difference at any step from {reference[1].lower()}, relative to the
            loss: {largest}."""
    alternative = f"""Lines of the loss over the step for {", ".join(settings.runs.values())}, from
        {first} to {last}; below, dots of their relative
        difference{f" of at most {largest}" if others else ""}."""
    return Drawn(caption, alternative, points)


def _points(frame: DataFrame, runs: list[str]) -> DataFrame:
    """A row per run and step: the median loss over repeats, and how far it is from that
    of the first run, relative to it.
    """
    missing = [run for run in runs if not (frame["run"] == run).any()]
    if missing:
        got = f"runs: {', '.join(missing)} has no iterations under electrical switching"
        refuse(got, "runs that have some")
    repeats = frame.groupby(["run", "iteration", "repeat"], sort=False)["loss"].mean()
    losses = repeats.groupby(["run", "iteration"], sort=False).median().reset_index()
    losses["run"] = losses["run"].astype("category").cat.set_categories(runs)
    points = losses.sort_values(["run", "iteration"]).astype({"run": str})
    first = where(points, run=runs[0]).set_index("iteration")["loss"]
    points["difference"] = (points["loss"] / points["iteration"].map(first) - 1).abs()
    apart = [run for run in runs if where(points, run=run)["difference"].isna().all()]
    if apart:
        got = f"runs: {', '.join(apart)} has no step in common with {runs[0]}"
        refuse(got, "runs of the same steps")
    # A step is counted from 1, as a reader does.
    points.insert(1, "step", points.pop("iteration") + 1)
    return points.reset_index(drop=True)


# Planning of a batch beside the training of the one before

_TIMES = {
    "iteration_ms": ("Training step", PALETTE[0]),
    "planning_ms": ("Planning of its batch", PALETTE[2]),
    "planning_wait_ms": ("Wait for the plan", PALETTE[5]),
}


@figure("Planning hidden by training", "flexsp", height=3.4)
@reads(
    iterations="training.iterations: run plan mode reconfiguration_latency_ms iteration repeat"
    " rank iteration_ms planning_ms planning_wait_ms disturbed fidelity"
)
def planning_hidden(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Planning that training hides."""
    rows = _per_repeat(tables.read("iterations", "run", settings.only))
    means = rows.groupby("run", sort=False).mean(numeric_only=True).reset_index()
    note = "Means over the steps of a repeat; the slowest rank counts"
    subtitle = """A process beside the ranks plans the next batch while this one is trained. Hidden
        is planning for which no rank waits. Bars: means of the repeats."""
    with canvas(subtitle, fidelity_line(rows["fidelity"], note)) as page:
        times, shares = page.subplots(1, 2, width_ratios=(3, 2))
        _times(times, means)
        for position, row in enumerate(records(means)):
            hidden = 100 * where(rows, run=row["run"])["hidden_share"]
            shares.barh(position, 100 * row["hidden_share"], 0.5, color=PALETTE[2])
            shares.plot(hidden, [position] * len(hidden), **dot(INK, 3.5))
            beside(shares, phrase("{hidden_share:q%}", row), float(hidden.max()), position, 6)
        shares.set(xlim=(0, 125), xlabel="Planning that is hidden (%)")
        shares.set_xticks(range(0, 101, 25))
        name_rows(times, [*map(label, means["run"])], above=0.55, below=0.55)
        name_rows(shares, [""] * len(means), above=0.55, below=0.55)
    facts = phrases(
        means,
        """{run:label}, {hidden_share:q%} of {planning_ms:q} ms hidden behind steps of
        {iteration_ms:q} ms""",
    )
    repeats = int(rows.groupby("run").size().min())
    caption = f"""Planning of a batch beside the training of the one before: {facts}. Means of
        {counted(repeats, "repeat")} with electrical switching. Ranks and planner share the
        machine's processors, so both are slower than alone. No paper prints this share; FlexSP and
        InfiniPipe say that planning is hidden."""
    alternative = f"""Bars of the time of a training step, of planning its batch and of the wait for
        the plan, beside the share of planning that is hidden: {facts}."""
    return Drawn(caption, alternative, rows)


def _per_repeat(frame: DataFrame) -> DataFrame:
    """A row for each run and repeat, with electrical switching.

    Repeats that were disturbed count where all were.
    """
    part = frame[(frame["mode"] == "electrical") & frame["planning_ms"].notna()]
    if part.empty:
        allowed = "a run with training.planning: while_training"
        refuse("iterations: no run plans while it trains", allowed)
    calm = part.groupby("run")["disturbed"].transform("all") | ~part["disturbed"].astype(bool)
    steps = part[calm].groupby(["run", "plan", "repeat", "iteration", "fidelity"], sort=False)
    slowest = steps[list(_TIMES)].max().reset_index()
    repeats = slowest.groupby(["run", "plan", "repeat", "fidelity"], sort=False)
    rows = repeats[list(_TIMES)].mean().reset_index()
    shares = 1 - rows["planning_wait_ms"] / rows["planning_ms"]
    return rows.assign(hidden_share=shares.clip(lower=0))


def _times(axes: Axes, means: DataFrame) -> None:
    height = 0.8 / len(_TIMES)
    for position, (column, (name, colour)) in enumerate(_TIMES.items()):
        at = np.arange(len(means)) + (position - 1) * height
        bars = axes.barh(at, means[column], 0.92 * height, color=colour)
        texts = [f"{name}: {quantity(value)}" for value in means[column]]
        axes.bar_label(bars, texts, padding=4)
    longest = float(means[[*_TIMES]].to_numpy().max())
    axes.set(xlim=(0, 1.6 * longest), xlabel="Time of a step (ms)")


# Wall time, measured, and cluster time, replayed

_RECORDED = "recorded"
#: How the wall time of a run on a device was measured.
_MEASURED = {"cpu": "measured_cpu", "cuda": "measured_gpu"}


@figure("Wall time and cluster time of training runs", "opus", height=3.6)
@reads(
    settings="replay.settings: run plan parallelism device topology compute mode wall_ms"
    " cluster_ms hidden_share fidelity"
)
def cluster_time(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Wall time and cluster time of training runs."""
    rows = _bars(tables.read("settings", "run", settings.only))
    profiled = "profile" in set(rows["compute"])
    computed = (
        "computation by a profile of a layer" if profiled else "each rank's own processor time"
    )
    subtitle = f"""Median iteration with electrical switching, slowest rank. Wall: as measured,
        ranks share the machine. Others: {computed}, communication at that topology's bandwidth."""
    shows = {
        str(fidelity): "wall time" if set(part) == {"wall"} else "cluster time"
        for fidelity, part in rows.groupby("fidelity")["topology"]
    }
    runs = {str(run): part for run, part in rows.groupby("run", sort=False)}
    with canvas(subtitle, fidelity_line(rows["fidelity"], shows=shows)) as page:
        titles = phrase_list(rows.drop_duplicates("run"), "{plan:label}\n{parallelism:label}")
        panels = tiles(page, titles, len(runs), settings, sharey=True)
        for axes, part in zip(panels, runs.values(), strict=True):
            _panel(axes, part)
    words = {label(run): "; ".join(map(_words, records(part))) for run, part in runs.items()}
    caption = f"""Wall time and cluster time of an iteration.
        {" ".join(f"{run}: {text}." for run, text in words.items())} Wall time is that of ranks on
        one machine, which slow one another; cluster time replays the same recording with {computed}
        and with communication at the bandwidth of a topology, flight times included, software
        overhead not."""
    alternative = f"""Bars of the iteration time on the wall and on each topology, a panel per run:
        {". ".join(f"{run}, {text}" for run, text in words.items())}."""
    return Drawn(caption, alternative, rows)


def _bars(frame: DataFrame) -> DataFrame:
    """A row for each bar: the wall time of a run, then its cluster times.

    Wall time under electrical switching is that of the machine, thus measured.
    """
    electrical = where(frame, mode="electrical")
    recorded = where(electrical, topology=_RECORDED)
    wall = recorded.assign(
        topology="wall",
        ms=recorded["wall_ms"],
        hidden_share=float("nan"),
        fidelity=recorded["device"].map(_MEASURED),
    )
    cluster = electrical[electrical["topology"] != _RECORDED]
    bars = stack([wall, cluster.assign(ms=cluster["cluster_ms"])])
    columns = "run plan parallelism topology compute ms hidden_share fidelity"
    return bars[columns.split()]


def _panel(axes: Axes, rows: DataFrame) -> None:
    names, times = list(rows["topology"]), rows["ms"].astype(float)
    shades = ["#c3c8cf" if name == "wall" else PALETTE[0] for name in names]
    bars = axes.barh(range(len(names)), times, color=shades, height=0.7)
    axes.bar_label(bars, [*map(quantity, times)], padding=3)
    axes.set(xlim=(0, 1.35 * max(times)), xlabel="Iteration (ms)")
    name_rows(axes, list(map(label, names)), above=None)


def _words(row: dict[str, Any]) -> str:
    if row["topology"] == "wall":
        return phrase("{ms:q} ms on the wall", row)
    hidden = row["hidden_share"] == row["hidden_share"]
    share = ", {hidden_share:q%} of communication hidden" if hidden else ""
    return phrase("{ms:q} ms on {topology:label}" + share, row)
