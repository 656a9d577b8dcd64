"""For which prices the two relative cost claims of RailX hold.

A grid of price ratios: both ratios of cost depend on prices only through the price of
an optical switch port and of an electrical switch port, each relative to a transceiver.
Cells in which the ratio is below the abstract's limit are outlined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.errors import UserError
from railx.figures.figure import Canvas, CanvasSettings, Drawn, Figure, Height
from railx.figures.tables import FigureInput, Tables
from railx.figures.theme import INK, PALETTE, PUBLISHED, label, lighter, text_colour
from railx.figures.types import Axes, DataFrame
from railx.figures.words import fidelity_line, quantity, sentence, spoken
from railx.settings import Fraction, NotEmpty

__all__ = ["FIGURE", "PriceSensitivitySettings"]


@dataclass(frozen=True)
class PriceSensitivitySettings(CanvasSettings):
    """Cost per bandwidth relative to a reference over a grid of price ratios."""

    figure: Literal["price_sensitivity"] = "price_sensitivity"
    height_inches: Height = 4.4

    reference: Annotated[str, NotEmpty()] = "fat_tree_full"
    """Topology that the cost is relative to."""

    all_to_all: Annotated[str, NotEmpty()] = "ideal"
    """All-to-all bandwidth of the rows: ``ideal`` or ``published_routing``."""

    published_per_injection: Annotated[float, Fraction()] = 0.1
    """Published limit of the cost per injection bandwidth, as a share of the
    reference's."""

    published_per_all_to_all: Annotated[float, Fraction()] = 0.5
    """Published limit of the cost per all-to-all bandwidth, as a share of the
    reference's."""


def draw(settings: PriceSensitivitySettings, tables: Tables, canvas: Canvas) -> Drawn:
    """Two heat maps from the rows of view ``ratio``.

    Raises ValueError when none has the reference and all-to-all bandwidth.
    """
    table = tables.read("sensitivity")
    rows = table[
        (table["view"] == "ratio")
        & (table["reference"] == settings.reference)
        & (table["all_to_all"] == settings.all_to_all)
    ]
    if rows.empty:
        allowed = ", ".join(
            sorted(
                {
                    f"{r} with {a}"
                    for r, a in zip(table["reference"], table["all_to_all"], strict=True)
                }
            )
        )
        raise UserError(
            f"reference: no price ratios for {settings.reference} with {settings.all_to_all};"
            f" allowed: {allowed}"
        )
    subtitle = (
        f"Share of {label(settings.reference).lower()} (%), all-to-all bandwidth:"
        f" {label(settings.all_to_all).lower()}. Outlined: below the limit in the paper's abstract."
    )
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        left, right = page.subplots(1, 2, sharey=True)
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
    return Drawn(_caption(rows, settings), _alternative(rows), _data(rows))


def _data(rows: DataFrame) -> DataFrame:
    return rows.assign(
        ocs_port_over_transceiver=(rows["ocs_port_usd"] / rows["transceiver_usd"]).round(6),
        switch_port_over_transceiver=(
            rows["electrical_switch_port_usd"] / rows["transceiver_usd"]
        ).round(6),
    )


def _cells(rows: DataFrame, column: str) -> DataFrame:
    """Shares in percent: a row for each price of a switch port, the dearest on top."""
    table = _data(rows).pivot_table(
        index="switch_port_over_transceiver", columns="ocs_port_over_transceiver", values=column
    )
    return 100 * table.sort_index(ascending=False)


def _grid(axes: Axes, rows: DataFrame, column: str, limit: float) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    cells = _cells(rows, column)
    for y, (_, line) in enumerate(cells.iterrows()):
        for x, value in enumerate(line):
            # White at nothing, the full colour at twice the limit and beyond.
            fill = to_hex(lighter(PALETTE[1], 1 - min(1.0, value / max(200 * limit, 1))))
            axes.add_patch(
                Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5)
            )
            axes.text(
                x + 0.5, y + 0.5, quantity(value), ha="center", va="center", color=text_colour(fill)
            )
            if value < 100 * limit:
                axes.add_patch(
                    Rectangle(
                        (x + 0.06, y + 0.06), 0.88, 0.88, fill=False, edgecolor=INK, linewidth=1.8
                    )
                )
    axes.set(xlim=(0, len(cells.columns)), ylim=(len(cells), 0), xlabel="OCS port / transceiver")
    axes.set_xticks([x + 0.5 for x in range(len(cells.columns))], [f"{v:g}" for v in cells.columns])
    axes.set_yticks([y + 0.5 for y in range(len(cells))], [f"{v:g}" for v in cells.index])
    axes.grid(visible=False)


def _caption(rows: DataFrame, settings: PriceSensitivitySettings) -> str:
    parts = []
    for column, limit, what in (
        ("injection_cost_ratio", settings.published_per_injection, "injection bandwidth"),
        ("all_to_all_cost_ratio", settings.published_per_all_to_all, "all-to-all bandwidth"),
    ):
        shares = 100 * rows[column]
        below = int((shares < 100 * limit).sum())
        parts.append(
            f"Per {what} it goes from {quantity(shares.min())} to {quantity(shares.max())} % of"
            f" {spoken(label(settings.reference))}; {below} of {len(rows)} price ratios stay"
            f" below the"
            f" {PUBLISHED} {quantity(100 * limit)} %."
        )
    return sentence(
        f"Cost of {spoken(label(str(rows['topology'].iloc[0])))} for the same bandwidth, over the"
        f" prices of"
        " an optical and of an electrical switch port relative to a transceiver (all-to-all"
        f" bandwidth: {label(settings.all_to_all).lower()}).",
        *parts,
    )


def _alternative(rows: DataFrame) -> str:
    grids = (
        (what, _cells(rows, column))
        for what, column in (
            ("injection", "injection_cost_ratio"),
            ("all-to-all", "all_to_all_cost_ratio"),
        )
    )
    parts = "; ".join(
        f"per {what} "
        + ", ".join(
            f"switch port {index:g}: " + " ".join(quantity(value) for value in line)
            for index, line in cells.iterrows()
        )
        for what, cells in grids
    )
    return f"Two grids of cost shares in percent, optical ports from cheap to dear. {parts}."


FIGURE = Figure(
    PriceSensitivitySettings,
    "For which prices the cost claims hold",
    "railx",
    (
        FigureInput(
            "sensitivity",
            "economics.sensitivity",
            "view reference all_to_all transceiver_usd ocs_port_usd "
            "electrical_switch_port_usd injection_cost_ratio all_to_all_cost_ratio fidelity",
        ),
    ),
    draw,
)
