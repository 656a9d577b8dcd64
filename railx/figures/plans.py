"""Sequences and the plans made for them: lengths, groups over time, the network below.

The survival function of a corpus is the share of its sequences longer than a length. A
long tail, few sequences that hold many of the tokens, is what adaptive parallelism
lives on (FlexSP, section 2; InfiniPipe, section II). Groups of a micro-batch run side
by side and micro-batches one after another, so a group that ends before its micro-batch
does leaves its devices idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from railx.figures.figure import Canvas, Choice, Drawn, PlanChoice, Tables, figure, reads
from railx.figures.marks import PUBLISHED, PUBLISHED_MARK, dot
from railx.figures.panels import at_edge, patch, share_legend, stacked, tiles, time_unit
from railx.figures.tables import plans_at, records, refuse, refuse_unknown, stack, to_frame, where
from railx.figures.theme import INK, PALETTE, colours, degree_colours, label
from railx.figures.types import Axes, DataFrame
from railx.figures.words import counted, phrases, quantity
from railx.io import read_metadata, read_table
from railx.settings import Between, NotEmpty, SettingsError

# Survival function of sequence lengths, a line per corpus

_KINDS = {
    "real_text": "real text",
    "real_lengths": "real lengths",
    "published_quantiles": "drawn from published quantiles",
    "synthetic": "synthetic",
}

#: Tokens of a long sequence, in the caption.
_LONG = 32_000
_LENGTHS_NOTE = """Real text and real lengths are data as they are; synthetic ones are drawn from a
    distribution that the config states"""


@dataclass(frozen=True)
class CorpusLengthsSettings(Choice):
    """Survival function of sequence lengths."""

    points: Annotated[int, Between(20, 5000)] = 300
    """Most steps of a line."""
    quantiles: tuple[Annotated[float, Between(0, 1)], ...] = (0.5, 0.9, 0.99)
    """Shares of shorter sequences at which a line has a dot, ascending."""

    def __post_init__(self) -> None:
        if list(self.quantiles) != sorted(set(self.quantiles)):
            got = f"got {list(self.quantiles)}; allowed: distinct numbers in ascending order"
            raise SettingsError("quantiles", got)


@dataclass(frozen=True)
class _Corpus:
    """Sorted lengths of a corpus, and the words for it."""

    name: str
    kind: str
    words: str
    lengths: NDArray[np.int64]

    def share(self, tokens: Any) -> Any:
        """The share of sequences with at least so many tokens."""
        return 1 - np.searchsorted(self.lengths, tokens, side="left") / len(self.lengths)

    def steps(self, points: int) -> NDArray[np.int64]:
        """At most so many lengths, denser in the tail, where few sequences decide."""
        count = len(self.lengths)
        tail = np.round(count - np.geomspace(1, count, points)).astype(np.int64)
        return self.lengths[np.unique(tail)]


@figure("Sequence lengths of the corpora", "flexsp", height=5.4)
@reads(sequences="corpus.sequences", published="wikipedia_length_quantiles.csv: kind key value")
def corpus_lengths(settings: CorpusLengthsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """One line per corpus with dots at ``settings.quantiles``."""
    corpora = [_read(name, path) for name, path in tables.files("sequences", settings.only)]
    shares = ", ".join(f"{100 * quantile:g} %" for quantile in settings.quantiles)
    subtitle = f"""Share of sequences with at least the given number of tokens. Dots: {shares} of
        sequences are shorter. Hollow diamonds: published."""
    published = tables.query(
        """
        select key::bigint + 1 as length_tokens, value::double as share
        from published where kind = 'ccdf_frac_seqs_gt' order by rowid_
        """
    )
    table = tables.read("published")
    count = int(float(table.loc[table["key"] == "count", "value"].iloc[0]))
    with canvas(subtitle, [], _LENGTHS_NOTE, title="Sequence lengths") as page:
        axes = page.subplots()
        colour = colours(corpus.name for corpus in corpora)
        for corpus in corpora:
            words = f"{label(corpus.name)} ({corpus.words}; {len(corpus.lengths):,} sequences)"
            steps, last = corpus.steps(settings.points), len(corpus.lengths) - 1
            stairs: dict[str, Any] = {"drawstyle": "steps-pre", "label": words}
            axes.plot(steps, corpus.share(steps), color=colour[corpus.name], **stairs)
            marks = corpus.lengths[[min(int(q * (last + 1)), last) for q in settings.quantiles]]
            style = dot(colour[corpus.name], 5, markeredgecolor="white")
            axes.plot(marks, corpus.share(marks), **style)
        axes.set(xscale="log", yscale="log", xlabel="Sequence length (tokens)")
        axes.set_ylabel("Share of sequences")
        lowest = min(published["share"].min(), *(1 / len(corpus.lengths) for corpus in corpora))
        axes.set_ylim(0.5 * lowest, 1.6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{quantity(100 * value)} %")
        axes.xaxis.set_major_formatter(lambda value, _: _tokens(value))
        axes.plot(published["length_tokens"], published["share"], zorder=5, **PUBLISHED_MARK)
        words = f"Wikipedia, {PUBLISHED} ({count:,} lengths of FlexSP's public code)"
        share_legend(page, {words: PUBLISHED_MARK}, 1, axes)
    texts = "; ".join(
        f"{label(corpus.name)} {100 * corpus.share(1e3):.3g} % from 1K tokens on,"
        f" {100 * corpus.share(1e5):.2g} % from 100K on"
        for corpus in corpora
    )
    parts = [published.assign(corpus="wikipedia", kind=PUBLISHED)]
    for corpus in corpora:
        steps = corpus.steps(settings.points)
        part = to_frame({"length_tokens": steps, "share": corpus.share(steps)})
        parts.append(part.assign(corpus=corpus.name, kind=corpus.kind))
    alternative = f"Falling lines of the share of sequences with at least a given length: {texts}."
    data = stack(parts)[["corpus", "kind", "length_tokens", "share"]]
    facts, off = [], ""
    for corpus in corpora:
        lengths = corpus.lengths
        occupied = float(lengths[lengths >= _LONG].sum() / lengths.sum())
        facts.append(f"""{label(corpus.name)} ({corpus.words}) median
            {quantity(np.median(lengths))}, longest {quantity(lengths[-1])},
            {100 * corpus.share(_LONG):.2g} % of sequences with {_tokens(_LONG)} tokens or more hold
            {100 * occupied:.3g} % of the tokens""")
        if corpus.name == "wikipedia":
            seen = published[published["share"] * len(lengths) >= 10]
            ratios = corpus.share(seen["length_tokens"]) / seen["share"].to_numpy()
            off = f"""Our Wikipedia lengths are within {100 * np.abs(ratios - 1).max():.2g} % of the
                published shares wherever ten or more of them are longer."""
    caption = f"""Sequence lengths in tokens: {"; ".join(facts)}. {off} A long straight tail, few
        sequences with many of the tokens, is what adaptive parallelism lives on."""
    return Drawn(caption, alternative, data)


def _read(name: str, path: Path) -> _Corpus:
    lengths = np.sort(read_table(path, ["length_tokens"])["length_tokens"].to_numpy())
    if not len(lengths):
        refuse(f"{path}: the corpus has no sequences", "one or more")
    kind = str(read_metadata(path).get("kind", "unknown"))
    return _Corpus(name, kind, _KINDS.get(kind, kind), lengths)


def _tokens(value: float) -> str:
    for scale, suffix in ((1e6, "M"), (1e3, "K")):
        if value >= scale:
            return f"{value / scale:g}{suffix}"
    return f"{value:g}"


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
    note, title = "Times are the cost model's predictions", "Sequence-parallel groups over time"
    with canvas(subtitle, ["analytic"], note, title=title) as page:
        panels = page.subplots(len(plans), 1, squeeze=False)[:, 0]
        works = [*map(_work, plans.values()), None]
        for i, (axes, (name, groups)) in enumerate(zip(panels, plans.items(), strict=True)):
            span, (devices, tokens) = spans[_work(groups)] / divisor, _work(groups)
            length = groups["predicted_ms"] / divisor
            ends = length.groupby(groups["micro_batch"]).max().cumsum()
            start = groups["micro_batch"].map(ends.shift(fill_value=0.0))
            blocks = groups.assign(start=start, length=length, end=groups["micro_batch"].map(ends))
            blocks["colour"] = groups["degree"].map(shade)
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
    parts: dict[tuple[int, int], list[str]] = {}
    for name, groups in plans.items():
        parts.setdefault(_work(groups), []).append(_facts(name, groups))
    sentences = " ".join(
        f"{tokens:,} tokens on {devices} devices: {'; '.join(texts)}."
        for (devices, tokens), texts in parts.items()
    )
    caption = f"""{sentences} A block is a group of devices that share the tokens of its sequences
        (Ulysses sequence parallelism), darker with a higher degree; groups side by side form a
        micro-batch, which lasts as long as its slowest group. Times are predictions of the cost
        model, not measurements."""
    return Drawn(caption, alternative, stack(plans.values()))


def _work(groups: DataFrame) -> tuple[int, int]:
    """What makes two plans comparable: equally many devices and equally many tokens."""
    return int(groups["devices"].iloc[0]), int(groups["tokens"].sum())


def _total_ms(groups: DataFrame) -> float:
    """Micro-batches run one after another, each as long as its slowest group."""
    return float(groups.groupby("micro_batch")["predicted_ms"].max().sum())


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
    with canvas(subtitle, rows["fidelity"]) as page:
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
    drawn beside the networks of the first rate, which is the cluster's. At equal cost
    the reference has that rate too.
    """
    equal = where(frame, basis="equal_rate")
    first, *others = sorted(set(equal["outside_gb_s"]))
    priced = where(frame, basis="equal_cost")
    reference = priced.loc[np.isclose(priced["outside_gb_s"].astype(float), first), "label"]
    published = where(frame, basis="own")
    adapted = published.assign(made_for="network")
    at_first = stack([published, adapted, where(equal, outside_gb_s=first)])
    title = "Equal rate: {} GB/s a device"
    panels = {
        title.format(quantity(first)): at_first,
        ": as ".join(["Equal cost", *reference.head(1)]): priced,
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
    fills = {**shades, 0: _WAITING}
    parts = where(rows, mark="degree").pivot(index="label", columns="degree", values="seconds")
    parts = parts.reindex(names, columns=list(fills)).fillna(0.0)
    stacked(axes, parts, fills, 0.7, linewidth=0)
    rows = rows.assign(at=rows["label"].map(names.index))
    for mark, style in ((_LISTED, _CARRIED), (_BEST, _SINGLE)):
        marks = where(rows, mark=mark)
        wide = {"markeredgewidth": 2} if mark == _BEST else {"markersize": 5}
        axes.plot(marks["seconds"], marks["at"], zorder=4, **style | wide)
    for bar in records(where(rows, mark=_ADAPTED)):
        at_edge(axes, quantity(bar["seconds"]), bar["at"], 4)
    axes.grid(visible=False, axis="y")


def _words(bar: DataFrame) -> str:
    total = bar.set_index("mark")["seconds"]
    parts = bar[bar["degree"] > 0].sort_values("share").iloc[::-1].head(2)
    degrees = phrases(parts, "degree {degree:.0f} {share:q%}", " and ")
    return f"""{quantity(total[_ADAPTED])} s (best single degree {quantity(total[_BEST])} s; most in
        {degrees})"""
