"""The events of ranks: they arrive, ask, report, leave or die, and come back.

After a restart of the controller ranks present what they have begun. It grants and
switches nothing before all have, or are given up. Then it goes on as if all leases had
been recalled.
"""

from __future__ import annotations

from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions import granting, queueing, state
from railx.fabric.decisions.queueing import refuse
from railx.fabric.decisions.state import Action, State
from railx.fabric.holdings import OperationKey, Presentation, Report


def present(core: State, rank: int, presentation: Presentation, now_ns: int) -> list[Action]:
    """``rank`` presents its operations to a restarted controller.

    Then it asks its open questions again. From now on it asks before every
    operation and releases those in ``presentation.open``. A second time changes
    nothing.
    """
    if not core.recovering or rank not in core.awaited:
        return []
    core.presented[rank] = presentation
    for channel, (_, number) in presentation.begun.items():
        state.note_last(core, rank, channel, number)
    state.add_count(core, rank, "held", presentation.operations)
    return [] if core.awaited else recover(core, now_ns)


def end_recovery(core: State, now_ns: int) -> list[Action]:
    """Ranks that have not presented by now count as dead."""
    for rank in sorted(core.awaited):
        core.gone[rank] = "did not come back after the controller was restarted"
        core.former[rank] = core.registered.pop(rank, None)
        core.failures["ranks"] += 1
    return recover(core, now_ns) if core.recovering else []


def recover(core: State, now_ns: int) -> list[Action]:
    """All remaining ranks have presented: go on as if all leases were recalled."""
    core.recovering = False
    # A new process has begun none of the operations of the former one.
    lost = {
        rank: "is another process since the controller was restarted"
        for rank in core.registered
        if rank not in core.returning
    }
    channels: dict[str, dict[int, Configuration]] = {}
    for rank, presentation in core.presented.items():
        for channel, (configuration, _) in presentation.begun.items():
            if rank in configuration.members and configuration.members[-1] < core.ranks:
                channels.setdefault(channel, {})[rank] = configuration
    actions: list[Action] = []
    for channel in sorted(channels):
        needs = channels[channel]
        configuration = needs[min(needs)]
        members = set(configuration.members)
        presented = {
            rank: item
            for rank, item in core.presented.items()
            if rank in members
            and rank not in lost
            and needs.get(rank, configuration) == configuration
        }
        if not presented:
            continue
        dark = [item for item in core.layout.circuits(configuration) if item not in core.lit]
        hold = state.Hold(0, core.layout.circuits(configuration), set())
        hold.lost = {rank: reason for rank, reason in lost.items() if rank in members}
        if dark:
            hold.lost_port = f"the circuit {dark[0].right} - {dark[0].left} is dark"
        reports = {
            rank: Report(
                hold.number,
                {name: number for name, (_, number) in item.begun.items() if name == channel},
                frozenset(key for key in item.open if (rank, key) not in core.ended_early),
            )
            for rank, item in presented.items()
        }
        over = max((item.over.get(channel, -1) for item in presented.values()), default=-1)
        actions += granting.take_over_channel(
            core, configuration, channel, reports, hold, now_ns, over
        )
    core.presented.clear()
    core.ended_early.clear()
    core.returning.clear()
    return [*actions, *granting.advance(core, now_ns)]


def register(
    core: State, rank: int, incarnation: int | None = None, *, returning: bool = False
) -> str | None:
    """A rank arrives or comes back; returns why it may not (one line), or None.

    ``incarnation`` tells two processes of a rank apart. ``returning``: it was
    registered with a controller before this one.
    """
    if not 0 <= rank < core.ranks:
        return f"rank {rank} registered; allowed: 0 to {core.ranks - 1}"
    if rank in core.registered:
        return f"rank {rank} is already registered"
    if incarnation is not None and core.former.get(rank) == incarnation:
        return f"rank {rank} {core.gone.get(rank, 'has left')}; allowed: a new process"
    if returning and not core.recovering:
        return f"rank {rank} came back too late: the controller does not wait for it any more"
    if not core.registered and not core.recovering:
        # The first rank of the next program: losses of the last one are over.
        core.gone.clear()
        core.tombstones.clear()
    core.registered[rank] = incarnation
    if returning:
        core.returning.add(rank)
    core.gone.pop(rank, None)
    queueing.take_back_hint(core, rank)
    core.last.pop(rank, None)
    core.given_up.pop(rank, None)
    for key in [key for key, item in core.tombstones.items() if rank in item.untold]:
        queueing.mark_notified(core, key, rank)
    return None


def leave(core: State, rank: int, reason: str, now_ns: int) -> list[Action]:
    """``rank`` is gone: ranks that wait for it get an error, and its leases end.

    ``reason`` completes "rank 3 ...".
    """
    core.gone[rank] = reason
    if rank in core.registered:
        core.former[rank] = core.registered.pop(rank)
    core.failures["ranks"] += reason != state.ORDERLY
    core.returning.discard(rank)
    core.presented.pop(rank, None)
    queueing.take_back_hint(core, rank)
    actions: list[Action] = []
    for operation in list(core.by_member.get(rank, {}).values()):
        message = f"rank {rank} {reason} during {state.name_of(operation)}"
        if operation.granted:
            # Those who leave because of the first loss are not its reason.
            actions += queueing.announce_loss(core, operation, message, "lost", but=rank)
            operation.released.add(rank)
            queueing.end_when_released(core, operation)
        else:
            actions += queueing.fail(core, operation, message, "lost")
    for configuration in list(core.holds_of.get(rank, ())):
        hold = core.holds[configuration]
        hold.holders.discard(rank)
        hold.reports.pop(rank, None)
        hold.lost.setdefault(rank, reason)
        queueing.touch(core, ports_of(hold.circuits))
        actions += queueing.recall(core, configuration, f"rank {rank} {reason}")
        actions += granting.settle(core, configuration, now_ns)
    if core.recovering and not core.awaited:
        return [*actions, *recover(core, now_ns)]
    return [*actions, *granting.advance(core, now_ns)]


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
    question = state.Question(rank, request, key, configuration)
    problem = queueing.problem_of(core, rank, key, configuration)
    if problem is not None and problem[1] not in ("lost", "port"):
        return [refuse(core, rank, request, *problem)]
    operation = core.operations.get(key)
    if key in core.given_up.get(rank, ()):
        # The rank gave it up before: its peers must not wait for it.
        state.discard(core.given_up, rank, key)
        problem = f"rank {rank} gave up waiting for {state.named(configuration, key)}", "abandoned"
        return refuse_all(core, question, problem, now_ns)
    if operation is not None and operation.configuration != configuration:
        return disagree(core, question, operation, now_ns)
    if operation is not None and rank in operation.asked:
        if rank in operation.released:
            return [queueing.refuse_again(core, rank, request, key)]
        asked = operation.asked[rank]
        if asked.request is not None:
            asked.request = request
        return [granting.grant_action(core, operation, rank, now_ns)] if operation.granted else []
    tombstone = core.tombstones.get(key)
    if tombstone is not None and rank in tombstone.untold:
        # The rank skips the operations of the channel that its peers began before.
        passed = queueing.go_past(core, rank, key)
        queueing.mark_notified(core, key, rank)
        state.note_last(core, rank, *key)
        refusal = refuse(core, rank, request, tombstone.message, tombstone.reason)
        return [*passed, refusal, *granting.advance(core, now_ns)]
    hold = core.holds.get(configuration)
    if hold is not None and rank in hold.holders and not hold.recalled:
        return granting.grant_to_holder(core, question, hold, now_ns)
    if state.last_of(core, rank, key[0]) >= key[1] or (operation and operation.granted):
        return [queueing.refuse_again(core, rank, request, key)]
    if problem is None and queueing.has_too_many(core, rank):
        message = f"rank {rank} has {state.OPEN_OPERATIONS} operations open"
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
        recalls = [item for _, other in others for item in queueing.recall(core, other)]
    passed = queueing.go_past(core, rank, key)
    operation = queueing.tracked(core, key, configuration)
    state.note_last(core, rank, *key)
    mispredicted = queueing.take_hint(core, rank, configuration)
    queueing.stand(core, operation, rank, state.Asked(request, now_ns, mispredicted, can_hold))
    state.add_count(core, rank, "requests")
    queueing.enqueue(core, operation)
    # Those who still hold the lease may have begun it without asking.
    mine = queueing.recall(core, configuration)
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
    """A lease has to be given back, whoever needs its ports; once, if there is one."""
    return [*queueing.recall(core, configuration), *granting.advance(core, now_ns)]


def release(core: State, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
    """``rank`` has ended its part; unknown and repeated releases change nothing."""
    operation = core.operations.get(key)
    if operation is None or rank not in operation.asked:
        if core.recovering and len(core.ended_early) < core.ranks * state.OPEN_OPERATIONS:
            core.ended_early.add((rank, key))
        # It may be part of a lease that other members have not given back yet, or
        # have overtaken the report that names it.
        for configuration in core.holds_of.get(rank, ()):
            hold = core.holds[configuration]
            report = hold.reports.get(rank)
            expected = report is None or key in report.open or key in hold.granted.get(rank, ())
            if expected and len(hold.released) < state.OPEN_OPERATIONS:
                hold.released.add((rank, key))
        return []
    if operation.granted:
        operation.released.add(rank)
        queueing.end_when_released(core, operation)
    elif operation.asked[rank].request is None and rank not in operation.released:
        # It began under a held lease, and its part needed no peer (a buffered send,
        # the root of a broadcast, an error): it never waited.
        operation.released.add(rank)
        state.add_count(core, rank, "requests", -1)
        state.add_count(core, rank, "held")
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
            actions = queueing.recall(core, configuration)
    actions += granting.settle(core, configuration, now_ns)
    return [*actions, *granting.advance(core, now_ns)]


def is_disputed(core: State, configuration: Configuration, report: Report) -> bool:
    """Whether others asked for something else where an operation has begun."""
    return any(
        not operation.granted and operation.configuration != configuration and number <= last
        for channel, last in report.begun.items()
        for number, operation in core.by_channel.get(channel, {}).items()
    )


def hint(core: State, rank: int, configuration: Configuration, now_ns: int) -> list[Action]:
    """The next operation of ``rank`` will need this; a newer hint replaces it."""
    if rank in core.gone:
        return []
    misfit = queueing.misfit_of(core, rank, configuration)
    if misfit is not None:
        return [refuse(core, rank, None, *misfit)]
    # Of a group with a dead member a hint may be on its way in any recovery. It is
    # kept like any other, and nothing is switched for it before the member is back.
    queueing.take_back_hint(core, rank)
    core.hints[rank] = state.Hint(configuration)
    expected = core.expected.setdefault(configuration, state.Expected())
    expected.hints.add(rank)
    expected.unserved += 1
    queueing.expect(core, configuration, rank, 1)
    state.add_count(core, rank, "hints")
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
        if state.last_of(core, rank, key[0]) < key[1]:
            given_up = core.given_up.setdefault(rank, {})
            given_up[key] = None
            if len(given_up) > state.GIVEN_UP:
                del given_up[next(iter(given_up))]
        return release(core, rank, key, now_ns)
    if operation.granted or operation.asked[rank].request is None:
        return release(core, rank, key, now_ns)
    missing = sorted(set(operation.configuration.members) - set(operation.asked))
    what = (
        f"rank {', '.join(map(str, missing))} has not asked for it"
        f"{queueing.may_have_begun(core, operation)}"
        if missing
        else f"its ports are in use ({queueing.users_of(core, operation)})"
    )
    message = f"rank {rank} gave up waiting for {state.name_of(operation)}: {what}"
    return [*queueing.fail(core, operation, message, "abandoned"), *granting.advance(core, now_ns)]


def disagree(
    core: State, question: state.Question, operation: state.TrackedOperation, now_ns: int
) -> list[Action]:
    """The ranks disagree about an operation, which fails for all of them."""
    rank, _, key, configuration = question
    other = min(operation.asked)
    message = queueing.disagreement(key, rank, configuration, other, operation.configuration)
    refused = refuse_all(core, question, (message, "disagree"), now_ns)
    hold = core.holds.get(configuration)
    if hold is None or rank in hold.holders:
        return refused
    # Its peers may have begun it on a lease that never carried the channel before.
    return [*refused, *queueing.recall(core, configuration)]


def disagree_with_grant(
    core: State, question: state.Question, member: int, leased: Configuration, now_ns: int
) -> list[Action]:
    """``member`` was granted the operation on a lease of another configuration.

    Where the lease is the rank's too, the others on it would wait for the rank:
    those that have begun get an error with their reports, the rest when they ask.
    """
    rank, request, key, configuration = question
    message = queueing.disagreement(key, rank, configuration, member, leased)
    refusal = refuse(core, rank, request, message, "disagree")
    if rank not in leased.members:
        return [refusal]
    passed = queueing.go_past(core, rank, key)
    state.note_last(core, rank, *key)
    untold = {*configuration.members, *leased.members} - {rank} - core.gone.keys()
    queueing.bury(core, key, message, "disagree", untold)
    return [*passed, refusal, *queueing.recall(core, leased), *granting.advance(core, now_ns)]


def refuse_all(
    core: State, question: state.Question, problem: tuple[str, str], now_ns: int
) -> list[Action]:
    """Refuse a question, and the operation to others, who would wait in vain."""
    rank, request, key, configuration = question
    operation = queueing.tracked(core, key, configuration)
    refusal = refuse(core, rank, request, *problem)
    if operation.granted or rank not in operation.configuration.members:
        return [refusal]
    failed = [*queueing.go_past(core, rank, key), *queueing.fail(core, operation, *problem)]
    state.note_last(core, rank, *key)
    queueing.mark_notified(core, key, rank)
    mine = rank, request
    others = [
        item
        for item in failed
        if not (isinstance(item, state.RefuseAction) and (item.rank, item.request) == mine)
    ]
    return [refusal, *others, *granting.advance(core, now_ns)]
