"""For which prices the two relative cost claims of RailX hold.

A grid of price ratios: both ratios of cost depend on prices only through the price of
an optical switch port and of an electrical switch port, each relative to a transceiver.
Cells in which the ratio is below the abstract's limit are outlined.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from railx.figures.fidelity import fidelity_line
from railx.figures.figure import Drawn, Figure, FigureFiles, FigureInput
from railx.figures.settings import CanvasSettings
from railx.figures.tables import read_frames
from railx.figures.theme import INK, canvas, label, quantity
from railx.settings import Fraction, NotEmpty

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURE", "PriceSensitivitySettings"]

_CAPTION = """\
Cost per bandwidth relative to a fat tree, in percent, over the prices of an optical
switch port and of an electrical switch port, both relative to the price of a
transceiver. Outlined cells are below the limit in the paper's abstract: they show for
which prices the claim holds.
"""
_ALTERNATIVE = (
    "Two grids of the cost per bandwidth relative to the fat tree, over the price of an "
    "optical switch port and of an electrical one, both relative to a transceiver; cells "
    "in which the paper's claim holds are outlined."
)

_PRICES = ("transceiver_usd", "ocs_port_usd", "electrical_switch_port_usd")
_COLUMNS = (
    "view",
    "reference",
    "all_to_all",
    *_PRICES,
    "injection_cost_ratio",
    "all_to_all_cost_ratio",
    "fidelity",
)


@dataclass(frozen=True)
class PriceSensitivitySettings(CanvasSettings):
    """Cost per bandwidth relative to a reference over a grid of price ratios."""

    figure: Literal["price_sensitivity"]
    """Which figure it is."""

    reference: Annotated[str, NotEmpty()]
    """Topology that the cost is relative to."""

    all_to_all: Annotated[str, NotEmpty()]
    """All-to-all bandwidth of the rows: ``ideal`` or ``published_routing``."""

    published_per_injection: Annotated[float, Fraction()]
    """Published limit of the cost per injection bandwidth, as a share of the
    reference's."""

    published_per_all_to_all: Annotated[float, Fraction()]
    """Published limit of the cost per all-to-all bandwidth, as a share of the
    reference's."""


def draw(settings: PriceSensitivitySettings, inputs: FigureFiles, output: Path) -> Drawn:
    """Two heat maps from the rows of view ``ratio``.

    Raises ValueError when none has the reference and all-to-all bandwidth.
    """
    table = read_frames(inputs, "sensitivity", _COLUMNS)
    rows = table[
        (table["view"] == "ratio")
        & (table["reference"] == settings.reference)
        & (table["all_to_all"] == settings.all_to_all)
    ]
    if rows.empty:
        known = ", ".join(
            sorted(
                {
                    f"{r} with {a}"
                    for r, a in zip(table["reference"], table["all_to_all"], strict=True)
                }
            )
        )
        raise ValueError(
            f"reference: no price ratios for {settings.reference} with {settings.all_to_all};"
            f" allowed: {known}"
        )
    subtitle = (
        f"Share of {label(settings.reference).lower()} (%), all-to-all bandwidth:"
        f" {label(settings.all_to_all).lower()}. Outlined: below the limit in the paper's abstract."
    )
    with canvas(
        settings,
        output,
        "For which prices the cost claims hold",
        subtitle,
        fidelity_line(rows["fidelity"]),
    ) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _grid(left, rows, "injection_cost_ratio", settings.published_per_injection)
        _grid(right, rows, "all_to_all_cost_ratio", settings.published_per_all_to_all)
        left.set_title(
            f"Per injection bandwidth, limit {quantity(100 * settings.published_per_injection)} %"
        )
        right.set_title(
            f"Per all-to-all bandwidth, limit {quantity(100 * settings.published_per_all_to_all)} %"
        )
        left.set_ylabel("Electrical switch port / transceiver")
        right.set_ylabel("")
    return Drawn(_CAPTION, _ALTERNATIVE, rows)


def _grid(axes: Axes, rows: pd.DataFrame, column: str, limit: float) -> None:
    import seaborn as sns
    from matplotlib.patches import Rectangle

    ratios = rows.assign(
        ocs=(rows["ocs_port_usd"] / rows["transceiver_usd"]).round(6),
        switch=(rows["electrical_switch_port_usd"] / rows["transceiver_usd"]).round(6),
    )
    cells = 100 * ratios.pivot_table(index="switch", columns="ocs", values=column).sort_index(
        ascending=False
    )
    texts = cells.map(quantity)
    sns.heatmap(
        cells,
        ax=axes,
        annot=texts,
        fmt="",
        cmap="YlOrBr",
        vmin=0,
        vmax=max(200 * limit, 1),
        cbar=False,
        linewidths=1.5,
        linecolor="white",
    )
    for y, (_, line) in enumerate(cells.iterrows()):
        for x, value in enumerate(line):
            if value < 100 * limit:
                axes.add_patch(
                    Rectangle(
                        (x + 0.06, y + 0.06), 0.88, 0.88, fill=False, edgecolor=INK, linewidth=1.8
                    )
                )
    axes.set_xticklabels([f"{value:g}" for value in cells.columns], rotation=0)
    axes.set_yticklabels([f"{value:g}" for value in cells.index], rotation=0)
    axes.set_xlabel("OCS port / transceiver")


FIGURE = Figure(
    settings=PriceSensitivitySettings,
    title="For which prices the cost claims hold",
    paper="railx",
    inputs=(FigureInput("sensitivity", "economics.sensitivity"),),
    draw=draw,
)
