"""What rails cost and draw per GPU, by size, way to count and way beyond the switch.

Published are the artifact's bills. Ours are the same, and the same networks counted by
used ports; photonic rails whose rank outgrows a switch need more of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    GREY,
    LINE_POINTS,
    PALETTE,
    PUBLISHED,
    canvas,
    lighter,
    published_handle,
    published_marks,
    quantity,
    share_legend,
)
from railx.figures.words import listed
from railx.settings import AtLeast

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "RailBillsSettings", "RailPlatformWords"]

_COLUMNS = (
    "platform",
    "gpus",
    "network",
    "counting",
    "transceivers_per_gpu",
    "switch",
    "arrangement",
    "ocs_port_price_factor",
    "cost_per_gpu_usd",
    "watts_per_gpu",
    "fidelity",
)
_PUBLISHED = (
    "config",
    "gpus",
    "cost_fat_tree_usd",
    "cost_rail_opt_usd",
    "cost_opus_usd",
    "power_fat_tree_w",
    "power_rail_opt_w",
    "power_opus_w",
)
_PANELS = {"cost": ("cost_per_gpu_usd", "usd"), "power": ("watts_per_gpu", "w")}
_LABELS = {"cost": "Cost (USD per GPU)", "power": "Power (W per GPU)"}
#: Series: words, colour, dashes, marker and how its rows are found.
_SERIES: dict[str, tuple[str, str, Any, str, dict[str, str]]] = {
    "fat_tree": (
        "Fat tree, counted as the artifact does",
        PALETTE[6],
        (0, (4, 2)),
        "s",
        {"network": "fat_tree", "counting": "artifact"},
    ),
    "rail_opt": (
        "Electrical rails, counted as the artifact does",
        GREY,
        "solid",
        "o",
        {"network": "electrical_rails", "counting": "artifact"},
    ),
    "spine": (
        "Electrical rails with a spine, used ports",
        PALETTE[0],
        "solid",
        "o",
        {"network": "electrical_rails", "counting": "used_ports"},
    ),
    "alone": (
        "Electrical rails without a spine, used ports",
        PALETTE[2],
        "solid",
        "o",
        {"network": "electrical_rails_alone", "counting": "used_ports"},
    ),
    "opus": (
        "Photonic rails, counted as the artifact does",
        PALETTE[5],
        "solid",
        "o",
        {"network": "photonic_rails", "counting": "artifact"},
    ),
}
_BEYOND = {
    "clos": ("Photonic rails on leaves and spines, circuits may move", PALETTE[3], "^"),
    "clos_strict": ("The same, no circuit ever moves", PALETTE[7], "v"),
}


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

    figure: Literal["rail_bills"]
    """Which figure it is."""

    platforms: dict[str, RailPlatformWords]
    """Platforms of the bills, a column of panels each."""

    switch: str
    """Optical switch that rails beyond one of it are made of."""

    least_gpus: Annotated[int, AtLeast(1)]
    """The smallest size that is drawn."""

    transceivers_per_gpu: Annotated[int, AtLeast(1)]
    """Transceivers of a GPU on photonic rails."""


def draw(settings: RailBillsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A column of panels for each platform: cost above power.

    Raises ValueError for a platform or a switch that the tables do not have.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, NullLocator

    bills = read_frames(inputs, "rails", _COLUMNS)
    published = published_frame(inputs, "published", _PUBLISHED)
    points = _points(settings, bills, published)
    subtitle = (
        "Electrical and photonic rails, one port and transceiver a GPU. Hollow diamonds: the"
        " published bills. A rail of more GPUs than half of the switch's ports needs leaves and"
        " spines of such switches; shaded: circuits may move, at half to twice the sourced"
        " price per port."
    )
    with canvas(
        settings,
        output,
        "What rails cost and draw, by size and by what is counted",
        subtitle,
        fidelity_line(
            bills["fidelity"],
            f"Port prices beyond one switch are assumed, the price of {_switch(settings)}'s",
        ),
    ) as figure:
        panels = figure.subplots(2, len(settings.platforms), sharex=False, squeeze=False)
        for row, key in enumerate(_PANELS):
            for column, (platform, words) in enumerate(settings.platforms.items()):
                axes = panels[row, column]
                own = points[(points["platform"] == platform) & (points["quantity"] == key)]
                _panel(axes, own)
                axes.set_title(words.words if row == 0 else "")
                axes.set_xlabel("GPUs")
                axes.set_ylabel(_LABELS[key])
                if key == "power":
                    axes.set_yscale("log")
                    axes.yaxis.set_major_locator(FixedLocator([10, 20, 50, 100, 200, 500]))
                    axes.yaxis.set_minor_locator(NullLocator())
                    axes.yaxis.set_major_formatter("{x:,.0f}")
                    axes.set_ylim(8, 500)
                else:
                    axes.set_ylim(0, None)
        handles: list[Any] = [
            Line2D([], [], color=colour, linestyle=dashes, marker=mark, markersize=4.5)
            for _, colour, dashes, mark, _ in _SERIES.values()
        ]
        texts = [words for words, *_ in _SERIES.values()]
        handles += [
            Line2D([], [], color=colour, marker=mark, markersize=5)
            for _, colour, mark in _BEYOND.values()
        ]
        texts += [words for words, *_ in _BEYOND.values()]
        handles += [Patch(facecolor=lighter(PALETTE[3], 0.7)), published_handle()]
        texts += ["Half to twice the price of an optical port", PUBLISHED.capitalize()]
        share_legend(figure, handles, texts, 2)
    return Drawn(_caption(settings, points), _alternative(settings, points), points)


def _switch(settings: RailBillsSettings) -> str:
    return settings.switch.replace("_", " ").replace("polatis 6000n", "the Polatis 6000N")


def _points(
    settings: RailBillsSettings, bills: pd.DataFrame, published: pd.DataFrame
) -> pd.DataFrame:
    """What is drawn, a row for each mark."""
    import pandas as pd

    for key, wanted, known in (
        ("platforms", list(settings.platforms), list(dict.fromkeys(bills["platform"]))),
        ("switch", [settings.switch], list(bills["switch"].dropna().unique())),
    ):
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise UserError(f"{key}: got {', '.join(unknown)}; allowed: {', '.join(known)}")
    bills = bills[bills["gpus"] >= settings.least_gpus]
    published = published[published["gpus"] >= settings.least_gpus]
    electrical = bills["network"] != "photonic_rails"
    bills = bills[electrical | (bills["transceivers_per_gpu"] == settings.transceivers_per_gpu)]
    rows: list[dict[str, Any]] = []
    for platform, words in settings.platforms.items():
        own = bills[bills["platform"] == platform]
        theirs = published[published["config"] == words.published]
        for quantity_, (column, unit) in _PANELS.items():
            for series, (*_, found) in _SERIES.items():
                chosen = own
                for key, value in found.items():
                    chosen = chosen[chosen[key] == value]
                rows += _rows(chosen, platform, quantity_, series, column)
                cell = f"{quantity_}_{series}_{unit}"
                if cell in theirs:
                    rows += [
                        {
                            "platform": platform,
                            "quantity": quantity_,
                            "series": series,
                            "source": "published",
                            "gpus": int(gpus),
                            "value": float(value) / int(gpus),
                        }
                        for gpus, value in zip(theirs["gpus"], theirs[cell], strict=True)
                    ]
            for arrangement in _BEYOND:
                chosen = own[
                    (own["arrangement"] == arrangement) & (own["switch"] == settings.switch)
                ]
                for factor in (0.5, 1.0, 2.0):
                    priced = chosen[chosen["ocs_port_price_factor"] == factor]
                    rows += _rows(priced, platform, quantity_, arrangement, column, factor)
    return pd.DataFrame(rows)


def _rows(
    chosen: pd.DataFrame,
    platform: str,
    quantity_: str,
    series: str,
    column: str,
    factor: float = 1.0,
) -> list[dict[str, Any]]:
    return [
        {
            "platform": platform,
            "quantity": quantity_,
            "series": series,
            "source": "ours",
            "ocs_port_price_factor": factor,
            "gpus": int(gpus),
            "value": float(value),
        }
        for gpus, value in zip(chosen["gpus"], chosen[column], strict=True)
    ]


def _panel(axes: Axes, points: pd.DataFrame) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    ours = points[points["source"] == "ours"]
    for series, (_, colour, dashes, mark, _) in _SERIES.items():
        own = ours[ours["series"] == series].sort_values("gpus")
        axes.plot(
            own["gpus"],
            own["value"],
            color=colour,
            linestyle=dashes,
            linewidth=LINE_POINTS,
            marker=mark,
            markersize=4.5,
        )
    for series, (_, colour, mark) in _BEYOND.items():
        own = ours[ours["series"] == series]
        bands = own.pivot_table(index="gpus", columns="ocs_port_price_factor", values="value")
        if bands.empty:
            continue
        if series == "clos":
            axes.fill_between(
                bands.index, bands[0.5], bands[2.0], color=lighter(colour, 0.75), linewidth=0
            )
        axes.plot(
            bands.index,
            bands[1.0],
            color=colour,
            marker=mark,
            markersize=5,
            linewidth=LINE_POINTS,
        )
    theirs = points[points["source"] == "published"]
    published_marks(axes, theirs["gpus"], theirs["value"])
    sizes = sorted(set(points["gpus"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([size for size in sizes if not size & (size - 1)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0.85 * sizes[0], 1.18 * sizes[-1])


def _caption(settings: RailBillsSettings, points: pd.DataFrame) -> str:
    sentences = []
    for platform, words in settings.platforms.items():
        parts = []
        for quantity_, unit in (("cost", "USD"), ("power", "W")):
            own = points[
                (points["platform"] == platform)
                & (points["quantity"] == quantity_)
                & (points["source"] == "ours")
                & (points["ocs_port_price_factor"] == 1)
            ]
            photonic = own[own["series"] == "opus"].set_index("gpus")["value"]
            ratios = []
            for series, text in (
                ("rail_opt", "as the artifact counts"),
                ("spine", "by used ports"),
                ("alone", "without a spine"),
            ):
                other = own[own["series"] == series].set_index("gpus")["value"]
                gpus = 512 if 512 in other.index else int(other.index[0])
                ratios.append(f"{quantity(other[gpus] / photonic[gpus])} times {text}")
            parts.append(
                f"{quantity(photonic.iloc[0])} {unit} a GPU on photonic rails, on electrical ones"
                f" {listed(ratios)}"
            )
        sentences.append(f"{words.words}: {'; '.join(parts)}.")
    beyond = points[(points["series"] == "clos") & (points["source"] == "ours")]
    if not beyond.empty:
        sentences.append(
            f"The published bills charge two optical ports a GPU at any size; from"
            f" {int(beyond['gpus'].min()):,} GPUs on a rail may outgrow one switch, and leaves and"
            " spines take three ports for each of a GPU."
        )
    return " ".join(sentences)


def _alternative(settings: RailBillsSettings, points: pd.DataFrame) -> str:
    sizes = sorted(set(points["gpus"]))
    return (
        "Cost and power per GPU of electrical and photonic rails from"
        f" {sizes[0]:,} to {sizes[-1]:,} GPUs on {len(settings.platforms)} platforms. Lines are"
        " nearly level in size; those counted as the artifact does lie highest, electrical rails"
        " without a spine nearest to photonic ones, which rise where a rail needs leaves and"
        " spines of switches."
    )


FIGURE = Figure(
    settings=RailBillsSettings,
    title="What rails cost and draw, by size and by what is counted",
    paper="opus",
    inputs=(
        FigureInput("rails", "economics.rails", columns=_COLUMNS),
        FigureInput("published", published="opus_cost_power.csv", columns=_PUBLISHED),
    ),
    draw=draw,
)
