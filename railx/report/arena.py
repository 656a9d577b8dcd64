"""Networks side by side: ``arena.comparison`` as a ranking of networks at each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from railx.figures.theme import label, on_rails
from railx.io import read_table

#: Rows of a network by subject and measure.
Rows = Mapping[tuple[str, str], Mapping[str, Any]]
_PRICES = ("usd_chip_with_node", "usd_chip")


class _Words(NamedTuple):
    title: str
    digits: int = 1
    smaller: bool = False
    a_chip: bool = False


#: Columns of the first table and of the second, by measure; each subject has one.
_FIRST = {
    "usd_chip_with_node": _Words("USD a chip, with links inside nodes", 0, True),
    "usd_chip": _Words("USD a chip, without them", 0, True),
    "watts_chip": _Words("Power a chip", 1, True),
    "tokens_per_s": _Words("", 1, a_chip=True),
    "joules_step": _Words("Energy a chip and step", 0, True, a_chip=True),
}
_SECOND = {
    "uniform_bound": _Words("Bound"),
    "bisection_gb_s_per_chip": _Words("Bisection a chip"),
    "all_to_all_closed_form": _Words("All-to-all, closed form"),
    "diameter_node_hops": _Words("Diameter", 0, True),
    "minimal_paths_mean": _Words("Minimal paths, mean"),
    "disjoint_paths_min": _Words("Disjoint paths, fewest", 0),
    "latency_p99": _Words("Latency p99, load over bound", 0, True),
    "largest_share": _Words("Largest job", 3),
    "usable_share": _Words("In use", 3),
    "units_chip": _Words("Parts a chip", 2, True),
    "cable_ends_chip": _Words("Cable ends a chip", 2, True),
}


def arena_sizes(files: Sequence[Path]) -> list[dict[str, Any]]:
    """A ranking for each size, the largest with jobs first; none without files.

    ``tables`` are two, each with ``heads`` and the cells of every network: ``text``,
    ``place`` among the networks (1 is best), ``why`` there is no value, and ``front``:
    whether no cheaper network is as fast for this job. ``absent``: networks without
    this size, and why.
    """
    networks = [read_table(file).to_pylist() for file in files]
    sizes = {row["asked_chips"] for rows in networks for row in rows}
    rankings = [_ranking(size, networks) for size in sizes]
    return sorted(rankings, key=lambda one: (not one["jobs"], -one["size"]))


def _ranking(size: int, networks: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    of_size = [
        {(row["subject"], row["measure"]): row for row in rows if row["asked_chips"] == size}
        for rows in networks
    ]
    shown = [rows for rows in of_size if rows and ("", "size") not in rows]
    jobs = dict.fromkeys(s for rows in shown for s, measure in rows if measure == "tokens_per_s")
    first = next(((job, "tokens_per_s") for job in jobs), ("", _PRICES[1]))
    shown.sort(key=lambda rows: -(_value(rows, first) or 0))
    heads = [next(iter(rows.values())) for rows in shown]
    return {
        "size": size,
        "jobs": [label(job) for job in jobs],
        "networks": [
            {
                "name": label(row["network"]),
                "chips": row["chips"],
                "marked": on_rails(row["family"]),
            }
            for row in heads
        ],
        "tables": [_table(columns, shown) for columns in (_FIRST, _SECOND)],
        "absent": [
            (label(row["network"]), row["note"])
            for rows in of_size
            if (row := rows.get(("", "size")))
        ],
    }


def _value(rows: Rows, key: tuple[str, str]) -> float | None:
    """A value; what is of all chips, by chip."""
    row = rows.get(key)
    if row is None or row["value"] is None:
        return None
    words = (_FIRST | _SECOND)[key[1]]
    return float(row["value"] / row["chips"] if words.a_chip else row["value"])


def _table(columns: Mapping[str, _Words], networks: Sequence[Rows]) -> dict[str, Any]:
    known = {key: row for rows in networks for key, row in rows.items() if key[1] in columns}
    loads = [_load(subject) for subject, measure in known if measure == "latency_p99"]
    keys = [
        key
        for measure in columns
        for key in known
        if key[1] == measure
        and (measure != "latency_p99" or _load(key[0]) == max(loads))
        and (not measure.endswith("_share") or key[0].startswith("fault trace"))
        and any(_value(rows, key) is not None for rows in networks)
    ]
    by_column = [_cells(key, columns[key[1]], networks) for key in keys]
    return {
        "heads": [_head(key, columns[key[1]], known[key]) for key in keys],
        "cells": list(zip(*by_column, strict=True)),
    }


def _load(subject: str) -> float:
    return float(subject.rpartition(" at ")[2])


def _head(key: tuple[str, str], words: _Words, row: Mapping[str, Any]) -> dict[str, str]:
    parts = (words.title, label(key[0]) if key[0] else "")
    unit = {"tokens/s": "tokens/s a chip", "USD": "", "units": "", "ends": ""}
    return {
        "title": ": ".join(filter(None, parts)),
        "unit": unit.get(row["unit"], row["unit"]),
        "fidelity": row["fidelity"],
    }


def _cells(key: tuple[str, str], words: _Words, networks: Sequence[Rows]) -> list[dict[str, Any]]:
    values = [_value(rows, key) for rows in networks]
    values = [value if value is None else round(value, words.digits) for value in values]
    ranked = [value for value in values if value is not None]
    front = _front(key, networks) if key[1] == "tokens_per_s" else set()
    return [
        {
            "text": "–" if value is None else f"{value:,.{words.digits}f}",
            "place": None
            if value is None
            else 1 + sum(one < value if words.smaller else one > value for one in ranked),
            "why": rows.get(key, {}).get("note", "") if value is None else "",
            "front": index in front,
        }
        for index, (value, rows) in enumerate(zip(values, networks, strict=True))
    ]


def _front(key: tuple[str, str], networks: Sequence[Rows]) -> set[int]:
    """Networks that no cheaper one equals; links inside nodes are charged if priced."""
    priced_as = (name for name in _PRICES if any(_value(rows, ("", name)) for rows in networks))
    price = next(priced_as, "")
    digits = _FIRST[key[1]].digits
    priced = [
        (usd, -round(rate, digits), index)
        for index, rows in enumerate(networks)
        if (usd := _value(rows, ("", price))) and (rate := _value(rows, key))
    ]
    front: set[int] = set()
    fastest = 0.0
    for _, slowness, index in sorted(priced):
        if -slowness > fastest:
            fastest = -slowness
            front.add(index)
    return front
