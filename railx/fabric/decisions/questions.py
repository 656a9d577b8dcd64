"""The events of ranks, one method each."""

from __future__ import annotations

from collections.abc import Mapping

from railx.fabric.actions import Action, RefuseAction
from railx.fabric.circuits import Configuration, ports_of
from railx.fabric.decisions.granting import Granting
from railx.fabric.decisions.leases import involved
from railx.fabric.decisions.refusals import disagreement
from railx.fabric.decisions.state import (
    LISTENERS,
    OPEN_OPERATIONS,
    Asked,
    Expected,
    Hint,
    Listener,
    TrackedOperation,
    by_name,
    discard,
    name_of,
)
from railx.fabric.holdings import OperationKey, Report

__all__ = ["Questions"]


class Questions(Granting):
    """Takes the events of ranks."""

    def ask(
        self,
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
        problem = self._problem(rank, key, configuration)
        if problem is not None and problem[1] not in ("lost", "port"):
            return [self._refuse(rank, request, *problem)]
        operation = self._operations.get(key)
        if key in self._given_up.get(rank, ()):
            # The rank gave it up before: its peers must not wait for it.
            discard(self._given_up, rank, key)
            message = f"rank {rank} gave up waiting for {configuration.name}"
            problem = f"{message} (operation {key[1]} of {key[0]})", "abandoned"
            return self._refuse_all(rank, request, key, configuration, problem, now_ns)
        if operation is not None and operation.configuration != configuration:
            return self._disagree(rank, request, operation, configuration, now_ns)
        if operation is not None and rank in operation.asked:
            if rank in operation.released:
                return [self._refuse_again(rank, request, key)]
            asked = operation.asked[rank]
            if asked.request is not None:
                asked.request = request
            return [self._grant_action(operation, rank, now_ns)] if operation.granted else []
        tombstone = self._tombstones.get(key)
        if tombstone is not None and rank in tombstone.untold:
            # The rank skips the operations of the channel that its peers began before.
            passed = self._pass(rank, key)
            self._mark_notified(key, rank)
            self._note_last(rank, *key)
            refusal = self._refuse(rank, request, tombstone.message, tombstone.reason)
            return [*passed, refusal, *self._advance(now_ns)]
        hold = self.holds.get(configuration)
        if hold is not None and rank in hold.holders and not hold.recalled:
            return self._grant_to_holder(rank, request, key, configuration, hold, now_ns)
        if self._last_of(rank, key[0]) >= key[1] or (operation and operation.granted):
            return [self._refuse_again(rank, request, key)]
        if problem is None and self._has_too_many(rank):
            message = f"rank {rank} has {OPEN_OPERATIONS} operations open"
            problem = f"{message}; allowed: no more", "limit"
        if problem is not None:
            return self._refuse_all(rank, request, key, configuration, problem, now_ns)
        recalled: list[Action] = []
        if operation is None:
            others = self._other_leases(key, configuration)
            for member, other in others:
                if key in self.holds[other].granted.get(member, ()):
                    return self._disagree_with_grant(
                        rank, request, key, configuration, member, other, now_ns
                    )
            # Members may have begun it there without asking: their reports name it.
            recalled = [item for _, other in others for item in self._recall(other)]
        passed = self._pass(rank, key)
        operation = self._operation(key, configuration)
        self._note_last(rank, *key)
        mispredicted = self._take_hint(rank, configuration)
        self._stand(operation, rank, Asked(request, now_ns, mispredicted, can_hold))
        self._count(rank, "requests")
        self._enqueue(operation)
        # Those who still hold the lease may have begun it without asking.
        mine = self._recall(configuration)
        return [*passed, *recalled, *mine, *self._advance(now_ns)]

    def _other_leases(
        self, key: OperationKey, configuration: Configuration
    ) -> list[tuple[int, Configuration]]:
        """Leases of another configuration that carried the channel, and who of the
        members holds them.

        The members of a channel that agree need the same for all its operations, so
        that there are none as a rule.
        """
        return [
            (member, leased)
            for member in configuration.members
            for leased in self._holds_of.get(member, ())
            if leased != configuration
            and key[0] in (hold := self.holds[leased]).channels
            and member in hold.holders
            and not hold.recalled
        ]

    def listen(
        self, rank: int, request: int, channels: Mapping[str, tuple[int, int]], now_ns: int
    ) -> list[Action]:
        """``rank`` waits in a receive from any source.

        ``channels``: by channel, the sender and the number of the next operation. The
        answer names the first sender that asks for such an operation; the rank then
        asks for it as for any other. A question that was answered or given up changes
        nothing.
        """
        if rank in self._gone or request in self._heard.get(rank, ()):
            return []
        sources = {source for source, _ in channels.values()}
        for source in sorted(sources):
            if source == rank or not 0 <= source < self.ranks:
                message = f"rank {rank} listens for rank {source}; allowed: another rank"
                message = f"{message}, 0 to {self.ranks - 1}"
                return [self._refuse(rank, request, message, "listen")]
            if source in self._gone:
                return [self._refuse(rank, request, self._unheard(rank, source), "lost")]
        mine = self._listeners_of.get(rank, {})
        if (rank, request) not in mine and sum(
            listener_rank == rank for listener_rank, _ in mine
        ) >= LISTENERS:
            message = f"rank {rank} listens {LISTENERS} times; allowed: no more"
            return [self._refuse(rank, request, message, "limit")]
        pairs = sorted({Configuration("pair", (rank, source)) for source in sources}, key=by_name)
        self._drop_listener(rank, request)
        listener = Listener(self._turn(), dict(channels), frozenset(pairs))
        self._listeners[rank, request] = listener
        self._listened.update(listener.configurations)
        for channel in channels:
            self._listening.setdefault(channel, {})[rank, request] = None
        for member in involved(rank, listener):
            self._listeners_of.setdefault(member, {})[rank, request] = None
        self._stirred.add((rank, request))
        return [*(item for pair in pairs for item in self._recall(pair)), *self._advance(now_ns)]

    def unlisten(self, rank: int, request: int) -> list[Action]:
        """``rank`` stops waiting for a sender; no action follows."""
        self._drop_listener(rank, request)
        self._hear(rank, request)
        return []

    def release(self, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
        """``rank`` has ended its part of an operation.

        Unknown and repeated releases change nothing.
        """
        operation = self._operations.get(key)
        if operation is None or rank not in operation.asked:
            if self.recovering and len(self._ended_early) < self.ranks * OPEN_OPERATIONS:
                self._ended_early.add((rank, key))
            # It may be part of a lease that other members have not given back yet, or
            # have overtaken the report that names it.
            for configuration in self._holds_of.get(rank, ()):
                hold = self.holds[configuration]
                report = hold.reports.get(rank)
                expected = report is None or key in report.open or key in hold.granted.get(rank, ())
                if expected and len(hold.released) < OPEN_OPERATIONS:
                    hold.released.add((rank, key))
            return []
        if operation.granted:
            operation.released.add(rank)
            self._end_when_released(operation)
        elif operation.asked[rank].request is None and rank not in operation.released:
            # It began under a held lease, and its part needed no peer (a buffered send,
            # the root of a broadcast, an error): it never waited.
            operation.released.add(rank)
            self._count(rank, "requests", -1)
            self._count(rank, "held")
        return self._advance(now_ns)

    def recalled(
        self, rank: int, configuration: Configuration, report: Report, now_ns: int
    ) -> list[Action]:
        """``rank`` has given back a held lease, asked to or not.

        From now on it asks before every operation and releases those in
        ``report.open``. Late and repeated reports change nothing.
        """
        hold = self.holds.get(configuration)
        if hold is None or hold.number != report.hold or rank not in hold.holders:
            return []
        hold.holders.remove(rank)
        hold.reports[rank] = report
        actions: list[Action] = []
        if not hold.recalled:
            # Hints may wait until the others give it back too.
            self._touch(ports_of(hold.circuits))
            hold.channels.update(report.begun)
            if self._is_disputed(configuration, report):
                # All reports together decide which operations go on.
                actions = self._recall(configuration)
        return [*actions, *self._settle(configuration, now_ns), *self._advance(now_ns)]

    def _is_disputed(self, configuration: Configuration, report: Report) -> bool:
        """Whether others asked for something else where an operation has begun."""
        return any(
            not operation.granted and operation.configuration != configuration and number <= last
            for channel, last in report.begun.items()
            for number, operation in self._by_channel.get(channel, {}).items()
        )

    def hint(self, rank: int, configuration: Configuration, now_ns: int) -> list[Action]:
        """The next operation of ``rank`` will need ``configuration``.

        A newer hint replaces an older one.
        """
        if rank in self._gone:
            return []
        misfit = self._misfit(rank, configuration)
        if misfit is not None:
            return [self._refuse(rank, None, *misfit)]
        # Of a group with a dead member a hint may be on its way in any recovery. It is
        # kept like any other, and nothing is switched for it before the member is back.
        self._take_back_hint(rank)
        self._hints[rank] = Hint(configuration)
        expected = self._expected.setdefault(configuration, Expected())
        expected.hints.add(rank)
        expected.unserved += 1
        self._expect(configuration, rank, 1)
        self._count(rank, "hints")
        return self._advance(now_ns)

    def abandon(self, rank: int, key: OperationKey, now_ns: int) -> list[Action]:
        """``rank`` waited too long: the operation fails for every rank that asked.

        The error names the missing ranks or ports. An operation granted meanwhile is
        released. A later question for it is refused.
        """
        operation = self._operations.get(key)
        if operation is None or rank not in operation.asked:
            if operation is not None and rank not in operation.configuration.members:
                return []
            if self._last_of(rank, key[0]) < key[1]:
                given_up = self._given_up.setdefault(rank, {})
                given_up[key] = None
                if len(given_up) > LISTENERS:
                    del given_up[next(iter(given_up))]
            return self.release(rank, key, now_ns)
        if operation.granted or operation.asked[rank].request is None:
            return self.release(rank, key, now_ns)
        missing = sorted(set(operation.configuration.members) - set(operation.asked))
        what = (
            f"rank {', '.join(map(str, missing))} has not asked for it"
            f"{self._may_have_begun(operation)}"
            if missing
            else f"its ports are in use ({self._holders(operation)})"
        )
        message = f"rank {rank} gave up waiting for {name_of(operation)}: {what}"
        return [*self._fail(operation, message, "abandoned"), *self._advance(now_ns)]

    def _disagree(
        self,
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
        refused = self._refuse_all(rank, request, key, configuration, problem, now_ns)
        hold = self.holds.get(configuration)
        if hold is None or rank in hold.holders:
            return refused
        # Its peers may have begun it on a lease that never carried the channel before.
        return [*refused, *self._recall(configuration)]

    def _disagree_with_grant(
        self,
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
        refusal = self._refuse(rank, request, message, "disagree")
        if rank not in leased.members:
            return [refusal]
        passed = self._pass(rank, key)
        self._note_last(rank, *key)
        untold = {*configuration.members, *leased.members} - {rank} - self._gone.keys()
        self._bury(key, message, "disagree", untold)
        return [*passed, refusal, *self._recall(leased), *self._advance(now_ns)]

    def _refuse_all(
        self,
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
        operation = self._operation(key, configuration)
        refusal = self._refuse(rank, request, *problem)
        if operation.granted or rank not in operation.configuration.members:
            return [refusal]
        failed = [*self._pass(rank, key), *self._fail(operation, *problem)]
        self._note_last(rank, *key)
        self._mark_notified(key, rank)
        others = [item for item in failed if not answers(item, rank, request)]
        return [refusal, *others, *self._advance(now_ns)]


def answers(action: Action, rank: int, request: int) -> bool:
    return isinstance(action, RefuseAction) and (action.rank, action.request) == (rank, request)
