"""The price and power catalogue: one row per price set and component.

Each row has its source, date and confidence. RailX's component prices are not
published, so every bill names the price set of each of its rows. A set whose role is
``sensitivity`` (prices inferred from a paper's conclusion) serves analyses, but no
bill. Links inside nodes have prices whose role is ``assumption`` where no source gives
one: they are charged on request alone, and with a range.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from railx.errors import UserError, allowed_names
from railx.io import in_repository
from railx.settings import SettingsError

#: A table.
Rows: TypeAlias = list[dict[str, Any]]
#: The components of networks; a transceiver and a switch port are counted per port, a
#: copper cable per link, links inside nodes per GB/s of a chip in one direction.
#: Accelerators are in no network's bill.
COMPONENTS = (
    *("transceiver", "electrical_switch_port", "ocs_port", "copper_cable"),
    *("node_mesh_gb_s", "node_switch_gb_s", "accelerator"),
)
_COLUMNS = (
    *("price_set", "component", "port_gbps", "unit_usd", "unit_watts"),
    *("derivation", "source", "date", "confidence", "role"),
)
#: The range of a price; a catalogue without these columns has none.
_RANGE = ("low_usd", "high_usd")
_CHOICES = {
    "component": COMPONENTS,
    "confidence": ("high", "medium", "low"),
    "role": ("default", "sensitivity", "assumption"),
}


@dataclass(frozen=True)
class Cost:
    """USD, their range, and W of a network, per unit that the caller chose.

    ``watts`` is None where a component's has no source.
    """

    usd: float
    watts: float | None
    low_usd: float
    high_usd: float

    def scaled(self, factor: float) -> Cost:
        """So many units."""
        return Cost(
            factor * self.usd,
            None if self.watts is None else factor * self.watts,
            factor * self.low_usd,
            factor * self.high_usd,
        )


@dataclass(frozen=True)
class Price:
    """Price and power of one component in one price set.

    ``unit_watts`` and ``port_gbps`` are None where no source gives them. ``low_usd``
    and ``high_usd`` are the range of the price; None: the price itself.
    """

    price_set: str
    component: str
    port_gbps: float | None
    unit_usd: float
    unit_watts: float | None
    derivation: str
    source: str
    date: str
    confidence: str
    role: str
    low_usd: float | None = None
    high_usd: float | None = None

    @property
    def unit_cost(self) -> Cost:
        """USD, their range, and W of a unit."""
        low, high = (self.unit_usd if end is None else end for end in (self.low_usd, self.high_usd))
        return Cost(self.unit_usd, self.unit_watts, low, high)

    @property
    def provenance(self) -> str:
        """One line for the ``source`` column of a bill."""
        role = "; an assumption" if self.role == "assumption" else ""
        return f"{self.price_set}: {self.source}; {self.date}; confidence {self.confidence}{role}"


@dataclass(frozen=True)
class Catalogue:
    """All prices of a catalogue file."""

    path: str
    prices: tuple[Price, ...]

    @property
    def price_sets(self) -> tuple[str, ...]:
        """Names of the price sets in the order of the file."""
        return tuple(dict.fromkeys(price.price_set for price in self.prices))

    def components(self, price_set: str) -> dict[str, Price]:
        """The prices of a set by component; SettingsError where the set is unknown."""
        if price_set not in self.price_sets:
            raise SettingsError(
                "price_set",
                f"got {price_set!r}; allowed: {allowed_names(price_set, self.price_sets)}"
                f" (the sets of {self.path})",
            )
        return {price.component: price for price in self.prices if price.price_set == price_set}

    def price(self, price_set: str, component: str) -> Price:
        """The price of a component; SettingsError names the sets that contain it."""
        prices = self.components(price_set)
        if component not in prices:
            having = dict.fromkeys(
                price.price_set for price in self.prices if price.component == component
            )
            raise SettingsError(
                "price_set",
                f"{price_set!r} has no price for a {component}; allowed:"
                f" {', '.join(having) or 'none'} ({self.path})",
            )
        return prices[component]


def read_catalogue(path: str | Path) -> Catalogue:
    """Read a catalogue (CSV; USD and W per unit, Gb/s per port).

    Raises ValueError naming file, line and column.
    """
    path = in_repository(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; allowed: a CSV price catalogue")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            columns, rows = tuple(reader.fieldnames or ()), list(reader)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is no text; allowed: a CSV price catalogue"
        ) from None
    except csv.Error as error:
        raise UserError(f"{path}: no CSV ({error}); allowed: a CSV price catalogue") from None
    if columns not in (_COLUMNS, (*_COLUMNS, *_RANGE)):
        raise UserError(
            f"{path}: columns {', '.join(columns)}; allowed: {', '.join(_COLUMNS)}, and after them"
            f" {' and '.join(_RANGE)} or not"
        )
    prices = tuple(
        _price(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2)
    )
    keys = [(price.price_set, price.component) for price in prices]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(
                f"{path}: {key[0]} lists {key[1]} twice; allowed: one row per price set and"
                " component"
            )
    return Catalogue(str(path), prices)


def _price(row: dict[str, str], where: str) -> Price:
    if None in row or None in row.values():
        raise UserError(f"{where}: wrong number of cells; allowed: one for each column")
    for column, allowed in _CHOICES.items():
        if row[column] not in allowed:
            raise UserError(
                f"{where}, {column}: got {row[column]!r}; allowed: {', '.join(allowed)}"
            )
    if not row["source"]:
        raise UserError(f"{where}, source: is empty; allowed: where the price was read")
    unit_usd = _number(row["unit_usd"], f"{where}, unit_usd")
    if unit_usd is None:
        raise UserError(f"{where}, unit_usd: is empty; allowed: a number, 0 or greater")
    low, high = (_number(row.get(key, ""), f"{where}, {key}") for key in _RANGE)
    if not (unit_usd if low is None else low) <= unit_usd <= (unit_usd if high is None else high):
        raise UserError(
            f"{where}, low_usd: got {low} to {high} around {unit_usd:g}; allowed: a range with the"
            " price in it"
        )
    numbers = {key: _number(row[key], f"{where}, {key}") for key in ("port_gbps", "unit_watts")}
    given: dict[str, Any] = row | numbers | {"low_usd": low, "high_usd": high}
    return Price(**given | {"unit_usd": unit_usd})


def _number(text: str, where: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(
            f"{where}: got {text!r}; allowed: a number, 0 or greater, or empty where no source"
            " gives one"
        )
    return number
