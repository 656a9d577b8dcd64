"""Prices of whole networks relative to a fat tree, published and ours.

Published is HammingMesh's table of costs; ours are the costs over scale at the price
list that stands for it. Ratios are shown, since the two need not count the same ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.published import published_frame, published_mark
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import GREY, INK, PALETTE, canvas, label, quantity, share_legend
from railx.settings import NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "NetworkPricesSettings"]

_PUBLISHED = ("id", "network", "accelerators", "million_usd", "confidence")
_SCALE = (
    "topology",
    "target_chips",
    "price_set",
    "chips",
    "usd_per_injection_gb_s",
    "fidelity",
)
_OURS = PALETTE[0]


@dataclass(frozen=True)
class NetworkPricesSettings(CanvasSettings):
    """Prices of networks over a fat tree's, published beside ours."""

    figure: Literal["network_prices"]
    """Which figure it is."""

    price_set: Annotated[str, NotEmpty()]
    """Price list of our costs over scale."""

    published_reference: Annotated[str, NotEmpty()]
    """Published network that the others are held against."""

    networks: dict[str, str]
    """Published networks in the order of the rows, and the network of ours that stands
    for each; empty: none does."""


def draw(settings: NetworkPricesSettings, inputs: FigureFiles, output: Path) -> Drawn:
    """A panel per published size, a row per network.

    Raises ValueError for a price list or network that the tables do not have.
    """
    from matplotlib.lines import Line2D

    published = published_frame(inputs, "published", _PUBLISHED)
    scale = read_frames(inputs, "scale", _SCALE)
    points = _points(settings, published, scale)
    sizes = sorted(set(points["size"]))
    sure = sorted(set(published["confidence"]))
    subtitle = (
        "Cost of a network over that of a full fat tree for as many chips: published per chip, ours"
        " per injection bandwidth. Hollow diamonds: published, confidence"
        f" {' and '.join(sure)}; dots: ours at the price list {label(settings.price_set)}."
    )
    with canvas(
        settings,
        output,
        "Prices of networks relative to a fat tree",
        subtitle,
        fidelity_line(scale["fidelity"]),
    ) as figure:
        panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        for axes, size in zip(panels, sizes, strict=True):
            _rows(axes, points[points["size"] == size], list(settings.networks))
            axes.set_title(f"About {size:,} chips")
        handles = [
            Line2D([], [], **published_mark(INK)),
            Line2D([], [], linestyle="none", marker="o", color=_OURS),
        ]
        share_legend(figure, handles, ["Published (HammingMesh)", "Ours"], 2)
    return Drawn(_caption(points), _alternative(points), points)


def _points(
    settings: NetworkPricesSettings, published: pd.DataFrame, scale: pd.DataFrame
) -> pd.DataFrame:
    import pandas as pd

    known = list(dict.fromkeys(published["network"]))
    unknown = [
        name for name in (settings.published_reference, *settings.networks) if name not in known
    ]
    if unknown:
        raise UserError(f"networks: got {', '.join(unknown)}; allowed: {', '.join(known)}")
    prices = list(dict.fromkeys(scale["price_set"]))
    if settings.price_set not in prices:
        raise UserError(
            f"price_set: got {settings.price_set}; allowed: {', '.join(map(str, prices))}"
        )
    chosen = scale[scale["price_set"] == settings.price_set]
    costs = {
        (str(row["topology"]), int(row["target_chips"])): float(row["usd_per_injection_gb_s"])
        for row in chosen.to_dict("records")
    }
    rows = []
    for size, own in published.groupby("accelerators"):
        million = own.set_index("network")["million_usd"]
        tree = settings.networks[settings.published_reference]
        for name, ours in settings.networks.items():
            row: dict[str, Any] = {"size": int(str(size)), "network": name}
            rows.append(
                row
                | {
                    "source": "published",
                    "ratio": float(million[name] / million[settings.published_reference]),
                    "million_usd": float(million[name]),
                }
            )
            cost, reference = costs.get((ours, row["size"])), costs.get((tree, row["size"]))
            if cost and reference:
                rows.append(row | {"source": "ours", "ratio": cost / reference, "topology": ours})
    return pd.DataFrame(rows)


def _rows(axes: Axes, points: pd.DataFrame, names: list[str]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.axvline(1, color=GREY, linewidth=0.8)
    for source, style, up in (
        ("published", published_mark(INK), -0.16),
        ("ours", {"linestyle": "none", "marker": "o", "color": _OURS, "markersize": 6.5}, 0.16),
    ):
        own = points[points["source"] == source]
        places = [names.index(name) + up for name in own["network"]]
        axes.plot(own["ratio"], places, **style)
        for ratio, place in zip(own["ratio"], places, strict=True):
            axes.annotate(
                quantity(float(ratio)),
                (ratio, place),
                (7, 0),
                textcoords="offset points",
                va="center",
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([0.05, 0.1, 0.2, 0.5, 1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
    axes.set_yticks(range(len(names)), [name[:1].upper() + name[1:] for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0.7 * float(points["ratio"].min()), 2 * float(points["ratio"].max()))
    axes.set_xlabel("Cost / that of a full fat tree")
    axes.grid(visible=False, axis="y")


def _caption(points: pd.DataFrame) -> str:
    sentences = []
    for size, own in points.groupby("size"):
        ratios = own.pivot_table(index="network", columns="source", values="ratio", sort=False)
        parts = []
        for name, row in ratios.iterrows():
            text = f"{name} {quantity(row['published'])}"
            has_ours = "ours" in row and row["ours"] == row["ours"]
            parts.append(text + (f", ours {quantity(row['ours'])}" if has_ours else ""))
        sentences.append(f"About {size:,} chips, over a full fat tree: {'; '.join(parts)}.")
    return (
        f"{' '.join(sentences)} The published costs are from memory and per chip, ours per"
        " injection bandwidth at the ports of this experiment and without the links on a board, so"
        " that only ratios compare."
    )


def _alternative(points: pd.DataFrame) -> str:
    both = points.pivot_table(index=["size", "network"], columns="source", values="ratio")
    if "ours" not in both or both["ours"].notna().sum() == 0:
        return f"Dots of {len(both)} published cost ratios over a fat tree; ours has none."
    pairs = both.dropna()
    factor = (pairs["ours"] / pairs["published"]).agg(["min", "max"])
    return (
        f"Dots of cost ratios over a fat tree, {len(both)} published and {len(pairs)} ours; ours"
        f" are {quantity(float(factor['min']))} to {quantity(float(factor['max']))} times the"
        " published ratios."
    )


FIGURE = Figure(
    settings=NetworkPricesSettings,
    title="Prices of networks relative to a fat tree",
    paper="railx",
    inputs=(
        FigureInput("scale", "economics.scale", columns=_SCALE),
        FigureInput("published", published="hammingmesh_cost.csv", columns=_PUBLISHED),
    ),
    draw=draw,
)
