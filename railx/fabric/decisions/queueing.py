"""Refusals, hints, operations, the queue of those that all members asked for, leases.

A configuration that all its members expect is ready to be switched ahead of its need.
An operation that failed leaves a tombstone for members that come to it later. A change
at a port touches the first operation that waits there, so that no other is visited.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from railx.fabric.circuits import Circuit, Configuration, Port, ports_of
from railx.fabric.decisions import state
from railx.fabric.decisions.state import Action, State
from railx.fabric.holdings import OperationKey


def refuse(
    core: State, rank: int, request: int | None, message: str, reason: str
) -> state.RefuseAction:
    core.refusals[reason] += 1
    return state.RefuseAction(rank, request, message, reason)


def refuse_again(core: State, rank: int, request: int, key: OperationKey) -> state.RefuseAction:
    message = f"rank {rank} asked again for operation {key[1]} of {key[0]}, which has ended"
    return refuse(core, rank, request, message, "ended")


def misfit_of(core: State, rank: int, configuration: Configuration) -> tuple[str, str] | None:
    """Why a rank can never need this configuration, and the reason's name."""
    if rank not in configuration.members:
        message = f"rank {rank} asked for {configuration.name}, of which it is no member"
        return message, "member"
    if configuration.members[-1] >= core.ranks:
        message = f"rank {rank} asked for {configuration.name}"
        return f"{message}; allowed: ranks 0 to {core.ranks - 1}", "rank"
    return None


def problem_of(
    core: State, rank: int, key: OperationKey, configuration: Configuration
) -> tuple[str, str] | None:
    """Why a question is invalid, and the reason's name."""
    misfit = misfit_of(core, rank, configuration)
    if misfit is not None:
        return misfit
    needs = f"but {state.named(configuration, key)} needs it"
    for member in configuration.members if core.gone else ():
        if member in core.gone:
            return f"rank {member} {core.gone[member]}, {needs}", "lost"
    if core.recovering and rank not in core.presented:
        return f"rank {rank} has not presented what it had begun", "recovery"
    if core.lost_ports:
        for port in sorted(ports_of(core.layout.circuits(configuration))):
            if port in core.lost_ports:
                return f"{lost_port_text(core, port)}, {needs}", "port"
    return None


def may_have_begun(core: State, operation: state.TrackedOperation) -> str:
    """The leases of members without a question: on these they begin without one."""
    names = {
        f"rank {rank} holds {leased.name}"
        for rank in set(operation.configuration.members) - operation.asked.keys()
        for leased in core.holds_of.get(rank, ())
        if leased != operation.configuration and rank in core.holds[leased].holders
    }
    if not names:
        return ""
    return f" ({'; '.join(sorted(names))}, and may have begun it there without asking)"


def lost_port_text(core: State, port: Port) -> str:
    what = f"the {port.side} port of GPU {port.gpu} on rail {core.layout.rail(port.gpu)}"
    return f"{what} is lost ({core.lost_ports[port]})"


def without_port_text(core: State, operation: state.TrackedOperation) -> str:
    port = next(port for port in sorted(operation.ports) if port in core.lost_ports)
    return f"{lost_port_text(core, port)}, but {state.name_of(operation)} needs it"


def users_of(core: State, operation: state.TrackedOperation) -> str:
    used = {core.active[port] for port in operation.ports if port in core.active}
    names = {
        core.operations[key].configuration.name
        for circuit in used
        for key in core.leases.get(circuit, ())
    }
    for leased in {item for circuit in used for item in core.holds_by_circuit.get(circuit, ())}:
        if core.layout.conflict(leased, operation.configuration):
            ranks = ", ".join(map(str, sorted(core.holds[leased].holders)))
            names.add(f"{leased.name}, which rank {ranks} has not given back")
    held_by = "held by " + "; ".join(sorted(names))
    return held_by if names else "being switched or claimed by an earlier operation"


def announce_loss(
    core: State,
    operation: state.TrackedOperation,
    message: str,
    reason: str,
    *,
    but: int | None = None,
) -> list[Action]:
    """Send a loss to the members of a granted operation under way, once."""
    if operation.loss_announced:
        return []
    operation.loss_announced = True
    return [
        refuse(core, rank, None, message, reason)
        for rank in sorted(operation.asked)
        if rank not in operation.released and rank not in core.gone and rank != but
    ]


def disagreement(
    key: OperationKey, rank: int, configuration: Configuration, other: int, its: Configuration
) -> str:
    return (
        f"the ranks disagree about operation {key[1]} of {key[0]}: rank {rank} asked for"
        f" {configuration.name}, rank {other} for {its.name}"
    )


def take_hint(core: State, rank: int, configuration: Configuration) -> bool:
    hint = take_back_hint(core, rank)
    mispredicted = hint is not None and hint.configuration != configuration
    if mispredicted:
        state.add_count(core, rank, "mispredictions")
    return mispredicted


def take_back_hint(core: State, rank: int) -> state.Hint | None:
    hint = core.hints.pop(rank, None)
    if hint is not None:
        expected = core.expected[hint.configuration]
        expected.hints.remove(rank)
        expected.unserved -= not hint.served
        expect(core, hint.configuration, rank, -1)
    return hint


def expect(core: State, configuration: Configuration, rank: int, change: int) -> None:
    """A rank expects a configuration for one reason more, or less."""
    expected = core.expected.get(configuration)
    if expected is None:
        expected = core.expected[configuration] = state.Expected()
    ranks = expected.ranks
    count = ranks.get(rank, 0) + change
    if count:
        ranks[rank] = count
    else:
        del ranks[rank]
        if not ranks:
            del core.expected[configuration]
    if not expected.unserved and expected.ready is None:
        return
    ready = expected.unserved > 0 and len(ranks) == len(configuration.members)
    if ready and expected.ready is None:
        expected.ready = state.turn(core)
        for port in ports_of(core.layout.circuits(configuration)):
            core.ready.setdefault(port, {})[configuration] = None
    elif not ready:
        not_ready(core, configuration, expected)
    if ready:
        core.touched_hints[configuration] = None


def not_ready(core: State, configuration: Configuration, expected: state.Expected) -> None:
    if expected.ready is not None:
        expected.ready = None
        for port in ports_of(core.layout.circuits(configuration)):
            state.discard(core.ready, port, configuration)


def tracked(core: State, key: OperationKey, configuration: Configuration) -> state.TrackedOperation:
    """The operation of this key, made where there is none."""
    operation = core.operations.get(key)
    if operation is None:
        circuits, ports = state.wired(core.layout, configuration)
        operation = state.TrackedOperation(key, configuration, circuits, ports, state.turn(core))
        core.operations[key] = operation
        core.by_channel.setdefault(key[0], {})[key[1]] = operation
        core.by_configuration.setdefault(configuration, {})[key] = operation
        for member in configuration.members:
            core.by_member.setdefault(member, {})[key] = operation
    return operation


def forget(core: State, operation: state.TrackedOperation) -> None:
    """Take an operation out of everything but the leases."""
    key, configuration = operation.key, operation.configuration
    if not operation.granted:
        stands_no_more(core, operation)
    del core.operations[key]
    state.discard(core.by_channel, key[0], key[1])
    state.discard(core.by_configuration, configuration, key)
    for member in configuration.members:
        state.discard(core.by_member, member, key)


def stand(core: State, operation: state.TrackedOperation, rank: int, asked: state.Asked) -> None:
    """A member waits for an operation that is not granted."""
    operation.asked[rank] = asked
    expect(core, operation.configuration, rank, 1)


def stands_no_more(core: State, operation: state.TrackedOperation) -> None:
    """An operation is granted or has failed: it leaves the queue."""
    for rank in operation.asked:
        expect(core, operation.configuration, rank, -1)
    if operation.order is None:
        return
    del core.queue[operation.order]
    for port in operation.ports:
        state.discard(core.waiting, port, operation.order)
    operation.order = None
    touch(core, operation.ports)


def enqueue(core: State, operation: state.TrackedOperation) -> None:
    """Queue an operation once all members have asked."""
    if operation.order is not None or len(operation.asked) < len(operation.configuration.members):
        return
    operation.order = state.turn(core)
    core.queue[operation.order] = operation
    for port in operation.ports:
        core.waiting.setdefault(port, {})[operation.order] = operation
    heapq.heappush(core.touched, operation.order)


def first_at(core: State, ports: Iterable[Port]) -> list[state.TrackedOperation]:
    """The first operation of the queue at each of these ports, in order."""
    first = {next(iter(core.waiting[port])) for port in ports if port in core.waiting}
    return [core.queue[order] for order in sorted(first)]


def touch(core: State, ports: Iterable[Port]) -> None:
    """Something changed at these ports: visit their first operations again."""
    everyone, ready = core.waiting, core.ready
    orders = set()
    for port in ports:
        waiting = everyone.get(port)
        if waiting:
            orders.add(next(iter(waiting)))
        if ready and port in ready:
            core.touched_hints.update(ready[port])
    for order in orders:
        heapq.heappush(core.touched, order)


def has_too_many(core: State, rank: int) -> bool:
    mine = core.by_member.get(rank, {})
    if len(mine) < state.OPEN_OPERATIONS:
        return False
    still_open = [rank in item.asked and rank not in item.released for item in mine.values()]
    return sum(still_open) >= state.OPEN_OPERATIONS


def fail(core: State, operation: state.TrackedOperation, message: str, reason: str) -> list[Action]:
    """End an operation that was not granted in an error for all that asked for it.

    Members that ask later get the error then. The caller advances.
    """
    forget(core, operation)
    members = set(operation.configuration.members)
    untold = members - operation.asked.keys() - core.gone.keys()
    if untold:
        bury(core, operation.key, message, reason, untold)
    return [
        refuse(core, rank, asked.request, message, reason)
        for rank, asked in sorted(operation.asked.items())
        if rank not in core.gone and (asked.request is not None or rank not in operation.released)
    ]


def bury(core: State, key: OperationKey, message: str, reason: str, untold: set[int]) -> None:
    """Keep a failed operation's error for the members that ask later."""
    if not untold:
        core.tombstones.pop(key, None)
        return
    core.tombstones[key] = state.Tombstone(message, reason, untold)
    if len(core.tombstones) > state.TOMBSTONES:
        del core.tombstones[next(iter(core.tombstones))]


def go_past(core: State, rank: int, key: OperationKey) -> list[Action]:
    """Fail the earlier operations of a channel that ``rank`` has not asked for.

    It comes to ``key``, and a question for one before that would be refused. They
    are left where a controller before this one has refused them to the rank.
    """
    channel, number = key
    last, row = state.last_of(core, rank, channel), core.by_channel.get(channel)
    if number <= last + 1 or row is None:
        return []
    actions: list[Action] = []
    for operation in [row[earlier] for earlier in sorted(row) if last < earlier < number]:
        configuration = operation.configuration
        if operation.granted or rank in operation.asked or rank not in configuration.members:
            continue
        # Operations begun under a lease count when the lease ends.
        if configuration not in core.holds:
            message = state.passed(rank, configuration, operation.key)
            actions += fail(core, operation, message, "ended")
            mark_notified(core, operation.key, rank)
    return actions


def mark_notified(core: State, key: OperationKey, rank: int) -> None:
    """A member has got the error of a failed operation."""
    tombstone = core.tombstones.get(key)
    if tombstone is not None:
        tombstone.untold.discard(rank)
        if not tombstone.untold:
            del core.tombstones[key]


def lease(core: State, operation: state.TrackedOperation) -> None:
    for circuit in operation.circuits:
        if circuit in core.lit:
            core.leases.setdefault(circuit, set()).add(operation.key)


def end_when_released(core: State, operation: state.TrackedOperation) -> None:
    if len(operation.released) < len(operation.asked):
        return
    forget(core, operation)
    for circuit in operation.circuits:
        state.discard(core.leases, circuit, operation.key)
    touch(core, operation.ports)


def begin_lease(core: State, operation: state.TrackedOperation) -> state.Hold | None:
    """Begin a lease with a grant; None where others wait or a member cannot hold it."""
    configuration = operation.configuration
    if not operation.circuits or configuration in core.holds or others_wait(core, operation):
        return None
    if not all(asked.can_hold for asked in operation.asked.values()):
        return None
    on_channel = core.by_channel.get(operation.key[0], {}).values()
    if any(other.configuration != configuration for other in on_channel):
        # Members that disagree about the channel have to ask to be told.
        return None
    hold = state.Hold(core.next_hold, operation.circuits, set(configuration.members))
    core.next_hold += 1
    core.holds[configuration] = hold
    for member in configuration.members:
        core.holds_of.setdefault(member, {})[configuration] = None
    for circuit in hold.circuits:
        core.holds_by_circuit.setdefault(circuit, set()).add(configuration)
    return hold


def others_wait(core: State, operation: state.TrackedOperation) -> bool:
    """Whether operations of another configuration wait for its ports."""
    waiting, configuration = core.waiting, operation.configuration
    for port in operation.ports:
        if port in waiting:
            for other in waiting[port].values():
                if other.configuration != configuration:
                    return True
    return False


def recall(core: State, configuration: Configuration, reason: str | None = None) -> list[Action]:
    """Ask the holders of a lease to give it back, once."""
    hold = core.holds.get(configuration)
    if hold is None or hold.recalled:
        return []
    hold.recalled = True
    hold.loss_announced = reason is not None
    core.counters["recalls"] += len(hold.holders)
    holders = sorted(hold.holders)
    return [state.RecallAction(rank, configuration, hold.number, reason) for rank in holders]


def recall_from(
    core: State, circuits: list[Circuit], expected: Configuration | None = None
) -> list[Action]:
    """Recall the held leases that keep ``circuits`` from coming up.

    ``expected``: only to be ahead of what needs this, so that only those leases are
    recalled with which a member is through: it has given its part back, or has
    asked for an operation of ``expected``.
    """
    through = set() if expected is None else standing_before(core, expected)
    in_the_way: dict[Configuration, None] = {}
    active, every = core.active, core.holds_by_circuit
    for port in state.ports_in_order(tuple(circuits)):
        here = active.get(port)
        configurations = () if here is None else every.get(here, ())
        for configuration in (
            sorted(configurations, key=state.by_name) if len(configurations) > 1 else configurations
        ):
            hold = core.holds[configuration]
            if hold.recalled:
                continue
            few = len(hold.holders) < len(configuration.members)
            if expected is None or few or not through.isdisjoint(hold.holders):
                in_the_way[configuration] = None
    return [action for configuration in in_the_way for action in recall(core, configuration)]


def standing_before(core: State, configuration: Configuration) -> set[int]:
    """Ranks that have asked for an operation with this configuration, and wait."""
    return {
        rank
        for operation in core.by_configuration.get(configuration, {}).values()
        if not operation.granted
        for rank, asked in operation.asked.items()
        if asked.request is not None
    }
