"""Training runs: losses, planning that training hides, times, and switched circuits.

Plans that distribute the same batches in different ways should train alike. Wall time
is measured on ranks that share the machine. Cluster time is replayed: the computation
of each rank, communication at the bandwidth of a topology. The stall of a run on
emulated switches is what the controller accounts as waiting for light paths; electrical
runs are the reference of the others (Opus, on-demand and provisioned switching).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import dot
from railx.figures.panels import beside, name_rows, panel_title, share_legend, ticks, tiles
from railx.figures.repeats import REPEAT_COLUMNS, SETTING, medians, per_repeat, repeats_words
from railx.figures.tables import records, refuse, stack, where
from railx.figures.theme import GREY, INK, MODE_COLOURS, MODES, PALETTE, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, phrase, phrase_list, phrases, quantity, span
from railx.settings import Between, NotEmpty, mapping

# Losses, and how far they are from those of the first run (InfiniPipe, convergence)

# Curves that coincide would hide each other: each is narrower than the one below it.
_LINES: tuple[tuple[float, Any], ...] = ((5.76, "-"), (3.6, (0, (5, 3))), (1.8, (0, (1, 2))))
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
    with canvas(subtitle, frame["fidelity"]) as page:
        above, below = page.subplots(2, 1, sharex=True, height_ratios=[1.8, 1])
        for number, (run, words) in enumerate(settings.runs.items()):
            rows, (width, dashes) = where(points, run=run), _LINES[number % len(_LINES)]
            style = {"linewidth": width, "linestyle": dashes, "label": words}
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
        share_legend(page, {}, len(settings.runs), above)
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
    missing = [run for run in runs if run not in set(frame["run"])]
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
    rows = _planned_repeats(tables.read("iterations", "run", settings.only))
    means = rows.groupby("run", sort=False).mean(numeric_only=True).reset_index()
    note = "Means over the steps of a repeat; the slowest rank counts"
    subtitle = """A process beside the ranks plans the next batch while this one is trained. Hidden
        is planning for which no rank waits. Bars: means of the repeats."""
    with canvas(subtitle, rows["fidelity"], note) as page:
        times, shares = page.subplots(1, 2, width_ratios=(3, 2))
        height = 0.8 / len(_TIMES)
        for position, (column, (name, colour)) in enumerate(_TIMES.items()):
            at = np.arange(len(means)) + (position - 1) * height
            bars = times.barh(at, means[column], 0.92 * height, color=colour)
            times.bar_label(bars, phrase_list(means, f"{name}: {{{column}:q}}"), padding=4)
        longest = float(means[[*_TIMES]].to_numpy().max())
        times.set(xlim=(0, 1.6 * longest), xlabel="Time of a step (ms)")
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


def _planned_repeats(frame: DataFrame) -> DataFrame:
    """A row per run and electrical repeat; disturbed ones count where all were."""
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
    with canvas(subtitle, rows["fidelity"], shows=shows) as page:
        titles = phrase_list(rows.drop_duplicates("run"), "{plan:label}\n{parallelism:label}")
        panels = tiles(page, titles, len(runs), settings, sharey=True)
        for axes, part in zip(panels, runs.values(), strict=True):
            shades = [PALETTE[0] if name != "wall" else "#c3c8cf" for name in part["topology"]]
            bars = axes.barh(range(len(part)), part["ms"], color=shades, height=0.7)
            axes.bar_label(bars, list(map(quantity, part["ms"])), padding=3)
            axes.set(xlim=(0, 1.35 * part["ms"].max()), xlabel="Iteration (ms)")
            name_rows(axes, list(map(label, part["topology"])), above=None)
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
    measured = recorded["device"].map(_MEASURED)
    wall = recorded.assign(topology="wall", hidden_share=float("nan"), fidelity=measured)
    cluster = electrical[electrical["topology"] != _RECORDED]
    bars = stack([wall.assign(ms=wall["wall_ms"]), cluster.assign(ms=cluster["cluster_ms"])])
    columns = "run plan parallelism topology compute ms hidden_share fidelity"
    return bars[columns.split()]


def _words(row: dict[str, Any]) -> str:
    if row["topology"] == "wall":
        return phrase("{ms:q} ms on the wall", row)
    hidden = row["hidden_share"] == row["hidden_share"]
    share = ", {hidden_share:q%} of communication hidden" if hidden else ""
    return phrase("{ms:q} ms on {topology:label}" + share, row)


# Training runs: iteration time and stall share, a column of panels for each

#: What the panels of a column show, from above, and the words on their axes.
_SHOWN = {"iteration_ms": "Iteration time (ms)", "stall_percent": "Stalled (%)"}


@dataclass(frozen=True)
class ReconfigurationSettings(Choice):
    """Iteration time against reconfiguration latency."""

    confidence: Annotated[float, Between(0.5, 0.999)] = 0.95
    """Confidence of the intervals over repeats."""
    show_repeats: bool = True
    """Whether each repeat is drawn as a dot."""


@figure("Iteration time against reconfiguration latency", "opus", height=5.8)
@reads(iterations=f"training.iterations: {REPEAT_COLUMNS}")
def reconfiguration(settings: ReconfigurationSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One column of panels per run, iteration time above and stall share below."""
    frame = tables.read("iterations", "run", settings.only)
    repeats = per_repeat(frame)
    points = medians(repeats, (*_SHOWN, "over_electrical"), settings.confidence)
    runs = list(points["run"].unique())
    subtitle = f"""Lines: medians over repeats, bars: {100 * settings.confidence:g} % intervals,
        dots: repeats, crosses: repeats set aside. Here: {repeats_words(repeats)}."""
    # An emulated line is never taken for a measured one.
    modes = frame.drop_duplicates(["fidelity", "mode"]).groupby("fidelity")["mode"]
    origins = {str(fidelity): ", ".join(map(label, rows)).lower() for fidelity, rows in modes}
    with canvas(subtitle, frame["fidelity"], shows=origins) as page:
        panels = page.subplots(2, len(runs), sharex=True, squeeze=False, height_ratios=[1.7, 1])
        latencies = sorted(set(points["reconfiguration_latency_ms"]))
        for column, run in enumerate(runs):
            rows = where(points, run=run)
            for axes, shown in zip(panels[:, column], _SHOWN, strict=True):
                if settings.show_repeats:
                    _dots(axes, where(repeats, run=run), shown)
                _lines(axes, where(rows, shows=shown))
                axes.set_ylim(0, 1.1 * max(axes.dataLim.y1, 1.0))
            title = phrase("{plan:label}\n{parallelism:label}, {device:upper}", rows.iloc[0])
            panels[0, column].set_title(panel_title(title, len(runs), settings))
            panels[1, column].set_xlabel("Latency (ms)")
            _latency_axis(panels[1, column], latencies)
        for axes, words in zip(panels[:, 0], _SHOWN.values(), strict=True):
            axes.set_ylabel(words)
        share_legend(page, {}, len(MODE_COLOURS), *panels.flat)
    parts, sentences = [], []
    for run in runs:
        stalls, times = (_longest(points, run, of) for of in ("stall_percent", "over_electrical"))
        if len(stalls):
            texts = phrases(stalls, "{mode:lower} {median:q} %", ", ")
            at = f"at {quantity(stalls['ms'].iloc[0])} ms"
            parts.append(f"{label(run)} stalled {texts} {at}")
            over = "{mode:lower} {median:q}"
            ratios = [
                phrase(over + " ({low:q} to {high:q})" * (row["low"] == row["low"]), row)
                for row in records(times)
            ]
            sentences.append(
                f"{label(run)} {at}: {', '.join(ratios)} times the electrical iteration."
            )
    caption = f"""Training with emulated optical switches, {repeats_words(repeats)}.
        {" ".join(sentences)} Above, the iteration time of the slowest rank; below, the share of it
        in which ranks wait for light paths. The electrical runs are measured; in the others the
        training is real and the switches are emulated delays."""
    alternative = f"""Lines of the iteration time and of the share of it spent waiting for light
        paths over the reconfiguration latency, a column per run: {"; ".join(parts)}."""
    keys = [*SETTING, "repeat", "disturbed", "fidelity"]
    values = repeats.melt(keys, list(_SHOWN), var_name="shows", value_name="value")
    # The medians, and below them the repeats behind them.
    data = stack([points[points["shows"].isin(_SHOWN)], values])
    return Drawn(caption, alternative, data)


def _lines(axes: Axes, points: DataFrame) -> None:
    for mode, colour in MODE_COLOURS.items():
        line = where(points, mode=mode).sort_values("reconfiguration_latency_ms")
        if line.empty:
            continue
        if mode != "electrical":
            x = line["reconfiguration_latency_ms"]
            axes.plot(x, line["median"], "o-", color=colour, label=label(mode))
            axes.vlines(x, line["low"], line["high"], color=colour, linewidth=3.2, alpha=0.45)
        elif (line["shows"] == "iteration_ms").all():
            median, low, high = map(float, line[["median", "low", "high"]].iloc[0])
            axes.axhline(median, label=label(mode), color=colour, linestyle=(0, (5, 2)))
            axes.axhspan(low, high, color=colour, alpha=0.15, linewidth=0)


def _dots(axes: Axes, repeats: DataFrame, shown: str) -> None:
    for mode, colour in MODE_COLOURS.items():
        for disturbed, mark in ((False, "."), (True, "x")):
            if mode != "electrical" or shown == "iteration_ms":
                rows = where(repeats, mode=mode, disturbed=disturbed)
                style = dot(colour, 4.5, marker=mark, alpha=0.6)
                axes.plot(rows["reconfiguration_latency_ms"], rows[shown], **style)


def _latency_axis(axes: Axes, latencies: Sequence[float]) -> None:
    """Logarithmic beyond the smallest latency, linear down to 0.

    Ticks are latencies of runs that are not too near to each other.
    """
    positive = [latency for latency in latencies if latency > 0]
    if positive and max(positive) / min(positive) > 5:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.6)
    shown = [latency for latency in latencies if latency == 0]
    for latency in positive:
        if latency >= 2.4 * (shown[-1] if shown else 0):
            shown.append(latency)
    ticks(axes.xaxis, shown)
    axes.tick_params(axis="x", labelcolor=GREY)


def _longest(points: DataFrame, run: str, shows: str) -> DataFrame:
    """Median and interval of each optical mode at the longest latency of a run."""
    rows = where(points, run=run, shows=shows).rename(columns={"reconfiguration_latency_ms": "ms"})
    optical = rows[rows["mode"] != "electrical"]
    return where(optical, ms=optical["ms"].max())


# Programs in plain torch: time and stalls against what windows do not hide


@figure("Plain torch on switched rails", "opus", height=6.4)
@reads(
    settings="live.settings: program mode reconfiguration_latency_ms controller_restarted ranks"
    " iteration_ms predicted_iteration_ms all_stalls_ms all_predicted_stalls_ms fidelity"
)
def live_switching(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Iteration time and stalls of programs in plain torch."""
    frame = tables.read("settings", "program", settings.only)
    programs = list(frame["program"].unique())
    subtitle = """Lines: the time at the least latency and, for each change of circuits, the latency
        less its window. Windows are those of the same iterations, by the ranks' own clocks;
        crosses: the controller was killed and started again in the middle."""
    note = "Ranks share the cores of one machine"
    title = "FSDP2, tensor parallelism and 1F1B of plain torch on switched rails"
    with canvas(subtitle, frame["fidelity"], note, title=title) as page:
        grid = page.subplots(len(programs), 2, squeeze=False)
        for (left, right), program in zip(grid, programs, strict=True):
            rows = where(frame, program=program)
            electrical = where(rows, mode="electrical")["iteration_ms"]
            if len(electrical):
                left.axhline(electrical.iloc[0], color=MODE_COLOURS["electrical"], linewidth=0.8)
            _pairs(left, rows, "iteration_ms", "predicted_iteration_ms")
            _pairs(right, rows, "all_stalls_ms", "all_predicted_stalls_ms")
            title = f"{label(program)}, {rows['ranks'].iloc[0]} ranks"
            left.set(title=title, ylabel="Iteration (ms)")
            right.set(title="Waiting for light, all groups", ylabel="Stall (ms per iteration)")
        for axes in grid[-1]:
            axes.set_xlabel("Switching latency (ms)")
        legend = {label(mode): dot(MODE_COLOURS[mode]) for mode in MODES}
        legend["By the windows"] = {"color": INK}
        legend[label("electrical")] = {"color": MODE_COLOURS["electrical"], "linewidth": 0.8}
        share_legend(page, legend, 4)
    caption = "Iteration time and waiting for light of programs in plain torch on emulated rails."
    compared = where(frame, mode="provisioned", controller_restarted=False)
    compared = compared[compared["all_predicted_stalls_ms"] > 0]
    if len(compared):
        ratios = compared["all_stalls_ms"] / compared["all_predicted_stalls_ms"]
        caption += f""" Provisioned, the controller's account of the stalls is {span(ratios)} times
            what the windows leave of the latency."""
    switched = frame[frame["mode"] != "electrical"].groupby(["program", "mode"], sort=False)
    longest = stack(rows.sort_values("reconfiguration_latency_ms").tail(1) for _, rows in switched)
    row = """{program:label}, {mode:lower}: {iteration_ms:q} ms per iteration at
        {reconfiguration_latency_ms:q} ms"""
    return Drawn(caption, f"Two panels per program. {phrases(longest, row)}.", frame)


def _pairs(axes: Axes, rows: DataFrame, measured: str, predicted: str) -> None:
    """Marks for what was measured, a line for the rule."""
    for mode in MODES:
        line = where(rows, mode=mode).sort_values("reconfiguration_latency_ms")
        for restarted, marker in ((False, "o"), (True, "x")):
            marks = where(line, controller_restarted=restarted)
            x = marks["reconfiguration_latency_ms"]
            if not restarted:
                axes.plot(x, marks[predicted], color=MODE_COLOURS[mode])
            axes.plot(x, marks[measured], **dot(MODE_COLOURS[mode], marker=marker))
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
