"""The events of ranks, one function each."""

from __future__ import annotations

from collections.abc import Mapping

from railx.fabric.actions import Action, RefuseAction
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions.granting import advance, grant_action, grant_to_holder
from railx.fabric.decisions.handed_back import settle
from railx.fabric.decisions.leases import end_when_released, recall
from railx.fabric.decisions.listeners import drop_listener, hear, involved
from railx.fabric.decisions.operations import (
    bury,
    change_expected,
    enqueue,
    fail_operation,
    has_too_many,
    mark_notified,
    pass_over,
    stand_before,
    take_back_hint,
    take_hint,
    touch_ports,
    track_operation,
)
from railx.fabric.decisions.refusals import (
    disagreement,
    holders_of,
    may_have_begun,
    misfit_of,
    problem_of,
    refuse,
    refuse_again,
    unheard,
)
from railx.fabric.decisions.state import (
    LISTENERS,
    OPEN_OPERATIONS,
    Asked,
    ControllerState,
    Expected,
    Hint,
    Listener,
    TrackedOperation,
    by_name,
    discard,
    name_of,
)
from railx.fabric.holdings import OperationKey, Report

__all__ = ["abandon", "ask", "hint", "listen", "recalled", "release", "unlisten"]


def ask(
    state: ControllerState,
    rank: int,
    request: int,
    key: OperationKey,
    configuration: Configuration,
    now_ns: int,
    *,
    can_hold: bool = False,
) -> list[Action]:
    """``rank`` asks for operation ``key``.

    The same question asked again changes nothing (and is answered again).
    ``can_hold``: the rank can keep the lease and give it back when it is recalled;
    without that of all members every operation ends with its releases.
    """
    problem = problem_of(state, rank, key, configuration)
    if problem is not None and problem[1] not in ("lost", "port"):
        return [refuse(state, rank, request, *problem)]
    operation = state.operations.get(key)
    if key in state.given_up.get(rank, ()):
        # The rank gave it up before: its peers must not wait for it.
        discard(state.given_up, rank, key)
        message = f"rank {rank} gave up waiting for {configuration.name}"
        problem = f"{message} (operation {key[1]} of {key[0]})", "abandoned"
        return _refuse_all(state, rank, request, key, configuration, problem, now_ns)
    if operation is not None and operation.configuration != configuration:
        return _disagree(state, rank, request, operation, configuration, now_ns)
    if operation is not None and rank in operation.asked:
        if rank in operation.released:
            return [refuse_again(state, rank, request, key)]
        asked = operation.asked[rank]
        if asked.request is not None:
            asked.request = request
        return [grant_action(state, operation, rank, now_ns)] if operation.granted else []
    tombstone = state.tombstones.get(key)
    if tombstone is not None and rank in tombstone.untold:
        # The rank skips the operations of the channel that its peers began before.
        passed = pass_over(state, rank, key)
        mark_notified(state, key, rank)
        state.note_last_number(rank, *key)
        refusal = refuse(state, rank, request, tombstone.message, tombstone.reason)
        return [*passed, refusal, *advance(state, now_ns)]
    hold = state.holds.get(configuration)
    if hold is not None and rank in hold.holders and not hold.recalled:
        return grant_to_holder(state, rank, request, key, configuration, hold, now_ns)
    if state.last_number(rank, key[0]) >= key[1] or (operation and operation.granted):
        return [refuse_again(state, rank, request, key)]
    if problem is None and has_too_many(state, rank):
        message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
        problem = f"{message}; allowed: no more", "limit"
    if problem is not None:
        return _refuse_all(state, rank, request, key, configuration, problem, now_ns)
    recalled: list[Action] = []
    if operation is None:
        others = _other_leases(state, key, configuration)
        for member, other in others:
            if key in state.holds[other].granted.get(member, ()):
                return _disagree_with_grant(
                    state, rank, request, key, configuration, member, other, now_ns
                )
        # Members may have begun it there without asking: their reports name it.
        recalled = [item for _, other in others for item in recall(state, other)]
    passed = pass_over(state, rank, key)
    operation = track_operation(state, key, configuration)
    state.note_last_number(rank, *key)
    mispredicted = take_hint(state, rank, configuration)
    stand_before(state, operation, rank, Asked(request, now_ns, mispredicted, can_hold))
    state.count(rank, "requests")
    enqueue(state, operation)
    # Those who still hold the lease may have begun it without asking.
    mine = recall(state, configuration)
    return [*passed, *recalled, *mine, *advance(state, now_ns)]


def _other_leases(
    state: ControllerState, key: OperationKey, configuration: Configuration
) -> list[tuple[int, Configuration]]:
    """Leases of another configuration that carried the channel, and who of the
    members holds them.

    The members of a channel that agree need the same for all its operations, so
    that there are none as a rule.
    """
    return [
        (member, leased)
        for member in configuration.members
        for leased in state.holds_of.get(member, ())
        if leased != configuration
        and key[0] in (hold := state.holds[leased]).channels
        and member in hold.holders
        and not hold.recalled
    ]


def listen(
    state: ControllerState,
    rank: int,
    request: int,
    channels: Mapping[str, tuple[int, int]],
    now_ns: int,
) -> list[Action]:
    """``rank`` waits in a receive from any source.

    ``channels``: by channel, the sender and the number of the next operation. The
    answer names the first sender that asks for such an operation; the rank then
    asks for it as for any other. A question that was answered or given up changes
    nothing.
    """
    if rank in state.departed or request in state.heard.get(rank, ()):
        return []
    sources = {source for source, _ in channels.values()}
    for source in sorted(sources):
        if source == rank or not 0 <= source < state.ranks:
            message = f"rank {rank} listens for rank {source}; allowed: another rank"
            message = f"{message}, 0 to {state.ranks - 1}"
            return [refuse(state, rank, request, message, "listen")]
        if source in state.departed:
            return [refuse(state, rank, request, unheard(state, rank, source), "lost")]
    mine = state.listeners_of.get(rank, {})
    if (rank, request) not in mine and sum(
        listener_rank == rank for listener_rank, _ in mine
    ) >= LISTENERS:
        message = f"rank {rank} listens {LISTENERS} times; allowed: no more"
        return [refuse(state, rank, request, message, "limit")]
    pairs = sorted({Configuration("pair", (rank, source)) for source in sources}, key=by_name)
    drop_listener(state, rank, request)
    listener = Listener(state.next_serial(), dict(channels), frozenset(pairs))
    state.listeners[rank, request] = listener
    state.listened.update(listener.configurations)
    for channel in channels:
        state.listening.setdefault(channel, {})[rank, request] = None
    for member in involved(rank, listener):
        state.listeners_of.setdefault(member, {})[rank, request] = None
    state.stirred.add((rank, request))
    return [*(item for pair in pairs for item in recall(state, pair)), *advance(state, now_ns)]


def unlisten(state: ControllerState, rank: int, request: int) -> list[Action]:
    """``rank`` stops waiting for a sender; no action follows."""
    drop_listener(state, rank, request)
    hear(state, rank, request)
    return []


def release(state: ControllerState, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
    """``rank`` has ended its part of an operation.

    Unknown and repeated releases change nothing.
    """
    operation = state.operations.get(key)
    if operation is None or rank not in operation.asked:
        if state.recovering and len(state.ended_early) < state.ranks * OPEN_OPERATIONS:
            state.ended_early.add((rank, key))
        # It may be part of a lease that other members have not given back yet, or
        # have overtaken the report that names it.
        for configuration in state.holds_of.get(rank, ()):
            hold = state.holds[configuration]
            report = hold.reports.get(rank)
            expected = report is None or key in report.open or key in hold.granted.get(rank, ())
            if expected and len(hold.released) < OPEN_OPERATIONS:
                hold.released.add((rank, key))
        return []
    if operation.granted:
        operation.released.add(rank)
        end_when_released(state, operation)
    elif operation.asked[rank].request is None and rank not in operation.released:
        # It began under a held lease, and its part needed no peer (a buffered send,
        # the root of a broadcast, an error): it never waited.
        operation.released.add(rank)
        state.count(rank, "requests", -1)
        state.count(rank, "held")
    return advance(state, now_ns)


def recalled(
    state: ControllerState, rank: int, configuration: Configuration, report: Report, now_ns: int
) -> list[Action]:
    """``rank`` has given back a held lease, asked to or not.

    From now on it asks before every operation and releases those in
    ``report.open``. Late and repeated reports change nothing.
    """
    hold = state.holds.get(configuration)
    if hold is None or hold.number != report.hold or rank not in hold.holders:
        return []
    hold.holders.remove(rank)
    hold.reports[rank] = report
    actions: list[Action] = []
    if not hold.recalled:
        # Hints may wait until the others give it back too.
        touch_ports(state, ports_of(hold.circuits))
        hold.channels.update(report.begun)
        if _is_disputed(state, configuration, report):
            # All reports together decide which operations go on.
            actions = recall(state, configuration)
    return [*actions, *settle(state, configuration, now_ns), *advance(state, now_ns)]


def _is_disputed(state: ControllerState, configuration: Configuration, report: Report) -> bool:
    """Whether others asked for something else where an operation has begun."""
    return any(
        not operation.granted and operation.configuration != configuration and number <= last
        for channel, last in report.begun.items()
        for number, operation in state.by_channel.get(channel, {}).items()
    )


def hint(
    state: ControllerState, rank: int, configuration: Configuration, now_ns: int
) -> list[Action]:
    """The next operation of ``rank`` will need ``configuration``.

    A newer hint replaces an older one.
    """
    if rank in state.departed:
        return []
    misfit = misfit_of(state, rank, configuration)
    if misfit is not None:
        return [refuse(state, rank, None, *misfit)]
    # Of a group with a dead member a hint may be on its way in any recovery. It is
    # kept like any other, and nothing is switched for it before the member is back.
    take_back_hint(state, rank)
    state.hints[rank] = Hint(configuration)
    expected = state.expected.setdefault(configuration, Expected())
    expected.hints.add(rank)
    expected.unserved += 1
    change_expected(state, configuration, rank, 1)
    state.count(rank, "hints")
    return advance(state, now_ns)


def abandon(state: ControllerState, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
    """``rank`` waited too long: the operation fails for every rank that asked.

    The error names the missing ranks or ports. An operation granted meanwhile is
    released. A later question for it is refused.
    """
    operation = state.operations.get(key)
    if operation is None or rank not in operation.asked:
        if operation is not None and rank not in operation.configuration.members:
            return []
        if state.last_number(rank, key[0]) < key[1]:
            given_up = state.given_up.setdefault(rank, {})
            given_up[key] = None
            if len(given_up) > LISTENERS:
                del given_up[next(iter(given_up))]
        return release(state, rank, key, now_ns)
    if operation.granted or operation.asked[rank].request is None:
        return release(state, rank, key, now_ns)
    missing = sorted(set(operation.configuration.members) - set(operation.asked))
    what = (
        f"rank {', '.join(map(str, missing))} has not asked for it"
        f"{may_have_begun(state, operation)}"
        if missing
        else f"its ports are in use ({holders_of(state, operation)})"
    )
    message = f"rank {rank} gave up waiting for {name_of(operation)}: {what}"
    return [*fail_operation(state, operation, message, "abandoned"), *advance(state, now_ns)]


def _disagree(
    state: ControllerState,
    rank: int,
    request: int,
    operation: TrackedOperation,
    configuration: Configuration,
    now_ns: int,
) -> list[Action]:
    """The ranks disagree about an operation, which fails for all of them.

    A rank outside the others' configuration harms only itself.
    """
    key = operation.key
    other = min(operation.asked)
    message = disagreement(key, rank, configuration, other, operation.configuration)
    problem = message, "disagree"
    refused = _refuse_all(state, rank, request, key, configuration, problem, now_ns)
    hold = state.holds.get(configuration)
    if hold is None or rank in hold.holders:
        return refused
    # Its peers may have begun it on a lease that never carried the channel before.
    return [*refused, *recall(state, configuration)]


def _disagree_with_grant(
    state: ControllerState,
    rank: int,
    request: int,
    key: OperationKey,
    configuration: Configuration,
    member: int,
    leased: Configuration,
    now_ns: int,
) -> list[Action]:
    """``member`` was granted the operation on a lease of another configuration.

    Where the lease is the rank's too, the others on it would wait for the rank:
    those that have begun get an error with their reports, the rest when they ask.
    """
    message = disagreement(key, rank, configuration, member, leased)
    refusal = refuse(state, rank, request, message, "disagree")
    if rank not in leased.members:
        return [refusal]
    passed = pass_over(state, rank, key)
    state.note_last_number(rank, *key)
    untold = {*configuration.members, *leased.members} - {rank} - state.departed.keys()
    bury(state, key, message, "disagree", untold)
    return [*passed, refusal, *recall(state, leased), *advance(state, now_ns)]


def _refuse_all(
    state: ControllerState,
    rank: int,
    request: int,
    key: OperationKey,
    configuration: Configuration,
    problem: tuple[str, str],
    now_ns: int,
) -> list[Action]:
    """Refuse a question, and the operation to its other members too.

    They would wait for the rank in vain.
    """
    operation = track_operation(state, key, configuration)
    refusal = refuse(state, rank, request, *problem)
    if operation.granted or rank not in operation.configuration.members:
        return [refusal]
    failed = [*pass_over(state, rank, key), *fail_operation(state, operation, *problem)]
    state.note_last_number(rank, *key)
    mark_notified(state, key, rank)
    others = [item for item in failed if not answers(item, rank, request)]
    return [refusal, *others, *advance(state, now_ns)]


def answers(action: Action, rank: int, request: int) -> bool:
    return isinstance(action, RefuseAction) and (action.rank, action.request) == (rank, request)
