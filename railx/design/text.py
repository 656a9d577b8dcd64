"""A design as lines of text (``railx design``)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from railx.design.front import Crossing, Design
from railx.design.point import DesignPoint, plan_words, setting_words
from railx.text import aligned

_COLUMNS = (
    *("#", "network", "chips", "step_s", "usd/chip", "W/chip"),
    *("all-to-all", "usable", "binds", "fidelity"),
)
#: Columns of a terminal that lines are broken for.
_WIDTH = 120
_OBJECTIVES = {"step_time": "step time", "cost": "dollars", "joules": "joules of a step"}


def design_lines(answer: Design) -> list[str]:
    """The front, what was dropped and why, and what would change the first place."""
    settings, best = answer.settings, answer.front[0]
    limits = [
        f"budget {settings.budget_usd / 1e6:g} M USD" if settings.budget_usd else "",
        f"at most {settings.watts / 1e3:g} kW" if settings.watts else "",
    ]
    notes = [
        f"rates of {best.name}: {best.network_words}",
        "usable: the largest job that failed servers leave, by the rule of jobs: "
        + "; ".join(_named(answer.front, lambda point: point.usable.basis)),
        *(f"note: {line}" for line in _named(answer.front, lambda point: "; ".join(point.notes))),
        (
            f"prices: {settings.price_set}, ranges over {', '.join(best.cost.price_sets)}; links"
            f" inside nodes: {settings.node_price_set or 'free'}, in no watts"
            f"{'; accelerators in dollars' if settings.include_accelerators else ''}"
        ),
    ]
    if best.expected_error is not None:
        notes.append(
            f"step times: closed form, range by the expected error {best.expected_error:.1%}: the"
            " mean on measured runs on switched nodes, no other network was measured"
        )
    lines = [
        (
            f"{settings.model} on {settings.gpus} {settings.devices}, steps of {settings.batch:,}"
            f" sequences of {settings.tokens:,} tokens, {settings.faults:.2%} of servers failed,"
            f" {', '.join(limit for limit in limits if limit) or 'no budget'};"
            f" by {_OBJECTIVES[settings.objective]}"
        ),
        "",
        *_table(answer.front),
        "",
        *(part for note in notes for part in _wrapped(note, 2)),
    ]
    lines += ["", "dropped:"] if answer.dropped else []
    lines += [f"  {drop.network}: {drop.reason}" for drop in answer.dropped]
    lines.append("")
    lines += [_crossing(row) for row in answer.crossings] or ["no single price changes the first"]
    change = f"{settings.price_change:.0%}"
    lines += [
        f"{row.component} {row.factor - 1:+.0%}: first is {row.first}" for row in answer.flips
    ] or [f"no price changed by {change} either way changes the first"]
    lines.append(
        f"network first, plan after: {answer.network_first.name} (least dollars a GB/s of"
        f" all-to-all), {answer.loss:.1%} more {_OBJECTIVES[settings.objective]}"
    )
    return lines


def _table(front: Sequence[DesignPoint]) -> list[str]:
    """A line of numbers for each point, below it its setting and its plan."""
    head, *rows = aligned([_COLUMNS, *(_cells(rank, point) for rank, point in enumerate(front, 1))])
    lines = [head]
    for row, point in zip(rows, front, strict=True):
        lines.append(row)
        lines += _wrapped(f"   setting  {setting_words(point.network)}", 12)
        lines += _wrapped(f"   plan     {plan_words(point.plan)}", 12)
    return lines


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent=" " * indent)


def _named(front: Sequence[DesignPoint], words_of: Callable[[DesignPoint], str]) -> list[str]:
    """What is said of points, each with the networks that it is said of."""
    names: dict[str, list[str]] = {}
    for point in front:
        names.setdefault(words_of(point), []).append(point.name)
    return [f"{words} ({', '.join(rows)})" for words, rows in names.items() if words]


def _cells(rank: int, point: DesignPoint) -> tuple[str, ...]:
    cost = point.cost
    watts = "" if cost.watts is None else f"{cost.watts:.0f}"
    return (
        str(rank),
        point.name,
        str(point.chips),
        f"{point.step_s:.3f} ({point.step_low_s:.2f}-{point.step_high_s:.2f})",
        f"{cost.usd:.0f} ({cost.usd_low:.0f}-{cost.usd_high:.0f})",
        watts,
        f"{point.all_to_all_gb_s:.1f} GB/s",
        f"{point.usable.share:.1%}",
        point.binds,
        point.fidelity,
    )


def _crossing(row: Crossing) -> str:
    return (
        f"{row.component}: {row.usd:g} USD now; at {row.crossing_usd:.4g} USD the first place goes"
        f" to {row.network}"
    )


def simulated_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Closed forms beside replay and packets, point by point."""
    if not rows:
        return []
    return [
        "",
        "simulated (steps on the virtual clock, transfers at the same exact loads;",
        "an all-to-all of all chips in packets, at the links' full rates):",
        *(line for row in rows for line in (_replayed(row), _in_packets(row))),
    ]


def _replayed(row: Mapping[str, Any]) -> str:
    line = f"  {row['network']}: closed {row['closed_s']:.3f} s, "
    if row["replayed_s"] is None:
        return f"{line}not replayed: its replicas have too many ranks"
    return f"{line}replayed {row['replayed_s']:.3f} s, {_differs(row, '')}"


def _in_packets(row: Mapping[str, Any]) -> str:
    line = f"  {row['network']}: all-to-all {row['all_to_all_gb_s']:.1f} GB/s, "
    if row["packets_gb_s"] is None:
        return f"{line}not in packets: more chips than simulated_chips, which take minutes"
    return f"{line}in packets {row['packets_gb_s']:.1f} GB/s, {_differs(row, 'packets_')}"


def _differs(row: Mapping[str, Any], prefix: str) -> str:
    term = row[f"{prefix}term"]
    return f"{row[f'{prefix}difference']:+.1%}" + (f", differs in: {term}" if term else "")
