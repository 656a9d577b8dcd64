"""The controller's counters in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["CONTENT_TYPE", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Counters of the core: name there, name and help here.
_COUNTERS = {
    "requests": ("requests_total", "Operations that ranks asked circuits for."),
    "grants": ("grants_total", "Operations that were granted, counted for each rank."),
    "held": ("held_operations_total", "Operations under held leases, which asked for nothing."),
    "hints": ("hints_total", "Announcements of what a rank's next operation needs."),
    "mispredictions": ("mispredictions_total", "Operations that were not what was announced."),
    "reconfigurations": ("switch_commands_total", "Commands to the switches."),
    "circuits_changed": ("circuits_changed_total", "Circuits that commands brought up."),
    "speculative": ("speculative_commands_total", "Commands made from announcements."),
    "wasted": ("wasted_commands_total", "Such commands undone before an operation used them."),
    "recalls": ("recalls_total", "Questions for held leases."),
}
_SECONDS = {
    "wait_ns": ("wait_seconds_total", "Ranks waiting for other ranks and for ports."),
    "stall_ns": ("stall_seconds_total", "Ranks waiting for light."),
}


def metrics_text(status: Mapping[str, Any]) -> str:
    """The metrics of a controller's status; what is not in it is left out."""
    lines: list[str] = []

    def metric(
        name: str, kind: str, help_: str, values: Iterable[tuple[Mapping[str, Any], Any]]
    ) -> None:
        samples = [f"railx_{name}{_labels(labels)} {_number(value)}" for labels, value in values]
        if samples:
            lines.extend([f"# HELP railx_{name} {help_}", f"# TYPE railx_{name} {kind}", *samples])

    def single(value: Any) -> list[tuple[Mapping[str, Any], Any]]:
        return [] if value is None else [({}, value)]

    statistics = status.get("statistics", {})
    controller = status.get("controller", {})
    metric("up_seconds", "gauge", "Since the controller began.", single(controller.get("up_s")))
    metric("connections", "gauge", "Open connections.", single(controller.get("connections")))
    for key, (name, help_) in _COUNTERS.items():
        metric(name, "counter", help_, single(statistics.get(key)))
    for key, (name, help_) in _SECONDS.items():
        value = statistics.get(key)
        metric(name, "counter", help_, single(None if value is None else value / 1e9))
    metric(
        "refusals_total",
        "counter",
        "Messages and operations that were refused, by reason.",
        [({"reason": why}, count) for why, count in sorted(status.get("refusals", {}).items())],
    )
    metric(
        "failures_total",
        "counter",
        "What failed, by kind.",
        [({"kind": kind}, count) for kind, count in sorted(statistics.get("failures", {}).items())],
    )
    rails = sorted(status.get("rails", {}).items(), key=lambda item: int(item[0]))
    for key, help_ in (("circuits", "Circuits with light."), ("moving", "Circuits coming up.")):
        name = "circuits_lit" if key == "circuits" else "circuits_moving"
        metric(name, "gauge", help_, [({"rail": rail}, len(state[key])) for rail, state in rails])
    for key, name, help_ in (
        ("leases", "circuits_leased", "Circuits that operations or held leases use."),
        ("holds", "leases_held", "Leases that stay with their members."),
        ("queue", "operations_queued", "Operations that all members asked for, not granted."),
        ("waiting", "operations_waiting", "Operations that some members have not asked for."),
        ("lost_ports", "ports_lost", "Ports out of service."),
    ):
        metric(name, "gauge", help_, single(_length(key, status[key]) if key in status else None))
    ranks = status.get("ranks", {})
    if ranks:
        present = sum(bool(state["present"]) for state in ranks.values())
        metric("ranks_present", "gauge", "Ranks that are registered.", single(present))
    metric(
        "rank_silence_seconds",
        "gauge",
        "Since a registered rank was last heard.",
        [
            ({"rank": rank}, value)
            for rank, value in sorted(
                status.get("last_heard_s", {}).items(), key=lambda item: int(item[0])
            )
        ],
    )
    journal = status.get("journal")
    if journal:
        metric("journal_events_total", "counter", "Events written.", single(journal["events"]))
        metric("journal_bytes", "gauge", "Size of the journal.", single(journal["size_bytes"]))
        metric(
            "journal_stopped", "gauge", "1: it has ended.", single(int(bool(journal["stopped"])))
        )
    if "recovering" in status:
        metric(
            "recovering",
            "gauge",
            "1: a controller that started anew waits for its ranks.",
            single(int(status["recovering"])),
        )
    return "".join(f"{line}\n" for line in lines)


def _length(key: str, entries: Iterable[Any]) -> int:
    # Circuits with the same users share an entry.
    return sum(len(entry["circuits"]) if key == "leases" else 1 for entry in entries)


def _labels(labels: Mapping[str, Any]) -> str:
    pairs = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
