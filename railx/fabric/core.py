"""The decisions of the controller as a deterministic state machine.

Events with a time stamp go in, actions come out; there is no I/O. Invariants (the
correctness conditions of photonic rails, Opus, arXiv 2602.12521):

* an operation is granted when all its members asked for it and all its circuits are up;
* its circuits are leased until every member released it, and a leased circuit is never
  torn down;
* a lease may stay with the members when the operation ends (a held lease): they begin
  further operations on its circuits without asking, until an operation that all its
  members asked for needs the ports otherwise and it is recalled. Each member then
  reports what it has begun. What all have begun keeps its circuits until it ends; what
  only some have begun counts as asked for by those: no data moves before their peers
  begin. So no rank holds circuits while it waits for a peer (no deadlock);
* the circuits that are up or coming up are a matching at every moment;
* operations whose members have all asked form one queue. An operation leases all its
  circuits together, in the order of the queue where ports overlap. So none holds one
  circuit while it waits for another (no deadlock), and none starves;
* disjoint port sets switch at the same time, circuits that no operation needs to move
  stay up, and an operation whose circuits are up is granted at once;
* a hint (what a rank's next operation will need) starts a switch when every member
  hinted or asked and no lease or queued operation is in the way. It reserves nothing: a
  wrong one costs at most the switch back. A rank that hints gives back the held leases
  in the way; the others give theirs back too, as they do where a rank has asked for
  what its peers hint;
* members that disagree about an operation get an error as soon as the controller sees
  it: a lease that carried the channel for another configuration is recalled, and its
  reports are compared with the questions. A rank outside the others' configuration
  harms only itself;
* an operation with a dead member ends in an error for every rank that asked for it, and
  its tombstone answers those that ask later. Giving up before the grant does the same;
  after it, it is the release;
* a rank that comes back is a new one and gets no answer to the old one's questions;
* messages may come twice or late. A question is answered again as long as its operation
  is under way and the rank has not released it; everything else changes nothing;
* a lost port takes its circuits with it: their leases end, and operations that need the
  port get an error that names it;
* a restarted controller reads the light from the switch alone. Ranks present the
  operations that they have begun, as if all leases had been recalled, and nothing is
  switched or granted before all have done so or are given up.

Port accounting: the ports of a circuit that comes up are moving until the switch
reports. A port that only lost its circuit is dark and free at once.

The cost of an event depends on the operations, leases and hints of its own ranks and
ports alone: operations wait in a queue at each of their ports, and an event visits the
queues of the ports that it changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from railx.fabric.circuits import Circuit, Layout
from railx.fabric.decisions import granting, ranks, state
from railx.fabric.decisions.state import State, light


class ControllerCore(State):
    """The state with its events.

    Each event takes the present time in nanoseconds and returns the actions that
    follow, in order.
    """

    def __init__(
        self,
        layout: Layout,
        ranks: int,
        *,
        active: Iterable[Circuit] = (),
        recovering: bool = False,
    ) -> None:
        """``active``: what carries light already (nothing moves). ``recovering``: ranks
        of an earlier controller present what they have begun before anything happens.
        """
        super().__init__(layout, ranks, recovering and ranks > 0)
        for circuit in active:
            light(self, circuit)

    # Ranks come and go.
    register, leave = ranks.register, ranks.leave
    present, end_recovery = ranks.present, ranks.end_recovery
    # Ranks ask and report.
    ask, release, abandon = ranks.ask, ranks.release, ranks.abandon
    recall, recalled, hint = ranks.recall, ranks.recalled, ranks.hint
    # Switches report.
    switched, switch_failed = granting.switched, granting.switch_failed
    ports_lost, ports_back = granting.ports_lost, granting.ports_back
    # Observers read.
    statistics, snapshot = state.statistics, state.snapshot
