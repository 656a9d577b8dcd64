"""What photonic rails save over electrical ones as the cluster grows.

Published are the artifact's bills for several sizes and price lists; ours are counted
as the artifact counts, at every size of this experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame, published_series
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import (
    INK,
    PALETTE,
    PUBLISHED,
    canvas,
    published_handle,
    published_line,
    quantity,
    share_legend,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "RailSavingsSettings", "SavingsPlatform"]

_RAILS = (
    *("platform", "gpus", "network", "counting", "transceivers_per_gpu"),
    *("cost_ratio", "power_ratio", "fidelity"),
)
_PUBLISHED = ("config", "gpus", "cost_ratio_rail_over_opus", "power_ratio_rail_over_opus")
_HEADLINES = ("id", "value")
#: What a panel shows: its title, the column of the published table and the headline.
_PANELS = {
    "cost": ("Cost", "cost_ratio_rail_over_opus", "network_cost_reduction"),
    "power": ("Power", "power_ratio_rail_over_opus", "network_power_reduction"),
}


@dataclass(frozen=True)
class SavingsPlatform:
    """A published platform and the one of ours that stands for it."""

    words: str
    """Words for the platform."""

    platform: str
    """Ours, a platform of the table of rails."""


@dataclass(frozen=True)
class RailSavingsSettings(CanvasSettings):
    """Cost and power of electrical over photonic rails, by size."""

    figure: Literal["rail_savings"]
    """Which figure it is."""

    platforms: dict[str, SavingsPlatform]
    """Published platforms (column config), in the order of the legend."""


def draw(settings: RailSavingsSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel for cost and one for power.

    Raises ValueError for a platform that a table does not have.
    """
    from matplotlib.lines import Line2D

    published = published_frame(inputs, "published", _PUBLISHED)
    headline = published_frame(inputs, "headline", _HEADLINES).set_index("id")["value"]
    rails = read_frames(inputs, "rails", _RAILS)
    points = _points(settings, published, rails)
    subtitle = (
        "Electrical rails over photonic rails: network cost, network power. Hollow diamonds:"
        " published bills; dots: ours, counted as the published script does. The axes of ratios"
        " begin at 0."
    )
    colours = dict(zip(settings.platforms, PALETTE, strict=False))
    with canvas(
        settings,
        output,
        "What photonic rails save, by size of the cluster",
        subtitle,
        fidelity_line(rails["fidelity"], "Published bills: the artifact's, recalculated"),
    ) as figure:
        panels = figure.subplots(1, len(_PANELS))
        for axes, (key, (title, _, promise)) in zip(panels, _PANELS.items(), strict=True):
            _panel(axes, points[points["quantity"] == key], colours, float(headline[promise]))
            axes.set(title=title, xlabel="GPUs", ylabel="Times lower with photonic rails")
        handles = [Line2D([], [], **published_series(colours[key])) for key in colours]
        texts = [pair.words for pair in settings.platforms.values()]
        handles.append(Line2D([], [], color=INK, linestyle="none", marker="o"))
        texts.append("Ours, in the colour of its platform")
        handles.append(published_handle(line=True))
        texts.append(f"Abstract, {PUBLISHED}")
        share_legend(figure, handles, texts, 2)
    return Drawn(_caption(settings, points, headline), _alternative(settings, points), points)


def _points(
    settings: RailSavingsSettings, published: pd.DataFrame, rails: pd.DataFrame
) -> pd.DataFrame:
    import pandas as pd

    known = list(dict.fromkeys(published["config"]))
    unknown = [name for name in settings.platforms if name not in known]
    if unknown:
        raise UserError(f"platforms: got {', '.join(unknown)}; allowed: {', '.join(known)}")
    counted = rails[
        (rails["network"] == "photonic_rails")
        & (rails["counting"] == "artifact")
        & (rails["transceivers_per_gpu"] == 1)
    ]
    rows = []
    for name, chosen in settings.platforms.items():
        bills = published[published["config"] == name]
        ours = counted[counted["platform"] == chosen.platform]
        if ours.empty:
            raise UserError(
                f"platforms.{name}.platform: got {chosen.platform}; allowed:"
                f" {', '.join(dict.fromkeys(counted['platform']))}"
            )
        for quantity_, (_, column, _) in _PANELS.items():
            for source, own, ratio_column in (
                ("published", bills, column),
                ("ours", ours, f"{quantity_}_ratio"),
            ):
                rows += [
                    {
                        "source": source,
                        "quantity": quantity_,
                        "platform": name,
                        "gpus": int(gpus),
                        "ratio": float(ratio),
                    }
                    for gpus, ratio in zip(own["gpus"], own[ratio_column], strict=True)
                ]
    return pd.DataFrame(rows)


def _panel(axes: Axes, points: pd.DataFrame, colours: dict[str, str], promise: float) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    published_line(axes, promise, "y", zorder=1.5)
    axes.annotate(
        f"{promise:g} times",
        (1, promise),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    for platform, own in points.groupby("platform", sort=False):
        lines = own[own["source"] == "published"].sort_values("gpus")
        axes.plot(lines["gpus"], lines["ratio"], **published_series(colours[str(platform)]))
        dots = own[own["source"] == "ours"]
        axes.plot(
            dots["gpus"],
            dots["ratio"],
            "o",
            color=colours[str(platform)],
            markersize=3.5,
            zorder=2.2,
        )
    sizes = sorted(set(points.loc[points["source"] == "published", "gpus"]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(0.8 * sizes[0], 1.25 * sizes[-1])
    axes.set_ylim(0, 1.12 * max(float(points["ratio"].max()), promise))


def _caption(settings: RailSavingsSettings, points: pd.DataFrame, headline: pd.Series) -> str:
    sentences = []
    for key, (title, _, promise) in _PANELS.items():
        own = points[points["quantity"] == key]
        parts = []
        for platform, rows in own.groupby("platform", sort=False):
            ratios = rows.pivot_table(index="gpus", columns="source", values="ratio")
            both = ratios.dropna()
            apart = float((both["ours"] / both["published"] - 1).abs().max())
            parts.append(
                f"{settings.platforms[str(platform)].words} {quantity(both['published'].min())} to"
                f" {quantity(both['published'].max())}, ours within {quantity(100 * apart)} % at"
                f" {len(both)} sizes"
            )
        sentences.append(
            f"{title}, {headline[promise]:g} times lower in the abstract: {'; '.join(parts)}."
        )
    return " ".join(sentences)


def _alternative(settings: RailSavingsSettings, points: pd.DataFrame) -> str:
    sizes = sorted(set(points["gpus"]))
    best = {
        key: settings.platforms[
            str(own.groupby("platform", sort=False)["ratio"].mean().idxmax())
        ].words
        for key, own in points.groupby("quantity")
    }
    return (
        "Lines of the cost and of the power of electrical over photonic rails from"
        f" {sizes[0]:,} to {sizes[-1]:,} GPUs, one per platform, nearly level in size; the highest"
        f" saving in cost is {best['cost']}, in power {best['power']}."
    )


FIGURE = Figure(
    settings=RailSavingsSettings,
    title="What photonic rails save, by size of the cluster",
    paper="opus",
    inputs=(
        FigureInput("rails", "economics.rails", columns=_RAILS),
        FigureInput("published", published="opus_cost_power.csv", columns=_PUBLISHED),
        FigureInput("headline", published="opus.csv", columns=_HEADLINES),
    ),
    draw=draw,
)
