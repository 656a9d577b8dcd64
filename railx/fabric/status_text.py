"""A controller's status as text for a terminal (``railx fabric status``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from railx.text import aligned

__all__ = ["status_text"]

#: Rows of one table; --json has all of them.
_ROWS = 40


def status_text(status: Mapping[str, Any]) -> str:
    """A controller's status for the terminal."""
    controller, statistics = status["controller"], status["statistics"]
    if status["recovering"]:
        doing = "recovering: waits for its ranks"
    else:
        doing = (
            f"{statistics['requests']} requests, {statistics['grants']} grants,"
            f" {statistics['reconfigurations']} switch commands,"
            f" {statistics['held']} operations under held leases"
        )
    name = (
        f"controller {controller['incarnation']:x}, up {_seconds(controller['up_s'])},"
        f" {controller['driver']} switches, {controller['latency_ms']:g} ms,"
        f" {controller['connections']} connections"
    )
    lines = [name, doing]
    lines += _table(
        "rails",
        ("rail", "changes", "circuits with light", "coming up"),
        (
            (rail, state["generation"], _circuits(state["circuits"]), _circuits(state["moving"]))
            for rail, state in status["rails"].items()
        ),
    )
    lines += _table(
        "leases",
        ("circuit", "operations", "held by"),
        _leases(status),
    )
    lines += _table(
        "queue",
        ("needs", "operation"),
        ((item["configuration"], _operation(item["operation"])) for item in status["queue"]),
    )
    lines += _table(
        "waiting for members",
        ("needs", "operation", "asked", "missing"),
        (
            (
                item["configuration"],
                _operation(item["operation"]),
                _numbers(item["asked"]),
                _numbers(item["missing"]),
            )
            for item in status["waiting"]
        ),
    )
    lines += _table(
        "ranks",
        ("rank", "incarnation", "state", "last heard"),
        (
            (
                rank,
                "-" if state["incarnation"] is None else f"{state['incarnation']:x}",
                "present" if state["present"] else state["gone"] or "gone",
                f"{_seconds(status['last_heard_s'][rank])} ago"
                if rank in status["last_heard_s"]
                else "-",
            )
            for rank, state in sorted(status["ranks"].items(), key=lambda item: int(item[0]))
        ),
    )
    lines += _table("refusals", ("reason", "count"), sorted(status["refusals"].items()))
    lines += _table(
        "failed ports",
        ("port", "reason"),
        ((f"{port['gpu']}.{port['side']}", port["reason"]) for port in status["lost_ports"]),
    )
    left_out = status.get("left_out")
    if left_out:
        counts = ", ".join(f"{count} of {table}" for table, count in left_out.items())
        lines += ["", f"left out, as all of it is more than a message holds: {counts}"]
    journal = status.get("journal")
    if journal:
        ended = f", ended: {journal['stopped']}" if journal["stopped"] else ""
        lines += ["", f"journal {journal['path']}: {journal['events']} events{ended}"]
    return "\n".join(_printable(line) for line in lines)


def _leases(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """A row of each circuit; held leases have their names in a table of their own."""
    names = {hold["hold"]: hold["configuration"] for hold in status.get("holds", ())}
    rows = []
    for lease in status["leases"]:
        operations = ", ".join(_operation(key) for key in lease["operations"]) or "-"
        holds = "; ".join(sorted(names.get(hold, f"lease {hold}") for hold in lease["holds"]))
        rows += [(circuit, operations, holds or "-") for circuit in lease["circuits"]]
    return [
        (_circuits([circuit]), operations, holds) for circuit, operations, holds in sorted(rows)
    ]


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return ["", f"{title}: none"]
    shown = cells[:_ROWS]
    lines = aligned([heads, *shown])
    if len(cells) > _ROWS:
        lines.append(f"... and {len(cells) - _ROWS} more (--json has them)")
    return ["", title, *(f"  {line}" for line in lines)]


def _printable(line: str) -> str:
    """A line without the control characters that a rank's names may hold."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _circuits(circuits: Iterable[Sequence[int]]) -> str:
    return ", ".join(f"{right}>{left}" for right, left in circuits) or "-"


def _operation(key: Sequence[Any]) -> str:
    return f"{key[0]} #{key[1]}"


def _numbers(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"
