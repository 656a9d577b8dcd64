"""Predicted time of an iteration by plan, what it consists of, and what it implies.

Parts are computation, computing again what was not kept, all-to-all, exposed traffic
of ZeRO-3, other communication, and waiting, which is the rest of the iteration: for the
slowest group of a micro-batch, in no group, or while a pipeline fills and drains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any

from railx.figures.comparisons import planned
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.marks import PUBLISHED, PUBLISHED_MARK, dot, published_series
from railx.figures.panels import at_edge, name_rows, patch, share_legend, stacked, ticks, tiles
from railx.figures.tables import records, refuse, refuse_unknown, to_frame, where
from railx.figures.theme import FAINT, GREY, INK, PALETTE, SYSTEMS, label, lighter
from railx.figures.types import Axes, DataFrame
from railx.figures.words import phrase_list, phrases, quantity
from railx.io import read_json
from railx.settings import AtLeast, Between, NotEmpty, SettingsError, mapping

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
                got = f"got {', '.join(unknown)}; allowed: {', '.join(self.planners)}"
                raise SettingsError(key, got)


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
    with canvas(subtitle, bars["fidelity"], _NOTE) as page:
        panels = tiles(page, list(map(label, corpora)), len(corpora), settings, sharey=True)
        for axes, corpus in zip(panels, corpora, strict=True):
            _planner_panel(axes, bars[bars["corpus"] == corpus], planners, settings)
        words = {"": "plans of baselines"}
        words |= {_OURS: settings.planners[_OURS].lower()} if _OURS in planners else {}
        words |= {settings.reference: "the reference"} if settings.reference in planners else {}
        legend = {f"Ours: {text}": patch(**_fill(of, settings)) for of, text in words.items()}
        if bars["published_seconds"].notna().any():
            legend[f"{PUBLISHED.capitalize()} (FlexSP)"] = PUBLISHED_MARK
        share_legend(page, legend, 4)
    named = bars.assign(words=bars["planner"].map(settings.planners))
    ranges, values = [], []
    for corpus, rows in named.groupby("corpus", sort=False):
        ends = rows.sort_values("seconds").iloc[[0, -1]]
        ranges.append(f"""{label(corpus)}: from
            {phrases(ends, "{seconds:q} s ({words})", " to ")}""")
        values.append(f"{label(corpus)}: {phrases(rows, '{words} {seconds:q}', ', ')}")
    pair = "{words} on {corpus:label} {seconds:q} for {published_seconds:q}"
    both = phrases(named.dropna(subset=["published_seconds"]), pair)
    beside_bars = f"Beside FlexSP's bars: {both}." if both else ""
    caption = f"""Predicted seconds of an iteration. {"; ".join(ranges)}. {beside_bars} All come
        from the cost model with FlexSP's constants, not from a machine. Baselines are our
        implementations of published rules; runtimes that do not wait between micro-batches (dynamic
        context parallelism, ByteScale) would take less than a plan, which does."""
    alternative = f"Bars of predicted seconds of an iteration by planner. {'; '.join(values)}."
    return Drawn(caption, alternative, bars)


def _bars(settings: PlannersSettings, tables: Tables) -> DataFrame:
    """A row per planner and corpus: seconds, share of the reference, published."""
    plans = planned(tables.read("groups"))[["plan", "corpus", "seconds", "fidelity"]]
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
        plans=plans.assign(number=range(len(plans))),
        systems=to_frame(list(systems.items()), ["planner", "system"]).reset_index(),
    )
    if bars.empty:
        allowed = "beginnings of plan names of this experiment"
        got = f"planners: got {', '.join(settings.planners)}"
        refuse(got, f"{allowed}, each with its model, context and corpus")
    base = where(bars, planner=settings.reference).set_index("corpus")["seconds"]
    if len(base):
        # Without the reference a corpus is planned for something else.
        bars = bars[bars["corpus"].isin(base.index)]
    return bars.assign(of_reference=bars["seconds"] / bars["corpus"].map(base))


def _fill(planner: str, settings: PlannersSettings) -> dict[str, Any]:
    """How a bar is filled: lighter, so that a published mark on it can be seen."""
    colour = {_OURS: PALETTE[2], settings.reference: GREY}.get(planner, PALETTE[0])
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
    axes.plot(marked["published_seconds"], marked["at"], zorder=5, **PUBLISHED_MARK)
    name_rows(axes, [settings.planners[name] for name in planners])
    most = 2.1 * float(bars[["seconds", "published_seconds"]].max().max())
    axes.set(xlim=(0, most), xlabel="Seconds an iteration")
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])


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
    with canvas(subtitle.strip(), rows["fidelity"], title=settings.title) as page:
        grid = tiles(page, panels, min(settings.columns, len(panels)), settings, "Seconds")
        for axes, panel in zip(grid, panels, strict=True):
            bars = where(rows, panel=panel)
            fills = {part: _colour(part) for part in _PARTS}
            stacked(axes, bars[[*_PARTS]], fills, 0.7, linewidth=0)
            for position, text in enumerate(phrase_list(bars, "{seconds:q} ({over_first:.2f})")):
                at_edge(axes, text, position, 4)
            name_rows(axes, list(bars["words"]))
            axes.set_xlim(0, 1.75 * float(bars["seconds"].max()))
            axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
        legend = {
            part[:1].upper() + part[1:]: patch(_colour(part), linewidth=0)
            for part in _PARTS
            if (rows[part] > 0).any()
        }
        share_legend(page, legend, 6)
    texts, facts = [], []
    for panel in panels:
        bars = where(rows, panel=panel)
        texts.append(f"{panel}: {phrases(bars, '{words} {seconds:q} s', ', ')}.")
        for row in records(bars):
            parts = [f"{part} {quantity(row[part])}" for part in _PARTS if row[part] > 0]
            facts.append(f"{panel}, {row['words']}: {', '.join(parts)}")
    caption = f"""{settings.title}. {" ".join(texts)} All are predictions of the cost model, parted
        into means over the devices."""
    alternative = f"Stacked bars of seconds of an iteration. {'; '.join(facts)}."
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
    #: Exposed traffic of ZeRO-3 in ms of a batch.
    summaries = [read_json(path) for path in tables.paths("summary")]
    sharding = {summary["plan"]: float(summary["predicted_sharding_ms"]) for summary in summaries}
    by_plan = {}
    for plan, of_plan in groups.groupby("plan"):
        parts = _parts(of_plan, schedules.get(plan), sharding[str(plan)])
        by_plan[plan] = parts | {"seconds": sum(parts.values())}
    bars = to_frame(
        {"panel": panel, "plan": plan, "words": words, **by_plan[plan]}
        for panel, plans in settings.panels.items()
        for plan, words in plans.items()
        if plan in by_plan
    )
    first = bars.groupby("panel")["seconds"].transform("first")
    fidelity = bars["plan"].map(groups.groupby("plan")["fidelity"].first())
    return bars.assign(over_first=bars["seconds"] / first, fidelity=fidelity)


def _parts(groups: DataFrame, schedule: DataFrame | None, sharding_ms: float) -> dict[str, float]:
    """Parts of an iteration in seconds; with a schedule those of pipelines.

    Micro-batches run one after another. The cost model has ZeRO-3's traffic in the time
    of every group. Every stage runs every chunk of its replica; what operations take
    beyond the chunks' time is computing again.
    """
    iterations = groups["iteration"].nunique()
    columns = ["predicted_all_to_all_ms", "predicted_other_ms", "predicted_ms"]
    of_groups = groups[columns].astype(float).mul(groups["degree"], axis=0).sum()
    exchange, other, busy = map(float, of_groups / groups["devices"].iloc[0] / iterations)
    if schedule is None:
        slowest = groups.groupby(["iteration", "micro_batch"])["predicted_ms"].max()
        total = float(slowest.sum()) / iterations
        # Devices in no group gather as the others do, and count as waiting.
        shared = sharding_ms * min(1.0, busy / total)
        parts = (busy - exchange - other - shared, 0.0, exchange, shared, other, total - busy)
    else:
        ranks = (int(schedule["stage"].max()) + 1) * (int(schedule["replica"].max()) + 1)
        total = float(schedule.groupby("iteration")["end_ms"].max().sum()) / iterations
        lasted = float((schedule["end_ms"] - schedule["start_ms"]).sum())
        spent = lasted / ranks / iterations
        again = spent - busy if spent > busy * (1 + 1e-9) else 0.0
        parts = (spent - again - exchange, again, exchange, sharding_ms, 0.0, total - spent)
    return {part: max(ms, 0.0) / 1e3 for part, ms in zip(_PARTS, parts, strict=True)}


# Bandwidth of an all-to-all by degree, and what the times of plans imply

#: Bytes of an element, all-to-alls of a layer, and both directions of a step.
_BYTES_PER_TOKEN_LAYER_AND_WIDTH = 2 * 4 * 2
_MEASURED_NOTE = "Published on A100 nodes of 8 with two InfiniBand links; nothing is measured here"


@dataclass(frozen=True)
class AllToAllDegreeSettings(CanvasSettings):
    """All-to-all bandwidth against the degree of sequence parallelism."""

    tables: dict[str, str] = field(
        default_factory=lambda: {
            "4k_seq_2_ib": "in use by solver and training",
            "4k_seq_comment": "a comment, sequences of 4K",
            "2k_seq_comment": "a comment, sequences of 2K",
            "rounded_comment": "a comment, older round numbers",
        }
    )
    """Published tables to show, in that order, and the words for each."""
    plans: tuple[str, ...] = (
        *("flexsp_7b_192k_wikipedia", "static_7b_192k_wikipedia"),
        "static_per_batch_7b_192k_wikipedia",
        *("flexsp_7b_192k_github", "static_7b_192k_github"),
    )
    """Plans of the model below to calculate back; those that the experiment lacks are
    left out."""
    model: Annotated[str, NotEmpty()] = "gpt_7b"
    """Model of the plans among the published cost constants."""
    devices_per_node: Annotated[int, AtLeast(1)] = 8
    """Highest degree inside a node."""


@figure("All-to-all bandwidth by degree of sequence parallelism", "flexsp", height=5.2)
@reads(
    groups="plan.groups (sequence_parallel): plan degree tokens predicted_all_to_all_ms fidelity",
    bandwidth="flexsp_all_to_all_bandwidth.csv: table degree gb_s",
    constants="flexsp_cost_constants.csv: model quantity value",
)
def all_to_all_degree(settings: AllToAllDegreeSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A line per published table and dots of the plans."""
    refuse_unknown("tables", settings.tables, tables.read("bandwidth")["table"])
    points = _bandwidths(settings, tables)
    ours = points[points["source"] == "ours"]
    subtitle = """Bandwidth of an all-to-all among the GPUs of a group. Hollow diamonds: published;
        dots: calculated back from the predicted times of this experiment's plans."""
    with canvas(subtitle, ours["fidelity"], _MEASURED_NOTE) as page:
        colour = dict(zip(settings.tables, PALETTE, strict=False))
        _bandwidth_lines(page.subplots(), points, colour, settings.devices_per_node)
        legend: dict[str, Any] = {
            f"Published, {words}": published_series(colour[key])
            for key, words in settings.tables.items()
        }
        if len(ours):
            legend[f"Ours, {ours['name'].nunique()} plans"] = dot(INK)
        share_legend(page, legend, 2)
    node = settings.devices_per_node
    steps, ends = [], []
    published = where(points, source="published").sort_values("degree")
    by_name = {name: where(published, name=name) for name in settings.tables}
    for words, table in zip(settings.tables.values(), by_name.values(), strict=True):
        rate = table.set_index("degree")["gb_s"]
        if {node, 2 * node} <= set(rate.index):
            inside, outside = float(rate[node]), float(rate[2 * node])
            steps.append(f"""{words} {quantity(inside)} to {quantity(outside)} GB/s,
                {quantity(inside / outside)} times less""")
        first, last = table.iloc[0], table.iloc[-1]
        ends.append(f"""{words} from {quantity(first["gb_s"])} GB/s at degree
            {first["degree"]} to {quantity(last["gb_s"])} at {last["degree"]}""")
    caption = f"From degree {node} to {2 * node}, out of the node: {'; '.join(steps)}."
    if len(ours):
        rate = next(iter(by_name.values())).set_index("degree")["gb_s"]
        off = (ours["gb_s"] / ours["degree"].map(rate) - 1).abs().max()
        exact = "exactly with" if off < 1e-6 else f"within {100 * off:.2g} % of"
        caption += f""" The {ours["name"].nunique()} plans of this experiment for the published
            cluster were costed {exact} the first of these tables, which shows that they rest on it,
            not that it holds."""
    else:
        caption += " This experiment has no plan for the published cluster."
    alternative = f"""Lines of the all-to-all bandwidth over the degree of sequence parallelism,
        with a cliff between a node and several: {"; ".join(ends)}."""
    return Drawn(caption, alternative, points.drop(columns="fidelity"))


def _bandwidths(settings: AllToAllDegreeSettings, tables: Tables) -> DataFrame:
    """The published tables, and the bandwidth that the plans' predicted times imply."""
    constants = tables.read("constants")
    model = constants[constants["model"] == settings.model].set_index("quantity")["value"]
    if not {"layers", "hidden"} <= set(model.index):
        models = ", ".join(dict.fromkeys(constants["model"]))
        refuse(f"model: got {settings.model}", f"one with layers and hidden among {models}")
    # The published table counts 2^20 bytes a millisecond as a GB/s.
    width = float(model["layers"]) * float(model["hidden"])
    mib = _BYTES_PER_TOKEN_LAYER_AND_WIDTH * width / 2**20
    return tables.query(
        """
        with numbered as (
            select *, mib * tokens / degree / predicted_all_to_all_ms as gb_s
            from groups, constant
            where plan in (select name from chosen) and predicted_all_to_all_ms > 0
        ), plans as (
            select 'ours' as source, plan as name, degree, median(gb_s) as gb_s, fidelity,
                min(rowid_) as number from numbered group by plan, degree, fidelity
            union all
            select 'published', "table", degree, gb_s, null, rowid_ from bandwidth
            where "table" in (select name from chosen)
        )
        select name, degree, gb_s, source, fidelity from plans order by source desc, number
        """,
        constant=to_frame([{"mib": mib}]),
        chosen=to_frame({"name": [*settings.plans, *settings.tables]}),
    )


def _bandwidth_lines(axes: Axes, points: DataFrame, colour: dict[str, str], node: int) -> None:
    ours = points["source"] == "ours"
    for name, shade in colour.items():
        line = points[~ours & (points["name"] == name)].sort_values("degree")
        axes.plot(line["degree"], line["gb_s"], **published_series(shade))
    axes.plot(points["degree"][ours], points["gb_s"][ours], **dot(INK, 4.5, zorder=3))
    degrees = sorted({int(degree) for degree in points["degree"]})
    ticks(axes.xaxis, degrees, base=2)
    ticks(axes.yaxis, [2, 5, 10, 20, 50, 100, 200], base=10)
    low, high = float(points["gb_s"].min()), float(points["gb_s"].max())
    axes.set(xlim=(0.85 * degrees[0], 1.18 * degrees[-1]), ylim=(0.8 * low, 1.6 * high))
    axes.set(xlabel="Degree of sequence parallelism (GPUs of a group)", ylabel="All-to-all (GB/s)")
    border = node * 2**0.5
    axes.axvline(border, color=GREY, linewidth=1, linestyle=":")
    style: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "top", "color": GREY}
    style["textcoords"] = "offset points"
    axes.annotate("inside a node", (border, 1), (-6, -6), ha="right", **style)
    axes.annotate("across nodes", (border, 1), (6, -6), ha="left", **style)
