"""Predicted time of an iteration under each planner, a panel for each corpus.

A bar is the mean over the batches of a plan, beside it what it is of the reference's.
Where FlexSP publishes a bar of the same system, it is a hollow diamond. No paper
compares the other planners; the comparison is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.comparisons import plan_seconds
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import at_edge, name_rows, patch, published_marks, share_legend
from railx.figures.tables import Tables, records, to_frame, where
from railx.figures.theme import GREY, PALETTE, PUBLISHED, PUBLISHED_MARK, label, lighter
from railx.figures.words import fidelity_line, phrases, quantity
from railx.settings import NotEmpty, SettingsError

__all__ = ["FIGURE", "PlannersSettings"]

#: The planner of this project.
_OURS = "flexsp"
_NOTE = "No paper compares these planners; the comparison is ours"


@dataclass(frozen=True)
class PlannersSettings(CanvasSettings):
    """Predicted time of an iteration by planner and corpus."""

    figure: Literal["planners"] = "planners"
    height_inches: Height = 6

    planners: Annotated[dict[str, str], NotEmpty()] = field(
        default_factory=lambda: {
            "static": "One degree",
            "static_per_batch": "Best degree of each batch",
            "megatron": "Megatron-LM, best TP and CP",
            "wlb": "WLB-LLM packing",
            "dynamic_cp": "Megatron dynamic CP",
            "byte_scale": "ByteScale, balanced",
            "any_degree": "Any degree, greedy",
            "flexsp_milp": "FlexSP's, as published",
            "flexsp": "Groups that adapt",
        }
    )
    """Beginnings of plan names, and the words for each: a bar is the plan that is
    called by one of them, _ and the corpus; those that the experiment lacks are left
    out."""

    reference: Annotated[str, NotEmpty()] = "static_per_batch"
    """Planner that the others are compared with, one of ``planners``."""

    published: dict[str, str] = field(
        default_factory=lambda: {
            "static": "deepspeed",
            "static_per_batch": "flexsp_batch_ada",
            "megatron": "megatron",
            "flexsp_milp": "flexsp",
            "flexsp": "flexsp",
        }
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


def draw(settings: PlannersSettings, tables: Tables, canvas: Canvas) -> Drawn:
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
        panels = page.subplots(1, len(corpora), sharey=True, squeeze=False)[0]
        for axes, corpus in zip(panels, corpora, strict=True):
            _panel(axes, bars[bars["corpus"] == corpus], planners, settings)
            axes.set_title(label(corpus))
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
        raise UserError(
            f"planners: got {', '.join(settings.planners)}; allowed: beginnings of plan names of"
            " this experiment, each with its model, context and corpus"
        )
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


def _panel(axes: Axes, bars: DataFrame, planners: list[str], settings: PlannersSettings) -> None:
    from matplotlib.ticker import MaxNLocator

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
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))


def _texts(settings: PlannersSettings, bars: DataFrame) -> tuple[str, str]:
    """Caption and alternative text."""
    bars = bars.assign(words=bars["planner"].map(settings.planners))
    ranges, values = [], []
    for corpus, rows in bars.groupby("corpus", sort=False):
        ends = rows.sort_values("seconds").iloc[[0, -1]]
        ranges.append(
            f"{label(str(corpus))}: from {phrases(ends, '{seconds:q} s ({words})', ' to ')}"
        )
        values.append(f"{label(str(corpus))}: {phrases(rows, '{words} {seconds:q}', ', ')}")
    pair = "{words} on {corpus:label} {seconds:q} for {published_seconds:q}"
    both = phrases(bars.dropna(subset=["published_seconds"]), pair)
    beside_bars = f"Beside FlexSP's bars: {both}." if both else ""
    caption = f"""Predicted seconds of an iteration. {"; ".join(ranges)}. {beside_bars} All come
        from the cost model with FlexSP's constants, not from a machine. Baselines are our
        implementations of published rules; runtimes that do not wait between micro-batches (dynamic
        context parallelism, ByteScale) would take less than a plan, which does."""
    alternative = f"Bars of predicted seconds of an iteration by planner. {'; '.join(values)}."
    return caption, alternative


FIGURE = declare(
    PlannersSettings,
    "Planners for sequences of varying length",
    "flexsp",
    draw,
    groups="plan.groups (sequence_parallel): plan corpus iteration micro_batch predicted_ms"
    " fidelity",
    seconds="flexsp_iteration_seconds.csv: model context corpus system seconds_per_iteration",
)
