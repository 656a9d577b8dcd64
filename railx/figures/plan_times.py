"""Predicted time of an iteration by plan, and what it consists of.

Parts are computation, computing again what was not kept, all-to-all, exposed traffic
of ZeRO-3, other communication, and waiting, which is the rest of the iteration: for the
slowest group of a micro-batch, in no group, or while a pipeline fills and drains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any

from railx.figures.comparisons import plan_seconds
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, Texts, figure, reads
from railx.figures.panels import at_edge, few_ticks, name_rows, patch, share_legend, tiles
from railx.figures.published import PUBLISHED_MARK, published_marks
from railx.figures.tables import records, refuse, to_frame, where
from railx.figures.theme import FAINT, GREY, PALETTE, PUBLISHED, SYSTEMS, label, lighter
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, phrases, quantity
from railx.io import read_json
from railx.settings import Between, NotEmpty, SettingsError, mapping

# Planners by corpus; where FlexSP publishes a bar of the system, it is a hollow diamond

#: The planner of this project.
_OURS = "flexsp"
_NOTE = "No paper compares these planners; the comparison is ours"


@dataclass(frozen=True)
class PlannersSettings(CanvasSettings):
    """Predicted time of an iteration by planner and corpus."""

    planners: Annotated[dict[str, str], NotEmpty()] = mapping(
        static="One degree",
        static_per_batch="Best degree of each batch",
        megatron="Megatron-LM, best TP and CP",
        wlb="WLB-LLM packing",
        dynamic_cp="Megatron dynamic CP",
        byte_scale="ByteScale, balanced",
        any_degree="Any degree, greedy",
        flexsp_milp="FlexSP's, as published",
        flexsp="Groups that adapt",
    )
    """Beginnings of plan names, and the words for each: a bar is the plan that is
    called by one of them, _ and the corpus; those that the experiment lacks are left
    out."""
    reference: Annotated[str, NotEmpty()] = "static_per_batch"
    """Planner that the others are compared with, one of ``planners``."""
    published: dict[str, str] = mapping(
        static="deepspeed",
        static_per_batch="flexsp_batch_ada",
        megatron="megatron",
        flexsp_milp="flexsp",
        flexsp="flexsp",
    )
    """Published system of a planner, as the published table names it."""
    model: Annotated[str, NotEmpty()] = "7b"
    """Model of the plans, as the published table names it."""
    context: Annotated[str, NotEmpty()] = "192k"
    """Longest context of the plans, as the published table names it."""

    def __post_init__(self) -> None:
        for key, names in (("reference", [self.reference]), ("published", list(self.published))):
            unknown = [name for name in names if name not in self.planners]
            if unknown:
                raise SettingsError(
                    key, f"got {', '.join(unknown)}; allowed: {', '.join(self.planners)}"
                )


@figure("Planners for sequences of varying length", "flexsp", height=6)
@reads(
    groups="plan.groups (sequence_parallel): plan corpus iteration micro_batch predicted_ms"
    " fidelity",
    seconds="flexsp_iteration_seconds.csv: model context corpus system seconds_per_iteration",
)
def planners(settings: PlannersSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel per corpus, a bar per planner."""
    bars = _bars(settings, tables)
    corpora = list(dict.fromkeys(bars["corpus"]))
    planners = [name for name in settings.planners if name in set(bars["planner"])]
    reference = settings.planners[settings.reference]
    subtitle = f"""Seconds of an iteration, and what they are of those of “{reference}”. One cost
        model and the same batches for all; Megatron-LM's own communication is derived from it.
        Hollow diamonds: read off FlexSP's bars, whose lengths are other ones where ours are
        synthetic."""
    with canvas(subtitle, fidelity_line(bars["fidelity"], _NOTE)) as page:
        panels = tiles(page, list(map(label, corpora)), len(corpora), settings, sharey=True)
        for axes, corpus in zip(panels, corpora, strict=True):
            _planner_panel(axes, bars[bars["corpus"] == corpus], planners, settings)
        legend: dict[str, Any] = {"Ours: plans of baselines": patch(**_fill("", settings))}
        if _OURS in planners:
            legend[f"Ours: {settings.planners[_OURS].lower()}"] = patch(**_fill(_OURS, settings))
        if settings.reference in planners:
            legend["Ours: the reference"] = patch(**_fill(settings.reference, settings))
        if bars["published_seconds"].notna().any():
            legend[f"{PUBLISHED.capitalize()} (FlexSP)"] = PUBLISHED_MARK
        share_legend(page, legend, 4)
    return Drawn(*_texts(settings, bars), bars)


def _bars(settings: PlannersSettings, tables: Tables) -> DataFrame:
    """A row per planner and corpus: seconds, share of the reference, published."""
    groups = tables.read("groups")
    plans = groups.drop_duplicates("plan").assign(number=range(groups["plan"].nunique()))
    plans = plans.assign(seconds=plans["plan"].map(plan_seconds(groups)))
    plans = plans[["plan", "corpus", "seconds", "fidelity", "number"]]
    systems = {name: settings.published.get(name, "") for name in settings.planners}
    bars = tables.query(
        f"""
        with named as (
            -- Lengths that are made for this project have the published ones' name.
            select corpus, regexp_replace(corpus, '_like$', '') as lengths, planner, system, plan,
                plans.seconds, fidelity, min(plans.number) over (partition by corpus) as first,
                index
            from plans, systems
            where plan = concat(planner, '_{settings.model}_{settings.context}_', lengths)
        )
        select named.corpus, planner, plan, named.seconds,
            seconds_per_iteration::double as published_seconds, fidelity
        from named left join seconds on seconds.corpus = lengths and seconds.system = named.system
            and model = '{settings.model}' and context = '{settings.context}'
        order by first, index
        """,
        plans=plans,
        systems=to_frame(list(systems.items()), ["planner", "system"]).reset_index(),
    )
    if bars.empty:
        allowed = """beginnings of plan names of this experiment, each with its model, context and
            corpus"""
        refuse(f"planners: got {', '.join(settings.planners)}", " ".join(allowed.split()))
    base = where(bars, planner=settings.reference).set_index("corpus")["seconds"]
    if len(base):
        # Without the reference a corpus is planned for something else.
        bars = bars[bars["corpus"].isin(base.index)]
    return bars.assign(of_reference=bars["seconds"] / bars["corpus"].map(base))


def _fill(planner: str, settings: PlannersSettings) -> dict[str, Any]:
    """How a bar is filled: lighter, so that a published mark on it can be seen."""
    colour = PALETTE[2] if planner == _OURS else PALETTE[0]
    if planner == settings.reference:
        colour = GREY
    return {"facecolor": lighter(colour, 0.2), "linewidth": 0}


def _planner_panel(
    axes: Axes, bars: DataFrame, planners: list[str], settings: PlannersSettings
) -> None:
    bars = bars.assign(at=bars["planner"].map(planners.index))
    for row in records(bars):
        axes.barh(row["at"], row["seconds"], 0.66, **_fill(row["planner"], settings))
        share = row["of_reference"]
        text = quantity(row["seconds"]) + (f" ({share:.2f})" if share == share else "")
        at_edge(axes, text, row["at"])
    marked = bars.dropna(subset=["published_seconds"])
    published_marks(axes, marked["published_seconds"], marked["at"])
    name_rows(axes, [settings.planners[name] for name in planners])
    most = 2.1 * float(bars[["seconds", "published_seconds"]].max().max())
    axes.set(xlim=(0, most), xlabel="Seconds an iteration")
    few_ticks(axes.xaxis, 4, steps=[1, 2, 5, 10])


def _texts(settings: PlannersSettings, bars: DataFrame) -> Texts:
    bars = bars.assign(words=bars["planner"].map(settings.planners))
    ranges, values = [], []
    for corpus, rows in bars.groupby("corpus", sort=False):
        ends = rows.sort_values("seconds").iloc[[0, -1]]
        ranges.append(f"""{label(corpus)}: from
            {phrases(ends, "{seconds:q} s ({words})", " to ")}""")
        values.append(f"{label(corpus)}: {phrases(rows, '{words} {seconds:q}', ', ')}")
    pair = "{words} on {corpus:label} {seconds:q} for {published_seconds:q}"
    both = phrases(bars.dropna(subset=["published_seconds"]), pair)
    beside_bars = f"Beside FlexSP's bars: {both}." if both else ""
    caption = f"""Predicted seconds of an iteration. {"; ".join(ranges)}. {beside_bars} All come
        from the cost model with FlexSP's constants, not from a machine. Baselines are our
        implementations of published rules; runtimes that do not wait between micro-batches (dynamic
        context parallelism, ByteScale) would take less than a plan, which does."""
    alternative = f"Bars of predicted seconds of an iteration by planner. {'; '.join(values)}."
    return caption, alternative


# Parts of an iteration, means over the devices

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
    baselines = ("seq1f1b", "flexsp", "deepspeed", "megatron")
    systems = {"pipeline": "Elastic pipelines"} | {name: SYSTEMS[name][0] for name in baselines}
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


@figure("What an iteration consists of", "infinipipe", height=10)
@reads(
    groups="plan.groups: plan devices kind iteration micro_batch degree predicted_ms"
    " predicted_all_to_all_ms predicted_other_ms fidelity",
    schedule="plan.schedule: plan iteration replica stage start_ms end_ms",
    summary="plan.summary",
)
def iteration_parts(settings: IterationPartsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each comparison, a bar for each plan."""
    rows = _rows(settings, tables)
    panels = list(dict.fromkeys(rows["panel"]))
    subtitle = f"""Predicted seconds of an iteration, mean over its batches and devices; in
        brackets, times the first of each panel. {settings.note}"""
    with canvas(subtitle.strip(), fidelity_line(rows["fidelity"]), title=settings.title) as page:
        grid = tiles(page, panels, min(settings.columns, len(panels)), settings, "Seconds")
        for axes, panel in zip(grid, panels, strict=True):
            _part_panel(axes, rows[rows["panel"] == panel])
        legend = {
            part[:1].upper() + part[1:]: patch(_colour(part), linewidth=0)
            for part in _PARTS
            if (rows[part] > 0).any()
        }
        share_legend(page, legend, 6)
    texts = " ".join(
        f"{panel}: {phrases(bars, '{words} {seconds:q} s', ', ')}."
        for panel, bars in rows.groupby("panel", sort=False)
    )
    caption = f"""{settings.title}. {texts} All are predictions of the cost model, parted into means
        over the devices."""
    bars = []
    for row in records(rows):
        parts = ", ".join(f"{part} {quantity(row[part])}" for part in _PARTS if row[part] > 0)
        bars.append(f"{row['panel']}, {row['words']}: {parts}")
    alternative = f"Stacked bars of seconds of an iteration. {'; '.join(bars)}."
    return Drawn(caption, alternative, rows, title=settings.title)


def _rows(settings: IterationPartsSettings, tables: Tables) -> DataFrame:
    """A row for each bar: its parts in seconds, and its time over the first's."""
    groups = tables.read("groups")
    chosen = [plan for plans in settings.panels.values() for plan in plans]
    groups = groups[groups["plan"].isin(chosen)]
    if groups.empty:
        refuse(f"panels: got {', '.join(chosen)}", "plans of this experiment, one or more")
    pipelined = bool((groups["kind"] == "pipeline").any())
    schedules = dict(iter(tables.read("schedule").groupby("plan"))) if pipelined else {}
    by_plan = dict(iter(groups.groupby("plan")))
    #: Exposed traffic of ZeRO-3 in ms of a batch.
    summaries = [read_json(path) for path in tables.paths("summary")]
    sharding = {summary["plan"]: float(summary["predicted_sharding_ms"]) for summary in summaries}
    rows = []
    for panel, plans in settings.panels.items():
        for plan, words in plans.items():
            if plan in by_plan:
                of_plan = by_plan[plan]
                first = of_plan.iloc[0]
                if first["kind"] == "pipeline":
                    parts = _of_pipelines(of_plan, schedules[plan], sharding[plan])
                else:
                    parts = _of_groups(of_plan, sharding[plan])
                bar = {"panel": panel, "plan": plan, "words": words, **parts}
                rows.append(bar | {"seconds": sum(parts.values()), "fidelity": first["fidelity"]})
    bars = to_frame(rows)
    over_first = bars["seconds"] / bars.groupby("panel")["seconds"].transform("first")
    bars.insert(len(bars.columns) - 1, "over_first", over_first)
    return bars


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


def _part_panel(axes: Axes, rows: DataFrame) -> None:
    for position, row in enumerate(records(rows)):
        left = 0.0
        for part in _PARTS:
            axes.barh(position, row[part], 0.7, left=left, color=_colour(part), linewidth=0)
            left += row[part]
        at_edge(axes, f"{quantity(row['seconds'])} ({row['over_first']:.2f})", position, 4)
    name_rows(axes, list(rows["words"]))
    axes.set_xlim(0, 1.75 * float(rows["seconds"].max()))
    few_ticks(axes.xaxis, 4, steps=[1, 2, 5, 10])
