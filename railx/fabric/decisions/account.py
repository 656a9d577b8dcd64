"""The core from outside: counters, and what is going on now."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions.state import ControllerState

__all__ = ["Account"]


class _Cut:
    """Takes the first entries of tables and counts what it leaves out."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.left_out: dict[str, int] = {}

    def __call__(self, table: str, entries: Collection[Any]) -> list[Any]:
        """The first entries; the others are counted for their ``table``."""
        if self._most is None or len(entries) <= self._most:
            return list(entries)
        self.left_out[table] = self.left_out.get(table, 0) + len(entries) - self._most
        return list(islice(entries, self._most))

    def name(self, configuration: Configuration) -> str:
        """A configuration's name with its first members at least."""
        members = configuration.members
        if self._most is None or len(members) <= self._most:
            return configuration.name
        shown = ",".join(map(str, members[: self._most]))
        return f"{configuration.kind} {shown},... ({len(members)} ranks)"


class Account(ControllerState):
    """Shows the state as plain values.

    An account takes space in proportion to the ranks, circuits, leases and operations,
    and to the members of those two. ``most``: no table has more entries, and what was
    left out of which is counted in ``left_out``, which is empty where all is there.
    """

    def statistics(self, most: int | None = None) -> dict[str, object]:
        """Counters of the whole controller and of each rank; times in nanoseconds.

        ``reconfigurations`` counts switch commands (one for each rail and operation).
        ``speculative`` counts those begun from hints, ``wasted`` the speculative ones
        torn down again before an operation used them. ``held`` counts the operations
        that ran under held leases without asking; it is known once those are given
        back. ``recalls`` counts the questions for them. ``refusals`` counts by a word
        for the reason, ``failures`` what broke: switch commands, ports, ranks.
        """
        cut = _Cut(most)
        names = (
            "requests",
            "grants",
            "hints",
            "mispredictions",
            "reconfigurations",
            "circuits_changed",
            "speculative",
            "wasted",
            "held",
            "recalls",
        )
        return {
            **{name: self.counters[name] for name in (*names, "wait_ns", "stall_ns")},
            "refusals": dict(sorted(self.refusals.items())),
            "failures": {name: self.failures[name] for name in ("switches", "ports", "ranks")},
            "ranks": {
                str(rank): dict(self.rank_counters[rank])
                for rank in cut("ranks", sorted(self.rank_counters))
            },
            "rails": {
                str(rail): {
                    "generation": self.generation[rail],
                    "circuits": [list(circuit) for circuit in circuits],
                }
                for rail, circuits in self._by_rail(cut("circuits", self._in_order(self.lit)))
            },
            "leased_circuits": len(self.leases),
            "held_circuits": len(self.holds_by_circuit),
            "queued": len(self._queue),
            "open": len(self._operations),
            "tombstones": len(self._tombstones),
            "recovering": self.recovering,
            "left_out": cut.left_out,
        }

    def snapshot(self, most: int | None = None) -> dict[str, Any]:
        """What is going on now, as plain values; for people and for metrics.

        Circuits with the same users share an entry of ``leases``, and name the held
        leases among those by their numbers in ``holds``.
        """
        cut = _Cut(most)
        lit = dict(self._by_rail(cut("circuits", self._in_order(self.lit))))
        moving = dict(self._by_rail(cut("moving", self._in_order(set(self.moving.values())))))
        leased: dict[tuple[Any, ...], list[list[int]]] = {}
        for circuit in cut("leases", sorted(self.leases.keys() | self.holds_by_circuit.keys())):
            operations = tuple(sorted(self.leases.get(circuit, ())))
            holds = tuple(
                sorted(self.holds[item].number for item in self.holds_by_circuit.get(circuit, ()))
            )
            leased.setdefault((operations, holds), []).append(list(circuit))
        waiting = [
            operation
            for operation in self._operations.values()
            if not operation.granted and operation.order is None
        ]
        ranks = self._present.keys() | self._former.keys() | self._gone.keys()
        return {
            "recovering": self.recovering,
            "rails": {
                str(rail): {
                    "generation": self.generation[rail],
                    "circuits": [list(circuit) for circuit in lit.get(rail, ())],
                    "moving": [list(circuit) for circuit in moving.get(rail, ())],
                }
                for rail in sorted(lit.keys() | moving.keys())
            },
            "leases": [
                {
                    "circuits": circuits,
                    "operations": [list(key) for key in cut("operations of leases", operations)],
                    "holds": list(holds),
                }
                for (operations, holds), circuits in leased.items()
            ],
            "holds": [
                {
                    "configuration": cut.name(configuration),
                    "hold": self.holds[configuration].number,
                    "holders": cut("holders", sorted(self.holds[configuration].holders)),
                    "recalled": self.holds[configuration].recalled,
                }
                for configuration in cut("holds", self.holds)
            ],
            "queue": [
                {
                    "configuration": cut.name(operation.configuration),
                    "operation": list(operation.key),
                    "since_ns": max(item.asked_ns for item in operation.asked.values()),
                }
                for operation in cut("queue", self._queue.values())
            ],
            "waiting": [
                {
                    "configuration": cut.name(operation.configuration),
                    "operation": list(operation.key),
                    "asked": cut("asked", sorted(operation.asked)),
                    "missing": cut(
                        "missing",
                        sorted(set(operation.configuration.members) - set(operation.asked)),
                    ),
                }
                for operation in cut("waiting", waiting)
            ],
            "ranks": {
                str(rank): {
                    "present": rank in self._present,
                    "incarnation": self._present.get(rank, self._former.get(rank)),
                    "gone": self._gone.get(rank),
                }
                for rank in cut("ranks", sorted(ranks))
            },
            "lost_ports": [
                {"gpu": port.gpu, "side": port.side, "reason": reason}
                for port, reason in cut("lost_ports", sorted(self.lost_ports.items()))
            ],
            "left_out": cut.left_out,
        }

    def _in_order(self, circuits: Iterable[Circuit]) -> list[Circuit]:
        return sorted(circuits, key=lambda circuit: (self.layout.rail(circuit.right), circuit))

    def _by_rail(self, circuits: Iterable[Circuit]) -> list[tuple[int, list[Circuit]]]:
        """Circuits in order by their rails."""
        rails: dict[int, list[Circuit]] = {}
        for circuit in circuits:
            rails.setdefault(self.layout.rail(circuit.right), []).append(circuit)
        return list(rails.items())
