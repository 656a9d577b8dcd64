"""Advice as lines of text (``railx advise``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from railx.performance.advice import Advice
from railx.performance.plans import AXES


def advice_lines(advice: Advice) -> list[str]:
    """The best plans, why the first is the best, and what it is compared with."""
    answer = advice.as_dict()
    lines = [
        (
            f"{answer['model']} ({answer['parameters'] / 1e9:.1f} B) on {answer['gpus']}"
            f" {answer['devices']}, network {answer['network']}"
            f" ({answer['network_model']}), constants {answer['constants']}"
        )
    ]
    for number, row in enumerate(answer["plans"], 1):
        lines += [f"\n{number}. {_degrees(row)}", f"   {_numbers(row)}"]
        if number == 1:
            lines.append("   time: " + _shares(row["time_s"], "s"))
            lines.append("   memory: " + _shares(row["memory_gb"], "GB"))
    lines.append("\nwhy: " + "; ".join(answer["reasons"]))
    for name, row in answer["baselines"].items():
        lines.append(f"{name.replace('_', ' ')}: {_degrees(row)}; {_numbers(row)}")
    if answer["given"]:
        lines.append(f"given plan: {_degrees(answer['given'])}; {_numbers(answer['given'])}")
    if answer["expected_error"] is not None:
        lines.append(
            f"expected error of these times: {answer['expected_error']:.0%}, the mean on measured"
            f" runs of at most {answer['largest_run_devices']} devices left out of the fit"
            " (railx validate)"
        )
    else:
        lines.append("expected error of these times: not known, no such run is measured")
    return lines


def comparison_lines(advice: Advice) -> list[str]:
    """The best plan beside the given one, part by part of time and memory.

    There must be a given plan.
    """
    best, given = advice.best[0], advice.given
    assert given is not None
    lines = [
        f"best:  {_degrees(best)}\n       {_numbers(best)}",
        f"given: {_degrees(given)}\n       {_numbers(given)}\n",
    ]
    for title, key, unit in (("time", "time_s", "s"), ("memory", "memory_gb", "GB")):
        lines.append(f"{title:<12}{'best':>10}{'given':>10}{'difference':>12}  {unit}")
        for name in best[key]:
            ours, theirs = best[key][name], given[key][name]
            if ours or theirs:
                lines.append(f"{name:<12}{ours:>10.3f}{theirs:>10.3f}{theirs - ours:>+12.3f}")
        lines.append("")
    return [*lines, "why: " + "; ".join(advice.reasons)]


def _degrees(row: Mapping[str, Any]) -> str:
    words = [
        f"{name} {row[name]}"
        for name in ("data", "tensor", "context", "pipeline", "expert", "virtual")
        if row[name] > 1
    ]
    words.append(f"{row['micro_batches']} micro-batches of {row['micro_batch']}")
    words.append(f"sharding {row['sharding']}, recompute {row['recompute']}")
    if tuple(row["order"]) != AXES:
        words.append(f"placed {', '.join(row['order'])} outwards")
    return ", ".join(words)


def _numbers(row: Mapping[str, Any]) -> str:
    idle = f", {row['idle_gpus']} of the gpus idle" if row["idle_gpus"] else ""
    slower = f", {row['slower']:+.1%}" if row["slower"] else ""
    fits = "" if row["fits"] else " (does not fit)"
    joule = (
        f", {row['tokens_per_joule']:.2f} tokens/J at rated power"
        if row["tokens_per_joule"]
        else ""
    )
    return (
        f"step {row['step_s']:.3f} s{slower}, {row['tokens_per_s']:,.0f} tokens/s, MFU"
        f" {row['mfu']:.1%}, {row['memory_total_gb']:.1f} GB{fits}{joule}{idle}"
    )


def _shares(parts: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if value) + f" {unit}"
