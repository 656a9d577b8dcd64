"""Pipelines: the schedule of a plan, and the memory of its stages.

The kind of a chunk (whole sequences, a slice of one, or a tail with whole ones;
InfiniPipe, section III) sets the hue, the pass sets the lightness. A chunk is held from
its forward to its backward pass, less what is recomputed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Any

from railx.figures.figure import Canvas, Choice, Drawn, PlanChoice, Tables, figure, reads
from railx.figures.marks import dot
from railx.figures.panels import name_rows, patch, share_legend, time_unit
from railx.figures.tables import plans_at, records, stack, where
from railx.figures.theme import GREY, INK, PALETTE, label, lighter
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, phrase_list, phrases, quantity
from railx.settings import NonNegative

# Gantt chart of a plan: a row for each stage, a block for each pass of a chunk

#: Kinds of chunks: words and hue.
_KINDS = {
    "batched": ("whole sequences", PALETTE[0]),
    "split": ("slice of a sequence", PALETTE[5]),
    "hybrid": ("tail and whole sequences", PALETTE[2]),
    "unknown": ("chunk", PALETTE[0]),
}
#: Passes: words, and how much white their colour is mixed with.
_PASSES = {"forward": ("Forward", 0.55), "backward": ("Backward", 0.0), "weight": ("Weights", 0.78)}
_SCHEDULES = {
    "1f1b": "one forward, one backward (1F1B)",
    "gpipe": "all forward, then all backward (GPipe)",
    "interleaved": "interleaved 1F1B",
    "zero_bubble": "1F1B with weights' gradients put off (zero-bubble)",
    "explicit": "an order of the plan's own",
}
#: Width of a digit of a number in a block, in points per point of its size.
_DIGIT = 0.64


@dataclass(frozen=True)
class PipelineScheduleSettings(PlanChoice):
    """Gantt chart of one iteration of pipeline plans."""

    label_blocks: bool = True
    """Whether blocks have the number of their chunk, where there is room."""


@figure("Pipeline schedule", "infinipipe", height=5.4)
@reads(
    schedule="plan.schedule (pipeline): plan iteration pipeline replica schedule stage chunk kind"
    " start_ms end_ms fidelity",
    groups="plan.groups (optional, pipeline): plan iteration micro_batch group chunk_kind",
)
def pipeline_schedule(settings: PipelineScheduleSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One iteration of every schedule, a panel per plan."""
    frame = _with_kinds(tables.read("schedule", "plan", settings.only), tables)
    schedules = {}
    for plan, rows in plans_at(frame, "schedule", iteration=settings.iteration).items():
        # The lane is the row of every stage of every replica.
        lane = rows.groupby(["replica", "stage"]).ngroup()
        rows = rows.assign(lane=lane).sort_values(["replica", "pipeline"], kind="stable")
        schedules[plan] = rows.reset_index(drop=True)
    drawn = stack(schedules.values())
    # Passes that take no time have an axis too.
    spans = {name: float(rows["end_ms"].max()) or 1.0 for name, rows in schedules.items()}
    # Plans of unlike length have an axis of time each.
    alike = max(spans.values()) < 3 * min(spans.values())
    named = list(dict.fromkeys(map(_schedule, schedules.values())))
    ways = [way for way in _PASSES if way in set(drawn["kind"])]
    subtitle = f"""Iteration {settings.iteration}{f", {named[0]}" if len(named) == 1 else ""}.
        Light: forward. Dark: backward.{" Pale: weights." if "weight" in ways else ""} White:
        bubble.{"" if alike else " Each plan has its own axis of time."}"""
    points = settings.width_inches * 72
    with canvas(subtitle, drawn["fidelity"], "Numbers are chunks in forward order") as page:
        heights = [rows["lane"].nunique() for rows in schedules.values()]
        shape: dict[str, Any] = {"sharex": alike, "squeeze": False, "height_ratios": heights}
        panels = page.subplots(len(schedules), 1, **shape)[:, 0]
        for axes, (name, rows) in zip(panels, schedules.items(), strict=True):
            span = max(spans.values()) if alike else spans[name]
            unit, divisor = time_unit(span)
            _gantt(axes, rows, divisor, points / span)
            total = quantity(rows["end_ms"].max() / divisor)
            bubble = quantity(100 * _bubble(rows))
            chunks = len(rows[["pipeline", "chunk"]].drop_duplicates())
            axes.set_title(f"{label(name)}: {total} {unit}, {chunks} chunks, bubble {bubble} %")
            # The number of its chunk in every block that is wide enough for it.
            digit_ms = _DIGIT * settings.text_points / points * span
            style: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
            for row in records(rows) if settings.label_blocks else ():
                text, start, end = str(row["chunk"]), row["start_ms"], row["end_ms"]
                if end - start >= (len(text) + 0.6) * digit_ms:
                    style["color"] = "white" if row["kind"] == "backward" else INK
                    axes.text((start + end) / 2 / divisor, row["lane"], text, **style)
            axes.set_xlim(0, span / divisor * 1.005)
            if not alike or axes is panels[-1]:
                axes.set_xlabel(f"Predicted time ({unit})")
        kinds = [kind for kind in _KINDS if kind in set(drawn["chunk_kind"])]
        legend = {
            f"{_PASSES[way][0]}, {_KINDS[kind][0]}": patch(_colour(kind, way))
            for kind in kinds
            for way in ways
        }
        share_legend(page, legend, len(kinds))
    facts = "; ".join(_schedule_facts(name, rows) for name, rows in schedules.items())
    weights = ", a pale one the gradients of its weights, which were put off"
    caption = f"""One iteration of each pipeline plan: {facts}. Each row is a stage, each block a
        forward (light) or backward (dark) pass of a chunk{weights if "weight" in ways else ""}; a
        number is the chunk's place in forward order. The hue tells chunks of whole sequences,
        slices of one long sequence, and a tail of one packed with whole ones apart. Times are
        predictions of the cost model, not measurements."""
    alternative = f"""Gantt charts, a row per pipeline stage and a block per pass of a chunk:
        {facts}."""
    return Drawn(caption, alternative, drawn.drop(columns="lane"))


def _with_kinds(rows: DataFrame, tables: Tables) -> DataFrame:
    """The rows with the kind of their chunk; ``unknown`` without the plans' tables."""
    if "groups" not in tables:
        return rows.assign(chunk_kind="unknown")
    keys = ["plan", "iteration", "pipeline", "chunk"]
    groups = tables.read("groups").rename(columns={"micro_batch": "pipeline", "group": "chunk"})
    kinds = groups[[*keys, "chunk_kind"]].drop_duplicates(keys)
    joined = rows.merge(kinds, on=keys, how="left")
    return joined.assign(chunk_kind=joined["chunk_kind"].fillna("unknown"))


def _gantt(axes: Axes, frame: DataFrame, divisor: float, points_per_ms: float) -> None:
    # A white edge takes nothing that would be seen from the narrowest blocks.
    narrow = float((frame["end_ms"] - frame["start_ms"]).quantile(0.1))
    edge = min(0.7, 0.1 * narrow * points_per_ms)
    for (kind, way), rows in frame.groupby(["chunk_kind", "kind"]):
        width = (rows["end_ms"] - rows["start_ms"]) / divisor
        style: dict[str, Any] = {"color": _colour(str(kind), str(way)), "edgecolor": "white"}
        left = rows["start_ms"] / divisor
        axes.barh(rows["lane"], width, left=left, height=0.78, linewidth=edge, **style)
    several = frame["replica"].nunique() > 1
    text = "Replica {replica}, stage {stage}" if several else "Stage {stage}"
    name_rows(axes, phrase_list(frame.drop_duplicates("lane").sort_values("lane"), text))


def _colour(kind: str, way: str) -> tuple[float, float, float]:
    return lighter(_KINDS[kind][1], _PASSES[way][1])


def _schedule(frame: DataFrame) -> str:
    """The schedules of a plan in words; InfiniPipe's where the table names none."""
    names = list(dict.fromkeys(frame["schedule"].fillna("1f1b")))
    return " and ".join(_SCHEDULES[str(name)] for name in names)


def _bubble(frame: DataFrame) -> float:
    """The share of the stages' time in which they have nothing to run."""
    busy = float((frame["end_ms"] - frame["start_ms"]).sum())
    total = float(frame["end_ms"].max()) * frame["lane"].nunique()
    return 1 - busy / total if total else 0.0


def _schedule_facts(name: str, frame: DataFrame) -> str:
    chunks = frame.drop_duplicates(["replica", "pipeline", "chunk"])["chunk_kind"].value_counts()
    kinds = ", ".join(
        f"{int(chunks[kind])} {words}" for kind, (words, _) in _KINDS.items() if kind in chunks
    )
    return f"""{label(name)} {quantity(float(frame["end_ms"].max()) / 1e3)} s on
        {frame["stage"].nunique()} stages, {counted(frame["pipeline"].nunique(), "pipeline")} of
        chunks ({kinds}), {_schedule(frame)}, bubble {100 * _bubble(frame):.3g} %"""


# What the stages of a plan hold, by the cost model (InfiniPipe eqs. 5, 9 and 10)

_GIB = 2.0**30

#: Column, unit and divisor of what is drawn, with and without a cost model.
_UNITS = {True: ("activation_bytes", "GiB", _GIB), False: ("live_chunks", "chunks", 1.0)}

_ROOM: dict[str, Any] = {"color": GREY, "linewidth": 1.3, "linestyle": (0, (4, 2))}


@dataclass(frozen=True)
class StageMemorySettings(PlanChoice):
    """Activations of the stages of pipeline plans over one iteration."""

    replica: Annotated[int, NonNegative()] = 0
    """Replica to show; the others do the same with other chunks."""


@figure("Memory of pipeline stages over time", "infinipipe", height=5.4)
@reads(
    memory="plan.memory (pipeline): plan iteration pipeline replica stage time_ms live_chunks"
    " activation_bytes capacity_bytes fidelity"
)
def stage_memory(settings: StageMemorySettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One iteration of one replica of every plan."""
    table = tables.read("memory", "plan", settings.only)
    plans = plans_at(table, "plan", iteration=settings.iteration, replica=settings.replica)
    drawn = stack(plans.values())
    in_bytes = bool(drawn["activation_bytes"].notna().all())
    bounded = in_bytes and bool(drawn["capacity_bytes"].notna().all())
    subtitle = f"""Iteration {settings.iteration}, replica {settings.replica}: what a rank of each
        stage holds of chunks between their forward and backward passes."""
    with canvas(subtitle, drawn["fidelity"]) as page:
        panels = page.subplots(len(plans), 1, squeeze=False)[:, 0]
        for axes, (name, rows) in zip(panels, plans.items(), strict=True):
            _plan_panel(axes, rows, in_bytes, bounded)
            axes.set_title(label(name))
        legend = {f"Stage {stage}": _line(stage) for stage in sorted(set(drawn["stage"]))}
        if bounded:
            legend["room of the stage that has least"] = _ROOM
        share_legend(page, legend, min(len(legend), 5))
    facts = "; ".join(_plan_facts(name, rows, in_bytes) for name, rows in plans.items())
    caption = f"""What a rank of each pipeline stage holds over one iteration: {facts}. A chunk is
        held from the beginning of its forward pass to the end of its backward pass, less the layers
        that are recomputed. Times and bytes are predictions of the cost model, not measurements."""
    alternative = f"Lines of what each pipeline stage holds over time, a panel per plan: {facts}."
    return Drawn(caption, alternative, drawn)


def _plan_panel(axes: Axes, rows: DataFrame, in_bytes: bool, bounded: bool) -> None:
    column, _, scale = _UNITS[in_bytes]
    end = float(rows["time_ms"].max()) or 1.0
    unit, divisor = time_unit(end)
    for stage, changes in rows.groupby("stage"):
        times = [0.0, *(changes["time_ms"] / divisor)]
        axes.step(times, [0.0, *(changes[column] / scale)], where="post", **_line(stage))
    most = float(rows[column].max()) / scale
    if bounded:
        room = float(rows["capacity_bytes"].min()) / _GIB
        axes.axhline(room, **_ROOM)
        most = max(most, room)
    axes.set(xlim=(0, end / divisor * 1.005), ylim=(0, most * 1.08))
    axes.set(xlabel=f"Predicted time ({unit})", ylabel="GiB" if in_bytes else "Live chunks")


def _line(stage: Any) -> dict[str, Any]:
    return {"color": PALETTE[int(stage) % len(PALETTE)]}


def _plan_facts(name: str, rows: DataFrame, in_bytes: bool) -> str:
    column, unit, divisor = _UNITS[in_bytes]
    peaks = rows.groupby("stage")[column].max() / divisor
    room = rows["capacity_bytes"].min()
    of = f" of {quantity(float(room) / _GIB)}" if in_bytes and room == room else ""
    return f"""{label(name)} holds at most {", ".join(map(quantity, peaks))}{of} {unit} on stages
        {", ".join(map(str, peaks.index))}"""


# What the stages of a run hold, measured beside expected

_MIB = 2**20


@figure("Memory of pipeline stages over time", "infinipipe", height=6.4)
@reads(
    passes="training.passes: run plan device iteration rank replica stage place position kind"
    " chunk live_chunks predicted_live_chunks held_bytes peak_bytes predicted_held_bytes fidelity"
)
def held_memory(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Memory of pipeline stages over time, measured beside predicted."""
    rows = where(tables.read("passes", "run", settings.only), replica=0, place=0)
    runs = list(rows["run"].unique())
    stages = int(rows["stage"].max()) + 1
    subtitle = """Bytes beyond those before the batch, after each pass of the last warm-up step:
        chunks alive, gradients, receives. Steps: chunks alive."""
    note = "Messages that have not left yet are measured, not expected"
    with canvas(subtitle, rows["fidelity"], note) as page:
        panels = page.subplots(stages, len(runs), squeeze=False, sharex="col")
        for stage, column in itertools.product(range(stages), range(len(runs))):
            axes, run = panels[stage, column], str(runs[column])
            part = where(rows, run=run, stage=stage).sort_values("position")
            if part.empty:
                axes.set_axis_off()
                continue
            done, held = part["position"] + 1, part["held_bytes"] / _MIB
            expected, chunks = part["predicted_held_bytes"] / _MIB, part["live_chunks"]
            axes.plot(done, held, color=PALETTE[0])
            axes.plot(done, expected, **dot(INK, 3.5))
            axes.set(ylim=(0, 1.15 * max(held.max(), expected.max())), ylabel="Held (MiB)")
            other = axes.twinx()
            other.step(done, chunks, where="post", color=PALETTE[5], linewidth=1.2)
            other.set(ylim=(0, 2.2 * max(1, chunks.max())), ylabel="Chunks alive")
            other.locator_params(axis="y", nbins=6, steps=None, integer=True)
            other.grid(visible=False)
            axes.set_title(f"{label(run)}, stage {stage}")
        for axes in panels[-1]:
            axes.set_xlabel("Passes done")
        legend = {
            "Held, measured": {"color": PALETTE[0]},
            "Held, expected": dot(INK, 3.5),
            "Chunks alive, counted": {"color": PALETTE[5], "drawstyle": "steps-post"},
        }
        share_legend(page, legend, 3)
    most = rows.groupby(["run", "stage"], sort=False).max(numeric_only=True).reset_index()
    most["mib"], most["expected"] = most["held_bytes"] / _MIB, most["predicted_held_bytes"] / _MIB
    text = """{run:label}, stage {stage}: {live_chunks:.0f} chunks and {mib:q} MiB at most, expected
        {predicted_live_chunks:.0f} and {expected:q}"""
    parts = phrases(most, text)
    caption = f"""What a stage holds after each pass of a batch. {parts}. Measured: the storages of
        all tensors that the step made and that are still there (on a GPU, what the allocator has
        handed out). Expected: the tensors that the trainer keeps, counted from the plan."""
    alternative = f"""Lines of the memory that a stage holds after each pass with dots where it is
        expected, a panel for each stage: {parts}."""
    return Drawn(caption, alternative, rows)
