"""One network beside the others of the arena at its size: text and one page.

Each network is one line of values that the arena computes. Jobs are the same on each;
networks have as many chips as the job has devices, or the next size that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from railx.design.arena import arena_rows
from railx.design.page import rendered
from railx.design.rates import RateStore
from railx.design.settings import ArenaSettings
from railx.errors import UserError
from railx.families import build_topology
from railx.io import write_text
from railx.performance.devices import device_named
from railx.progress import counted
from railx.text import aligned
from railx.vocabulary.topology import FamilySettings

Row = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A column: a value of the arena, by its subject and measure."""

    subject: str
    measure: str
    title: str
    digits: int = 0
    smaller: bool = False
    """Whether smaller is better."""
    a_device: bool = False
    """Whether the value is divided by the devices of the job."""


@dataclass(frozen=True)
class Comparison:
    """Networks in the order of the first measure, with what each is worth in all."""

    subject: str
    chips: int
    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    """``network``, ``family``, ``chips``, and ``values`` of the measures or None."""
    dropped: Mapping[str, str]
    """Networks without this size, and why."""
    notes: tuple[str, ...]
    """Why the compared network lacks a value."""

    def place(self, measure: int) -> tuple[int, int] | None:
        """The compared network's place in a column, and of how many."""
        values = {row["network"]: row["values"][measure] for row in self.rows}
        shown = [value for value in values.values() if value is not None]
        if (mine := values[self.subject]) is None:
            return None
        better = sum(
            value < mine if self.measures[measure].smaller else value > mine for value in shown
        )
        return better + 1, len(shown)

    def as_dict(self) -> dict[str, Any]:
        """Plain values: ``rows`` have one key a measure."""
        titles = [measure.title for measure in self.measures]
        rows = [
            {key: row[key] for key in ("network", "family", "chips")}
            | dict(zip(titles, row["values"], strict=True))
            for row in self.rows
        ]
        return {
            "network": self.subject,
            "chips": self.chips,
            "places": {title: self.place(index) for index, title in enumerate(titles)},
            "rows": rows,
            "dropped": dict(self.dropped),
            "notes": list(self.notes),
            "fidelity": {
                measure.title: "packet" if measure.subject.startswith("uniform at") else "analytic"
                for measure in self.measures
            },
        }


def compare_network(
    name: str,
    network: FamilySettings,
    settings: ArenaSettings,
    seed: int,
    store: RateStore | None = None,
    kept: Callable[[str, Callable[[], list[Row]]], list[Row]] | None = None,
) -> Comparison:
    """Compare ``network`` with those of ``settings``, each of as many chips or more.

    ``settings.chips`` is not used. ``kept`` remembers rows by name and size.
    """
    chips = build_topology(network).chips
    server = device_named(settings.point.devices).node_devices
    # Jobs take whole servers, the same number on each network.
    chips -= chips % server if chips > server else 0
    asked = replace(settings, chips=(chips,), networks={**settings.networks, name: network})
    measures = _measures(settings)
    rows, dropped, notes = [], {}, []
    for other in counted(asked.networks, "networks"):

        def values(other: str = other) -> list[Row]:
            return list(arena_rows(other, asked, seed, store))

        table = values() if kept is None or other == name else kept(f"{other} {chips}", values)
        by_key = {(row["subject"], row["measure"]): row for row in table}
        if ("", "size") in by_key:
            dropped[other] = by_key["", "size"]["note"]
            if other == name:
                raise UserError(f"{name}: {dropped[other]}")
            continue
        first = table[0]
        line = [_value(by_key.get((one.subject, one.measure)), one, chips) for one in measures]
        rows.append({key: first[key] for key in ("network", "family", "chips")} | {"values": line})
        if other == name:
            notes = [
                f"{row['subject'] or row['measure']}: {row['note']}"
                for row in table
                if row["value"] is None and row["note"]
            ]
    columns = zip(*(row["values"] for row in rows), strict=True)
    there = [any(value is not None for value in column) for column in columns]
    measures = tuple(compress(measures, there))
    rows = [row | {"values": list(compress(row["values"], there))} for row in rows]
    # Jobs are the first columns; without any that fits, the bound.
    rows.sort(key=lambda row: -(row["values"][0] or 0))
    return Comparison(name, chips, measures, tuple(rows), dropped, tuple(dict.fromkeys(notes)))


def _measures(settings: ArenaSettings) -> tuple[Measure, ...]:
    load = f"uniform at {max(settings.loads_over_bound):g}"
    return (
        *(
            Measure(job, "tokens_per_s", f"{job} tokens/s a device", 1, a_device=True)
            for job in settings.jobs
        ),
        Measure("uniform", "uniform_bound", "uniform bound GB/s", 1),
        Measure("", "bisection_gb_s_per_chip", "bisection GB/s", 1),
        Measure("", "diameter_node_hops", "diameter hops", smaller=True),
        Measure(load, "accepted", "accepted GB/s", 1),
        Measure(load, "latency_p99", "p99 latency ns", smaller=True),
        Measure("", "usd_chip", "USD a chip", smaller=True),
        Measure("", "watts_chip", "W a chip", 1, smaller=True),
        Measure(next(iter(settings.jobs)), "usable_share", "usable at faults", 3),
    )


def _value(row: Row | None, measure: Measure, devices: int) -> float | None:
    if row is None or row["value"] is None:
        return None
    return float(row["value"] / devices if measure.a_device else row["value"])


def _cells(row: Row, measures: Sequence[Measure]) -> list[str]:
    return [
        "-" if value is None else f"{value:,.{measure.digits}f}"
        for value, measure in zip(row["values"], measures, strict=True)
    ]


def comparison_lines(comparison: Comparison) -> list[str]:
    """The table, the places of the compared network, and what is missing."""
    measures = comparison.measures
    head = ("", "network", "chips", *(measure.title for measure in measures))
    lines = aligned(
        [
            head,
            *(
                (
                    "*" if row["network"] == comparison.subject else "",
                    row["network"],
                    f"{row['chips']:,}",
                    *_cells(row, measures),
                )
                for row in comparison.rows
            ),
        ]
    )
    lines += ["", *(f"{title}: {words}" for title, words in _places(comparison))]
    lines += [f"note: {note}" for note in comparison.notes]
    lines += [f"without this size: {name}: {why}" for name, why in comparison.dropped.items()]
    return lines


def _places(comparison: Comparison) -> list[tuple[str, str]]:
    places = []
    for index, measure in enumerate(comparison.measures):
        place = comparison.place(index)
        words = "no value" if place is None else f"place {place[0]} of {place[1]}"
        places.append((measure.title, words))
    return places


def write_page(path: Path, comparison: Comparison, settings: ArenaSettings) -> None:
    """Write one self-contained page of the comparison."""
    most = [
        max((row["values"][index] or 0 for row in comparison.rows), default=0)
        for index in range(len(comparison.measures))
    ]
    rows = [
        row
        | {
            "cells": [
                (text, 0 if value is None or not top else 100 * value / top)
                for text, value, top in zip(
                    _cells(row, comparison.measures), row["values"], most, strict=True
                )
            ]
        }
        for row in comparison.rows
    ]
    values = {"comparison": comparison, "rows": rows, "places": _places(comparison)}
    write_text(path, rendered("comparison.html.jinja", **values, settings=settings))
