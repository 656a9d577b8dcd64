"""The core from outside: counters, and what is going on now."""

from __future__ import annotations

from typing import Any

from railx.fabric.decisions.state import State

__all__ = ["Account"]


class Account(State):
    """Shows the state as plain values."""

    def statistics(self) -> dict[str, object]:
        """Counters of the whole controller and of each rank; times in nanoseconds.

        ``reconfigurations`` counts switch commands (one for each rail and operation).
        ``speculative`` counts those begun from hints, ``wasted`` the speculative ones
        torn down again before an operation used them. ``held`` counts the operations
        that ran under held leases without asking; it is known once those are given
        back. ``recalls`` counts the questions for them. ``refusals`` counts by a word
        for the reason, ``failures`` what broke: switch commands, ports, ranks.
        """
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
                str(rank): dict(counter) for rank, counter in sorted(self.rank_counters.items())
            },
            "rails": {
                str(rail): {
                    "generation": self.generation[rail],
                    "circuits": [list(circuit) for circuit in circuits],
                }
                for rail, circuits in self.layout.rails(self.lit).items()
            },
            "leased_circuits": len(self.leases),
            "held_circuits": len(self.held),
            "queued": len(self._queue),
            "open": len(self._operations),
            "tombstones": len(self._tombstones),
            "recovering": self.recovering,
        }

    def snapshot(self) -> dict[str, Any]:
        """What is going on now, as plain values; for people and for metrics."""
        moving = self.layout.rails(set(self.moving.values()))
        lit = self.layout.rails(self.lit)
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
                    "circuit": list(circuit),
                    "operations": [list(key) for key in sorted(self.leases.get(circuit, ()))],
                    "holds": sorted(item.name for item in self.held.get(circuit, ())),
                }
                for circuit in sorted(self.leases.keys() | self.held.keys())
            ],
            "holds": [
                {
                    "configuration": configuration.name,
                    "hold": hold.number,
                    "holders": sorted(hold.holders),
                    "recalled": hold.recalled,
                }
                for configuration, hold in self.holds.items()
            ],
            "queue": [
                {
                    "configuration": operation.configuration.name,
                    "operation": list(operation.key),
                    "since_ns": max(item.asked_ns for item in operation.asked.values()),
                }
                for operation in self._queue.values()
            ],
            "waiting": [
                {
                    "configuration": operation.configuration.name,
                    "operation": list(operation.key),
                    "asked": sorted(operation.asked),
                    "missing": sorted(set(operation.configuration.members) - set(operation.asked)),
                }
                for operation in self._operations.values()
                if not operation.granted and operation.order is None
            ],
            "ranks": {
                str(rank): {
                    "present": rank in self._present,
                    "incarnation": self._present.get(rank, self._former.get(rank)),
                    "gone": self._gone.get(rank),
                }
                for rank in sorted(self._present.keys() | self._former.keys() | self._gone.keys())
            },
            "lost_ports": [
                {"gpu": port.gpu, "side": port.side, "reason": reason}
                for port, reason in sorted(self.lost_ports.items())
            ],
        }
