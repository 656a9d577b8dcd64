"""The tables of a program that trained live on the rails, from its measured rows.

A block is a setting of the rails under which the program ran some iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from railx.fabric.circuits import Layout
from railx.replay.changes import circuit_changes, delays_of

__all__ = ["change_rows", "setting_rows"]

_Row = dict[str, Any]
#: What tells the blocks of a program apart.
_BLOCK = ("mode", "reconfiguration_latency_ms", "controller_restarted")


def _blocks(rows: list[_Row]) -> dict[tuple[Any, ...], list[_Row]]:
    blocks: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        blocks.setdefault(tuple(row[key] for key in _BLOCK), []).append(row)
    return blocks


def change_rows(
    trace: list[_Row], layout: Layout, journals: Mapping[tuple[Any, ...], list[Any]]
) -> list[_Row]:
    """A row for each change of circuits: its window, both stalls, what lies between."""
    rows = []
    for block, events in _blocks(trace).items():
        mode, latency_ms, _ = block
        if mode == "electrical":
            continue
        changes = circuit_changes(events, layout, announced=mode == "provisioned")
        delays = delays_of(changes, journals.get(block, ()), round(latency_ms * 1e6))
        for change, delay in zip(changes, delays, strict=True):
            window_ms = change.window_ns / 1e6
            rows.append(
                dict(zip(_BLOCK, block, strict=True))
                | {
                    "iteration": change.iteration,
                    "circuits": change.configuration.name,
                    "window_ms": window_ms,
                    "predicted_stall_ms": max(0.0, latency_ms - window_ms),
                    "stall_ms": change.stall_ns / 1e6,
                    "switch_delay_ms": delay and delay.switch_ns / 1e6,
                    "begin_delay_ms": delay and delay.begin_ns / 1e6,
                    "question_delay_ms": delay and delay.question_ns / 1e6,
                    "fidelity": "emulated",
                }
            )
    return rows


def setting_rows(name: str, ranks: int, iterations: list[_Row], changes: list[_Row]) -> list[_Row]:
    """A row for each block: medians over its iterations, the slowest rank of each."""
    switched_blocks = _blocks(changes)
    rows: list[_Row] = []
    unswitched_ms: dict[str, float] = {}
    for block, measured in _blocks(iterations).items():
        iteration_numbers = {row["iteration"] for row in measured}
        switched = switched_blocks.get(block, [])
        iteration_ms = median(_slowest(measured, "iteration_ms"))
        # The mode's first block is that of the least latency.
        unswitched_ms.setdefault(block[0], iteration_ms)
        predicted_ms = median(_predicted(switched, iteration_numbers))
        rows.append(
            {"program": name, "ranks": ranks}
            | dict(zip(_BLOCK, block, strict=True))
            | {
                "iteration_ms": iteration_ms,
                "predicted_iteration_ms": unswitched_ms[block[0]] + predicted_ms,
                "stall_ms": median(_slowest(measured, "stall_ms")),
                "wait_ms": median(_slowest(measured, "wait_ms")),
                "reconfigurations": max(row["reconfigurations"] for row in measured),
                "mispredictions": sum(row["mispredictions"] for row in measured),
                "changes": len(switched) / len(iteration_numbers),
                "all_stalls_ms": sum(row["stall_ms"] for row in switched) / len(iteration_numbers),
                "all_predicted_stalls_ms": sum(row["predicted_stall_ms"] for row in switched)
                / len(iteration_numbers),
                "last_loss": measured[-1]["loss"],
                "load_share": measured[0]["load_share"],
                "controller_priority": measured[0]["controller_priority"],
                "fidelity": measured[0]["fidelity"],
            }
        )
    return rows


def _predicted(changes: list[_Row], iterations: set[int]) -> list[float]:
    """For each iteration the stalls that its windows leave, of the rank with most."""
    sums: dict[tuple[int, str], float] = {}
    for row in changes:
        for rank in row["circuits"].partition(" ")[2].split(","):
            key = row["iteration"], rank
            sums[key] = sums.get(key, 0.0) + row["predicted_stall_ms"]
    return [
        max((total for (number, _), total in sums.items() if number == iteration), default=0.0)
        for iteration in sorted(iterations)
    ]


def _slowest(rows: list[_Row], column: str) -> list[float]:
    most: dict[int, float] = {}
    for row in rows:
        most[row["iteration"]] = max(row[column], most.get(row["iteration"], 0.0))
    return list(most.values())
