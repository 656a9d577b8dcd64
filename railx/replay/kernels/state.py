"""Where everything stands in a replay: records in arrays.

Steps are numbered over all ranks; -1 is none everywhere. Operations of a channel have
numbers in a row. A *slot* is a rank with one of its configurations, a *lane* is a
member of a channel's configuration with that channel. A *node* is a channel's place in
the queue of a port: a channel has one queued operation at most.

Ranks and controller each know their own: what a message carries is noted where it was
sent and is read where it arrives, or travels in the event or the action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["State"]

Array = npt.NDArray[Any]

BEGIN, ISSUE, WAIT, END = range(4)
#: Kinds of events. The last five arrive at the controller, or come from it.
(
    TAKE,
    GO_ON,
    ARRIVE,
    ENDED,
    IMPATIENT,
    AHEAD,
    SWITCHED,
    QUESTION,
    RELEASE,
    REPORT,
    HINT,
    TOLD,
) = range(12)
#: Kinds of actions: what the controller tells a rank.
GRANT, RECALL = range(2)
#: Places in the counters: first what was set, then what is counted.
(
    OPTICAL,
    PROVISIONED,
    HELD,
    LATENCY_NS,
    MESSAGE_NS,
    PATIENCE_NS,
    IMPATIENT_NS,
    NOW,
    EVENTS,
    PUSHED,
    HEAP,
    AT_BEGIN,
    UNFINISHED,
    QUEUED,
    READY,
    LOGGED,
    BEGUN,
    OPERATIONS,
    HINTED,
    HOLDS,
    FIRST_ACTION,
    LAST_ACTION,
    OVERFLOWED,
    COMMANDS,
    COUNTERS,
) = range(25)
#: Columns of the log: time, decision, and operation or rail with the first circuit of
#: the command.
LOG_GRANT, LOG_SWITCH, LOG_CIRCUIT = range(3)
#: Columns of results.
R_BEGIN, R_END, R_STALL, R_WAIT, R_REQUESTS, R_RECONFIGURATIONS, R_MISPREDICTIONS = range(7)


def _record(**fields: type) -> np.dtype[Any]:
    return np.dtype(list(fields.items()), align=True)


_I, _L, _B = np.int32, np.int64, np.int8
EVENT = _record(time_ns=_L, order=_L, kind=_I, a=_I, b=_I)
#: What will be looked at: its order, and which it is.
PAIR = _record(key=_L, value=_I)
#: What the controller tells a rank: of a step (grant) or of a slot (recall), and the
#: number of the lease that stays.
ACTION = _record(
    stall_ns=_L,
    wait_ns=_L,
    subject=_I,
    hold=_I,
    kind=_B,
    late=_B,
    mispredicted=_B,
    reconfigured=_B,
)
#: Steps. First what the program says: ``target`` is the issue that a wait waits for,
#: ``before`` and ``after`` are the neighbours of an issue in its lane, ``row`` is the
#: row of results. Then what came of it on its rank: ``other`` is the message that a
#: collective waits behind; ``ready``, its circuits are there; ``accounted``, a grant is
#: in the results; ``told``, a grant has just come; ``to_tell``, its end is; ``open_in``
#: is the lease whose report named it as not ended. Then what the controller knows:
#: ``stands``, it counts as asked for; ``late``, begun without a question.
STEP = _record(
    gap_ns=_L,
    lasts_ns=_L,
    pickup_ns=_L,
    resume_ns=_L,
    started_ns=_L,
    ended_ns=_L,
    computing_ns=_L,
    asked_ns=_L,
    rank=_I,
    iteration=_I,
    operation=_I,
    target=_I,
    before=_I,
    after=_I,
    slot=_I,
    lane=_I,
    row=_I,
    next_arrived=_I,
    next_asked=_I,
    other=_I,
    open_in=_I,
    does=_B,
    alone=_B,
    sends=_B,
    ended=_B,
    asked=_B,
    waits=_B,
    begun=_B,
    ready=_B,
    accounted=_B,
    told=_B,
    to_tell=_B,
    stands=_B,
    late=_B,
    released=_B,
    mispredicted=_B,
)
#: Ranks: their steps, and where they stand. Every operation that needs circuits before
#: step ``unasked`` has asked; ``passed`` is the last collective that has ended. Their
#: slots follow each other; ``hint`` is the slot that the controller expects next.
RANK = _record(
    first=_I,
    stop=_I,
    position=_I,
    waits_for=_I,
    unasked=_I,
    under_way=_I,
    passed=_I,
    slots=_I,
    slots_stop=_I,
    hint=_I,
    at_begin=_B,
    hint_served=_B,
)
#: Slots: how long the rank's collectives wait behind messages, the lease that it holds
#: and the last that it gave back. To the controller: for how many reasons the rank
#: expects the configuration, before how many operations of it the rank stands, and
#: whether it has not given the lease back.
SLOT = _record(
    patience_ns=_L,
    rank=_I,
    configuration=_I,
    place=_I,
    held=_I,
    given_back=_I,
    expecting=_I,
    standing=_I,
    holder=_B,
)
#: Lanes: the operation under way on a lease, and the last that began on one (and
#: which). To the controller: the last operation, and the last granted on a lease (and
#: which). Operations are counted within the channel.
LANE = _record(open=_I, begun=_I, begun_in=_I, last=_I, granted=_I, granted_in=_I)
#: Operations: ``steps`` is the place of its first member's step. On the ranks: who has
#: come, and whose circuits are there. To the controller: whether it is known and
#: granted, who has asked, its neighbours among those of the configuration.
OPERATION = _record(
    stall_since_ns=_L,
    channel=_I,
    steps=_I,
    arrived=_I,
    first_arrived=_I,
    last_arrived=_I,
    ready=_I,
    asked=_I,
    first_asked=_I,
    last_asked=_I,
    released=_I,
    commands=_I,
    told=_B,
    known=_B,
    granted=_B,
)
#: Channels: their first node, lane and operation; the operation in the queue and its
#: place there.
CHANNEL = _record(order=_L, configuration=_I, node=_I, lanes=_I, operations=_I, queued=_I)
#: Configurations: places of their members, of these members' slots, of circuits (by
#: rail), of the same in the order of the circuit model (``wires``), of ports and of
#: channels (by name) among the items. ``wanted``: it asks; ``expected``: by how many
#: ranks; ``unserved``: hints; ``ahead``: commands made for hints. The lease that lasts,
#: how many hold it, and whether it was recalled.
CONFIGURATION = _record(
    turn=_L,
    members=_I,
    members_stop=_I,
    slots=_I,
    slots_stop=_I,
    circuits=_I,
    circuits_stop=_I,
    wires=_I,
    wires_stop=_I,
    ports=_I,
    ports_stop=_I,
    channels=_I,
    channels_stop=_I,
    expected=_I,
    unserved=_I,
    ahead=_I,
    hold=_I,
    holders=_I,
    recalled=_B,
    wanted=_B,
    ring=_B,
)
#: Circuits: places of their ports (``ends``) and of the configurations that need them
#: (``users``, by name) among the items; ``following`` is the next one of the same
#: command. ``leases`` are those of operations and those that last.
CIRCUIT = _record(
    rail=_I,
    ends=_I,
    ends_stop=_I,
    users=_I,
    users_stop=_I,
    leases=_I,
    following=_I,
    lit=_B,
)
#: Ports: the circuit that is up and the one that comes up, the first watcher, and the
#: configurations that need them.
PORT = _record(active=_I, moving=_I, watched=_I, users=_I, users_stop=_I)
#: Watchers (channels, then configurations): the port that stops it, its neighbours
#: there, and whether it will be looked at in this event.
WATCHER = _record(watches=_I, before=_I, following=_I, looked_at=_B)


class State(NamedTuple):
    """Programs, circuits, and where everything stands."""

    sources: Array  # none; bears the digest of the code
    event: Array  # none; says what events are made of
    n: Array
    log: Array
    results: Array
    steps: Array
    step_of: Array  # by operation and place of the member: its step
    ranks: Array
    slots: Array
    lanes: Array
    operations: Array
    channels: Array
    configurations: Array
    circuits: Array
    ports: Array
    watchers: Array
    items: Array
    # Lists (first and last) with the links of what is in them (next, before).
    waiting: Array  # by rank: steps that have asked and are not granted
    waiting_links: Array
    unsent: Array  # by rank: messages that were sent and not granted
    behind: Array  # by rank: collectives that wait behind one
    step_links: Array  # of both
    holding: Array  # by rank: slots whose lease it holds
    slot_links: Array
    known: Array  # by configuration: operations that the controller knows
    operation_links: Array
    queue: Array  # by port: nodes
    node_links: Array
    node_channels: Array
    actions: Array  # what ranks have not been told yet, a ring
    begun: Array  # operations granted in the present event, in order
    conflicting: Array  # slots whose lease a rank gives back
    starting: Array  # circuits that a switch is asked to bring up
    looked_at: Array  # heap of (order, channel)
    hinted: Array  # heap of (order, configuration)
