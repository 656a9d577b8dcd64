"""For which prices the two relative cost claims of RailX hold.

A grid of price ratios: both ratios of cost depend on prices only through the price of
an optical switch port and of an electrical switch port, each relative to a transceiver.
Cells in which the ratio is below the abstract's limit are outlined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from railx.errors import UserError
from railx.figures.figure import Axes, Canvas, CanvasSettings, DataFrame, Drawn, Height, declare
from railx.figures.tables import Tables, where
from railx.figures.theme import INK, PALETTE, PUBLISHED, label, lighter, text_colour
from railx.figures.words import fidelity_line, phrases, quantity, span, spoken
from railx.settings import Fraction, NotEmpty

__all__ = ["FIGURE", "PriceSensitivitySettings"]

_PORTS = {"ocs_port": "ocs_port_usd", "switch_port": "electrical_switch_port_usd"}


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
    rows = where(table, view="ratio", reference=settings.reference, all_to_all=settings.all_to_all)
    if rows.empty:
        pairs = sorted(set(phrases(table, "{reference} with {all_to_all}", "\n").splitlines()))
        raise UserError(
            f"reference: no price ratios for {settings.reference} with {settings.all_to_all};"
            f" allowed: {', '.join(pairs)}"
        )
    for port, column in _PORTS.items():
        rows[f"{port}_over_transceiver"] = (rows[column] / rows["transceiver_usd"]).round(6)
    limits = {
        "injection": settings.published_per_injection,
        "all-to-all": settings.published_per_all_to_all,
    }
    basis = label(settings.all_to_all).lower()
    subtitle = f"""Share of {label(settings.reference).lower()} (%), all-to-all bandwidth: {basis}.
        Outlined: below the limit in the paper's abstract."""
    cells = {bandwidth: _cells(rows, bandwidth) for bandwidth in limits}
    with canvas(subtitle, fidelity_line(rows["fidelity"])) as page:
        panels = page.subplots(1, 2, sharey=True)
        for axes, (bandwidth, limit) in zip(panels, limits.items(), strict=True):
            _grid(axes, cells[bandwidth], limit)
            axes.set_title(f"Per {bandwidth} bandwidth, limit {quantity(100 * limit)} %")
        panels[0].set_ylabel("Electrical switch port / transceiver")
    parts, grids = [], []
    for bandwidth, limit in limits.items():
        shares = 100 * rows[_column(bandwidth)]
        parts.append(f"""Per {bandwidth} bandwidth it goes from {span(shares)} % of
            {spoken(label(settings.reference))}; {int((shares < 100 * limit).sum())} of {len(rows)}
            price ratios stay below the {PUBLISHED} {quantity(100 * limit)} %.""")
        lines = [
            f"switch port {index:g}: {' '.join(map(quantity, line))}"
            for index, line in cells[bandwidth].iterrows()
        ]
        grids.append(f"per {bandwidth} {', '.join(lines)}")
    caption = f"""Cost of {spoken(label(str(rows["topology"].iloc[0])))} for the same bandwidth,
        over the prices of an optical and of an electrical switch port relative to a transceiver
        (all-to-all bandwidth: {basis}). {" ".join(parts)}"""
    alternative = f"""Two grids of cost shares in percent, optical ports from cheap to dear.
        {"; ".join(grids)}."""
    return Drawn(caption, alternative, rows)


def _column(bandwidth: str) -> str:
    return f"{bandwidth.replace('-', '_')}_cost_ratio"


def _cells(rows: DataFrame, bandwidth: str) -> DataFrame:
    """Shares in percent: a row for each price of a switch port, the dearest on top."""
    table = rows.pivot_table(
        index="switch_port_over_transceiver",
        columns="ocs_port_over_transceiver",
        values=_column(bandwidth),
    )
    return 100 * table.sort_index(ascending=False)


def _grid(axes: Axes, cells: DataFrame, limit: float) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    for y, (_, line) in enumerate(cells.iterrows()):
        for x, value in enumerate(line):
            # White at nothing, the full colour at twice the limit and beyond.
            fill = to_hex(lighter(PALETTE[1], 1 - min(1.0, value / max(200 * limit, 1))))
            look: dict[str, Any] = {"facecolor": fill, "edgecolor": "white", "linewidth": 1.5}
            axes.add_patch(Rectangle((x, y), 1, 1, **look))
            centred: dict[str, Any] = {"ha": "center", "va": "center", "color": text_colour(fill)}
            axes.text(x + 0.5, y + 0.5, quantity(value), **centred)
            if value < 100 * limit:
                outline: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 1.8}
                axes.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, **outline))
    axes.set(xlim=(0, len(cells.columns)), ylim=(len(cells), 0), xlabel="OCS port / transceiver")
    axes.set_xticks([x + 0.5 for x in range(len(cells.columns))], [f"{v:g}" for v in cells.columns])
    axes.set_yticks([y + 0.5 for y in range(len(cells))], [f"{v:g}" for v in cells.index])
    axes.grid(visible=False)


FIGURE = declare(
    PriceSensitivitySettings,
    "For which prices the cost claims hold",
    "railx",
    draw,
    sensitivity="economics.sensitivity: view reference all_to_all transceiver_usd ocs_port_usd"
    " electrical_switch_port_usd injection_cost_ratio all_to_all_cost_ratio fidelity",
)
