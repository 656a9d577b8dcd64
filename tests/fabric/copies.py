"""Copies of a core and of a rank's holdings, made to be many.

A test holds that they forget nothing and share nothing that changes.
"""

from __future__ import annotations

from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import Asked, Expected, Hint, Hold, Tombstone, TrackedOperation
from railx.fabric.holdings import Holdings, _Lease

__all__ = ["SHARED", "copy_core", "copy_holdings"]

#: What only counts or is made once: all copies of a core share it.
SHARED = frozenset(
    {"layout", "ranks", "counters", "rank_counters", "refusals", "failures", "generation"}
)
#: Containers of values that never change.
_FLAT = (
    *("active", "lit", "moving", "lost_ports", "commands", "spoiled", "touched"),
    *("touched_hints", "ahead", "gone", "registered", "former"),
    *("returning", "presented", "ended_early"),
)
_NESTED = (
    *("leases", "holds_by_circuit", "holds_of", "ready"),
    *("ahead_on", "last", "given_up"),
)
_OF_OPERATIONS = ("by_channel", "by_configuration", "by_member", "waiting")
_PLAIN = ("recovering", "changes", "next_command", "next_hold", "serial")


def copy_core(core: ControllerCore) -> ControllerCore:
    """A core in the same state; a test holds that nothing is forgotten."""
    new = object.__new__(ControllerCore)
    old, made = core.__dict__, new.__dict__
    for name in SHARED:
        made[name] = old[name]
    for name in _PLAIN:
        made[name] = old[name]
    for name in _FLAT:
        made[name] = old[name].copy()
    for name in _NESTED:
        made[name] = {key: value.copy() for key, value in old[name].items()}
    operations = {key: _copy_operation(item) for key, item in core.operations.items()}
    made["operations"] = operations
    for name in _OF_OPERATIONS:
        made[name] = {
            key: {place: operations[item.key] for place, item in row.items()}
            for key, row in old[name].items()
        }
    made["queue"] = {order: operations[item.key] for order, item in core.queue.items()}
    made["holds"] = {key: _copy_hold(hold) for key, hold in core.holds.items()}
    made["hints"] = {
        rank: Hint(hint.configuration, hint.served) for rank, hint in core.hints.items()
    }
    made["expected"] = {
        key: Expected(item.ranks.copy(), item.hints.copy(), item.unserved, item.ready)
        for key, item in core.expected.items()
    }
    made["tombstones"] = {
        key: Tombstone(item.message, item.reason, item.untold.copy())
        for key, item in core.tombstones.items()
    }
    return new


def _copy_operation(item: TrackedOperation) -> TrackedOperation:
    return TrackedOperation(
        item.key,
        item.configuration,
        item.circuits,
        item.ports,
        item.serial,
        {
            rank: Asked(one.request, one.asked_ns, one.mispredicted, one.can_hold)
            for rank, one in item.asked.items()
        },
        item.released.copy(),
        item.granted,
        item.order,
        item.commands,
        item.loss_announced,
        item.stall_since_ns,
    )


def _copy_hold(hold: Hold) -> Hold:
    return Hold(
        hold.number,
        hold.circuits,
        hold.holders.copy(),
        hold.reports.copy(),
        {rank: keys.copy() for rank, keys in hold.granted.items()},
        hold.released.copy(),
        hold.lost.copy(),
        hold.recalled,
        hold.loss_announced,
        hold.lost_port,
        hold.channels.copy(),
    )


def copy_holdings(old: Holdings) -> Holdings:
    """What a rank holds, in the same state."""
    new = object.__new__(Holdings)
    new._layout = old._layout
    new._leases = {
        configuration: _Lease(held.number, held.begun.copy(), held.operations)
        for configuration, held in old._leases.items()
    }
    new._last_given_back = old._last_given_back.copy()
    new._open = old._open.copy()
    new._to_tell = old._to_tell.copy()
    new._asked = old._asked.copy()
    new._given_up = old._given_up.copy()
    new._refused = old._refused.copy()
    new._last = old._last.copy()
    new._over = old._over.copy()
    return new
