"""What must hold, judged from outside: by what ranks did and what switches did, when.

An operation is under way from the moment when all its members have begun it to the
moment when the first of them ends it. Ranks note both after the first and before the
second has happened to the controller, so that the span is never too long.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railx.fabric.circuits import Circuit, Configuration, Layout, Port

#: After the loss of a port its ranks may still begin on what they hold.
_NEWS_NS = 3_000_000_000


@dataclass(frozen=True)
class Span:
    """An operation that was under way."""

    begin_ns: int
    end_ns: int
    name: str
    configuration: Configuration


class Checker:
    """Reads the switches' log as it grows, and judges spans against it."""

    def __init__(self, layout: Layout, log: Path) -> None:
        self.layout = layout
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self._log = log
        self._read_bytes = 0
        #: Circuits that carry light, by port, and why the others are dark since when.
        self._lit: dict[Port, Circuit] = {}
        self._dark: dict[Circuit, tuple[int, str]] = {}
        self._lost: dict[Port, int] = {}

    def judge(self, spans: Iterable[Span]) -> None:
        """All spans up to now; all of them have ended, and none begins before now."""
        events: list[tuple[int, int, int, Any]] = []
        number = 0
        for line in self._lines():
            heapq.heappush(events, (line["at_ns"], 1, number := number + 1, line))
        for span in spans:
            self.counts["operations"] += 1
            if self.layout.circuits(span.configuration):
                self.counts["operations on circuits"] += 1
                # At one moment: ends, changes of light, begins.
                heapq.heappush(events, (span.begin_ns, 2, number := number + 1, span))
                heapq.heappush(events, (span.end_ns, 0, number := number + 1, span))
        under_way: dict[int, Span] = {}
        while events:
            at_ns, order, _, item = heapq.heappop(events)
            if order == 0:
                under_way.pop(id(item), None)
            elif order == 2:
                self._begin(item, under_way.values())
                under_way[id(item)] = item
            else:
                self._change(at_ns, item, under_way.values())

    def _begin(self, span: Span, others: Iterable[Span]) -> None:
        circuits = self.layout.circuits(span.configuration)
        for circuit in circuits:
            if self._lit.get(circuit.ports[0]) == circuit:
                continue
            since_ns, why = self._dark.get(circuit, (0, "it never was lit"))
            if why != "lost" or span.begin_ns - since_ns > _NEWS_NS:
                ago_ms = (span.begin_ns - since_ns) / 1e6
                self._break(
                    f"{span.name} began without light on {circuit} ({why}, {ago_ms:.1f} ms)"
                )
        ports = {port: circuit for circuit in circuits for port in circuit.ports}
        for other in others:
            for circuit in self.layout.circuits(other.configuration):
                for port in circuit.ports:
                    if ports.get(port, circuit) != circuit:
                        self._break(f"{span.name} and {other.name} on {port} at once")

    def _change(self, at_ns: int, line: dict[str, Any], under_way: Iterable[Span]) -> None:
        what = line["what"]
        circuits = [Circuit(*circuit) for circuit in line["circuits"]]
        self.counts[f"switch: {what}"] += 1
        if what == "start":
            # What was under way when the last controller died is dark.
            self._lit = {port: circuit for circuit in circuits for port in circuit.ports}
        elif what == "lit":
            for circuit in circuits:
                for port in circuit.ports:
                    if self._lit.get(port, circuit) != circuit:
                        self._break(f"{circuit} came up, but {port} carries {self._lit[port]}")
                    if port in self._lost:
                        self._break(f"{circuit} came up on {port}, which is lost")
                    self._lit[port] = circuit
                self._dark.pop(circuit, None)
        elif what == "drop":
            for span in under_way:
                torn = set(circuits) & set(self.layout.circuits(span.configuration))
                if torn:
                    self._break(f"{sorted(torn)[0]} was torn down while {span.name} was under way")
            for circuit in circuits:
                self._darken(circuit, at_ns, "dropped")
        elif what == "lost":
            ports = [Port(gpu, side) for gpu, side in line["ports"]]
            for port in ports:
                self._lost[port] = at_ns
                if port in self._lit:
                    self._darken(self._lit[port], at_ns, "lost")
        elif what == "back":
            for gpu, side in line["ports"]:
                self._lost.pop(Port(gpu, side), None)

    def _darken(self, circuit: Circuit, at_ns: int, why: str) -> None:
        for port in circuit.ports:
            if self._lit.get(port) == circuit:
                del self._lit[port]
        if self._dark.get(circuit, (0, ""))[1] != "lost":
            self._dark[circuit] = (at_ns, why)

    def _lines(self) -> list[dict[str, Any]]:
        with self._log.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._read_bytes += whole
        return [json.loads(line) for line in data[:whole].splitlines()]

    def _break(self, what: str) -> None:
        self.broken.append(what)
