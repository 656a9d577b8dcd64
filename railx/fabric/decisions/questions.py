"""The events of ranks, one function each."""

from __future__ import annotations

from railx.fabric.actions import Action, RefuseAction
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions import granting, handed_back, leases, queueing, refusals
from railx.fabric.decisions.refusals import refuse
from railx.fabric.decisions.state import (
    GIVEN_UP,
    OPEN_OPERATIONS,
    Asked,
    Expected,
    Hint,
    Question,
    State,
    TrackedOperation,
    add_count,
    discard,
    last_of,
    name_of,
    note_last,
)
from railx.fabric.holdings import OperationKey, Report


def ask(
    core: State,
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
    question = Question(rank, request, key, configuration)
    problem = refusals.problem_of(core, rank, key, configuration)
    if problem is not None and problem[1] not in ("lost", "port"):
        return [refuse(core, rank, request, *problem)]
    operation = core.operations.get(key)
    if key in core.given_up.get(rank, ()):
        # The rank gave it up before: its peers must not wait for it.
        discard(core.given_up, rank, key)
        message = f"rank {rank} gave up waiting for {configuration.name}"
        problem = f"{message} (operation {key[1]} of {key[0]})", "abandoned"
        return refuse_all(core, question, problem, now_ns)
    if operation is not None and operation.configuration != configuration:
        return disagree(core, question, operation, now_ns)
    if operation is not None and rank in operation.asked:
        if rank in operation.released:
            return [refusals.refuse_again(core, rank, request, key)]
        asked = operation.asked[rank]
        if asked.request is not None:
            asked.request = request
        return [granting.grant_action(core, operation, rank, now_ns)] if operation.granted else []
    tombstone = core.tombstones.get(key)
    if tombstone is not None and rank in tombstone.untold:
        # The rank skips the operations of the channel that its peers began before.
        passed = queueing.go_past(core, rank, key)
        queueing.mark_notified(core, key, rank)
        note_last(core, rank, *key)
        refusal = refuse(core, rank, request, tombstone.message, tombstone.reason)
        return [*passed, refusal, *granting.advance(core, now_ns)]
    hold = core.holds.get(configuration)
    if hold is not None and rank in hold.holders and not hold.recalled:
        return granting.grant_to_holder(core, question, hold, now_ns)
    if last_of(core, rank, key[0]) >= key[1] or (operation and operation.granted):
        return [refusals.refuse_again(core, rank, request, key)]
    if problem is None and queueing.has_too_many(core, rank):
        message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
        problem = f"{message}; allowed: no more", "limit"
    if problem is not None:
        return refuse_all(core, question, problem, now_ns)
    recalls: list[Action] = []
    if operation is None:
        others = other_leases(core, key, configuration)
        for member, other in others:
            if key in core.holds[other].granted.get(member, ()):
                return disagree_with_grant(core, question, member, other, now_ns)
        # Members may have begun it there without asking: their reports name it.
        recalls = [item for _, other in others for item in leases.recall(core, other)]
    passed = queueing.go_past(core, rank, key)
    operation = queueing.tracked(core, key, configuration)
    note_last(core, rank, *key)
    mispredicted = queueing.take_hint(core, rank, configuration)
    queueing.stand(core, operation, rank, Asked(request, now_ns, mispredicted, can_hold))
    add_count(core, rank, "requests")
    queueing.enqueue(core, operation)
    # Those who still hold the lease may have begun it without asking.
    mine = leases.recall(core, configuration)
    return [*passed, *recalls, *mine, *granting.advance(core, now_ns)]


def other_leases(
    core: State, key: OperationKey, configuration: Configuration
) -> list[tuple[int, Configuration]]:
    """Leases of another configuration that carried the channel, and who of the
    members holds them.

    The members of a channel that agree need the same for all its operations, so
    that there are none as a rule.
    """
    return [
        (member, leased)
        for member in configuration.members
        for leased in core.holds_of.get(member, ())
        if leased != configuration
        and key[0] in (hold := core.holds[leased]).channels
        and member in hold.holders
        and not hold.recalled
    ]


def recall(core: State, configuration: Configuration, now_ns: int) -> list[Action]:
    """The lease of a configuration has to be given back, whoever needs its ports.

    Where nobody holds one, or it was recalled before, nothing changes.
    """
    return [*leases.recall(core, configuration), *granting.advance(core, now_ns)]


def release(core: State, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
    """``rank`` has ended its part of an operation.

    Unknown and repeated releases change nothing.
    """
    operation = core.operations.get(key)
    if operation is None or rank not in operation.asked:
        if core.recovering and len(core.ended_early) < core.ranks * OPEN_OPERATIONS:
            core.ended_early.add((rank, key))
        # It may be part of a lease that other members have not given back yet, or
        # have overtaken the report that names it.
        for configuration in core.holds_of.get(rank, ()):
            hold = core.holds[configuration]
            report = hold.reports.get(rank)
            expected = report is None or key in report.open or key in hold.granted.get(rank, ())
            if expected and len(hold.released) < OPEN_OPERATIONS:
                hold.released.add((rank, key))
        return []
    if operation.granted:
        operation.released.add(rank)
        leases.end_when_released(core, operation)
    elif operation.asked[rank].request is None and rank not in operation.released:
        # It began under a held lease, and its part needed no peer (a buffered send,
        # the root of a broadcast, an error): it never waited.
        operation.released.add(rank)
        add_count(core, rank, "requests", -1)
        add_count(core, rank, "held")
    return granting.advance(core, now_ns)


def recalled(
    core: State, rank: int, configuration: Configuration, report: Report, now_ns: int
) -> list[Action]:
    """``rank`` has given back a held lease, asked to or not.

    From now on it asks before every operation and releases those in
    ``report.open``. Late and repeated reports change nothing.
    """
    hold = core.holds.get(configuration)
    if hold is None or hold.number != report.hold or rank not in hold.holders:
        return []
    hold.holders.remove(rank)
    hold.reports[rank] = report
    actions: list[Action] = []
    if not hold.recalled:
        # Hints may wait until the others give it back too.
        queueing.touch(core, ports_of(hold.circuits))
        hold.channels.update(report.begun)
        if is_disputed(core, configuration, report):
            # All reports together decide which operations go on.
            actions = leases.recall(core, configuration)
    return [
        *actions,
        *handed_back.settle(core, configuration, now_ns),
        *granting.advance(core, now_ns),
    ]


def is_disputed(core: State, configuration: Configuration, report: Report) -> bool:
    """Whether others asked for something else where an operation has begun."""
    return any(
        not operation.granted and operation.configuration != configuration and number <= last
        for channel, last in report.begun.items()
        for number, operation in core.by_channel.get(channel, {}).items()
    )


def hint(core: State, rank: int, configuration: Configuration, now_ns: int) -> list[Action]:
    """The next operation of ``rank`` will need ``configuration``.

    A newer hint replaces an older one.
    """
    if rank in core.gone:
        return []
    misfit = refusals.misfit_of(core, rank, configuration)
    if misfit is not None:
        return [refuse(core, rank, None, *misfit)]
    # Of a group with a dead member a hint may be on its way in any recovery. It is
    # kept like any other, and nothing is switched for it before the member is back.
    queueing.take_back_hint(core, rank)
    core.hints[rank] = Hint(configuration)
    expected = core.expected.setdefault(configuration, Expected())
    expected.hints.add(rank)
    expected.unserved += 1
    queueing.expect(core, configuration, rank, 1)
    add_count(core, rank, "hints")
    return granting.advance(core, now_ns)


def abandon(core: State, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
    """``rank`` waited too long: the operation fails for every rank that asked.

    The error names the missing ranks or ports. An operation granted meanwhile is
    released. A later question for it is refused.
    """
    operation = core.operations.get(key)
    if operation is None or rank not in operation.asked:
        if operation is not None and rank not in operation.configuration.members:
            return []
        if last_of(core, rank, key[0]) < key[1]:
            given_up = core.given_up.setdefault(rank, {})
            given_up[key] = None
            if len(given_up) > GIVEN_UP:
                del given_up[next(iter(given_up))]
        return release(core, rank, key, now_ns)
    if operation.granted or operation.asked[rank].request is None:
        return release(core, rank, key, now_ns)
    missing = sorted(set(operation.configuration.members) - set(operation.asked))
    what = (
        f"rank {', '.join(map(str, missing))} has not asked for it"
        f"{refusals.may_have_begun(core, operation)}"
        if missing
        else f"its ports are in use ({refusals.users_of(core, operation)})"
    )
    message = f"rank {rank} gave up waiting for {name_of(operation)}: {what}"
    return [*queueing.fail(core, operation, message, "abandoned"), *granting.advance(core, now_ns)]


def disagree(
    core: State, question: Question, operation: TrackedOperation, now_ns: int
) -> list[Action]:
    """The ranks disagree about an operation, which fails for all of them.

    A rank outside the others' configuration harms only itself.
    """
    rank, _, key, configuration = question
    other = min(operation.asked)
    message = refusals.disagreement(key, rank, configuration, other, operation.configuration)
    refused = refuse_all(core, question, (message, "disagree"), now_ns)
    hold = core.holds.get(configuration)
    if hold is None or rank in hold.holders:
        return refused
    # Its peers may have begun it on a lease that never carried the channel before.
    return [*refused, *leases.recall(core, configuration)]


def disagree_with_grant(
    core: State, question: Question, member: int, leased: Configuration, now_ns: int
) -> list[Action]:
    """``member`` was granted the operation on a lease of another configuration.

    Where the lease is the rank's too, the others on it would wait for the rank:
    those that have begun get an error with their reports, the rest when they ask.
    """
    rank, request, key, configuration = question
    message = refusals.disagreement(key, rank, configuration, member, leased)
    refusal = refuse(core, rank, request, message, "disagree")
    if rank not in leased.members:
        return [refusal]
    passed = queueing.go_past(core, rank, key)
    note_last(core, rank, *key)
    untold = {*configuration.members, *leased.members} - {rank} - core.gone.keys()
    queueing.bury(core, key, message, "disagree", untold)
    return [*passed, refusal, *leases.recall(core, leased), *granting.advance(core, now_ns)]


def refuse_all(
    core: State, question: Question, problem: tuple[str, str], now_ns: int
) -> list[Action]:
    """Refuse a question, and the operation to its other members too.

    They would wait for the rank in vain.
    """
    rank, request, key, configuration = question
    operation = queueing.tracked(core, key, configuration)
    refusal = refuse(core, rank, request, *problem)
    if operation.granted or rank not in operation.configuration.members:
        return [refusal]
    failed = [*queueing.go_past(core, rank, key), *queueing.fail(core, operation, *problem)]
    note_last(core, rank, *key)
    queueing.mark_notified(core, key, rank)
    others = [
        item
        for item in failed
        if not (isinstance(item, RefuseAction) and (item.rank, item.request) == (rank, request))
    ]
    return [refusal, *others, *granting.advance(core, now_ns)]
