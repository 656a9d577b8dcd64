"""The controller's counters as Prometheus metrics, written by ``prometheus_client``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

#: Counters of the core: their key, their metric and its help.
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
#: Tables of the status whose entries are counted.
_TABLES = {
    "leases": ("circuits_leased", "Circuits that operations or held leases use."),
    "holds": ("leases_held", "Leases that stay with their members."),
    "queue": ("operations_queued", "Operations that all members asked for, not granted."),
    "waiting": ("operations_waiting", "Operations that some members have not asked for."),
    "lost_ports": ("ports_lost", "Ports out of service."),
}
#: ``prometheus_client`` writes counts as 3.0 and 1.5e+06.
_NUMBER = re.compile(r"(?<= )[\d.e+-]+$", re.MULTILINE)
#: Metric, help and samples: one number (None: no sample), or a label with its numbers.
_Samples = tuple[str, str, float | tuple[str, Mapping[str, float]] | None]


def metrics_text(status: Mapping[str, Any]) -> str:
    """The metrics of a controller's status; a key that it lacks has no metric."""
    return _NUMBER.sub(_plain, generate_latest(_Metrics(status)).decode())


def _plain(text: re.Match[str]) -> str:
    number = float(text[0])
    return str(int(number)) if number.is_integer() else repr(number)


class _Metrics(Collector):
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        for name, help_, samples in _samples(self._status):
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            label, values = samples if isinstance(samples, tuple) else ("", {"": samples})
            family = kind(f"railx_{name}", help_, labels=[label] if label else [])
            for value, number in values.items():
                if number is not None:
                    family.add_metric([value] if label else [], number)
            if family.samples:
                yield family


def _samples(status: Mapping[str, Any]) -> Iterator[_Samples]:
    statistics, controller = status.get("statistics", {}), status.get("controller", {})
    yield "up_seconds", "Since the controller began.", controller.get("up_s")
    yield "connections", "Open connections.", controller.get("connections")
    for key, (name, help_) in _COUNTERS.items():
        yield name, help_, statistics.get(key)
    for key, (name, help_) in _SECONDS.items():
        yield name, help_, statistics[key] / 1e9 if key in statistics else None
    refused = "Messages and operations that were refused, by reason."
    yield "refusals_total", refused, ("reason", dict(sorted(status.get("refusals", {}).items())))
    failures = dict(sorted(statistics.get("failures", {}).items()))
    yield "failures_total", "What failed, by kind.", ("kind", failures)
    rails = sorted(status.get("rails", {}).items(), key=lambda item: int(item[0]))
    lit = {rail: len(state["circuits"]) for rail, state in rails}
    yield "circuits_lit", "Circuits with light.", ("rail", lit)
    moving = {rail: len(state["moving"]) for rail, state in rails}
    yield "circuits_moving", "Circuits coming up.", ("rail", moving)
    for key, (name, help_) in _TABLES.items():
        yield name, help_, _length(key, status[key]) if key in status else None
    present = [bool(state["present"]) for state in status.get("ranks", {}).values()]
    yield "ranks_present", "Ranks that are registered.", sum(present) if present else None
    heard = sorted(status.get("last_heard_s", {}).items(), key=lambda item: int(item[0]))
    silence = "Since a registered rank was last heard."
    yield "rank_silence_seconds", silence, ("rank", dict(heard))
    journal = status.get("journal") or {}
    yield "journal_events_total", "Events written.", journal.get("events")
    yield "journal_bytes", "Size of the journal.", journal.get("size_bytes")
    stopped = float(bool(journal["stopped"])) if journal else None
    yield "journal_stopped", "1: it has ended.", stopped
    recovering = "1: a controller that started anew waits for its ranks."
    yield "recovering", recovering, status.get("recovering")


def _length(key: str, entries: Iterable[Any]) -> int:
    # Circuits with the same users share an entry.
    return sum(len(entry["circuits"]) if key == "leases" else 1 for entry in entries)
