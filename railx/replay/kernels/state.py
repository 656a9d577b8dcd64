"""The state of a replay: records in arrays.

Steps are numbered over all ranks; -1 means none in every field. The operations of a
channel have consecutive numbers. A *slot* is a rank with one of its configurations, a
*lane* a member of a channel's configuration with that channel. A *node* is a channel's
entry in the queue of a port: a channel has one queued operation at most.

Fields of the ranks and fields of the controller are separate. The sender writes the
content of a message and the receiver reads it at arrival, or the event or the action
carries it.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["SOURCES", "EngineState"]

Array = npt.NDArray[Any]

BEGIN, ISSUE, WAIT, END, COMPUTE = range(5)
#: Kinds of events. The last five arrive at the controller, or come from it.
TAKE, GO_ON, ARRIVE, ENDED, IMPATIENT, AHEAD, SWITCHED = range(7)
QUESTION, RELEASE, REPORT, HINT, ACTIONS_ARRIVE = range(7, 12)
#: The end of a graph's computation.
COMPUTED = 12
#: Kinds of actions: what the controller tells a rank.
GRANT, RECALL = range(2)
#: Indices of the counters: the settings of the replay first, then what is counted.
OPTICAL, PROVISIONED, LEASES_LAST, LATENCY_NS, MESSAGE_NS, PATIENCE_NS, IMPATIENT_NS = range(7)
NOW, EVENTS, PUSHED, HEAP, AT_BEGIN, UNFINISHED, QUEUED, READY, LOGGED, BEGUN = range(7, 17)
OPERATIONS, HINTED, HOLDS, FIRST_ACTION, LAST_ACTION, OVERFLOWED, COMMANDS = range(17, 24)
GRAPH = 24
COUNTERS = 25
#: Columns of the log: time, decision, and operation or rail with the first circuit of
#: the command.
LOG_GRANT, LOG_SWITCH, LOG_CIRCUIT = range(3)
#: Columns of results.
R_BEGIN, R_END, R_STALL, R_WAIT, R_REQUESTS, R_RECONFIGURATIONS, R_MISPREDICTIONS = range(7)


def _digest() -> str:
    digest = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


#: A type whose one field is named after the texts of all files here.
SOURCES = np.dtype([(f"files_{_digest()}", np.int8)])


def _record(longs: str = "", ints: str = "", flags: str = "") -> np.dtype[Any]:
    """The type of a record: names of its fields by their size."""
    sizes = ((longs, np.int64), (ints, np.int32), (flags, np.int8))
    return np.dtype([(name, kind) for names, kind in sizes for name in names.split()], align=True)


EVENT = _record(longs="time_ns order", ints="kind a b")
#: An entry of a queue: its order and its number.
PAIR = _record(longs="key", ints="value")
#: A message from the controller to a rank: the step (grant) or the slot (recall), and
#: the number of the lasting lease.
ACTION = _record(
    longs="stall_ns wait_ns", ints="subject hold", flags="kind late mispredicted reconfigured"
)
#: Steps. Fields of the program: ``target`` is the issue that a wait waits for,
#: ``before`` and ``after`` are the neighbours of an issue in its lane, ``row`` is the
#: row of results. Fields of the rank: ``other`` is the message that a collective waits
#: behind; ``ready``: its circuits are up; ``accounted``: the results count a grant;
#: ``just_granted``: a grant of this event; ``to_tell``: its end needs a message;
#: ``open_in``: the lease whose report named it as not ended. Fields of the controller:
#: ``stands``: it counts as asked for; ``late``: it began without a question.
STEP = _record(
    longs="gap_ns lasts_ns pickup_ns resume_ns started_ns ended_ns computing_ns asked_ns",
    ints="rank iteration operation target before after slot lane row next_arrived next_asked"
    " other open_in",
    flags="does alone sends ended asked waits begun ready accounted just_granted to_tell stands"
    " late released mispredicted",
)
#: Ranks: their steps and their position. Every operation that needs circuits before
#: step ``unasked`` has asked; ``passed`` is the last collective that has ended. Their
#: slots follow each other; ``hint`` is the slot that the controller expects next.
RANK = _record(
    ints="first stop position waits_for unasked under_way passed slots slots_stop hint",
    flags="at_begin hint_served",
)
#: Nodes, the steps of a graph: the dependencies that have not ended, the steps that
#: depend on this one (indices among the successors), the stream that runs it, whether
#: it receives a message, and whether its lane may begin it.
NODE = _record(ints="pending successors successors_stop stream", flags="receives issued")
#: Streams: whether a step is under way, and where the heap of those that are ready
#: begins and how many there are.
STREAM = _record(ints="first ready", flags="busy")
#: Slots: how long the rank's collectives wait behind messages, the index of the rank
#: among the members, the lease that it holds and the last that it gave back. Fields of
#: the controller: for how many reasons the rank expects the configuration, how many
#: operations of it the rank waits for, and whether it still holds the lease.
SLOT = _record(
    longs="patience_ns",
    ints="rank configuration member hold given_back expecting standing",
    flags="holder",
)
#: Lanes: the operation under way on a lease, and the last that began on one (and
#: which). Fields of the controller: the last operation, and the last granted on a lease
#: (and which). Operations are counted within the channel.
LANE = _record(ints="open begun begun_in last granted granted_in")
#: Operations: ``steps`` is the index of its first member's step. Fields of the ranks:
#: the members that have arrived and those whose circuits are up. Fields of the
#: controller: whether it is tracked and granted, and the members that have asked.
OPERATION = _record(
    longs="stall_since_ns",
    ints="channel steps arrived first_arrived last_arrived ready asked first_asked last_asked"
    " released commands",
    flags="just_granted tracked granted",
)
#: Channels: their first node, lane and operation; the queued operation and its order.
CHANNEL = _record(longs="order", ints="configuration node lanes operations queued")
#: Configurations: indices of their members, of these members' slots, of circuits (by
#: rail), of the same in the order of the circuit model (``wires``), of ports and of
#: channels (by name) among the items. ``asks``: it asks; ``expected``: by how many
#: ranks; ``unserved``: hints; ``ahead``: commands made for hints. The lasting lease,
#: its number of holders, and whether it was recalled.
CONFIGURATION = _record(
    longs="turn",
    ints="members members_stop slots slots_stop circuits circuits_stop wires wires_stop ports"
    " ports_stop channels channels_stop expected unserved ahead hold holders",
    flags="recalled asks ring",
)
#: Circuits: indices of their ports (``ends``) and of the configurations that need them
#: (``users``, by name) among the items; ``following`` is the next one of the same
#: command. ``leases`` are those of operations and those that last.
CIRCUIT = _record(ints="rail ends ends_stop users users_stop leases following", flags="lit")
#: Ports: the circuit that is up and the one that comes up, the first watcher, and the
#: configurations that need them.
PORT = _record(ints="active moving watched users users_stop")
#: Watchers (channels, then configurations): the port that stops it, its neighbours
#: there, and whether it will be looked at in this event.
WATCHER = _record(ints="watches before following", flags="looked_at")


class EngineState(NamedTuple):
    """Programs, circuits, and the state of the replay."""

    sources: Array  # empty; its type carries the digest of the code
    event: Array  # empty; has the type of an event
    n: Array
    log: Array
    results: Array
    steps: Array
    step_of: Array  # the step of each operation and member
    ranks: Array
    nodes: Array  # one for each step of a graph; programs have none
    successors: Array
    streams: Array
    ready: Array  # heaps of pairs (step, step), one for each stream
    slots: Array
    lanes: Array
    operations: Array
    channels: Array
    configurations: Array
    circuits: Array
    ports: Array
    watchers: Array
    items: Array
    # Lists (first and last) with the links of their entries (next, before).
    waiting: Array  # by rank: steps that have asked and are not granted
    waiting_links: Array
    unsent: Array  # by rank: messages that were sent and not granted
    behind: Array  # by rank: collectives that wait behind one
    step_links: Array  # of both
    holding: Array  # by rank: slots whose lease it holds
    slot_links: Array
    tracked: Array  # by configuration: operations that the controller tracks
    operation_links: Array
    queue: Array  # by port: nodes
    node_links: Array
    node_channels: Array
    actions: Array  # messages to ranks that are under way, a ring buffer
    begun: Array  # operations granted in the present event, in order
    conflicting: Array  # slots whose lease a rank gives back
    starting: Array  # circuits that a switch is asked to bring up
    looked_at: Array  # heap of (order, channel)
    hinted: Array  # heap of (order, configuration)
