"""What rails cost, draw and save by size, and how long steps take on them.

Published are the bills of the artifact (Opus, fig. 15) for several sizes and price
lists. Ours are the same networks, counted as the artifact counts and by used ports;
photonic rails whose rank outgrows a switch need more of them. Steps of RailX and Opus
over switching latency are compared by no paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Tables, figure, reads
from railx.figures.marks import PUBLISHED, PUBLISHED_LINE, PUBLISHED_MARK, dot, published_series
from railx.figures.panels import at_edge, patch, round_numbers, share_legend, ticks
from railx.figures.tables import refuse, refuse_unknown, stack, where
from railx.figures.theme import BASES, GREY, INK, OPUS_JOBS, PALETTE, lighter
from railx.figures.types import Axes, DataFrame
from railx.figures.words import listed, phrase, phrase_list, phrases, quantity, span
from railx.settings import AtLeast

# Bills per GPU

#: Quantities: column of ours, unit in the published columns, label and unit in words.
_BILLS_PANELS = {
    "cost": ("cost_per_gpu_usd", "usd", "Cost (USD per GPU)", "USD"),
    "power": ("watts_per_gpu", "w", "Power (W per GPU)", "W"),
}
#: Series: words, colour and mark; the last two are arrangements of switches beyond one.
_SERIES = {
    "fat_tree": ("Fat tree, counted as the artifact does", PALETTE[6], "s"),
    "rail_opt": ("Electrical rails, counted as the artifact does", GREY, "o"),
    "spine": ("Electrical rails with a spine, used ports", PALETTE[0], "o"),
    "alone": ("Electrical rails without a spine, used ports", PALETTE[2], "o"),
    "opus": ("Photonic rails, counted as the artifact does", PALETTE[5], "o"),
    "clos": ("Photonic rails on leaves and spines, circuits may move", PALETTE[3], "^"),
    "clos_strict": ("The same, no circuit ever moves", PALETTE[7], "v"),
}
#: Network and counting of the rows of a series.
_NETWORKS = {
    "fat_tree": {"network": "fat_tree", "counting": "artifact"},
    "rail_opt": {"network": "electrical_rails", "counting": "artifact"},
    "spine": {"network": "electrical_rails", "counting": "used_ports"},
    "alone": {"network": "electrical_rails_alone", "counting": "used_ports"},
    "opus": {"network": "photonic_rails", "counting": "artifact"},
}
_BEYOND = ("clos", "clos_strict")
#: Electrical rails that the caption compares with photonic ones.
_COUNTED = {
    "rail_opt": "as the artifact counts",
    "spine": "by used ports",
    "alone": "without a spine",
}

_DRAWN = ["platform", "quantity", "series", "source", "ocs_port_price_factor", "gpus", "value"]

#: Platforms of the bills, a column of panels each: words, and the published platform.
_PLATFORMS = {
    "h200_400g": ("H200, servers of 8, 400G", "H200_400G_fig15_trx879"),
    "gb200_800g": ("GB200, servers of 32, 800G", "GB200_800G_fig15_trx879"),
}


@dataclass(frozen=True)
class RailBillsSettings(CanvasSettings):
    """Cost and power of rails per GPU, by size."""

    switch: str = "polatis_6000n"
    """Optical switch that rails beyond one of it are made of."""
    least_gpus: Annotated[int, AtLeast(1)] = 128
    """The smallest size that is drawn."""
    transceivers_per_gpu: Annotated[int, AtLeast(1)] = 1
    """Transceivers of a GPU on photonic rails."""


@figure("What rails cost and draw, by size and by what is counted", "opus", height=8.6)
@reads(
    rails="economics.rails: platform gpus network counting transceivers_per_gpu switch arrangement"
    " ocs_port_price_factor cost_per_gpu_usd watts_per_gpu fidelity",
    published="opus_cost_power.csv: config gpus cost_fat_tree_usd cost_rail_opt_usd cost_opus_usd"
    " power_fat_tree_w power_rail_opt_w power_opus_w",
)
def rail_bills(settings: RailBillsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A column of panels for each platform: cost above power."""
    points = _bills_points(settings, tables)
    subtitle = """Electrical and photonic rails, one port and transceiver a GPU. Hollow diamonds:
        the published bills. A rail of more GPUs than half of the switch's ports needs leaves and
        spines of such switches; shaded: circuits may move, at half to twice the sourced price per
        port."""
    switch = settings.switch.replace("_", " ").replace("polatis 6000n", "the Polatis 6000N")
    note = f"Port prices beyond one switch are assumed to be those of {switch}"
    drawn = where(points, quantity="power")["value"]
    watts = 0.75 * float(drawn.min()), 1.25 * float(drawn.max())
    with canvas(subtitle, tables.read("rails")["fidelity"], note) as page:
        panels = page.subplots(2, len(_PLATFORMS), sharex=False, squeeze=False)
        for row, (key, (_, _, ylabel, _)) in zip(panels, _BILLS_PANELS.items(), strict=True):
            for axes, (platform, (words, _)) in zip(row, _PLATFORMS.items(), strict=True):
                _bills_panel(axes, where(points, platform=platform, quantity=key))
                axes.set(title=words if key == "cost" else "", xlabel="GPUs", ylabel=ylabel)
                if key == "power":
                    ticks(axes.yaxis, round_numbers(*watts), "{x:,.0f}", 10)
                    axes.set_ylim(*watts)
                else:
                    axes.set_ylim(0, None)
        legend: dict[str, Any] = {_SERIES[name][0]: _style(name) for name in _SERIES}
        legend["Half to twice the price of an optical port"] = patch(lighter(PALETTE[3], 0.7))
        share_legend(page, legend | {PUBLISHED.capitalize(): PUBLISHED_MARK}, 2)
    sentences = []
    ours = where(points, source="ours")
    plain = where(ours, ocs_port_price_factor=1)
    costs = plain.set_index(["platform", "quantity", "series", "gpus"])["value"].sort_index()
    for platform, (words, _) in _PLATFORMS.items():
        parts = []
        for key, (*_, unit) in _BILLS_PANELS.items():
            photonic = costs[platform, key, "opus"]
            ratios = []
            for series, text in _COUNTED.items():
                other = costs[platform, key, series]
                gpus = 512 if 512 in other.index else int(other.index[0])
                ratios.append(f"{quantity(other[gpus] / photonic[gpus])} times {text}")
            parts.append(f"""{quantity(photonic.iloc[0])} {unit} a GPU on photonic rails, on
                electrical ones {listed(ratios)}""")
        sentences.append(f"{words}: {'; '.join(parts)}.")
    beyond = where(ours, series="clos")
    if not beyond.empty:
        sentences.append(f"""The published bills charge two optical ports a GPU at any size; from
            {int(beyond["gpus"].min()):,} GPUs on a rail may outgrow one switch, and leaves and
            spines take three ports for each of a GPU.""")
    sizes = sorted(set(points["gpus"]))
    alternative = f"""Cost and power per GPU of electrical and photonic rails from {sizes[0]:,} to
        {sizes[-1]:,} GPUs on {len(_PLATFORMS)} platforms. Lines are nearly level in size;
        those counted as the artifact does lie highest, electrical rails without a spine nearest to
        photonic ones, which rise where a rail needs leaves and spines of switches."""
    return Drawn(" ".join(sentences), alternative, points)


def _bills_points(settings: RailBillsSettings, tables: Tables) -> DataFrame:
    """A row for each mark."""
    bills, published = tables.read("rails"), tables.read("published")
    refuse_unknown("platforms", _PLATFORMS, bills["platform"])
    refuse_unknown("switch", [settings.switch], bills["switch"].dropna())
    bills, published = (rows[rows["gpus"] >= settings.least_gpus] for rows in (bills, published))
    electrical = bills["network"] != "photonic_rails"
    bills = bills[electrical | (bills["transceivers_per_gpu"] == settings.transceivers_per_gpu)]
    parts = []
    panels = product(_PLATFORMS.items(), _BILLS_PANELS.items())
    for (platform, (_, config)), (key, (column, unit, *_)) in panels:
        ours = where(bills.assign(value=bills[column], source="ours"), platform=platform)
        theirs = where(published, config=config)
        head = {"platform": platform, "quantity": key}
        for series, network in _NETWORKS.items():
            rows = where(ours, **network)
            parts.append(rows.assign(**head, series=series, ocs_port_price_factor=1.0))
            cell = f"{key}_{series}_{unit}"
            if cell in theirs:
                value = theirs[cell] / theirs["gpus"]
                parts.append(theirs.assign(**head, series=series, source="published", value=value))
        for series in _BEYOND:
            rows = where(ours, switch=settings.switch, arrangement=series)
            rows = rows.sort_values("ocs_port_price_factor", kind="stable")
            rows = rows[rows["ocs_port_price_factor"].isin((0.5, 1.0, 2.0))]
            parts.append(rows.assign(**head, series=series))
    return stack(parts).reindex(columns=_DRAWN)


def _style(series: str) -> dict[str, Any]:
    _, colour, mark = _SERIES[series]
    dashes: Any = (0, (4, 2)) if series == "fat_tree" else "solid"
    size = 5 if series in _BEYOND else 4.5
    return {"color": colour, "marker": mark, "markersize": size, "linestyle": dashes}


def _bills_panel(axes: Axes, points: DataFrame) -> None:
    ours, theirs = (where(points, source=source) for source in ("ours", "published"))
    for series in _NETWORKS:
        rows = where(ours, series=series).sort_values("gpus")
        axes.plot(rows["gpus"], rows["value"], **_style(series))
    for series in _BEYOND:
        rows = where(ours, series=series)
        bands = rows.pivot_table(index="gpus", columns="ocs_port_price_factor", values="value")
        if bands.empty:
            continue
        if series == "clos":
            shade = lighter(_SERIES[series][1], 0.75)
            axes.fill_between(bands.index, bands[0.5], bands[2.0], color=shade, linewidth=0)
        axes.plot(bands.index, bands[1.0], **_style(series))
    axes.plot(theirs["gpus"], theirs["value"], zorder=5, **PUBLISHED_MARK)
    sizes = sorted(set(points["gpus"]))
    ticks(axes.xaxis, [size for size in sizes if not size & (size - 1)], "{x:,.0f}", 2)
    ticks(axes.yaxis, text="{x:,.0f}")
    axes.set_xlim(0.85 * sizes[0], 1.18 * sizes[-1])


# What photonic rails save over electrical ones

#: What a panel shows, and the headline that is published for it.
_SAVINGS_PANELS = {
    "cost": ("Cost", "network_cost_reduction"),
    "power": ("Power", "network_power_reduction"),
}

#: Published platforms in the order of the legend: words, and ours that stands for it.
_SAVING = {
    "H200_400G_fig15_trx879": ("H200, 400G, transceiver at 879 USD", "h200_400g"),
    "GB200_800G_fig15_trx879": ("GB200, 800G, transceiver at 879 USD", "gb200_800g"),
    "H100_400G_notebook_trx219": ("H100, 400G, transceiver at 219 USD", "h100_400g_notebook"),
}


@figure("What photonic rails save, by size of the cluster", "opus", height=5.4)
@reads(
    rails="economics.rails: platform gpus network counting transceivers_per_gpu cost_ratio"
    " power_ratio fidelity",
    published="opus_cost_power.csv: config gpus cost_ratio_rail_over_opus"
    " power_ratio_rail_over_opus",
    headline="opus.csv: id value",
)
def rail_savings(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Cost and power of electrical over photonic rails, by size."""
    headline, rails = tables.values("headline"), tables.read("rails")
    points = _savings_points(tables)
    subtitle = """Electrical rails over photonic rails: network cost, network power. Hollow
        diamonds: published bills; dots: ours, counted as the published script does. The axes of
        ratios begin at 0."""
    colours = dict(zip(_SAVING, PALETTE, strict=False))
    note = "Published bills: the artifact's, recalculated"
    with canvas(subtitle, rails["fidelity"], note) as page:
        panels = page.subplots(1, len(_SAVINGS_PANELS))
        for axes, (key, (title, promise)) in zip(panels, _SAVINGS_PANELS.items(), strict=True):
            rows, stated = where(points, quantity=key), float(headline[promise])
            axes.axhline(stated, zorder=1.5, **PUBLISHED_LINE)
            at_edge(axes, f"{stated:g} times", stated, 4, -4, va="top")
            for (platform, source), line in rows.groupby(["platform", "source"], sort=False):
                style = dot(colours[str(platform)], 3.5, zorder=2.2)
                if source == "published":
                    style = published_series(colours[str(platform)])
                axes.plot(line["gpus"], line["ratio"], **style)
            sizes = sorted(set(where(rows, source="published")["gpus"]))
            ticks(axes.xaxis, sizes, "{x:,.0f}", 2)
            axes.set_xlim(0.8 * sizes[0], 1.25 * sizes[-1])
            axes.set_ylim(0, 1.12 * max(float(rows["ratio"].max()), stated))
            axes.set(title=title, xlabel="GPUs", ylabel="Times lower with photonic rails")
        legend = {words: published_series(colours[key]) for key, (words, _) in _SAVING.items()}
        legend["Ours, in the colour of its platform"] = dot(INK)
        share_legend(page, legend | {f"Abstract, {PUBLISHED}": PUBLISHED_LINE}, 2)
    keys = ["quantity", "platform"]
    both = points.pivot_table(index=[*keys, "gpus"], columns="source", values="ratio").dropna()
    sentences = []
    for key, (title, promise) in _SAVINGS_PANELS.items():
        parts = []
        for platform, (words, _) in _SAVING.items():
            ratios = both.xs((key, platform))
            apart = float((ratios["ours"] / ratios["published"] - 1).abs().max())
            parts.append(f"""{words} {span(ratios["published"])}, ours within
                {quantity(100 * apart)} % at {len(ratios)} sizes""")
        times = f"{headline[promise]:g} times lower in the abstract"
        sentences.append(f"{title}, {times}: {'; '.join(parts)}.")
    sizes = sorted(set(points["gpus"]))
    means = points.groupby(keys, sort=False)["ratio"].mean()
    best = {key: _SAVING[str(means[key].idxmax())][0] for key in _SAVINGS_PANELS}
    alternative = f"""Lines of the cost and of the power of electrical over photonic rails from
        {sizes[0]:,} to {sizes[-1]:,} GPUs, one per platform, nearly level in size; the highest
        saving in cost is {best["cost"]}, in power {best["power"]}."""
    return Drawn(" ".join(sentences), alternative, points)


def _savings_points(tables: Tables) -> DataFrame:
    """A row for each platform, quantity, source and size."""
    published, rails = tables.read("published"), tables.read("rails")
    counted = where(rails, network="photonic_rails", counting="artifact", transceivers_per_gpu=1)
    parts = []
    for name, (_, platform) in _SAVING.items():
        refuse_unknown("platforms", [platform], counted["platform"])
        sources = {
            "published": (where(published, config=name), "ratio_rail_over_opus"),
            "ours": (where(counted, platform=platform), "ratio"),
        }
        for key, (source, (rows, column)) in product(_SAVINGS_PANELS, sources.items()):
            head = {"source": source, "quantity": key, "platform": name}
            ratios = rows.assign(**head, ratio=rows[f"{key}_{column}"])
            parts.append(ratios[[*head, "gpus", "ratio"]])
    return stack(parts)


# Step times of RailX and Opus over switching latency: circuits set once for a job,
# switched between its phases, or both, beside electrical rails

_STEP_TIMES = "latency_ms changes step_ms stall_ms"
_BILL = "cost_per_gpu_usd watts_per_gpu reason fidelity"
_MARKS = "os^vDPX"
#: Latency 0 on a logarithmic axis is drawn at the shortest latency over this.
_ZERO = 10


@dataclass(frozen=True)
class _Look:
    """What a figure shows.

    ``jobs`` have words and a column of panels each, with the edges ``below`` and
    ``above`` in times of the first of the ``lines`` at equal bandwidth; lines go on
    beyond them. A line has by its words the network, mode and rule of the table (none:
    provisioned), its position in the palette (None: grey) and whether it is dashed.
    ``bars`` are networks with words, for the bars of cost and power of the last job at
    equal bandwidth.
    """

    jobs: dict[str, str]
    lines: dict[str, tuple[str, int | None, bool]]
    bars: dict[str, str]
    below: float
    above: tuple[float, ...]


_BARS = {
    "railx": "RailX",
    "photonic_rails": "Photonic rails",
    "electrical_rails_alone": "Rails, no spine",
    "electrical_rails": "Rails, spine",
    "electrical_rails_artifact": "As artifact counts",
}
_SWITCHED = _Look(
    {"dense": "Dense", "dense_long": "Long sequences", "experts": "Experts"},
    {
        "RailX set once": ("railx set_once", 0, False),
        "Opus, every phase, asked for ahead": ("photonic_rails every_phase", 5, False),
        "Opus, every phase, on demand": ("photonic_rails every_phase on_demand", 5, True),
        "Both: RailX switched where it pays": ("railx where_it_pays", 4, True),
        "Opus switched where it pays": ("photonic_rails where_it_pays", 7, True),
        "Electrical rails with a spine": ("electrical_rails packets", None, False),
        "Electrical rails without a spine": ("electrical_rails_alone packets", None, True),
    },
    _BARS,
    below=0.5,
    above=(1.5, 1.5, 1.5),
)
_GENERATED = _Look(
    {name: OPUS_JOBS[name] for name in ("llama16", "llama64")}
    | {"deepseek_236b": "DeepSeek-V2 236B"},
    {
        "Electrical rails": ("electrical_rails packets", None, False),
        "RailX set once": ("railx set_once", 0, False),
        "RailX set once with 8 rails": ("railx_8_rails set_once", 5, False),
        "Both: RailX of 8 rails switched where it pays": ("railx_8_rails where_it_pays", 4, True),
        "Opus, asked for ahead": ("photonic_rails every_phase", 7, False),
        "Opus, on demand": ("photonic_rails every_phase on_demand", 7, True),
        "Opus with 4 ports, set once": ("photonic_rails_4_ports set_once", 2, True),
    },
    {
        **{name: _BARS[name] for name in ("railx", "photonic_rails")},
        "photonic_rails_4_ports": "Photonic rails, 4 ports",
        **_BARS,
    },
    below=0.95,
    above=(1.2, 1.2, 4.0),
)


@figure("Circuits set once for a job, switched in it, or both", "all", height=9.6)
@reads(steps=f"switched.steps: network job gpus basis mode rule {_STEP_TIMES} {_BILL}")
def switched_circuits(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per basis, and bars of cost and power."""
    table = tables.read("steps")
    subtitle = f"""Time of a training step on {int(table["gpus"].max()):,} GPUs over the latency of
        the optical switches, in times of RailX set once. No paper compares these: nothing is
        published here. Equal bandwidth: as many ports a GPU, of which RailX's mostly end in its
        node. Equal cost: ports as fast as RailX's bill buys. Lines may leave the panels."""
    note = "Nothing overlaps but switching with its windows"
    return _draw(_SWITCHED, table, canvas, subtitle, note, "at equal bandwidth")


@figure(
    "RailX meets Opus: published jobs on rings set once, on rails switched, or both",
    "all",
    height=9.6,
)
@reads(
    generated="switched.generated: step reconfigurations network gpus basis mode rule latency_ms"
    f" step_ms stall_ms {_BILL}"
)
def rail_steps(settings: CanvasSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A row of panels per basis, and bars of cost and power."""
    # Jobs of the table are variants of the steps.
    table = tables.read("generated").drop(columns="job", errors="ignore")
    table = table.rename(columns={"step": "job", "reconfigurations": "changes"})
    subtitle = """Time of a generated training step over the latency of the optical switches, in
        times of electrical rails at the same rate. No paper compares these: nothing is published
        here. Equal bandwidth: the rate that leaves the job's servers. Equal cost: the rate that the
        bill of photonic rails buys. Bars are at equal bandwidth. Lines may leave the panels."""
    note = "Servers are the same everywhere, and what overlaps in the step overlaps here"
    bars_of = f"of {list(_GENERATED.jobs.values())[-1]}"
    return _draw(_GENERATED, table, canvas, subtitle, note, bars_of)


def _draw(
    look: _Look, table: DataFrame, canvas: Canvas, subtitle: str, note: str, bars_of: str
) -> Drawn:
    points = _points(look, table)
    last = where(table, basis="equal_bandwidth", job=list(look.jobs)[-1])
    bars = last.drop_duplicates("network").set_index("network").loc[list(look.bars)]
    bars = bars.assign(words=list(look.bars.values()))
    base, wide = next(iter(look.lines)), len(look.jobs)
    with canvas(subtitle, table["fidelity"], note) as page:
        lines: Any = [[f"{basis} {job}" for job in look.jobs for _ in "  "] for basis in BASES]
        bar_line: Any = ["cost"] * wide + ["power"] * wide
        shape: dict[str, Any] = {"height_ratios": [1, 1, 0.62], "width_ratios": [1] * 2 * wide}
        panels = page.subplot_mosaic([*lines, bar_line], **shape)
        for basis, basis_words in BASES.items():
            for column, (job, name) in enumerate(look.jobs.items()):
                axes = panels[f"{basis} {job}"]
                _panel(axes, look, where(points, basis=basis, job=job))
                axes.set(title=name, xlabel="Switching latency (ms)")
                axes.set_ylim(look.below, look.above[column])
                if column == 0:
                    axes.set_ylabel(f"{basis_words.capitalize()}\nstep time ({base}: 1)")
        _bar_panel(panels["cost"], bars, "cost_per_gpu_usd", f"Cost {bars_of} (USD per GPU)")
        _bar_panel(panels["power"], bars, "watts_per_gpu", f"Power {bars_of} (W per GPU)")
        share_legend(page, _line_styles(look), 2)
    parts = []
    for (basis, basis_words), (job, name) in product(BASES.items(), look.jobs.items()):
        rows = where(points, basis=basis, job=job)
        at = float(rows.loc[rows["latency_ms"] >= 10, "latency_ms"].min())
        fastest = where(rows, latency_ms=at).sort_values("step_ms")
        best, optical = fastest.iloc[0], fastest[fastest["mode"] != "packets"].iloc[0]
        text = "{words} is the fastest optical network at {relative:q}"
        text = f"{name} at {basis_words} and {at:g} ms: {phrase(text, optical)}"
        packets = phrase(", {words} at {relative:q}", best) if best["mode"] == "packets" else ""
        parts.append(f"{text}{packets}.")
    cost = "{words} {cost_per_gpu_usd:q} USD and {watts_per_gpu:q} W per GPU"
    costs = f"{bars_of.capitalize()}: {phrases(bars, cost)}."
    caption = f"Ours alone, no paper has this comparison. {' '.join(parts)} {costs}"
    equal = where(points, basis="equal_bandwidth")
    equal = equal.assign(name=equal["job"].map(look.jobs))
    groups = equal.groupby(["job", "line"], sort=False)
    ends = groups.last().assign(first=groups["relative"].first())
    text = "{name}, {words}: {first:q} without latency, {relative:q} at {latency_ms:g} ms"
    alternative = f"""Step times over switching latency at equal bandwidth and at equal cost, with
        bars of cost and power of {len(look.bars)} networks. {phrases(ends, text)}."""
    return Drawn(caption, alternative, points)


def _line_styles(look: _Look) -> dict[str, dict[str, Any]]:
    """The lines by their words."""
    return {
        words: {
            "color": GREY if shade is None else PALETTE[shade],
            "linestyle": (0, (4, 2)) if dashed else "solid",
            "marker": mark,
            "markersize": 4,
        }
        for mark, (words, (_, shade, dashed)) in zip(_MARKS, look.lines.items(), strict=True)
    }


def _points(look: _Look, table: DataFrame) -> DataFrame:
    """A row for each job, basis, line and latency; times over the first line's."""
    named = {words: f"{names} provisioned".split()[:3] for words, (names, *_) in look.lines.items()}
    refuse_unknown("jobs", look.jobs, table["job"])
    refuse_unknown("bars", look.bars, table["network"])
    refuse_unknown("lines", [network for network, *_ in named.values()], table["network"])
    parts = []
    for job, basis in product(look.jobs, BASES):
        drawn = where(table[table["step_ms"].notna()], job=job, basis=basis)
        for number, (words, (network, mode, rule)) in enumerate(named.items()):
            chosen = where(drawn, network=network, mode=mode, rule=rule)
            if chosen.empty:
                got = f"lines[{number}]: no {mode} of {network} for {job}"
                refuse(got, sorted(set(drawn["mode"])))
            parts.append(chosen.sort_values("latency_ms").assign(line=number, words=words))
    columns = f"job basis line words mode rule {_STEP_TIMES} cost_per_gpu_usd watts_per_gpu"
    points = stack(parts)[columns.split()]
    lowest = where(points, line=0, basis="equal_bandwidth").groupby("job")["step_ms"].min()
    return points.assign(relative=points["step_ms"] / points["job"].map(lowest))


def _panel(axes: Axes, look: _Look, points: DataFrame) -> None:
    latencies = sorted({value for value in points["latency_ms"] if value > 0})
    zero = latencies[0] / _ZERO
    for words, style in _line_styles(look).items():
        rows = where(points, words=words)
        axes.plot(rows["latency_ms"].replace(0, zero), rows["relative"], **style)
    powers = [power for power in (0.1, 10.0, 1000.0) if latencies[0] <= power <= latencies[-1]]

    def text(latency: float) -> str:
        return "0" if abs(latency / zero - 1) < 1e-6 else f"{latency:,g}"

    ticks(axes.xaxis, [zero, *powers], text, 10)


def _bar_panel(axes: Axes, bars: DataFrame, column: str, title: str) -> None:
    drawn = axes.barh(range(len(bars)), bars[column], color=GREY, height=0.62)
    axes.bar_label(drawn, phrase_list(bars, f"{{words}}: {{{column}:q}}"), padding=3)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.8 * float(bars[column].max())), xticks=[], yticks=[], title=title)
