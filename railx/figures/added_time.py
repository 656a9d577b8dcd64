"""What optical switching adds to a training step over latency, published and ours.

Times are relative or added to the same source's step without switching, so that steps
of unlike length can be compared; absolute times differ by job and machine.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, figure, reads
from railx.figures.marks import PUBLISHED, PUBLISHED_LINE, published_series
from railx.figures.panels import share_legend, ticks, tiles
from railx.figures.repeats import REPEAT_COLUMNS, SETTING, medians, per_repeat, repeats_words
from railx.figures.tables import records, refuse, stack, to_frame, where
from railx.figures.theme import INK, MODE_LABELS, MODES, OPUS_JOBS, colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import phrase_list, phrases, quantity
from railx.settings import Between, NotEmpty

# Steps that Opus publishes: simulations, a smoke run, runs on Perlmutter

#: Inputs of a figure that calls :func:`published_steps`.
_PUBLISHED_STEPS = {
    "perlmutter": "opus_perlmutter_iteration_latency.csv: case mode reconfig_latency_ms"
    " mean_iteration_latency_s std_iteration_latency_s",
    "simulation": "opus_simulation_latency.csv: figure platform gpus system reconfig_latency_ms"
    " step_latency_s",
    "smoke": "opus_simulation_smoke.csv: reconfig_latency_ms eps_step_s on_demand_step_s"
    " provision_step_s",
}


def _published_steps(tables: Tables) -> DataFrame:
    """Published steps by source, setting, mode and latency, in the order of the tables.

    ``base_s`` is the step without switching, ``zero_s`` that at latency 0, ``spread_s``
    the standard deviation.
    """
    return tables.query(
        """
        with modes(mode, system, position) as (
            values ('on_demand', 'opus_on_demand', 0), ('provisioned', 'opus_provision', 1)
        ), steps as (
            select 0 as part, s.rowid_ as number, 'simulation' as source, figure as setting,
                concat(platform, ', ', gpus, ' GPUs (', replace(figure, 'fig', 'fig. '), ')')
                    as words,
                mode, s.reconfig_latency_ms::double as reconfiguration_latency_ms,
                s.step_latency_s as seconds,
                base.step_latency_s as base_s, null as spread_s
            from simulation s join modes using (system)
            join simulation base using (figure, platform, gpus)
            where base.system = 'eps_full_bw_analytical'
            union all
            select 1, 2 * rowid_ + position, 'simulation', 'smoke', 'smoke run of 8 GPUs', mode,
                reconfig_latency_ms,
                if(mode = 'on_demand', on_demand_step_s, provision_step_s), eps_step_s, null
            from smoke, modes
            union all
            select 2, p.rowid_, 'perlmutter', "case", "case",
                if(p.mode = 'on_demand', 'on_demand', 'provisioned'), p.reconfig_latency_ms,
                p.mean_iteration_latency_s, alone.mean_iteration_latency_s,
                p.std_iteration_latency_s
            from perlmutter p join perlmutter alone using ("case")
            where p.mode != 'no_controller' and alone.mode = 'no_controller'
        )
        select * exclude (part, number), max(if(reconfiguration_latency_ms = 0, seconds, null))
            over (partition by setting, mode) as zero_s
        from steps order by part, number
        """
    )


def _generated_steps(tables: Tables, rule: str) -> DataFrame:
    """Generated steps at the first bandwidth of each, up to 3 s of latency."""
    return tables.query(
        f"""
        select step, job, gradients, mode,
            reconfiguration_latency_ms::double as reconfiguration_latency_ms, step_ms,
            first(electrical_ms) over line as electrical_ms,
            max(if(reconfiguration_latency_ms = 0, step_ms, null))
                over (partition by step, job, mode, scale_out_gb_s) as zero_ms
        from times
        where rule = '{rule}' and mode in ('on_demand', 'provisioned')
            and reconfiguration_latency_ms <= 3000
        window line as (
            partition by step, job, mode order by rowid_
            rows between unbounded preceding and unbounded following
        )
        qualify scale_out_gb_s = first(scale_out_gb_s) over line
        order by min(rowid_) over (partition by step, job, mode), rowid_
        """
    )


# Overhead of every source over its own step without switching

#: Generated steps that have a published one beside them.
_GENERATED = {
    **OPUS_JOBS,
    "h200_128": "H200, 128 GPUs",
    "gb200_512": "GB200, 512 GPUs",
    "smoke": "smoke run of 8 GPUs",
    "deepseek2d": "DeepSeek, PP and TP only",
}
_SOURCES = {
    "ours": "Ours, live",
    "replay": "Ours, replay",
    "simulation": "Published, simulation",
    "perlmutter": "Published, Perlmutter",
}
_COLUMNS = 4
#: Characters of a bold line over a panel.
_WIDE = 26
_LATENCY = "reconfiguration_latency_ms"
_OVERHEAD_NOTE = """Published on Perlmutter: real jobs with emulated delays, bars of one standard
    deviation; published simulation: against electrical switches at full bandwidth"""


@dataclass(frozen=True)
class OverheadSettings(Choice):
    """Time that optical switching adds, published beside ours."""

    linear_percent: Annotated[float, Between(0.1, 1000)] = 10
    """Overhead up to which the axis is linear; logarithmic beyond."""
    confidence: Annotated[float, Between(0.5, 0.999)] = 0.95
    """Confidence of the intervals over our repeats."""


@figure("What optical switching adds to a training step", "opus", height=8.6)
@reads(
    iterations=f"training.iterations: {REPEAT_COLUMNS}",
    times="steps.times (optional): step job gradients scale_out_gb_s rule mode"
    " reconfiguration_latency_ms step_ms electrical_ms fidelity",
    **_PUBLISHED_STEPS,
    headline="opus.csv: id value",
)
def switching_overhead(settings: OverheadSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per source, all on the same axes."""
    frame = tables.read("iterations", "run", settings.only)
    repeats = per_repeat(frame)
    promised = 100 * float(tables.values("headline")["training_overhead"])
    points = _overhead_points(tables, repeats, settings.confidence)
    shown = points[points["source"] != "repeat"]
    panels = dict(iter(shown.groupby(["source", "panel"], sort=False)))
    lines: list[Any] = []
    for source in _SOURCES:
        names = [f"{of} {name}" for of, name in panels if of == source]
        names += ["."] * (-len(names) % _COLUMNS)
        lines += [names[first : first + _COLUMNS] for first in range(0, len(names), _COLUMNS)]
    subtitle = f"""Step time over the same source's step without switching, less one; all panels on
        the same axes. Hollow diamonds: published. Ours: {repeats_words(repeats)}."""
    replayed = ["replay"] if "replay" in set(points["source"]) else []
    with canvas(subtitle, [*frame["fidelity"], *replayed], _OVERHEAD_NOTE) as page:
        grid = page.subplot_mosaic(lines, sharex=True, sharey=True)
        for (origin, panel), rows in panels.items():
            name, axes = str(panel), grid[f"{origin} {panel}"]
            _overhead_panel(axes, rows, promised, str(origin))
            title = (_SOURCES[str(origin)], f"{name[:1].upper()}{name[1:]}")
            axes.set_title("\n".join("\n".join(textwrap.wrap(text, _WIDE)) for text in title))
        _axes(lines, grid, shown, settings.linear_percent)
        legend: dict[str, Any] = {}
        for mode, colour in colours(MODES).items():
            legend[f"{label(mode)}, published"] = published_series(colour)
            legend[f"{label(mode)}, ours"] = {"color": colour, "marker": "o"}
        legend[f"Abstract, {PUBLISHED}: below {promised:g} %"] = PUBLISHED_LINE
        share_legend(page, legend, 3)
    sentences = []
    for source, name in _SOURCES.items():
        parts = []
        rows = where(points, source=source, mode="provisioned")
        for job, line in rows.groupby("panel", sort=False):
            if source == "ours" and line["high_percent"].isna().any():
                parts.append(f"{job} undecided: too few repeats")
                continue
            # Ours count with the upper end of their interval.
            column = "high_percent" if source == "ours" else "overhead_percent"
            rising = line.sort_values(_LATENCY)
            longest = float(rising.loc[(~(rising[column] > promised)).cummin(), _LATENCY].max())
            reach = f"up to {quantity(longest)} ms" if longest == longest else "at no latency"
            parts.append(f"{job} {reach}")
        if parts:
            sentences.append(f"{name}: {'; '.join(parts)}.")
    caption = f"""Time that switching adds to a step. Provisioned switching stays within
        {promised:g} % of the step without it: {" ".join(sentences)} The paper's points are other
        jobs on other machines; only the shape can be compared. Ours live are real training steps on
        processor cores, with emulated switches; ours replayed are generated steps at the published
        settings. Ours: {repeats_words(repeats)}."""
    parts = []
    for source, name in _SOURCES.items():
        for job, rows in where(points, source=source).groupby("panel", sort=False):
            latency = rows[_LATENCY].max()
            last = where(rows, **{_LATENCY: latency})
            values = phrases(last, "{mode:lower} {overhead_percent:q} %", ", ")
            parts.append(f"{name}, {job}: {values} at {quantity(latency)} ms")
    alternative = f"Panels of added time over switching latency. {'; '.join(parts)}."
    return Drawn(caption, alternative, points)


def _overhead_points(tables: Tables, repeats: DataFrame, confidence: float) -> DataFrame:
    """A row for each source, panel, mode and latency."""
    steps = _published_steps(tables)
    spread = {"overhead_percent": 0.0, "low_percent": -1.0, "high_percent": 1.0}
    for column, sign in spread.items():
        seconds = steps["seconds"] + (sign * steps["spread_s"] if sign else 0.0)
        steps[column] = 100 * (seconds / steps["base_s"] - 1)
    published = steps.assign(panel=steps["words"].replace(_GENERATED))
    points = stack([_overhead_ours(repeats, confidence), _replayed(tables), published])
    points = points.reindex(columns=["source", "panel", "mode", _LATENCY, *spread, "set_aside"])
    return points.assign(set_aside=points["set_aside"].eq(True))


def _overhead_ours(repeats: DataFrame, confidence: float) -> DataFrame:
    """The median of each setting with its interval, and every repeat."""
    rows = repeats[repeats["mode"].isin(MODES)]
    rows = rows.assign(overhead_percent=100 * (rows["over_electrical"] - 1))
    names = {"median": "overhead_percent", "low": "low_percent", "high": "high_percent"}
    settings = medians(rows, ["overhead_percent"], confidence).rename(columns=names)
    rows = rows.assign(source="repeat", set_aside=~rows["counts"])
    both = stack([settings.assign(source="ours"), rows])
    both["panel"] = phrase_list(both, "{run:label} ({device:upper})")
    order = both.groupby(SETTING, sort=False).ngroup().argsort(kind="stable")
    return both.iloc[order]


def _replayed(tables: Tables) -> DataFrame:
    """Generated steps by a bit a stage, gradients reduced behind computation."""
    if "times" not in tables:
        return to_frame([])
    rows = _generated_steps(tables, "stage_bits")
    rows = rows[rows["gradients"].isin(("overlapped", "sharded"))]
    panel = rows["job"].map(_GENERATED).fillna(rows["step"].map(_GENERATED))
    percent = 100 * (rows["step_ms"] / rows["electrical_ms"] - 1)
    return rows.assign(source="replay", panel=panel, overhead_percent=percent)[panel.notna()]


def _overhead_panel(axes: Axes, rows: DataFrame, promised: float, source: str) -> None:
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.axhline(promised, zorder=1.5, **PUBLISHED_LINE)
    for mode, colour in colours(MODES).items():
        line = rows[rows["mode"] == mode].sort_values(_LATENCY)
        ours = source in ("ours", "replay")
        style = {"marker": "o", "color": colour} if ours else published_series(colour)
        axes.plot(line[_LATENCY], line["overhead_percent"], **style)
        bars = line[line["low_percent"].notna()]
        ends = (bars["low_percent"], bars["high_percent"])
        axes.vlines(bars[_LATENCY], *ends, color=colour, linewidth=1.1)


def _axes(lines: list[list[str]], grid: dict[str, Axes], points: DataFrame, step: float) -> None:
    percents = points[["overhead_percent", "low_percent", "high_percent"]].to_numpy()
    most, minimum = float(np.nanmax(percents)), min(0.0, float(np.nanmin(percents)))
    latencies = points[_LATENCY]
    linear = float(max(1.0, latencies[latencies > 0].min())) if (latencies > 0).any() else 1.0
    for axes in grid.values():
        axes.set_xscale("symlog", linthresh=linear, linscale=0.5)
        axes.set_yscale("symlog", linthresh=step, linscale=1)
        axes.set_ylim(1.25 * minimum - 0.3 * step, 2 * most)
        axes.set_xlim(-0.15 * linear, 1.5 * latencies.max())
        ticks(axes.xaxis, [0, 10, 100, 1000])
        ticks(axes.yaxis, [times * step for times in (-10, -1, 0, 1, 10, 100, 1000)])
    for column in zip(*lines, strict=True):
        for name in [name for name in column if name != "."][-1:]:
            grid[name].tick_params(labelbottom=True)
    # One label for all panels: it is longer than a panel.
    grid[lines[len(lines) // 2][0]].set_ylabel("Added time (%)")
    grid[lines[-1][lines[-1][1] != "."]].set_xlabel("Switching latency (ms)")


# Generated steps at the published settings

_PANELS = {
    "h200_128": "128 H200 (fig. 12)",
    "gb200_512": "512 GB200 (fig. 13)",
    "smoke": "Smoke run, 8 H200",
    "llama16": "Llama-3 8B, 16 A100",
    "llama64": "Llama-3 8B, 64 A100",
    "deepseek3d": "DeepSeek 16B, 16 A100",
}

#: Published simulations and the generated steps of their settings.
_SIMULATED = {"fig12": "h200_128", "fig13": "gb200_512"}

_STYLES: dict[str, tuple[Any, str]] = {
    "overlapped": ("-", "behind computation"),
    "in_line": ((0, (6, 2)), "before it goes on"),
    "at_end": ((0, (1, 1.2)), "after the last pass"),
    "sharded": ("-", "FSDP"),
    "graph": ((0, (4, 1.5, 1, 1.5)), "as in the published graphs"),
}
_POINT = ["source", "panel", "gradients", "mode", _LATENCY, "added_ms", "fidelity"]
#: Less counts as nothing, which a logarithmic axis does not have.
_MIN_DRAWN_MS = 0.05
_STEP_NOTE = """Ours are generated jobs, no recordings. Published: Perlmutter with emulated delays,
    the rest simulated"""


@dataclass(frozen=True)
class StepSwitchesSettings(CanvasSettings):
    """Time that switching adds to generated steps, published beside ours."""

    rule: Annotated[str, NotEmpty()] = "stage_bits"
    """Circuit rule of the rows to show: ``circuits`` or ``stage_bits``."""


@figure("What switching adds to a step at the published settings", "opus", height=6.8)
@reads(
    times="steps.times: step job device gpus gradients scale_out_gb_s rule mode"
    " reconfiguration_latency_ms step_ms electrical_ms fidelity",
    graphs="steps.graphs: step job counts scale_out_gb_s mode reconfiguration_latency_ms added_ms"
    " fidelity",
    **_PUBLISHED_STEPS,
)
def step_switches(settings: StepSwitchesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each job that has published numbers."""
    replayed = [_step_ours(tables, settings.rule), _step_graphs(tables)]
    points = stack([*replayed, _step_published(tables)])
    ours = where(points, source="ours")
    points = points[points["panel"].isin(set(ours["panel"])) & (points[_LATENCY] > 0)]
    points = points.reset_index(drop=True)
    if points.empty:
        refuse("times: no job with published numbers", _PANELS)
    panels = [name for name in _PANELS if name in set(points["panel"])]
    subtitle = """Step less the same job's step at latency 0 (simulations) or without a controller
        (A100). Hollow diamonds: published. Ours: generated jobs, by when they reduce gradients,
        and the graphs of the published simulation."""
    with canvas(subtitle, ours["fidelity"], _STEP_NOTE) as page:
        columns = min(3, len(panels))
        grid = tiles(page, [_PANELS[name] for name in panels], columns, settings, sharex=True)
        for axes, name in zip(grid, panels, strict=True):
            _step_panel(axes, where(points, panel=name))
        # One label for all panels: a panel is too narrow for it.
        page.supylabel("Added time (ms)")
        last = (len(panels) - 1) // columns * columns
        page.axes[last + (columns - 1) // 2].set_xlabel("Switching latency (ms)")
        legend: dict[str, Any] = {}
        for mode, colour in colours(MODES).items():
            legend[f"{MODE_LABELS[mode]}, ours"] = {"color": colour}
            legend[f"{MODE_LABELS[mode]}, {PUBLISHED}"] = published_series(colour)
        for key in ("graph", "overlapped", "in_line", "at_end"):
            if key in set(points["gradients"]):
                style, way = _STYLES[key]
                legend[f"Gradients {way}"] = {"color": INK, "linestyle": style}
        share_legend(page, legend, 4)
    hidden = points.loc[points["added_ms"] <= _MIN_DRAWN_MS, "source"]
    left = ""
    if len(hidden):
        left = f""" {len(hidden)} points that add nothing, {(hidden == "published").sum()} of them
            published, are not drawn."""
    words = ". ".join(_words(points, panel) for panel in panels)
    caption = f"""Time that switching adds, over latency. {words}.{left} When the published runs
        reduce gradients is not known, and no way gives all of their numbers."""
    alternative = f"""Lines of added time over switching latency on logarithmic axes, a panel per
        job: {words}."""
    return Drawn(caption, alternative, points)


def _step_ours(tables: Tables, rule: str) -> DataFrame:
    """Generated steps less their references.

    Simulations are published against latency 0, other runs against no controller.
    """
    rows = _generated_steps(tables, rule).assign(source="ours", fidelity="replay")
    of_step = rows["step"].isin(_PANELS)
    rows["panel"] = rows["job"].where(rows["job"].isin(_PANELS), rows["step"])
    rows["added_ms"] = rows["step_ms"] - rows["zero_ms"].where(of_step, rows["electrical_ms"])
    return rows[rows["panel"].isin(_PANELS)][_POINT]


def _step_graphs(tables: Tables) -> DataFrame:
    """Graphs of the published simulation at its counts and at the first bandwidth."""
    rows = tables.query(
        """
        with first_rate as (
            select step, arg_min(scale_out_gb_s, rowid_) as scale_out_gb_s from times group by step
        )
        select 'ours' as source, step as panel, 'graph' as gradients, mode,
            reconfiguration_latency_ms, added_ms, fidelity
        from graphs semi join first_rate using (step, scale_out_gb_s)
        where counts = 'published' and job = 'overlapped' and mode in ('on_demand', 'provisioned')
            and reconfiguration_latency_ms <= 3000
        order by rowid_
        """
    )
    return rows[rows["panel"].isin(_PANELS)][_POINT]


def _step_published(tables: Tables) -> DataFrame:
    """Simulations of figs. 12 and 13, the smoke run and the runs on Perlmutter."""
    steps = _published_steps(tables)
    simulated = steps["setting"].isin(_SIMULATED)
    added = 1e3 * (steps["seconds"] - steps["zero_s"].where(simulated, steps["base_s"]))
    steps = steps.assign(panel=steps["setting"].replace(_SIMULATED), added_ms=added)
    steps = steps.assign(source="published", gradients="", fidelity="")
    lines = steps[simulated].sort_values(["setting", "mode"], kind="stable")
    return stack([lines, steps[~simulated]])[_POINT]


def _step_panel(axes: Axes, rows: DataFrame) -> None:
    above = rows[rows["added_ms"] > _MIN_DRAWN_MS]
    for mode, colour in colours(MODES).items():
        ours = where(above, mode=mode, source="ours")
        for gradients, line in ours.groupby("gradients", sort=False):
            style = _STYLES[str(gradients)][0]
            axes.plot(line[_LATENCY], line["added_ms"], color=colour, linestyle=style)
        theirs = where(above, mode=mode, source="published")
        axes.plot(theirs[_LATENCY], theirs["added_ms"], **published_series(colour))
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: quantity(value))


def _words(points: DataFrame, panel: str) -> str:
    rows = where(points, panel=panel)
    ours, theirs = (where(rows, source=name) for name in ("ours", "published"))
    latency = max(set(ours[_LATENCY]) & set(theirs[_LATENCY]))
    parts = []
    for mode in MODES:
        at = {_LATENCY: latency, "mode": mode}
        values = ", ".join(
            f"{quantity(row['added_ms'])} ms ({_STYLES[row['gradients']][1]})"
            for row in records(where(ours, **at))
        )
        stated = [quantity(added) for added in where(theirs, **at)["added_ms"]]
        parts.append(f"{MODE_LABELS[mode].lower()} {values}, published {[*stated, 'none'][0]}")
    return f"{_PANELS[panel]} at {quantity(latency)} ms: {'; '.join(parts)}"
