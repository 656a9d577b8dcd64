"""The core from outside: counters, and what is going on now."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.decisions.state import State


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


def statistics(core: State, most: int | None = None) -> dict[str, object]:
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
        **{name: core.counters[name] for name in (*names, "wait_ns", "stall_ns")},
        "refusals": dict(sorted(core.refusals.items())),
        "failures": {name: core.failures[name] for name in ("switches", "ports", "ranks")},
        "ranks": {
            str(rank): dict(core.rank_counters[rank])
            for rank in cut("ranks", sorted(core.rank_counters))
        },
        "rails": {
            str(rail): {
                "generation": core.generation[rail],
                "circuits": [list(circuit) for circuit in circuits],
            }
            for rail, circuits in sorted_by_rail(core, cut("circuits", in_order(core, core.lit)))
        },
        "leased_circuits": len(core.leases),
        "held_circuits": len(core.holds_by_circuit),
        "queued": len(core.queue),
        "open": len(core.operations),
        "tombstones": len(core.tombstones),
        "recovering": core.recovering,
        "left_out": cut.left_out,
    }


def snapshot(core: State, most: int | None = None) -> dict[str, Any]:
    """What is going on now, as plain values; for people and for metrics.

    Circuits with the same users share an entry of ``leases``, and name the held
    leases among those by their numbers in ``holds``.
    """
    cut = _Cut(most)
    lit = dict(sorted_by_rail(core, cut("circuits", in_order(core, core.lit))))
    moving = dict(sorted_by_rail(core, cut("moving", in_order(core, set(core.moving.values())))))
    leased: dict[tuple[Any, ...], list[list[int]]] = {}
    for circuit in cut("leases", sorted(core.leases.keys() | core.holds_by_circuit.keys())):
        operations = tuple(sorted(core.leases.get(circuit, ())))
        holds = tuple(
            sorted(core.holds[item].number for item in core.holds_by_circuit.get(circuit, ()))
        )
        leased.setdefault((operations, holds), []).append(list(circuit))
    waiting = [
        operation
        for operation in core.operations.values()
        if not operation.granted and operation.order is None
    ]
    ranks = core.registered.keys() | core.former.keys() | core.gone.keys()
    return {
        "recovering": core.recovering,
        "rails": {
            str(rail): {
                "generation": core.generation[rail],
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
                "hold": core.holds[configuration].number,
                "holders": cut("holders", sorted(core.holds[configuration].holders)),
                "recalled": core.holds[configuration].recalled,
            }
            for configuration in cut("holds", core.holds)
        ],
        "queue": [
            {
                "configuration": cut.name(operation.configuration),
                "operation": list(operation.key),
                "since_ns": max(item.asked_ns for item in operation.asked.values()),
            }
            for operation in cut("queue", core.queue.values())
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
                "present": rank in core.registered,
                "incarnation": core.registered.get(rank, core.former.get(rank)),
                "gone": core.gone.get(rank),
            }
            for rank in cut("ranks", sorted(ranks))
        },
        "lost_ports": [
            {"gpu": port.gpu, "side": port.side, "reason": reason}
            for port, reason in cut("lost_ports", sorted(core.lost_ports.items()))
        ],
        "left_out": cut.left_out,
    }


def in_order(core: State, circuits: Iterable[Circuit]) -> list[Circuit]:
    return sorted(circuits, key=lambda circuit: (core.layout.rail(circuit.right), circuit))


def sorted_by_rail(core: State, circuits: Iterable[Circuit]) -> list[tuple[int, list[Circuit]]]:
    """Circuits in order by their rails."""
    rails: dict[int, list[Circuit]] = {}
    for circuit in circuits:
        rails.setdefault(core.layout.rail(circuit.right), []).append(circuit)
    return list(rails.items())
