"""Cost per bandwidth and power over the number of chips, one line per topology.

Injection bandwidth is equal. A line ends where its family does; steps of a tree are
tiers of switches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.panels import entries, share_legend, ticks
from railx.figures.tables import Tables, records, refuse_unknown, where
from railx.figures.theme import PALETTE, colours, label
from railx.figures.words import fidelity_line, quantity, sentence
from railx.settings import NotEmpty

__all__ = ["FIGURE", "CostScaleSettings"]

_PANELS = (
    ("usd_per_injection_gb_s", "Cost per injection bandwidth", "USD per GB/s"),
    ("usd_per_all_to_all_gb_s", "Cost per all-to-all bandwidth", "USD per GB/s"),
    ("watts_per_chip", "Power", "W per chip"),
)
_MARKERS = "osD^vP"
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


@dataclass(frozen=True)
class CostScaleSettings(CanvasSettings):
    """Cost per bandwidth and power over the number of chips, one line per topology."""

    figure: Literal["cost_scale"] = "cost_scale"
    height_inches: Height = 6.2

    only: tuple[str, ...] = (
        "railx_hyperx_full",
        "railx_hyperx_m4",
        "railx_torus_full",
        "hammingmesh_full",
        "hammingmesh_m4_full",
        "torus_2d_full",
        "torus_3d_full",
        "tpu_v4",
        "opus_rails_equal",
        "rail_only_full",
        "dragonfly_full",
        "hyperx_full",
        "fat_tree_full",
        "fat_tree_full_half_taper",
    )
    """Topologies of the scale table to show, in that order; empty: all."""

    price_set: Annotated[str, NotEmpty()] = "opus_400g"
    """Price set of the rows to show."""


def draw(settings: CostScaleSettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Three panels; a topology is left out of a panel where it has no value.

    Raises ValueError for an unknown name or price set.
    """
    table = tables.read("scale")
    rows = _chosen(settings, table)
    names = list(settings.only) or list(dict.fromkeys(rows["topology"]))
    injection = "{:,.0f}".format(rows["injection_gb_s_per_chip"].iloc[0])
    subtitle = f"""All at {injection} GB/s of injection per chip and the prices of
        {label(settings.price_set)}; electrical and optical switches by the port; links inside a
        node in no bill. m4: nodes of 4 x 4 chips instead of 7 x 7."""
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        panels = page.subplots(1, 3)
        for axes, (column, title, unit) in zip(panels, _PANELS, strict=True):
            _panel(axes, rows, names, column)
            axes.set(title=title, xlabel="Chips", ylabel=unit)
        share_legend(page, entries(panels[0]), 5)
    return Drawn(_caption(rows, settings), _alternative(rows), rows[tables.columns("scale")])


def _chosen(settings: CostScaleSettings, table: DataFrame) -> DataFrame:
    refuse_unknown("price_set", [settings.price_set], table["price_set"])
    rows = where(table, price_set=settings.price_set)
    refuse_unknown("only", settings.only, rows["topology"])
    return rows[rows["topology"].isin(settings.only)] if settings.only else rows


def _panel(axes: Axes, rows: DataFrame, names: list[str], column: str) -> None:
    from matplotlib.ticker import LogLocator

    # A dash style is a round through the palette, so that no two lines look alike.
    rounds = [names[i : i + len(PALETTE)] for i in range(0, len(names), len(PALETTE))]
    colour = {name: chosen for part in rounds for name, chosen in colours(part).items()}
    for i, name in enumerate(names):
        line = where(rows, topology=name).drop_duplicates("chips").sort_values("chips")
        style: dict[str, Any] = {"color": colour[name], "linewidth": 1.6, "label": _name(name)}
        style["linestyle"] = _DASHES[i // len(PALETTE) % len(_DASHES)]
        style |= {"marker": _MARKERS[i % len(_MARKERS)], "markersize": 4.5}
        axes.plot(line["chips"], line[column].astype(float), **style)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(LogLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    ticks(axes.xaxis, text=lambda value: f"{value / 1000:g}K")
    ticks(axes.yaxis, text="{x:,g}")


def _largest(rows: DataFrame, column: str) -> list[tuple[str, int, float]]:
    """Name, chips and value of each topology at its largest, the lowest value first."""
    ends = rows[rows[column].notna()].sort_values("chips").groupby("topology").tail(1)
    return sorted(
        ((_name(row["topology"]), int(row["chips"]), float(row[column])) for row in records(ends)),
        key=lambda end: end[2],
    )


def _caption(rows: DataFrame, settings: CostScaleSettings) -> str:
    parts = []
    for column, title, unit in _PANELS:
        ends = _largest(rows, column)
        if ends:
            (low, chips, lowest), (high, more, most) = ends[0], ends[-1]
            parts.append(f"""{title}: at their largest, lowest on {low} with {quantity(lowest)}
                {unit} at {chips:,} chips, highest on {high} with {quantity(most)} at {more:,}.""")
    injection = float(rows["injection_gb_s_per_chip"].iloc[0])
    return sentence(
        f"{rows['topology'].nunique()} topologies from {rows['chips'].min():,} to"
        f" {rows['chips'].max():,} chips, all at {injection:,.0f} GB/s of injection a chip and the"
        f" prices of {label(settings.price_set)}. Each point is the smallest size of the family"
        " with at least the wanted number of chips; a line ends where its family does, and steps of"
        " trees are tiers of switches.",
        *parts,
    )


def _alternative(rows: DataFrame) -> str:
    parts = ". ".join(
        f"{title} at the largest size: "
        + ", ".join(f"{name} {quantity(value)}" for name, _, value in _largest(rows, column))
        + f" {unit}"
        for column, title, unit in _PANELS
    )
    return f"Lines over the number of chips, one a topology, all axes logarithmic. {parts}."


def _name(topology: str) -> str:
    return label(topology.removesuffix("_full").replace("_full_", "_"))


FIGURE = declare(
    CostScaleSettings,
    "Cost and power over the number of chips",
    "railx",
    draw,
    scale="economics.scale: topology price_set chips injection_gb_s_per_chip"
    " usd_per_injection_gb_s usd_per_all_to_all_gb_s watts_per_chip fidelity",
)
