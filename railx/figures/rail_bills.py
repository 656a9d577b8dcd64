"""What rails cost and draw per GPU, by size, way to count and way beyond the switch.

Published are the artifact's bills (Opus, fig. 15). Ours are the same, and the same
networks counted by used ports; photonic rails whose rank outgrows a switch need more of
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal

from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import patch, published_marks, share_legend, ticks
from railx.figures.tables import Tables, refuse_unknown, stack, where
from railx.figures.theme import GREY, LINE_POINTS, PALETTE, PUBLISHED, PUBLISHED_MARK, lighter
from railx.figures.words import fidelity_line, listed, quantity
from railx.settings import AtLeast

__all__ = ["FIGURE", "RailBillsSettings", "RailPlatformWords"]

#: Quantities: column of ours, unit in the published columns, label and unit in words.
_PANELS = {
    "cost": ("cost_per_gpu_usd", "usd", "Cost (USD per GPU)", "USD"),
    "power": ("watts_per_gpu", "w", "Power (W per GPU)", "W"),
}
#: Series: words, style, and the network and counting of its rows.
_SERIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "fat_tree": (
        "Fat tree, counted as the artifact does",
        {"color": PALETTE[6], "linestyle": (0, (4, 2)), "marker": "s"},
        "fat_tree",
        "artifact",
    ),
    "rail_opt": (
        "Electrical rails, counted as the artifact does",
        {"color": GREY, "linestyle": "solid", "marker": "o"},
        "electrical_rails",
        "artifact",
    ),
    "spine": (
        "Electrical rails with a spine, used ports",
        {"color": PALETTE[0], "linestyle": "solid", "marker": "o"},
        "electrical_rails",
        "used_ports",
    ),
    "alone": (
        "Electrical rails without a spine, used ports",
        {"color": PALETTE[2], "linestyle": "solid", "marker": "o"},
        "electrical_rails_alone",
        "used_ports",
    ),
    "opus": (
        "Photonic rails, counted as the artifact does",
        {"color": PALETTE[5], "linestyle": "solid", "marker": "o"},
        "photonic_rails",
        "artifact",
    ),
}
#: Arrangements of switches beyond one: words, colour and mark.
_BEYOND = {
    "clos": ("Photonic rails on leaves and spines, circuits may move", PALETTE[3], "^"),
    "clos_strict": ("The same, no circuit ever moves", PALETTE[7], "v"),
}


#: Electrical rails that the caption compares with photonic ones.
_COUNTED = {
    "rail_opt": "as the artifact counts",
    "spine": "by used ports",
    "alone": "without a spine",
}

_DRAWN = ["platform", "quantity", "series", "source", "ocs_port_price_factor", "gpus", "value"]


@dataclass(frozen=True)
class RailPlatformWords:
    """A platform of the bills and the published one that it stands for."""

    words: str
    """Words for the platform."""

    published: str
    """Published platform (column config); empty: none."""


@dataclass(frozen=True)
class RailBillsSettings(CanvasSettings):
    """Cost and power of rails per GPU, by size."""

    figure: Literal["rail_bills"] = "rail_bills"
    height_inches: Height = 8.6

    platforms: dict[str, RailPlatformWords] = field(
        default_factory=lambda: {
            "h200_400g": RailPlatformWords("H200, servers of 8, 400G", "H200_400G_fig15_trx879"),
            "gb200_800g": RailPlatformWords(
                "GB200, servers of 32, 800G", "GB200_800G_fig15_trx879"
            ),
        }
    )
    """Platforms of the bills, a column of panels each."""

    switch: str = "polatis_6000n"
    """Optical switch that rails beyond one of it are made of."""

    least_gpus: Annotated[int, AtLeast(1)] = 128
    """The smallest size that is drawn."""

    transceivers_per_gpu: Annotated[int, AtLeast(1)] = 1
    """Transceivers of a GPU on photonic rails."""


def draw(settings: RailBillsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A column of panels for each platform: cost above power.

    Raises ValueError for a platform or a switch that the tables do not have.
    """
    bills = tables.read("rails")
    points = _points(settings, bills, tables.read("published"))
    subtitle = """Electrical and photonic rails, one port and transceiver a GPU. Hollow diamonds:
        the published bills. A rail of more GPUs than half of the switch's ports needs leaves and
        spines of such switches; shaded: circuits may move, at half to twice the sourced price per
        port."""
    switch = settings.switch.replace("_", " ").replace("polatis 6000n", "the Polatis 6000N")
    note = f"Port prices beyond one switch are assumed, the price of {switch}'s"
    with canvas(subtitle, fidelity_line(bills["fidelity"], note)) as page:
        panels = page.subplots(2, len(settings.platforms), sharex=False, squeeze=False)
        for row, (key, (_, _, ylabel, _)) in zip(panels, _PANELS.items(), strict=True):
            for axes, (platform, words) in zip(row, settings.platforms.items(), strict=True):
                _panel(axes, points[(points["platform"] == platform) & (points["quantity"] == key)])
                axes.set(title=words.words if key == "cost" else "", xlabel="GPUs", ylabel=ylabel)
                if key == "power":
                    axes.set_yscale("log")
                    ticks(axes.yaxis, [10, 20, 50, 100, 200, 500], "{x:,.0f}")
                    axes.set_ylim(8, 500)
                else:
                    axes.set_ylim(0, None)
        legend: dict[str, Any] = {
            words: {**style, "markersize": 4.5} for words, style, *_ in _SERIES.values()
        }
        legend |= {
            words: {"color": colour, "marker": mark, "markersize": 5}
            for words, colour, mark in _BEYOND.values()
        }
        legend["Half to twice the price of an optical port"] = patch(lighter(PALETTE[3], 0.7))
        share_legend(page, legend | {PUBLISHED.capitalize(): PUBLISHED_MARK}, 2)
    return Drawn(_caption(settings, points), _alternative(settings, points), points)


def _points(settings: RailBillsSettings, bills: DataFrame, published: DataFrame) -> DataFrame:
    """A row for each mark."""
    refuse_unknown("platforms", settings.platforms, bills["platform"])
    refuse_unknown("switch", [settings.switch], bills["switch"].dropna())
    bills, published = (rows[rows["gpus"] >= settings.least_gpus] for rows in (bills, published))
    electrical = bills["network"] != "photonic_rails"
    bills = bills[electrical | (bills["transceivers_per_gpu"] == settings.transceivers_per_gpu)]
    parts = []
    for (platform, words), (key, (column, unit, *_)) in product(
        settings.platforms.items(), _PANELS.items()
    ):
        ours = bills[bills["platform"] == platform]
        ours = ours.assign(value=ours[column], source="ours")
        theirs = where(published, config=words.published)
        head = {"platform": platform, "quantity": key}
        for series, (*_, network, counting) in _SERIES.items():
            rows = where(ours, network=network, counting=counting)
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


def _panel(axes: Axes, points: DataFrame) -> None:
    ours, theirs = (where(points, source=source) for source in ("ours", "published"))
    for series, (_, style, *_) in _SERIES.items():
        rows = where(ours, series=series).sort_values("gpus")
        axes.plot(rows["gpus"], rows["value"], **style, linewidth=LINE_POINTS, markersize=4.5)
    for series, (_, colour, mark) in _BEYOND.items():
        rows = where(ours, series=series)
        bands = rows.pivot_table(index="gpus", columns="ocs_port_price_factor", values="value")
        if bands.empty:
            continue
        if series == "clos":
            shade = lighter(colour, 0.75)
            axes.fill_between(bands.index, bands[0.5], bands[2.0], color=shade, linewidth=0)
        style = {"color": colour, "marker": mark, "markersize": 5, "linewidth": LINE_POINTS}
        axes.plot(bands.index, bands[1.0], **style)
    published_marks(axes, theirs["gpus"], theirs["value"])
    sizes = sorted(set(points["gpus"]))
    axes.set_xscale("log", base=2)
    ticks(axes.xaxis, [size for size in sizes if not size & (size - 1)], "{x:,.0f}")
    ticks(axes.yaxis, text="{x:,.0f}")
    axes.set_xlim(0.85 * sizes[0], 1.18 * sizes[-1])


def _caption(settings: RailBillsSettings, points: DataFrame) -> str:
    sentences = []
    ours = where(points, source="ours")
    plain = where(ours, ocs_port_price_factor=1)
    costs = plain.set_index(["platform", "quantity", "series", "gpus"])["value"].sort_index()
    for platform, words in settings.platforms.items():
        parts = []
        for key, (*_, unit) in _PANELS.items():
            photonic = costs[platform, key, "opus"]
            ratios = []
            for series, text in _COUNTED.items():
                other = costs[platform, key, series]
                gpus = 512 if 512 in other.index else int(other.index[0])
                ratios.append(f"{quantity(other[gpus] / photonic[gpus])} times {text}")
            parts.append(f"""{quantity(photonic.iloc[0])} {unit} a GPU on photonic rails, on
                electrical ones {listed(ratios)}""")
        sentences.append(f"{words.words}: {'; '.join(parts)}.")
    beyond = where(ours, series="clos")
    if not beyond.empty:
        sentences.append(f"""The published bills charge two optical ports a GPU at any size; from
            {int(beyond["gpus"].min()):,} GPUs on a rail may outgrow one switch, and leaves and
            spines take three ports for each of a GPU.""")
    return " ".join(sentences)


def _alternative(settings: RailBillsSettings, points: DataFrame) -> str:
    sizes = sorted(set(points["gpus"]))
    return f"""Cost and power per GPU of electrical and photonic rails from {sizes[0]:,} to
        {sizes[-1]:,} GPUs on {len(settings.platforms)} platforms. Lines are nearly level in size;
        those counted as the artifact does lie highest, electrical rails without a spine nearest to
        photonic ones, which rise where a rail needs leaves and spines of switches."""


FIGURE = declare(
    RailBillsSettings,
    "What rails cost and draw, by size and by what is counted",
    "opus",
    draw,
    rails="economics.rails: platform gpus network counting transceivers_per_gpu switch arrangement"
    " ocs_port_price_factor cost_per_gpu_usd watts_per_gpu fidelity",
    published="opus_cost_power.csv: config gpus cost_fat_tree_usd cost_rail_opt_usd cost_opus_usd"
    " power_fat_tree_w power_rail_opt_w power_opus_w",
)
