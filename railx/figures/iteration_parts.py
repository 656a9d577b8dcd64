"""What an iteration consists of under several plans: a bar for each, parted.

Parts are means over the devices: computation, computing again what was not kept,
all-to-all, exposed traffic of ZeRO-3, other communication, and waiting, which is the
rest of the iteration. Devices wait for the slowest group of a micro-batch, in no group
at all, or while a pipeline fills, drains and holds them up. Plans of groups and of
pipelines are drawn side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import at_edge, name_rows, panel_title, patch, share_legend, tiles
from railx.figures.tables import Tables, records, to_frame
from railx.figures.theme import FAINT, PALETTE, label, lighter
from railx.figures.words import fidelity_line, quantity
from railx.io import read_json
from railx.settings import Between, NotEmpty

__all__ = ["FIGURE", "IterationPartsSettings"]

#: The parts of a bar in their order, with their colours; waiting is drawn lighter.
_PARTS = {
    "computation": PALETTE[0],
    "computed again": PALETTE[1],
    "all-to-all": PALETTE[5],
    "ZeRO-3": PALETTE[7],
    "other communication": PALETTE[3],
    "waiting": FAINT,
}


def _settings_of_the_paper() -> dict[str, dict[str, str]]:
    """Every model, context and corpus of InfiniPipe's end-to-end figure."""
    systems = {
        "pipeline": "Elastic pipelines",
        "seq1f1b": "Seq1F1B",
        "flexsp": "FlexSP",
        "deepspeed": "DeepSpeed",
        "megatron": "Megatron-LM",
    }
    cases = product(("commoncrawl", "github"), ("48k", "96k"), ("7b", "13b", "30b"))
    return {
        f"{model.upper()}, {context.upper()}, {label(corpus)}": {
            f"{system}_a800_{model}_{context}_{corpus}": words for system, words in systems.items()
        }
        for corpus, context, model in cases
    }


@dataclass(frozen=True)
class IterationPartsSettings(CanvasSettings):
    """Parts of an iteration by plan."""

    figure: Literal["iteration_parts"] = "iteration_parts"
    height_inches: Height = 10

    title: Annotated[str, NotEmpty()] = "Elastic pipelines and four baselines on 32 A800"
    """What the plans are compared for."""

    note: str = (
        "512 sequences with lengths like those of the corpora; FlexSP's constants stand for"
        " InfiniPipe's, which are not published."
    )
    """A sentence on the plans below the title; empty: none."""

    panels: Annotated[dict[str, dict[str, str]], NotEmpty()] = field(
        default_factory=_settings_of_the_paper
    )
    """Panels by title: plans and the words for each, from top to bottom. The first one
    that the experiment has is what the others are compared with; plans that it lacks
    are left out."""

    columns: Annotated[int, Between(1, 64)] = 3
    """Panels side by side."""


def _colour(part: str) -> Any:
    return lighter(FAINT, 0.55) if part == "waiting" else _PARTS[part]


def draw(settings: IterationPartsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each comparison, a bar for each plan.

    Raises ValueError where the experiment has none of the plans.
    """
    rows = _rows(settings, tables)
    panels = list(dict.fromkeys(rows["panel"]))
    columns = min(settings.columns, len(panels))
    subtitle = f"""Predicted seconds of an iteration, mean over its batches and devices; in
        brackets, times the first of each panel. {settings.note}"""
    line = fidelity_line(rows["fidelity"])
    with canvas(subtitle.strip(), line, title=settings.title) as page:
        grid = tiles(page, len(panels), columns)
        for axes, panel in zip(grid, panels, strict=True):
            _panel(axes, rows[rows["panel"] == panel])
            axes.set_title(panel_title(panel, columns, settings))
        for axes in grid[-columns:]:
            axes.set_xlabel("Seconds")
        legend = {
            part[:1].upper() + part[1:]: patch(_colour(part), linewidth=0)
            for part in _PARTS
            if (rows[part] > 0).any()
        }
        share_legend(page, legend, 6)
    return Drawn(_caption(settings, rows), _alternative(rows), rows, title=settings.title)


def _rows(settings: IterationPartsSettings, tables: Tables) -> DataFrame:
    """A row for each bar: its parts in seconds, and its time over the first's."""
    groups = tables.read("groups")
    chosen = [plan for plans in settings.panels.values() for plan in plans]
    groups = groups[groups["plan"].isin(chosen)]
    if groups.empty:
        raise UserError(
            f"panels: got {', '.join(chosen)}; allowed: plans of this experiment, one or more"
        )
    pipelined = bool((groups["kind"] == "pipeline").any())
    schedules = dict(iter(tables.read("schedule").groupby("plan"))) if pipelined else {}
    by_plan = dict(iter(groups.groupby("plan")))
    #: Exposed traffic of ZeRO-3 in ms of a batch.
    summaries = [read_json(path) for path in tables.paths("summary")]
    sharding = {summary["plan"]: float(summary["predicted_sharding_ms"]) for summary in summaries}
    rows: list[dict[str, Any]] = []
    for panel, plans in settings.panels.items():
        first: float | None = None
        for plan, words in plans.items():
            if plan not in by_plan:
                continue
            plan_groups = by_plan[plan]
            head = plan_groups.iloc[0]
            if head["kind"] == "pipeline":
                parts = _of_pipelines(plan_groups, schedules[plan], sharding[plan])
            else:
                parts = _of_groups(plan_groups, sharding[plan])
            seconds = sum(parts.values())
            first = first or seconds
            total = {"seconds": seconds, "over_first": seconds / first}
            names = {"panel": panel, "plan": plan, "words": words}
            rows.append(names | parts | total | {"fidelity": str(head["fidelity"])})
    return to_frame(rows)


def _means(groups: DataFrame, *columns: str) -> list[float]:
    """Means over the devices, of a batch."""
    batches = float(groups["devices"].iloc[0]), groups["iteration"].nunique()
    return [
        float((groups[column] * groups["degree"]).sum()) / batches[0] / batches[1]
        for column in columns
    ]


def _of_groups(groups: DataFrame, sharding_ms: float) -> dict[str, float]:
    """Parts in seconds; micro-batches run one after another.

    The cost model has ZeRO-3's traffic in the time of every group.
    """
    slowest = groups.groupby(["iteration", "micro_batch"])["predicted_ms"].max()
    total = float(slowest.sum()) / groups["iteration"].nunique()
    exchange, other, busy = _means(
        groups, "predicted_all_to_all_ms", "predicted_other_ms", "predicted_ms"
    )
    # Devices in no group gather as the others do, and count as waiting.
    shared = sharding_ms * min(1.0, busy / total)
    computing = busy - exchange - other - shared
    return _parts(computing, 0.0, exchange, shared, other, total - busy)


def _of_pipelines(groups: DataFrame, schedule: DataFrame, sharding_ms: float) -> dict[str, float]:
    """Parts in seconds; every stage runs every chunk of its replica.

    What operations take beyond the chunks' time is computing again.
    """
    iterations = groups["iteration"].nunique()
    ranks = (int(schedule["stage"].max()) + 1) * (int(schedule["replica"].max()) + 1)
    total = float(schedule.groupby("iteration")["end_ms"].max().sum()) / iterations
    lasted = float((schedule["end_ms"] - schedule["start_ms"]).sum())
    spent = lasted / ranks / iterations
    exchange, chunks = _means(groups, "predicted_all_to_all_ms", "predicted_ms")
    again = spent - chunks if spent > chunks * (1 + 1e-9) else 0.0
    return _parts(spent - again - exchange, again, exchange, sharding_ms, 0.0, total - spent)


def _parts(*milliseconds: float) -> dict[str, float]:
    return {part: max(ms, 0.0) / 1e3 for part, ms in zip(_PARTS, milliseconds, strict=True)}


def _panel(axes: Axes, rows: DataFrame) -> None:
    from matplotlib.ticker import MaxNLocator

    for position, row in enumerate(records(rows)):
        left = 0.0
        for part in _PARTS:
            axes.barh(position, row[part], 0.7, left=left, color=_colour(part), linewidth=0)
            left += row[part]
        at_edge(axes, f"{quantity(row['seconds'])} ({row['over_first']:.2f})", position, 4)
    name_rows(axes, list(rows["words"]))
    axes.set_xlim(0, 1.75 * float(rows["seconds"].max()))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))


def _caption(settings: IterationPartsSettings, rows: DataFrame) -> str:
    sentences = []
    for panel, bars in rows.groupby("panel", sort=False):
        words = ", ".join(f"{row['words']} {quantity(row['seconds'])} s" for row in records(bars))
        sentences.append(f"{panel}: {words}.")
    return f"""{settings.title}. {" ".join(sentences)} All are predictions of the cost model, parted
        into means over the devices."""


def _alternative(rows: DataFrame) -> str:
    bars = []
    for row in records(rows):
        parts = ", ".join(f"{part} {quantity(row[part])}" for part in _PARTS if row[part] > 0)
        bars.append(f"{row['panel']}, {row['words']}: {parts}")
    return f"Stacked bars of seconds of an iteration. {'; '.join(bars)}."


FIGURE = declare(
    IterationPartsSettings,
    "What an iteration consists of",
    "infinipipe",
    draw,
    groups="plan.groups: plan devices kind iteration micro_batch degree predicted_ms"
    " predicted_all_to_all_ms predicted_other_ms fidelity",
    schedule="plan.schedule: plan iteration replica stage start_ms end_ms",
    summary="plan.summary",
)
