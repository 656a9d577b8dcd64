"""What photonic rails save over electrical ones as the cluster grows.

Published are the artifact's bills for several sizes and price lists; ours are counted
as the artifact counts, at every size of this experiment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from railx.figures.figure import Canvas, CanvasSettings, Drawn, Height, declare
from railx.figures.panels import at_edge, published_line, share_legend, ticks
from railx.figures.tables import Tables, refuse_unknown, stack, where
from railx.figures.theme import INK, PALETTE, PUBLISHED, PUBLISHED_LINE, dot, published_series
from railx.figures.types import Axes, DataFrame, Series
from railx.figures.words import fidelity_line, quantity, span

__all__ = ["FIGURE", "RailSavingsSettings", "SavingsPlatform"]

#: What a panel shows, and the headline that is published for it.
_PANELS = {
    "cost": ("Cost", "network_cost_reduction"),
    "power": ("Power", "network_power_reduction"),
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

    figure: Literal["rail_savings"] = "rail_savings"
    height_inches: Height = 5.4

    platforms: dict[str, SavingsPlatform] = field(
        default_factory=lambda: {
            "H200_400G_fig15_trx879": SavingsPlatform(
                "H200, 400G, transceiver at 879 USD", "h200_400g"
            ),
            "GB200_800G_fig15_trx879": SavingsPlatform(
                "GB200, 800G, transceiver at 879 USD", "gb200_800g"
            ),
            "H100_400G_notebook_trx219": SavingsPlatform(
                "H100, 400G, transceiver at 219 USD", "h100_400g_notebook"
            ),
        }
    )
    """Published platforms (column config), in the order of the legend."""


def draw(settings: RailSavingsSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """A panel for cost and one for power.

    Raises ValueError for a platform that a table does not have.
    """
    headline, rails = tables.values("headline"), tables.read("rails")
    points = _points(settings, tables.read("published"), rails)
    subtitle = """Electrical rails over photonic rails: network cost, network power. Hollow
        diamonds: published bills; dots: ours, counted as the published script does. The axes of
        ratios begin at 0."""
    colours = dict(zip(settings.platforms, PALETTE, strict=False))
    note = "Published bills: the artifact's, recalculated"
    with canvas(subtitle, fidelity_line(rails["fidelity"], note)) as page:
        panels = page.subplots(1, len(_PANELS))
        for axes, (key, (title, promise)) in zip(panels, _PANELS.items(), strict=True):
            _panel(axes, where(points, quantity=key), colours, float(headline[promise]))
            axes.set(title=title, xlabel="GPUs", ylabel="Times lower with photonic rails")
        legend: dict[str, Any] = {
            pair.words: published_series(colours[key]) for key, pair in settings.platforms.items()
        }
        legend["Ours, in the colour of its platform"] = dot(INK)
        share_legend(page, legend | {f"Abstract, {PUBLISHED}": PUBLISHED_LINE}, 2)
    return Drawn(*_texts(settings, points, headline), points)


def _points(settings: RailSavingsSettings, published: DataFrame, rails: DataFrame) -> DataFrame:
    """A row for each platform, quantity, source and size."""
    refuse_unknown("platforms", settings.platforms, published["config"])
    counted = where(rails, network="photonic_rails", counting="artifact", transceivers_per_gpu=1)
    parts = []
    for name, pair in settings.platforms.items():
        refuse_unknown(f"platforms.{name}.platform", [pair.platform], counted["platform"])
        sources = {
            "published": (where(published, config=name), "ratio_rail_over_opus"),
            "ours": (where(counted, platform=pair.platform), "ratio"),
        }
        for key, (source, (rows, column)) in product(_PANELS, sources.items()):
            head = {"source": source, "quantity": key, "platform": name}
            ratios = rows.assign(**head, ratio=rows[f"{key}_{column}"])
            parts.append(ratios[[*head, "gpus", "ratio"]])
    return stack(parts)


def _panel(axes: Axes, points: DataFrame, colours: dict[str, str], promise: float) -> None:
    published_line(axes, promise, "y", zorder=1.5)
    at_edge(axes, f"{promise:g} times", promise, 4, -4, va="top")
    for platform, rows in points.groupby("platform", sort=False):
        colour = colours[str(platform)]
        lines = where(rows, source="published").sort_values("gpus")
        axes.plot(lines["gpus"], lines["ratio"], **published_series(colour))
        ours = where(rows, source="ours")
        axes.plot(ours["gpus"], ours["ratio"], **dot(colour, 3.5, zorder=2.2))
    sizes = sorted(set(where(points, source="published")["gpus"]))
    axes.set_xscale("log", base=2)
    ticks(axes.xaxis, sizes, "{x:,.0f}")
    axes.set_xlim(0.8 * sizes[0], 1.25 * sizes[-1])
    axes.set_ylim(0, 1.12 * max(float(points["ratio"].max()), promise))


def _texts(
    settings: RailSavingsSettings, points: DataFrame, headline: Series[Any]
) -> tuple[str, str]:
    """Caption and alternative text."""
    keys = ["quantity", "platform"]
    both = points.pivot_table(index=[*keys, "gpus"], columns="source", values="ratio").dropna()
    sentences = []
    for key, (title, promise) in _PANELS.items():
        parts = []
        for platform, pair in settings.platforms.items():
            rows = both.xs((key, platform))
            apart = float((rows["ours"] / rows["published"] - 1).abs().max())
            parts.append(f"""{pair.words} {span(rows["published"])}, ours within
                {quantity(100 * apart)} % at {len(rows)} sizes""")
        times = f"{headline[promise]:g} times lower in the abstract"
        sentences.append(f"{title}, {times}: {'; '.join(parts)}.")
    sizes = sorted(set(points["gpus"]))
    means = points.groupby(keys, sort=False)["ratio"].mean()
    best = {key: settings.platforms[str(means[key].idxmax())].words for key in _PANELS}
    alternative = f"""Lines of the cost and of the power of electrical over photonic rails from
        {sizes[0]:,} to {sizes[-1]:,} GPUs, one per platform, nearly level in size; the highest
        saving in cost is {best["cost"]}, in power {best["power"]}."""
    return " ".join(sentences), alternative


FIGURE = declare(
    RailSavingsSettings,
    "What photonic rails save, by size of the cluster",
    "opus",
    draw,
    rails="economics.rails: platform gpus network counting transceivers_per_gpu cost_ratio"
    " power_ratio fidelity",
    published="opus_cost_power.csv: config gpus cost_ratio_rail_over_opus"
    " power_ratio_rail_over_opus",
    headline="opus.csv: id value",
)
