"""Sequence-parallel plans: groups over time, the network below, and its bandwidth.

Groups of a micro-batch run side by side and micro-batches one after another, so a group
that ends before its micro-batch does leaves its devices idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from railx.figures.figure import (
    Canvas,
    CanvasSettings,
    Choice,
    Drawn,
    PlanChoice,
    Tables,
    Texts,
    figure,
    reads,
)
from railx.figures.panels import at_edge, beside, patch, share_legend, ticks, tiles, time_unit
from railx.figures.published import published_series
from railx.figures.tables import plans_at, records, refuse, refuse_unknown, stack, to_frame, where
from railx.figures.theme import GREY, INK, PALETTE, degree_colours, dot, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, fidelity_line, phrases, quantity
from railx.settings import AtLeast, NotEmpty

# Devices over predicted time: a block for each group (FlexSP, section 4)

_IDLE: dict[str, Any] = {"facecolor": "#f1f2f4", "edgecolor": "#d4d8dd", "hatch": "////"}


@dataclass(frozen=True)
class PlanGroupsSettings(PlanChoice):
    """One iteration of sequence-parallel plans, one above the other."""

    label_blocks: bool = True
    """Whether blocks say what they hold, where there is room."""


@figure("Sequence-parallel plans", "flexsp", height=10.5)
@reads(
    groups="plan.groups (sequence_parallel): plan kind devices iteration micro_batch first_rank"
    " degree sequences tokens predicted_ms"
)
def sequence_parallel_plan(settings: PlanGroupsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One iteration of every sequence-parallel plan; others are left out."""
    frame = tables.read("groups", "plan", settings.only)
    frame = frame[frame["kind"] == "sequence_parallel"]
    if frame.empty:
        refuse("input groups: no sequence-parallel plan among the tables", "at least one")
    plans = plans_at(frame, "plan", iteration=settings.iteration)
    if not settings.only:  # those of the same work one below the other
        order = list(dict.fromkeys(map(_work, plans.values())))
        plans = dict(sorted(plans.items(), key=lambda item: order.index(_work(item[1]))))
    # Plans of the same work share the time axis; others have an axis each.
    spans: dict[tuple[int, int], float] = {}
    for groups in plans.values():
        spans[_work(groups)] = max(spans.get(_work(groups), 0.0), _total_ms(groups))
    unit, divisor = time_unit(max(spans.values()))
    degrees = {int(degree) for groups in plans.values() for degree in groups["degree"]}
    shade = degree_colours(degrees, max(devices for devices, _ in spans))
    # Inches of a panel.
    wide, high = settings.width_inches - 0.8, (settings.height_inches - 1.2) / len(plans) - 0.6
    subtitle = f"""Iteration {settings.iteration}; plans of the same batch have the same axis of
        time. Hatched: devices that wait for the slowest group of their micro-batch."""
    footnote = fidelity_line(["analytic"], "Times are the cost model's predictions")
    with canvas(subtitle, footnote, title="Sequence-parallel groups over time") as page:
        panels = page.subplots(len(plans), 1, squeeze=False)[:, 0]
        works = [*map(_work, plans.values()), None]
        for i, (axes, (name, groups)) in enumerate(zip(panels, plans.items(), strict=True)):
            span, (devices, tokens) = spans[_work(groups)] / divisor, _work(groups)
            blocks = _blocks(groups, divisor).assign(colour=groups["degree"].map(shade))
            blocks["wide_inches"] = wide / span * blocks["length"]
            blocks["high_inches"] = high / devices * blocks["degree"]
            _draw_plan(axes, blocks)
            if settings.label_blocks:
                _label_blocks(axes, blocks)
            time = f"{quantity(_total_ms(groups) / divisor)} {unit}"
            axes.set_title(f"{label(name)}: {time}, {_micro_batches(groups)}, {tokens:,} tokens")
            axes.set(xlim=(0, span * 1.01), ylim=(devices, 0), ylabel="Device")
            if works[i] == works[i + 1]:
                axes.tick_params(labelbottom=False)
            else:
                axes.set_xlabel(f"Predicted time ({unit})")
        legend = {f"Degree {degree}": patch(colour) for degree, colour in shade.items()}
        legend["Idle"] = patch(_IDLE["facecolor"], edgecolor=_IDLE["edgecolor"], hatch="////")
        share_legend(page, legend, len(legend))
    facts = "; ".join(_facts(name, groups) for name, groups in plans.items())
    alternative = f"Blocks of devices over predicted time, a panel per plan: {facts}."
    return Drawn(_groups_caption(plans), alternative, stack(plans.values()))


def _work(groups: DataFrame) -> tuple[int, int]:
    """What makes two plans comparable: equally many devices and equally many tokens."""
    return int(groups["devices"].iloc[0]), int(groups["tokens"].sum())


def _total_ms(groups: DataFrame) -> float:
    """Micro-batches run one after another, each as long as its slowest group."""
    return float(groups.groupby("micro_batch")["predicted_ms"].max().sum())


def _blocks(groups: DataFrame, divisor: float) -> DataFrame:
    """The groups with start and length, and the end of their micro-batch.

    Times are in units of the axis.
    """
    length = groups["predicted_ms"] / divisor
    ends = length.groupby(groups["micro_batch"]).max().cumsum()
    start = groups["micro_batch"].map(ends.shift(fill_value=0.0))
    return groups.assign(start=start, length=length, end=groups["micro_batch"].map(ends))


def _draw_plan(axes: Axes, blocks: DataFrame) -> None:
    from matplotlib.patches import Rectangle

    devices, _ = _work(blocks)
    for _, micro_batch in blocks.groupby("micro_batch"):
        start, end = map(float, micro_batch[["start", "end"]].iloc[0])
        axes.add_patch(Rectangle((start, 0), end - start, devices, linewidth=0, **_IDLE))
        for block in records(micro_batch):
            corner, size = (start, block["first_rank"]), (block["length"], block["degree"])
            style = {"facecolor": block["colour"], "linewidth": min(0.7, 12 * block["high_inches"])}
            axes.add_patch(Rectangle(corner, *size, edgecolor="white", **style))
        axes.axvline(end, color=INK, linewidth=0.9)
    ranks = range(0, devices, max(1, devices // 2))
    axes.set_yticks([rank + 0.5 for rank in ranks], [str(rank) for rank in ranks])
    axes.grid(visible=False)


def _micro_batches(groups: DataFrame) -> str:
    return counted(groups["micro_batch"].nunique(), "micro-batch", "micro-batches")


def _label_blocks(axes: Axes, blocks: DataFrame) -> None:
    """What each block holds, where there is room."""
    from matplotlib.colors import to_rgb

    for block in records(blocks):
        count, tokens = block["sequences"], block["tokens"]
        size = f"{tokens / 1000:.3g}K" if tokens >= 1000 else str(tokens)
        x, y = block["start"] + block["length"] / 2, block["first_rank"] + block["degree"] / 2
        for text in (f"{counted(count, 'sequence')}\n{size} tokens", f"{count} seq., {size}"):
            lines = text.split("\n")
            # A character is about 0.08 inches wide, a line 0.15 high.
            wide, high = 0.08 * max(map(len, lines)), 0.15 * len(lines)
            if block["wide_inches"] > wide and block["high_inches"] > high:
                centred: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.2}
                colour = "white" if sum(to_rgb(block["colour"])) < 1.6 else INK
                axes.text(x, y, text, color=colour, clip_on=True, **centred)
                break


def _facts(name: str, groups: DataFrame) -> str:
    degrees = sorted({int(degree) for degree in groups["degree"]})
    span = str(degrees[0]) if len(degrees) == 1 else f"{degrees[0]} to {degrees[-1]}"
    total, (devices, _) = _total_ms(groups), _work(groups)
    busy = float((groups["predicted_ms"] * groups["degree"]).sum()) / (devices * total)
    return f"""{label(name)} {quantity(total / 1e3)} s in {_micro_batches(groups)} of degree {span},
        devices idle {100 * (1 - busy):.3g} %"""


def _groups_caption(plans: Mapping[str, DataFrame]) -> str:
    parts: dict[tuple[int, int], list[str]] = {}
    for name, groups in plans.items():
        parts.setdefault(_work(groups), []).append(_facts(name, groups))
    sentences = " ".join(
        f"{tokens:,} tokens on {devices} devices: {'; '.join(texts)}."
        for (devices, tokens), texts in parts.items()
    )
    return f"""{sentences} A block is a group of devices that share the tokens of its sequences
        (Ulysses sequence parallelism), darker with a higher degree; groups side by side form a
        micro-batch, which lasts as long as its slowest group. Times are predictions of the cost
        model, not measurements."""


# Times and degrees of plans made for each network

_WAITING = "#dfe3e8"
_ADAPTED, _LISTED, _BEST = "made for it", "made for the published bandwidths", "best single degree"
_CARRIED, _SINGLE = dot(INK, marker="x"), dot(PALETTE[1], 11, marker="|")
_OURS = "No paper has this comparison; it is ours."


@dataclass(frozen=True)
class UnderlayFigureSettings(Choice):
    """Iteration time and degrees of a plan made for each network."""

    adaptive: Annotated[str, NotEmpty()] = "flexsp_7b_384k_commoncrawl"
    """Plan whose groups adapt; its degrees are shown."""
    single: Annotated[str, NotEmpty()] = "static_per_batch_7b_384k_commoncrawl"
    """Plan with a single degree for each batch, shown as a mark."""


@figure("The network under adaptive sequence parallelism", "flexsp", height=4.4)
@reads(
    mix="underlay.mix: network label plan basis outside_gb_s made_for iteration iteration_ms"
    " degree device_ms fidelity"
)
def underlay(settings: UnderlayFigureSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for each rate that networks are compared at, a bar for each network."""
    frame = tables.read("mix", "network", settings.only)
    for key in ("adaptive", "single"):
        refuse_unknown(key, [getattr(settings, key)], sorted(set(frame["plan"])))
    rows = _rows(frame, settings)
    panels = {str(panel): part for panel, part in rows.groupby("panel", sort=False)}
    degrees = sorted({int(degree) for degree in rows["degree"].dropna() if degree > 0})
    shades = degree_colours(degrees, max(degrees))
    longest = float(rows.loc[rows["mark"] != "degree", "seconds"].max())
    subtitle = f"""{_OURS} Length of a bar, and number: predicted iteration of the plan that is made
        for the network; its parts: device time by degree. Links inside nodes are equally fast
        everywhere."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        shared: dict[str, Any] = {"x": "Iteration (s)", "sharex": True, "sharey": True}
        drawn = tiles(page, [*panels], len(panels), settings, **shared)
        names = list(rows["label"].unique())
        for axes, part in zip(drawn, panels.values(), strict=True):
            _panel(axes, part, names, shades)
            axes.set_xlim(0, 1.3 * longest)
        drawn[0].set_yticks(range(len(names)), names)
        drawn[0].invert_yaxis()
        fills = {f"degree {degree}": shades[degree] for degree in degrees} | {"waiting": _WAITING}
        legend = {name: patch(fill, edgecolor="none") for name, fill in fills.items()}
        share_legend(page, legend | {f"plan {_LISTED}": _CARRIED, _BEST: _SINGLE}, 5)
    texts = {
        panel: "; ".join(
            f"{name}: {_words(bar)}" for name, bar in part.groupby("label", sort=False)
        )
        for panel, part in panels.items()
    }
    caption = f"""What the network under a cluster does to plans of sequence parallelism. {_OURS}
        Bars are predicted iterations of plans made for each network, parted by the degree of the
        groups that take the device time; crosses are the plan that was made for the published
        bandwidths, on this network.
        {" ".join(f"{panel}. {text}." for panel, text in texts.items())}"""
    alternative = f"""Stacked bars of the iteration time by network.
        {" ".join(f"{panel}: {text}." for panel, text in texts.items())}"""
    return Drawn(caption, alternative, rows)


def _rows(frame: DataFrame, settings: UnderlayFigureSettings) -> DataFrame:
    """A row for each part of a bar, and one for each bar and mark as a whole.

    Means over the batches, in seconds. The bandwidths that the cluster lists are
    drawn beside the networks of the first rate, which is the cluster's.
    """
    equal = where(frame, basis="equal_rate")
    first, *others = sorted(set(equal["outside_gb_s"]))
    published = where(frame, basis="own")
    adapted = published.assign(made_for="network")
    at_first = stack([published, adapted, where(equal, outside_gb_s=first)])
    title = "Equal rate: {} GB/s a device"
    panels = {
        title.format(quantity(first)): at_first,
        "Equal cost: as InfiniBand": where(frame, basis="equal_cost"),
    }
    panels |= {title.format(quantity(rate)): where(equal, outside_gb_s=rate) for rate in others}
    parts = []
    for panel, rows in panels.items():
        for (network, name), bar in rows.groupby(["network", "label"], sort=False):
            head = {"panel": panel, "network": network, "label": name}
            head |= {"outside_gb_s": bar["outside_gb_s"].iloc[0]}
            parts += [head | row for row in _bar(bar, settings)]
    return to_frame(parts)


def _bar(bar: DataFrame, settings: UnderlayFigureSettings) -> list[dict[str, Any]]:
    marks: list[dict[str, Any]] = []
    for mark, plan, target in (
        (_ADAPTED, settings.adaptive, "network"),
        (_LISTED, settings.adaptive, "cluster"),
        (_BEST, settings.single, "network"),
    ):
        rows = where(bar, plan=plan, made_for=target)
        seconds = float(rows.drop_duplicates("iteration")["iteration_ms"].mean()) / 1e3
        marks.append({"mark": mark, "degree": None, "seconds": seconds, "share": 1.0})
        if mark == _ADAPTED:
            busy = rows.groupby("degree")["device_ms"].sum()
            for degree, share in (busy / busy.sum()).items():
                part = {"mark": "degree", "degree": int(str(degree))}
                marks.append(part | {"seconds": share * seconds, "share": share})
    return [mark | {"fidelity": str(bar["fidelity"].iloc[0])} for mark in marks]


def _panel(axes: Axes, rows: DataFrame, names: list[str], shades: dict[int, str]) -> None:
    for name, bar in rows.groupby("label", sort=False):
        position = names.index(str(name))
        parts = where(bar, mark="degree").set_index("degree")["seconds"]
        left = 0.0
        for degree in [*sorted(degree for degree in parts.index if degree), 0]:
            width = float(parts.get(degree, 0.0))
            colour = shades[int(degree)] if degree else _WAITING
            axes.barh(position, width, left=left, height=0.7, color=colour, linewidth=0)
            left += width
        total = bar.set_index("mark")["seconds"]
        axes.plot(float(total[_LISTED]), position, **_CARRIED, markersize=5, zorder=4)
        axes.plot(float(total[_BEST]), position, **_SINGLE, markeredgewidth=2, zorder=4)
        at_edge(axes, quantity(left), position, 4)
    axes.grid(visible=False, axis="y")


def _words(bar: DataFrame) -> str:
    total = bar.set_index("mark")["seconds"]
    parts = bar[bar["degree"] > 0].sort_values("share").iloc[::-1].head(2)
    degrees = phrases(parts, "degree {degree:.0f} {share:q%}", " and ")
    return f"""{quantity(total[_ADAPTED])} s (best single degree {quantity(total[_BEST])} s; most in
        {degrees})"""


# Bandwidth of an all-to-all by degree, and what the times of plans imply

#: Bytes of an element, all-to-alls of a layer, and both directions of a step.
_BYTES_PER_TOKEN_LAYER_AND_WIDTH = 2 * 4 * 2
_NOTE = "Published on A100 nodes of 8 with two InfiniBand links; nothing is measured here"


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
        "flexsp_7b_192k_wikipedia",
        "static_7b_192k_wikipedia",
        "static_per_batch_7b_192k_wikipedia",
        "flexsp_7b_192k_github",
        "static_7b_192k_github",
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
    points = _points(settings, tables)
    ours = points[points["source"] == "ours"]
    subtitle = """Bandwidth of an all-to-all among the GPUs of a group. Hollow diamonds: published;
        dots: calculated back from the predicted times of this experiment's plans."""
    with canvas(subtitle, fidelity_line(ours["fidelity"], _NOTE)) as page:
        colour = dict(zip(settings.tables, PALETTE, strict=False))
        _lines(page.subplots(), points, colour, settings.devices_per_node)
        legend: dict[str, Any] = {
            f"Published, {words}": published_series(colour[key])
            for key, words in settings.tables.items()
        }
        if len(ours):
            legend[f"Ours, {ours['name'].nunique()} plans"] = dot(INK)
        share_legend(page, legend, 2)
    return Drawn(*_degree_texts(settings, points), points.drop(columns="fidelity"))


def _points(settings: AllToAllDegreeSettings, tables: Tables) -> DataFrame:
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


def _lines(axes: Axes, points: DataFrame, colour: dict[str, str], node: int) -> None:
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
    beside(axes, "inside a node", border, 1, -6, -6, ha="right", **style)
    beside(axes, "across nodes", border, 1, 6, -6, ha="left", **style)


def _degree_texts(settings: AllToAllDegreeSettings, points: DataFrame) -> Texts:
    node, ours = settings.devices_per_node, where(points, source="ours")
    steps, ends = [], []
    published = where(points, source="published").sort_values("degree")
    tables = {name: where(published, name=name) for name in settings.tables}
    for words, table in zip(settings.tables.values(), tables.values(), strict=True):
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
        rate = next(iter(tables.values())).set_index("degree")["gb_s"]
        off = (ours["gb_s"] / ours["degree"].map(rate) - 1).abs().max()
        exact = "exactly with" if off < 1e-6 else f"within {100 * off:.2g} % of"
        caption += f""" The {ours["name"].nunique()} plans of this experiment for the published
            cluster were costed {exact} the first of these tables, which shows that they rest on it,
            not that it holds."""
    else:
        caption += " This experiment has no plan for the published cluster."
    alternative = f"""Lines of the all-to-all bandwidth over the degree of sequence parallelism,
        with a cliff between a node and several: {"; ".join(ends)}."""
    return caption, alternative
