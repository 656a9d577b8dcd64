"""Numbers that papers print beside ours, as dots: speed-ups, times and prices.

Published numbers are hollow diamonds, ours are dots. Each figure is a table with a row
for each dot (``source`` says whose it is) and the labels of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from railx.figures.figure import Canvas, CanvasSettings, Choice, Drawn, Tables, Texts, figure, reads
from railx.figures.marks import dot, published_mark
from railx.figures.panels import beside, name_rows, share_legend, ticks, tiles
from railx.figures.tables import records, refuse_unknown, to_frame, where
from railx.figures.theme import GREY, INK, PALETTE, SYSTEMS, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import phrase, phrases, quantity, span
from railx.settings import NotEmpty


def dots(axes: Axes, rows: DataFrame, x: Any, y: Any, colour: str, size: float = 7) -> None:
    """Published rows as hollow diamonds and ours as dots, in one colour."""
    ours = (rows["source"] == "ours").to_numpy()
    for chosen, style in ((~ours, published_mark(colour)), (ours, dot(colour, size))):
        if chosen.any():
            axes.plot(x[chosen], y[chosen], **style)


# Adaptive sequence parallelism: speed-ups and seconds by model, context and corpus

_CASE = ["model", "context", "corpus"]
#: Systems that our plans imitate, and the planner of those plans.
_ADAPTIVE = {
    "megatron": ("megatron", "Megatron-LM's best shape, derived"),
    "deepspeed": ("static", "One degree for all (as DeepSpeed)"),
    "flexsp_batch_ada": ("static_per_batch", "Best single degree of each batch"),
    "flexsp": ("flexsp", "Groups that adapt"),
}
#: More pairs than this are summed up by their range.
_MAX_PAIRS = 8
_NO_PLAN = "This experiment has no plan for a published case"

#: Every published case by the name of the plan that imitates it.
PUBLISHED_PLANS = {
    f"{planner}_{model}_{context}_{corpus}": (model, context, corpus, system)
    for model, context, corpus in product(
        ("7b", "13b", "30b"), ("192k", "384k"), ("github", "commoncrawl", "wikipedia")
    )
    for system, (planner, _) in _ADAPTIVE.items()
}


@dataclass(frozen=True)
class AdaptiveSpeedupsSettings(CanvasSettings):
    """Speed-ups of adaptive groups, published beside ours."""

    plans: tuple[str, ...] = tuple(PUBLISHED_PLANS)
    """Plans that imitate published cases; those that the experiment lacks are left
    out."""


@figure("Groups that adapt to the batch: speed-up and time of an iteration", "flexsp", height=9)
@reads(
    groups="plan.groups (sequence_parallel): plan corpus iteration micro_batch predicted_ms"
    " fidelity",
    speedups="flexsp_speedups.csv: model context corpus system reference value",
    seconds="flexsp_iteration_seconds.csv: model context corpus system seconds_per_iteration"
    " reading_error_seconds",
)
def adaptive_speedups(settings: AdaptiveSpeedupsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A column per corpus: speed-ups above, seconds of an iteration below."""
    refuse_unknown("plans", settings.plans, PUBLISHED_PLANS)
    seconds = tables.read("seconds")
    imitated = [(plan, *PUBLISHED_PLANS[plan]) for plan in settings.plans]
    plans = planned(tables.read("groups")).rename(columns={"corpus": "lengths", "seconds": "value"})
    ours = to_frame(imitated, ["plan", *_CASE, "system"]).merge(plans, on="plan")
    points = _adaptive_points(tables, ours)
    speedups = where(points, quantity="speedup")["value"]
    # A plan may be slower than its baseline.
    ends = 0.97 * min(1.0, speedups.min()), 1.06 * speedups.max()
    corpora = list(dict.fromkeys(seconds["corpus"]))
    cases = list(dict.fromkeys(zip(seconds["context"], seconds["model"], strict=True)))
    subtitle = f"""Published: hollow diamonds, 64 A100; seconds read off its bars to within
        {span(seconds["reading_error_seconds"])} s. Ours: dots, predicted by the cost model, on
        lengths of this project where a list is not public. Speed-up axes do not begin at 0."""
    with canvas(subtitle, ours["fidelity"], "" if len(ours) else _NO_PLAN) as page:
        panels = page.subplots(2, len(corpora), sharex=True, sharey="row", squeeze=False)
        for (above, below), corpus in zip(panels.T, corpora, strict=True):
            rows = where(points, corpus=corpus)
            above.axhline(1, color=GREY, linewidth=0.8)
            _by_system(above, where(rows, quantity="speedup"), "baseline", cases)
            _by_system(below, where(rows, quantity="seconds"), "system", cases)
            # A ratio is as far from 1 as its inverse.
            ticks(above.yaxis, [0.5, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 7])
            ticks(below.yaxis, [2, 5, 10, 20, 50, 100, 200, 500])
            names = [f"{model.upper()}\n{context.upper()}" for context, model in cases]
            below.set_xticks(range(len(cases)), names)
            lengths = ", ".join(map(label, sorted(set(where(rows, source="ours")["lengths"]))))
            title = f"{label(corpus)}\nours: {lengths or 'none'}"
            above.set(ylim=ends, title=title)
        panels[0, 0].set_ylabel("FlexSP is faster, times")
        panels[1, 0].set_ylabel("Seconds an iteration")
        legend: dict[str, Any] = {}
        for system, (_, words) in _ADAPTIVE.items():
            name, colour = SYSTEMS[system]
            legend[f"{name}, published"] = published_mark(colour)
            if system in set(ours["system"]):
                legend[f"{words}, ours"] = dot(colour)
        share_legend(page, legend, 2)
    return Drawn(*_adaptive_texts(points, corpora), points)


def planned(groups: DataFrame) -> DataFrame:
    """A row for each plan, with the mean seconds of an iteration.

    Micro-batches run one after another, each as long as its slowest group.
    """
    slowest = groups.groupby(["plan", "iteration", "micro_batch"])["predicted_ms"].max()
    iterations = slowest.groupby(["plan", "iteration"]).sum()
    seconds = iterations.groupby("plan").agg(lambda times: times.mean()) / 1e3
    plans = groups.drop_duplicates("plan")
    return plans.assign(seconds=plans["plan"].map(seconds))


def _adaptive_points(tables: Tables, ours: DataFrame) -> DataFrame:
    """One row a mark; a speed-up over the best single degree is that of two bars."""
    return tables.query(
        """
        with times as (
            select 1 as part, 'read off' as source, model, context, corpus, system,
                seconds_per_iteration as value, reading_error_seconds as error,
                null as lengths, null as plan, rowid_ as number
            from seconds
            union all
            select 2, 'ours', model, context, corpus, system, value, null, lengths, plan,
                row_number() over () from ours
        ), marks as (
            select 0 as part, 'printed' as source, 'speedup' as quantity, model, context, corpus,
                null as system, reference as baseline, value, null as error, null as lengths,
                null as plan, rowid_ as number, 0 as place
            from speedups where system = 'flexsp'
            union all
            select part, source, 'seconds', model, context, corpus, system, null, value, error,
                lengths, plan, number, 0
            from times
            union all
            select 2 + slow.part, source, 'speedup', model, context, corpus, null, slow.system,
                slow.value / fast.value, null, fast.lengths, null, fast.number,
                list_position(['megatron', 'deepspeed', 'flexsp_batch_ada'], slow.system)
            from times slow join times fast using (source, model, context, corpus)
            where fast.system = 'flexsp' and slow.system != 'flexsp'
                and (source = 'ours' or slow.system = 'flexsp_batch_ada')
        )
        select * exclude (part, number, place) from marks order by part, number, place
        """,
        ours=ours,
    )


def _by_system(axes: Axes, rows: DataFrame, name: str, cases: list[tuple[str, str]]) -> None:
    """Dots over the cases, the systems of a case side by side."""
    shift = dict(zip(_ADAPTIVE, (-0.27, -0.09, 0.09, 0.27), strict=True))
    for system, marks in rows.groupby(name, sort=False):
        at = map(cases.index, zip(marks["context"], marks["model"], strict=True))
        x = np.array([*at]) + shift[str(system)]
        dots(axes, marks, x, marks["value"], SYSTEMS[str(system)][1])
    axes.set_yscale("log")
    axes.grid(visible=False, axis="x")


def _adaptive_texts(points: DataFrame, corpora: list[str]) -> Texts:
    speedups = where(points, quantity="speedup")

    def ranges(source: str, tail: str = "") -> list[str]:
        return [
            f"{span(marks['value'])} times over {SYSTEMS[str(base)][0]}{tail.format(len(marks))}"
            for base, marks in where(speedups, source=source).groupby("baseline", sort=False)
        ]

    ours = where(speedups, source="ours")
    if len(ours) > _MAX_PAIRS:
        compared = f"Ours are {', '.join(ranges('ours', ' in {} cases'))}."
    else:
        theirs = speedups[speedups["source"] != "ours"].drop_duplicates([*_CASE, "baseline"])
        pairs = ours.merge(theirs, on=[*_CASE, "baseline"], suffixes=("", "_published"))
        pairs["over"] = pairs["baseline"].map(lambda system: SYSTEMS[system][0])
        texts = phrases(
            pairs,
            "{value:q} against {value_published:q} over {over} ({model:upper}, {context:upper},"
            " {corpus:label}; our lengths: {lengths:label})",
        )
        compared = f"Ours against published: {texts}." if texts else f"{_NO_PLAN}."
    caption = f"""The paper prints {" and ".join(ranges("printed"))}. Its bars give
        {" and ".join(ranges("read off"))}. {compared} Ours come from the cost model with the
        published constants, not from a machine."""
    values = speedups.groupby(["corpus", "source"])["value"].apply(span)
    parts = [
        f"{label(corpus)}: published {values[corpus, 'printed']}, ours"
        f" {values.get((corpus, 'ours'), 'none')}"
        for corpus in corpora
    ]
    alternative = f"""Above, speed-ups of FlexSP by model and context, a panel per corpus; below,
        the seconds of an iteration of each system. Speed-ups: {"; ".join(parts)}."""
    return caption, alternative


# Elastic pipelines: speed-ups over baselines, and the idle share of stages

_BASELINES = {
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed, one static degree",
    "flexsp": "FlexSP, groups that adapt",
    "seq1f1b": "Seq1F1B, slices of one size",
}
#: The baseline that plans of a planner imitate, and the word for it.
_PLANNERS = {"flexsp": ("flexsp", "FlexSP"), "static": ("deepspeed", "one degree")}

#: Published rows by id, in their order, and the words for each.
_HEADLINES = {
    "speedup_over_megatron_most": "Most over Megatron-LM",
    "speedup_over_deepspeed_most": "Most over DeepSpeed",
    "speedup_over_flexsp_most": "Most over FlexSP",
    "speedup_over_flexsp_7b_commoncrawl_48k": "7B, CommonCrawl, 48K, over FlexSP",
    "speedup_over_flexsp_case_study": "Case study, 13B, over FlexSP",
    "speedup_over_seq1f1b_96k_most": "Most at 96K over Seq1F1B",
    "speedup_over_seq1f1b_48k_most": "Most at 48K over Seq1F1B",
    "bubble_share_most": "Case study, 13B, with transfers between stages",
}


@figure("Elastic pipelines: speed-up and bubbles", "infinipipe", height=8)
@reads(
    groups="plan.groups: plan corpus devices kind iteration micro_batch tokens predicted_ms"
    " fidelity planner",
    schedule="plan.schedule (pipeline): plan iteration pipeline replica stage start_ms end_ms"
    " fidelity",
    published="infinipipe.csv: id value place",
)
def pipeline_speedups(settings: Choice, tables: Tables, canvas: Canvas) -> Drawn:
    """Speed-ups of elastic pipelines, published beside ours.

    A row per published headline and per pair of our plans, and the bubbles below.
    """
    published = tables.values("published")
    groups = tables.read("groups", "plan", settings.only)
    schedule = tables.read("schedule", "plan", settings.only)
    headlines = []
    for name, words in _HEADLINES.items():
        base = next((system for system in _BASELINES if f"over_{system}" in name), "")
        shown = "speedup" if base else "bubble"
        headlines.append(("published", shown, words, base, published[name]))
    columns = ["source", "quantity", "row", "baseline", "value"]
    points = to_frame([*headlines, *_our_pipelines(groups, schedule)], columns)
    subtitle = """Published: hollow diamonds, 32 A800, Llama models. Ours: dots, times that the cost
        model predicts for plans of this experiment on the same batches; other models, devices and
        lengths than the paper's. The axis of speed-ups does not begin at 0."""
    with canvas(subtitle, schedule["fidelity"]) as page:
        speed, bubble = (where(points, quantity=name) for name in ("speedup", "bubble"))
        above, below = page.subplots(2, 1, height_ratios=[len(speed) + 1, len(bubble) + 1])
        _dot_rows(above, speed, "InfiniPipe or ours, times faster")
        above.axvline(1, color=GREY, linewidth=0.8)
        above.set_xlim(left=min(0.97, 0.95 * float(speed["value"].min())))
        _dot_rows(below, bubble, "Idle time of the stages / their time")
        below.set_xlim(0, 1.25 * float(bubble["value"].max()))
        legend: dict[str, Any] = {
            f"Over {name}": dot(SYSTEMS[system][1], marker="s")
            for system, name in _BASELINES.items()
        }
        legend |= {"Published (at most)": published_mark(GREY), "Ours": dot(GREY)}
        share_legend(page, legend, 3)
    data = points.assign(row=points["row"].str.replace("\n", " "))
    speed, bubble = (where(data, quantity=name) for name in ("speedup", "bubble"))
    parts = []
    for baseline, name in _BASELINES.items():
        stated, ours = (
            list(where(speed, baseline=baseline, source=source)["value"])
            for source in ("published", "ours")
        )
        if stated or ours:
            most = f"published at most {quantity(max(stated))}" if stated else ""
            values = " and ".join(map(quantity, ours)) or "none"
            parts.append(f"over {name} {most or 'nothing published'}, ours {values}")
    shares = phrases(bubble.assign(percent=100 * bubble["value"]), "{source} {percent:.3g} %")
    caption = f"""Speed-ups of elastic pipelines: {"; ".join(parts)}. Idle time of the stages:
        {shares} (the published share also holds point-to-point time). The published times are
        measured; ours are predictions, of both plans for the same batches."""
    alternative = f"""Dots of speed-ups, a row each: {phrases(speed, "{row} {value:q}")}. Below, the
        idle share of the stages."""
    return Drawn(caption, alternative, data)


def _our_pipelines(groups: DataFrame, schedule: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Our pipelines over the other plans of the same batches, and their bubbles."""
    passes = schedule.assign(busy=schedule["end_ms"] - schedule["start_ms"])
    spans = passes.groupby(["plan", "iteration", "pipeline", "replica"]).agg(
        start=("start_ms", "min"),
        end=("end_ms", "max"),
        stages=("stage", "nunique"),
        busy=("busy", "sum"),
    )
    facts = planned(groups).set_index("plan")
    tokens = groups.groupby(["plan", "iteration"])["tokens"].sum().groupby("plan").agg(tuple)
    rivals = facts[(facts["kind"] == "sequence_parallel") & facts["planner"].isin(_PLANNERS)]
    for plan, ends in spans.groupby("plan"):
        # An iteration ends with the last of its pipelines.
        pipeline_ms = float(ends.groupby("iteration")["end"].max().mean())
        corpus = facts.loc[str(plan), "corpus"]
        words = label(corpus)
        for other, fact in where(rivals, corpus=corpus).iterrows():
            # Equal tokens in every iteration: the same batches.
            if tokens[str(other)] == tokens[str(plan)]:
                baseline, name = _PLANNERS[fact["planner"]]
                row = f"Ours, {words},\n{fact['devices']} devices, over {name}"
                yield "ours", "speedup", row, baseline, 1e3 * fact["seconds"] / pipeline_ms
        stage_ms = float(((ends["end"] - ends["start"]) * ends["stages"]).sum())
        yield "ours", "bubble", f"Ours, {words}", "", 1 - float(ends["busy"].sum()) / stage_ms


def _dot_rows(axes: Axes, rows: DataFrame, words: str) -> None:
    for position, row in enumerate(records(rows)):
        colour = SYSTEMS.get(row["baseline"], ("", GREY))[1]
        ours = row["source"] == "ours"
        axes.plot(row["value"], position, **(dot(colour, 7) if ours else published_mark(colour)))
        share = row["quantity"] == "bubble"
        text = f"{100 * row['value']:.3g} %" if share else f"{quantity(row['value'])}x"
        beside(axes, text, row["value"], position)
    axes.set_yticks(range(len(rows)), list(rows["row"]))
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=words)
    axes.margins(x=0.1)


# Networks: cost over that of a full fat tree


@dataclass(frozen=True)
class NetworkPricesSettings(CanvasSettings):
    """Prices of networks over a fat tree's, published beside ours."""

    price_set: Annotated[str, NotEmpty()] = "hammingmesh_2022"
    """Price list of our costs over scale."""


#: Published networks in the order of the rows, and the network of ours that stands for
#: each; empty: none does. The others are divided by the first.
_REFERENCE = "non-blocking fat tree"
_NETWORKS = {
    _REFERENCE: "fat_tree_full",
    "fat tree tapered to 50 %": "fat_tree_full_half_taper",
    "fat tree tapered to 25 %": "",
    "Dragonfly": "dragonfly_full",
    "2D HyperX": "",  # ours has three dimensions
    "HammingMesh with 2 x 2 boards": "",
    "HammingMesh with 4 x 4 boards": "hammingmesh_m4_full",
    "2D torus": "torus_2d_full",
}


@figure("Prices of networks relative to a fat tree", "railx", height=5)
@reads(
    scale="economics.scale: topology target_chips price_set chips usd_per_injection_gb_s fidelity",
    published="hammingmesh_cost.csv: id network accelerators million_usd confidence",
)
def network_prices(settings: NetworkPricesSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel per published size, a row per network."""
    published, scale = tables.read("published"), tables.read("scale")
    points = _price_points(settings.price_set, published, scale)
    sizes, names = sorted(set(points["size"])), list(_NETWORKS)
    subtitle = f"""Cost of a network over that of a full fat tree for as many chips: published per
        chip, ours per injection bandwidth. Hollow diamonds: published, confidence
        {" and ".join(sorted(set(published["confidence"])))}; dots: ours at the price list
        {label(settings.price_set)}."""
    with canvas(subtitle, scale["fidelity"]) as page:
        titles = [f"About {size:,} chips" for size in sizes]
        panels = tiles(page, titles, len(sizes), settings, sharey=True)
        for axes, size in zip(panels, sizes, strict=True):
            axes.axvline(1, color=GREY, linewidth=0.8)
            for source, colour, up in (("published", INK, -0.16), ("ours", PALETTE[0], 0.16)):
                rows = where(points, size=size, source=source)
                at = np.array([names.index(name) + up for name in rows["network"]])
                dots(axes, rows, rows["ratio"], at, colour, 6.5)
                for ratio, position in zip(rows["ratio"], at, strict=True):
                    beside(axes, quantity(ratio), ratio, position)
            ticks(axes.xaxis, [0.05, 0.1, 0.2, 0.5, 1], base=10)
            name_rows(axes, [name[:1].upper() + name[1:] for name in names])
            ratios = where(points, size=size)["ratio"]
            axes.set(xlim=(0.7 * ratios.min(), 2 * ratios.max()))
            axes.set_xlabel("Cost / that of a full fat tree")
        legend = {"Published (HammingMesh)": published_mark(INK), "Ours": dot(PALETTE[0])}
        share_legend(page, legend, 2)
    return Drawn(*_price_texts(points), points)


def _price_points(price_set: str, published: DataFrame, scale: DataFrame) -> DataFrame:
    refuse_unknown("price_set", [price_set], scale["price_set"])
    chosen = where(scale, price_set=price_set)
    costs = chosen.set_index(["topology", "target_chips"])["usd_per_injection_gb_s"].to_dict()
    rows = []
    for size, prices in published.groupby("accelerators"):
        million = prices.set_index("network")["million_usd"].astype(float)
        tree = costs.get((_NETWORKS[_REFERENCE], size))
        for name, ours in _NETWORKS.items():
            row = {"size": int(str(size)), "network": name}
            ratio = million[name] / million[_REFERENCE]
            rows.append(row | {"source": "published", "ratio": ratio, "million_usd": million[name]})
            cost = costs.get((ours, size))
            if cost and tree:
                rows.append(row | {"source": "ours", "ratio": cost / tree, "topology": ours})
    return to_frame(rows)


def _price_texts(points: DataFrame) -> Texts:
    sentences = []
    for size, rows in points.groupby("size"):
        ours = where(rows, source="ours").set_index("network")["ratio"]
        parts = [
            phrase("{network} {ratio:q}", row)
            + (f", ours {quantity(ours[row['network']])}" if row["network"] in ours else "")
            for row in records(where(rows, source="published"))
        ]
        sentences.append(f"About {size:,} chips, over a full fat tree: {'; '.join(parts)}.")
    caption = f"""{" ".join(sentences)} The published costs are from memory and per chip, ours per
        injection bandwidth at the ports of this experiment and without the links on a board, so
        that only ratios compare."""
    both = points.pivot_table(index=["size", "network"], columns="source", values="ratio")
    if "ours" not in both or both["ours"].notna().sum() == 0:
        return caption, f"Dots of {len(both)} published cost ratios over a fat tree; ours has none."
    pairs = both.dropna()
    alternative = f"""Dots of cost ratios over a fat tree, {len(both)} published and {len(pairs)}
        ours; ours are {span(pairs["ours"] / pairs["published"])} times the published ratios."""
    return caption, alternative
