"""The compiled core of the packet simulator: a network advanced cycle by cycle.

:func:`advance` at the end reads as the phases of a cycle. Each phase is inlined into
it, so that the division costs nothing. All phases are in this file because the
compiler's disk cache does not notice changes of callees in other files.

The core is driven by events. A wheel of cycles holds the coming events: heads that
arrive, tails that leave a link, ports that end. Only the packets that such an event can
move are examined, oldest first. All others wait in the list of their resource: *pool*
(room in a virtual channel), *link* (the granted channel is busy) or *port* (their input
port is busy). Every release comes with an event, and all releases of a cycle come
before its grants. So a packet that got no room need not be examined until the next
release.

A packet is named by its age, the number of packets created before it. The rows of
packets are a ring of ages, and so is ``turns``: a bit for each packet that may move in
this cycle. Reading it in order needs no sort, and a packet that a grant wakes takes its
turn by a bit that is set ahead.

Data are arrays of structs of int32: the time goes to cache misses, not to arithmetic.
Two packets are in a cache line. A channel and the FIFOs behind it, its input buffers,
are a record of one line (up to three virtual channels). Both are named by the offset of
their first number in the records. Channels are the lanes of link rows in order.
Columns carry the names below; -1 is none everywhere.
"""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

#: What the compiler takes as an integer.
Int: TypeAlias = int | np.integer[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

# Packets, by age & mask: cycle of creation (-1: the row is free), destination, FIFO (-1
# - chip at its source), next in a list, the entry of the table, then the pool that it
# waits for and after the grant the granted FIFO, links taken (external ones << 16),
# state in the routing table, what it waits for.
BORN, DST, FIFO, NEXT, WAY, HOPS, STATE, STATUS = range(8)
PACKET_COLUMNS = 8
# Their rarely read part: links of heaps; adaptive routing: link rows whose queue counts
# the packet (the probed link further on, the link before it).
CHILD, SIBLING, FAR, NEAR = range(4)
LINK_COLUMNS = 4
# Router of the RailX simulator (no adaptive routing): FIFO that the tail leaves in this
# cycle, -2 - FIFO where the packet has a turn for this alone.
LEAVING = FAR
# Channels: next in the wheel (IDLE: no packet is on it), FIFO it is fed from, heap of
# packets that wait for it, vertex at its end, FIFO that is leaving its input port,
# packets carried in the window, twice the row of ``kinds``, plus one while packets wait
# for this port. Its FIFOs follow.
ENDS_NEXT, FROM, WAITING, END, PORT, CARRIED, KIND = range(7)
CHANNEL_COLUMNS = 7
IDLE = -2
# Kinds of channels: cycles of a packet, latency, 1 << 16 where they leave a node, parts
# that their ends belong to.
SERIAL, LATENCY, EXTERNAL, FROM_PART, TO_PART = range(5)
KIND_COLUMNS = 5
# FIFOs: first and last packet, twice the packets that still fit, plus one where packets
# may wait for a pool of it (so that most releases of room touch no pool).
HEAD, TAIL, ROOM = range(3)
FIFO_COLUMNS = 3
# Pools: source packets that wait (in order of age), heap of other packets, last cycle
# woken.
QUEUE_HEAD, QUEUE_TAIL, HEAP, STAMP = range(4)
POOL_COLUMNS = 4
# FIFOs of pools: the first one, their number, the step from each to the next (0: they
# are a part of ``pool_fifo`` from the first on), first link row.
FIRST, COUNT, STEP, POOL_ROW = range(4)
RANGE_COLUMNS = 4
# Choices: FIFOs as of pools, state after the hop; their rarely read part: pool, probed
# link row.
CHOICE_FIRST, CHOICE_COUNT, CHOICE_STEP, CHOICE_STATE = range(4)
CHOICE_COLUMNS = 4
CHOICE_POOL, PROBE = range(2)
# Chips: source queue (injection ports only), free injection ports, heap that waits for
# ejection, free ejection ports.
SOURCE_HEAD, SOURCE_TAIL, INJECTION, EJECT_HEAP, EJECTION = range(5)
CHIP_COLUMNS = 5
# The wheel of coming cycles: heads that arrive, channels that end, ports that end, the
# first packet that is ready at its source and one past the last (in a part: those of
# its chips, a list), packets that ask their pool again.
HEADS, ENDS, TIMERS, READY, READY_END, AGAIN = range(6)
WHEEL_ROWS = 6
# Counters.
(
    NOW,
    CREATED,
    INJECTED,
    DELIVERED,
    HOPS_DONE,
    OLDEST,
    TIMER_FREE,
    W_DELIVERED,
    W_HOPS,
    W_EXTERNAL,
    W_CREATED,
) = range(11)
COUNTERS = 11
# Parameters.
(
    VCS,
    MASK,
    FLITS,
    SOURCE_CYCLES,
    PORTS_IN,
    PORTS_OUT,
    WARMUP,
    FINISH,
    ADAPTIVE,
    MODE,
    CHIPS,
    CAPACITY,
    BATCHES,
    IN_ORDER,
    MOST_ROOM,
    RECORD_BITS,
) = range(16)
PARAMETERS = 16
# Traffic modes.
UNIFORM, ALL_TO_ALL, FLOWS, HOT_SPOT, TRACE = range(5)
# What a packet waits for: nothing yet; pulled from a pool's waiters; woken with its
# grant; pulled from a channel's waiters; its input port; its tail has arrived.
FRESH, POOL, GRANTED, LINK, PORT_BUSY, ARRIVED = range(6)

DONE, NEEDS_ROOM = 0, 1

# Messages from a part of the network to another, in rows of a box; the first row has
# their number alone. A head that flies over: packet, cycle of creation, destination,
# FIFO, links taken, state, row of the wheel. Room in a FIFO: -1, packets that have
# left it, and the FIFO.
MESSAGE, SENT_BORN, SENT_DST, SENT_FIFO, SENT_HOPS, SENT_STATE, SENT_SLOT = range(7)
FREED = SENT_BORN
MESSAGE_COLUMNS = 8
#: A part's number in ``progress`` is in a cache line of its own.
PROGRESS_STEP = 8
#: Looks at another part's progress, some microseconds, before others get the core.
_SPINS = 4000

#: Wraps every index: an unsigned index skips the test for negative values, and 64 bits
#: need no conversion.
u = np.uint64

_ONE, _ALL, _SIX = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(6)
_IN_WORD = np.uint64(63)


def _phase(function: Function) -> Function:
    """Inline a part of a cycle into its callers, which hold its compiled code
    on disk.
    """
    return cast("Function", njit(_nrt=False, forceinline=True)(function))


def _compiled(function: Function) -> Function:
    """Compile with a disk cache; other threads run meanwhile.

    Nothing here allocates, so arrays go without reference counts, whose atomic updates
    would take half of the time.
    """
    return cast("Function", njit(cache=True, nogil=True, _nrt=False)(function))


class Net(NamedTuple):
    """The constants of a run."""

    parameters: Any  # int64[PARAMETERS]
    rates: Any  # float64[2]: packets per cycle, share of hot traffic
    kinds: Any  # int32[kinds, KIND_COLUMNS]
    part: Any  # int32[chips]: the part that each belongs to
    pool_range: Any  # int32[pools, RANGE_COLUMNS]
    pool_fifo: Any  # int32[]: FIFOs of the pools
    fifo_pool_start: Any  # int32[FIFOs + 1], by number: channel * virtual channels + its own
    fifo_pool: Any  # int32[]: pools of each FIFO
    channel_row: Any  # int32[channels]: link row
    entry: Any  # int32[states, vertices, columns]: the set, or -2 - choice where it has one alone
    coordinates: (
        Any  # int32[vertices, levels - 1]: coordinates that are compared with a destination's
    )
    goal: Any  # int32[chips, 2 * levels]: column and coordinate of each level
    set_start: Any  # int32[sets + 1]
    choice: Any  # int32[choices, CHOICE_COLUMNS]
    choice_pool: Any  # int32[choices, 2]: CHOICE_POOL, PROBE
    choice_limit: Any  # float64[choices]: running sum of weights inside the set
    choice_delay: Any  # float64[choices]: cycles
    row_rate: Any  # float64[link rows]: flits per cycle of all lanes
    source: Any  # int32[F]
    target: Any  # int32[F]
    accept: Any  # float64[F]
    alias: Any  # int32[F]


class State(NamedTuple):
    """The variables of a run."""

    counters: Any  # int64[COUNTERS]
    random: Any  # uint64[2]: traffic, routing
    packets: Any  # int32[slots, PACKET_COLUMNS], a power of two of them, at least 64
    links: Any  # int32[slots, LINK_COLUMNS]
    turns: Any  # uint64[slots / 64]: a bit for each packet that may move in this cycle
    words: Any  # uint64[slots / 4096, at least 1]: a bit for each word of turns that is not 0
    records: Any  # int32[channels << RECORD_BITS]
    pools: Any  # int32[pools, POOL_COLUMNS]
    chips: Any  # int32[chips, CHIP_COLUMNS]
    timers: Any  # int32[timers, 2]: next, what
    wheel: Any  # int32[WHEEL_ROWS, cycles]
    row_queue: Any  # int32[link rows]: packets that wait for or are assigned to the row
    # Router of the RailX simulator alone:
    queued: Any  # int32[FIFOs], by number: packets that stand in, leave or fly to it to go on
    carried: Any  # int32[channels]: the packet on it
    histogram: Any  # int64[cycles]: latencies in the window
    batches: Any  # int64[batches, 2]: sum of latencies, packets
    arrival: Any  # int32[]: cycle of delivery by age (traces only)
    # Runs in parts alone:
    part: int  # whose state this is
    boxes: Any  # int32[2, parts, parts, messages, MESSAGE_COLUMNS]: by parity of cycle, from, to
    progress: Any  # int64[parts * PROGRESS_STEP]: times that each part has met the others


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(_context: Any, _word: Any) -> Any:
    """The place of the lowest bit of a uint64 that is not 0."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), code


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, _index: Any) -> Any:
    """Begin to load the cache line of a number of an array of one dimension."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        line = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        of = cgutils.ir.FunctionType(
            cgutils.ir.VoidType(), [cgutils.voidptr_t] + 3 * [cgutils.int32_t]
        )
        function = cgutils.get_or_insert_function(builder.module, of, "llvm.prefetch.p0")
        read, keep, data_cache = (cgutils.int32_t(number) for number in (0, 3, 1))
        builder.call(function, [line, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.uint64), code


@intrinsic  # type: ignore[untyped-decorator]
def publish(_context: Any, array: Any, _index: Any, _value: Any) -> Any:
    """Store a number of an int64 array after all that this thread has stored before."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        builder.store_atomic(arguments[2], builder.gep(data, [arguments[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def published(_context: Any, array: Any, _index: Any) -> Any:
    """A number of an int64 array, before all that this thread loads later."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(data, [arguments[1]]), "acquire", 8)

    return types.int64(array, types.int64), code


_give_way = types.ExternalFunction("sched_yield", types.int32())


# --- Heaps of packets


@_compiled
def meld(links: Any, mask: Int, a: Int, b: Int) -> Any:
    """Join two pairing heaps; the older root stays on top."""
    if a < 0:
        return b
    if b < 0:
        return a
    if b < a:
        a, b = b, a
    links[u(b & mask), SIBLING] = links[u(a & mask), CHILD]
    links[u(a & mask), CHILD] = b
    return a


@_compiled
def push(links: Any, mask: Int, root: Int, packet: Int) -> Any:
    links[u(packet & mask), CHILD] = -1
    links[u(packet & mask), SIBLING] = -1
    return meld(links, mask, root, packet)


@_compiled
def pop(links: Any, mask: Int, root: Int) -> Any:
    """The heap without its root."""
    node = np.int64(links[u(root & mask), CHILD])
    paired = np.int64(-1)
    while node >= 0:
        other = np.int64(links[u(node & mask), SIBLING])
        following = np.int64(-1) if other < 0 else np.int64(links[u(other & mask), SIBLING])
        joined = np.int64(meld(links, mask, node, other))
        links[u(joined & mask), SIBLING] = paired
        paired = joined
        node = following
    rest = np.int64(-1)
    while paired >= 0:
        following = np.int64(links[u(paired & mask), SIBLING])
        rest = np.int64(meld(links, mask, rest, paired))
        paired = following
    return rest


@_compiled
def bits(random: Any, stream: int) -> Any:
    """64 random bits (splitmix64)."""
    random[stream] += np.uint64(0x9E3779B97F4A7C15)
    z = random[stream]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_compiled
def below(random: Any, stream: int, limit: Int) -> Any:
    """A random integer from 0 to limit - 1 (limit < 2^31; the bias is below 2^-1)."""
    return np.int64(((bits(random, stream) >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32))


@_compiled
def share(random: Any, stream: int) -> Any:
    """A random number from 0 to below 1."""
    return np.float64(bits(random, stream) >> np.uint64(11)) * 1.1102230246251565e-16


class Rules(NamedTuple):
    """The parameters of a run as numbers, which the compiler keeps in registers."""

    vcs: Any  # virtual channels of a channel
    bits: Any  # a channel's record has 1 << bits numbers
    mask: Any  # cycles of the wheel less one
    ring: Any  # rows of packets less one
    flits: Any  # of a packet
    source_cycles: Any
    limited_in: Any
    limited_out: Any
    adaptive: Any
    in_order: Any  # whether packets leave FIFOs in order at their destination, too
    capacity: Any  # packets of a FIFO
    trace: Any
    most_room: Any  # whether a channel with most room is taken, not the first
    divided: Any  # whether the network is simulated in parts
    now: Any
    measured: Any  # whether now is in the window
    batch: Any  # of the window


@_phase
def rules_of(net: Net, state: State, now: Int, plain: bool, divided: bool) -> Any:
    """The rules of cycle ``now``."""
    parameters = net.parameters
    warmup, finish = parameters[WARMUP], parameters[FINISH]
    limited_in = not plain and parameters[PORTS_IN] > 0
    limited_out = not plain and parameters[PORTS_OUT] > 0
    adaptive = not plain and parameters[ADAPTIVE] != 0
    in_order = plain or parameters[IN_ORDER] != 0
    trace = not plain and parameters[MODE] == TRACE
    most_room = not plain and parameters[MOST_ROOM] != 0
    measured = warmup <= now < finish
    return Rules(
        vcs=parameters[VCS],
        bits=parameters[RECORD_BITS],
        mask=parameters[MASK],
        ring=np.int64(len(state.packets)) - 1,
        flits=parameters[FLITS],
        source_cycles=parameters[SOURCE_CYCLES],
        limited_in=limited_in,
        limited_out=limited_out,
        adaptive=adaptive,
        in_order=in_order,
        capacity=parameters[CAPACITY],
        trace=trace,
        most_room=most_room,
        divided=divided,
        now=now,
        measured=measured,
        batch=(now - warmup) * parameters[BATCHES] // (finish - warmup),
    )


@_phase
def channel_of(rules: Rules, fifo: Int) -> Any:
    """The channel before a FIFO."""
    return fifo & (-1 << rules.bits)


@_phase
def channel_number(rules: Rules, fifo: Int) -> Any:
    """The number of the channel before a FIFO, or of a channel."""
    return fifo >> rules.bits


@_phase
def fifo_number(rules: Rules, fifo: Int) -> Any:
    """The number of a FIFO, without gaps."""
    lane = (fifo - channel_of(rules, fifo) - CHANNEL_COLUMNS) // FIFO_COLUMNS
    return channel_number(rules, fifo) * rules.vcs + lane


@_phase
def wake(state: State, rules: Rules, packet: Int) -> None:
    """Give a packet a turn in this cycle."""
    slot = np.uint64(packet & rules.ring)
    word = slot >> _SIX
    state.turns[u(word)] |= _ONE << (slot & _IN_WORD)
    state.words[u(word >> _SIX)] |= _ONE << (word & _IN_WORD)
    if not rules.in_order and state.links[u(slot), LEAVING] < -1:
        state.links[u(slot), LEAVING] = -2 - state.links[u(slot), LEAVING]


# --- Sources


@_phase
def packets_due(net: Net, state: State, rules: Rules) -> Any:
    """Packets that the sources create in this cycle."""
    now = rules.now
    if rules.trace:
        number, due = state.counters[CREATED], 0
        while number + due < len(net.alias) and net.alias[number + due] == now:
            due += 1
        return due
    rate = net.rates[0]
    return np.int64(np.floor((now + 1) * rate + 1e-9)) - np.int64(np.floor(now * rate + 1e-9))


@_phase
def has_room(state: State, rules: Rules, due: Int) -> Any:
    """Whether the ring has rows for ``due`` more packets.

    The word of the oldest one is used from its bit on alone, so that the order of the
    ring is that of ages. A part does not know the oldest packet of all.
    """
    counters, packets = state.counters, state.packets
    newest = counters[CREATED] + due
    if not rules.divided and newest - (counters[OLDEST] & ~63) > rules.ring + 1:
        oldest = counters[OLDEST]
        while oldest < counters[CREATED] and packets[u(oldest & rules.ring), BORN] < 0:
            oldest += 1
        counters[OLDEST] = oldest
    return newest - (counters[OLDEST] & ~63) <= rules.ring + 1


@_phase
def draw(net: Net, state: State) -> Any:
    """Source and destination of the next packet."""
    mode, chips = net.parameters[MODE], net.parameters[CHIPS]
    source, target, alias, random = net.source, net.target, net.alias, state.random
    number = state.counters[CREATED]
    if mode == TRACE:
        return np.int64(source[number]), np.int64(target[number])
    if mode == FLOWS:
        flow = below(random, 0, len(source))
        if share(random, 0) >= net.accept[flow]:
            flow = np.int64(alias[flow])
        return np.int64(source[flow]), np.int64(target[flow])
    if mode == ALL_TO_ALL:
        src = number % chips
        return src, (src + 1 + number // chips % (chips - 1)) % chips
    src = below(random, 0, chips)
    if mode == HOT_SPOT and share(random, 0) < net.rates[1]:
        index = np.int64(alias[src])  # place of the source among the hot chips
        others = len(target) - (1 if index >= 0 else 0)
        if others > 0:
            picked = below(random, 0, others)
            return src, np.int64(target[picked + 1 if 0 <= index <= picked else picked])
    dst = below(random, 0, chips - 1)
    return src, dst + 1 if dst >= src else dst


@_phase
def create_packets(net: Net, state: State, rules: Rules, due: Int) -> None:
    """Sources make ``due`` packets, which may be routed ``source_cycles`` later."""
    counters, packets, wheel = state.counters, state.packets, state.wheel
    slot = (rules.now + rules.source_cycles) & rules.mask
    if due > 0 and not rules.divided:
        wheel[READY, u(slot)] = counters[CREATED]
        wheel[READY_END, u(slot)] = counters[CREATED] + due
    for _ in range(due):
        src, dst = draw(net, state)
        if rules.divided and net.part[u(src)] != state.part:
            counters[CREATED] += 1
            continue
        row = u(counters[CREATED] & rules.ring)
        packets[row, BORN] = rules.now
        packets[row, DST] = dst
        packets[row, FIFO] = -1 - src
        packets[row, NEXT] = -1
        if rules.divided:
            packets[row, NEXT] = wheel[READY, u(slot)]
            wheel[READY, u(slot)] = counters[CREATED]
        packets[row, HOPS] = 0
        packets[row, STATE] = 0
        packets[row, STATUS] = FRESH
        if rules.adaptive or not rules.in_order:
            state.links[row, FAR] = -1
        look_up(net, state, rules, counters[CREATED], src)
        counters[CREATED] += 1
    if rules.measured:
        counters[W_CREATED] += due


@_phase
def sources_ready(state: State, rules: Rules) -> None:
    """Packets are ready at their sources; under limited injection they need a port."""
    packets, chips, wheel = state.packets, state.chips, state.wheel
    slot = rules.now & rules.mask
    if rules.divided:
        packet = np.int64(wheel[READY, u(slot)])
        wheel[READY, u(slot)] = -1
        while packet >= 0:
            wake(state, rules, packet)
            packet = np.int64(packets[u(packet & rules.ring), NEXT])
        return
    ready, end = np.int64(wheel[READY, u(slot)]), np.int64(wheel[READY_END, u(slot)])
    wheel[READY, u(slot)] = wheel[READY_END, u(slot)] = -1
    for packet in range(ready, end):
        if not rules.limited_in:
            wake(state, rules, packet)
            continue
        chip = -1 - np.int64(packets[u(packet & rules.ring), FIFO])
        last = np.int64(chips[u(chip), SOURCE_TAIL])
        chips[u(chip), SOURCE_TAIL] = packet
        if last >= 0:
            packets[u(last & rules.ring), NEXT] = packet
        else:
            chips[u(chip), SOURCE_HEAD] = packet
        if chips[u(chip), INJECTION] > 0:
            chips[u(chip), INJECTION] -= 1
            wake(state, rules, pop_source(state, rules, chip))


@_phase
def pop_source(state: State, rules: Rules, chip: Int) -> Any:
    """Take the oldest packet of a chip's source queue."""
    packets, chips = state.packets, state.chips
    packet = np.int64(chips[u(chip), SOURCE_HEAD])
    following = packets[u(packet & rules.ring), NEXT]
    chips[u(chip), SOURCE_HEAD] = following
    if following < 0:
        chips[u(chip), SOURCE_TAIL] = -1
    return packet


# --- Events of the wheel


@_phase
def tails_leave(net: Net, state: State, rules: Rules) -> None:
    """Tails have left: the channel, the input port and the space behind it are free.

    The oldest packet that waits for the channel may move.
    """
    records, wheel = state.records, state.wheel
    slot = rules.now & rules.mask
    channel = np.int64(wheel[ENDS, u(slot)])
    wheel[ENDS, u(slot)] = -1
    while channel >= 0:
        following = np.int64(records[u(channel + ENDS_NEXT)])
        records[u(channel + ENDS_NEXT)] = IDLE
        if rules.adaptive:
            state.row_queue[net.channel_row[u(channel_number(rules, channel))]] -= 1
        waiting = np.int64(records[u(channel + WAITING)])
        if waiting >= 0:
            records[u(channel + WAITING)] = pop(state.links, rules.ring, waiting)
            wake(state, rules, waiting)
        fifo = np.int64(records[u(channel + FROM)])
        if fifo >= 0:
            leave_port(net, state, rules, fifo)
            if not rules.in_order:
                state.queued[u(fifo_number(rules, fifo))] -= 1
        channel = following


@_phase
def heads_arrive(net: Net, state: State, rules: Rules) -> None:
    """Heads arrive at the end of their FIFO."""
    packets, records, wheel = state.packets, state.records, state.wheel
    slot = rules.now & rules.mask
    packet = np.int64(wheel[HEADS, u(slot)])
    wheel[HEADS, u(slot)] = -1
    while packet >= 0:
        row = u(packet & rules.ring)
        following = np.int64(packets[row, NEXT])
        fifo = np.int64(packets[row, FIFO])
        packets[row, NEXT] = -1
        if not rules.in_order and at_destination(state, rules, packet):
            packets[row, STATUS] = ARRIVED
            wake(state, rules, packet)
            packet = following
            continue
        last = np.int64(records[u(fifo + TAIL)])
        records[u(fifo + TAIL)] = packet
        if last >= 0:
            packets[u(last & rules.ring), NEXT] = packet
        else:
            records[u(fifo + HEAD)] = packet
            # While another packet leaves this FIFO, its tail's event will look.
            if state.records[u(channel_of(rules, fifo) + PORT)] != fifo:
                look_at_front(net, state, rules, fifo, 0)
        packet = following


@_compiled
def ports_end(net: Net, state: State, rules: Rules) -> None:
    """Injection and ejection ports end; the oldest packet that waits may move."""
    packets, records, chips = state.packets, state.records, state.chips
    counters, timers, wheel = state.counters, state.timers, state.wheel
    slot = rules.now & rules.mask
    timer = np.int64(wheel[TIMERS, u(slot)])
    wheel[TIMERS, u(slot)] = -1
    while timer >= 0:
        following = np.int64(timers[u(timer), 0])
        what = np.int64(timers[u(timer), 1])
        timers[u(timer), 0] = counters[TIMER_FREE]
        counters[TIMER_FREE] = timer
        if what < 0:
            chip = -1 - what
            if chips[u(chip), SOURCE_HEAD] < 0:
                chips[u(chip), INJECTION] += 1
            else:
                wake(state, rules, pop_source(state, rules, chip))
        else:
            chip = np.int64(records[u(channel_of(rules, what) + END)])
            chips[u(chip), EJECTION] += 1
            waiting = np.int64(chips[u(chip), EJECT_HEAP])
            if waiting >= 0:
                chips[u(chip), EJECT_HEAP] = pop(state.links, rules.ring, waiting)
                packets[u(waiting & rules.ring), STATUS] = LINK
                wake(state, rules, waiting)
            leave_port(net, state, rules, what)
        timer = following


@_phase
def start_timer(state: State, rules: Rules, cycles: Int, what: Int) -> None:
    """Occupy a port for ``cycles``.

    ``what``: the FIFO to eject from, or -1 less the chip to inject at.
    """
    counters, timers, wheel = state.counters, state.timers, state.wheel
    timer = counters[TIMER_FREE]
    counters[TIMER_FREE] = timers[u(timer), 0]
    slot = (rules.now + cycles) & rules.mask
    timers[u(timer), 0] = wheel[TIMERS, u(slot)]
    timers[u(timer), 1] = what
    wheel[TIMERS, u(slot)] = timer


# --- Fronts of FIFOs


@_phase
def leave_port(net: Net, state: State, rules: Rules, fifo: Int) -> None:
    """A packet has left a FIFO through the input port, which others may use now."""
    packets, records = state.packets, state.records
    port = channel_of(rules, fifo)
    records[u(port + PORT)] = -1
    if records[u(port + KIND)] & 1:
        records[u(port + KIND)] -= 1
        first = port + CHANNEL_COLUMNS
        for other in range(first, first + FIFO_COLUMNS * rules.vcs, FIFO_COLUMNS):
            packet = np.int64(records[u(other + HEAD)])
            if packet >= 0 and packets[u(packet & rules.ring), STATUS] == PORT_BUSY:
                packets[u(packet & rules.ring), STATUS] = GRANTED
                wake(state, rules, packet)
    look_at_front(net, state, rules, fifo, 1 if rules.in_order else 0)


@_phase
def look_at_front(net: Net, state: State, rules: Rules, fifo: Int, freed: Int) -> None:
    """Handle a FIFO with a new front, which ``freed`` packets have left.

    Packets at their destination leave the network, and the next one has to move on.
    """
    packets, records = state.packets, state.records
    packet = np.int64(records[u(fifo + HEAD)])
    if packet >= 0 and rules.in_order and not rules.limited_out:
        end = state.records[u(channel_of(rules, fifo) + END)]
        if packets[u(packet & rules.ring), DST] == end:
            while packet >= 0 and packets[u(packet & rules.ring), DST] == end:
                following = np.int64(packets[u(packet & rules.ring), NEXT])
                deliver(state, rules, packet)
                freed += 1
                packet = following
            records[u(fifo + HEAD)] = packet
            if packet < 0:
                records[u(fifo + TAIL)] = -1
    if packet >= 0:
        vertex = np.int64(records[u(channel_of(rules, fifo) + END)])
        look_up(net, state, rules, packet, vertex)
        wake(state, rules, packet)
    if freed > 0:
        free_room(net, state, rules, fifo, freed)


@_phase
def free_room(net: Net, state: State, rules: Rules, fifo: Int, freed: Int) -> None:
    """Packets have left a FIFO: wake who waits for room, in the part before it."""
    records = state.records
    if rules.divided:
        kind = u(records[u(channel_of(rules, fifo) + KIND)] >> 1)
        part = np.int64(net.kinds[kind, FROM_PART])
        if part != state.part:
            box, row = new_message(state, rules.now, part)
            box[row, MESSAGE] = -1
            box[row, FREED] = freed
            box[row, SENT_FIFO] = fifo
            return
    records[u(fifo + ROOM)] += 2 * freed
    if records[u(fifo + ROOM)] & 1:
        wake_pools(net, state, rules, fifo)


@_compiled
def wake_pools(net: Net, state: State, rules: Rules, fifo: Int) -> None:
    """A FIFO has room: wake the oldest waiter of each of its pools, once per cycle."""
    pools, number, waiters = state.pools, fifo_number(rules, fifo), 0
    for i in range(net.fifo_pool_start[u(number)], net.fifo_pool_start[u(number + 1)]):
        pool = np.int64(net.fifo_pool[u(i)])
        if not has_waiters(state, pool):
            continue
        waiters += 1
        if pools[u(pool), STAMP] != rules.now:
            pools[u(pool), STAMP] = rules.now
            packet = oldest_in_pool(state, rules, pool)
            state.packets[u(packet & rules.ring), STATUS] = POOL
            wake(state, rules, packet)
    if waiters == 0:
        state.records[u(fifo + ROOM)] -= 1


@_phase
def has_waiters(state: State, pool: Int) -> Any:
    """Whether packets wait for a pool."""
    return state.pools[u(pool), QUEUE_HEAD] >= 0 or state.pools[u(pool), HEAP] >= 0


@_phase
def deliver(state: State, rules: Rules, packet: Int) -> None:
    """The tail has arrived: count the packet and free its row."""
    counters, packets, batches = state.counters, state.packets, state.batches
    row = u(packet & rules.ring)
    counters[DELIVERED] += 1
    if rules.measured:
        latency = rules.now + (0 if rules.in_order else 1) - packets[row, BORN]
        counters[W_DELIVERED] += 1
        counters[W_HOPS] += packets[row, HOPS] & 0xFFFF
        counters[W_EXTERNAL] += packets[row, HOPS] >> 16
        state.histogram[u(latency)] += 1
        batches[rules.batch, 0] += latency
        batches[rules.batch, 1] += 1
    if rules.trace:
        state.arrival[u(packet)] = rules.now + (0 if rules.in_order else 1)
    if rules.adaptive and state.links[row, FAR] >= 0:
        state.row_queue[state.links[row, FAR]] -= 1
    packets[row, BORN] = -1


# --- Routing


@_phase
def column_of(net: Net, vertex: Int, chip: Int) -> Any:
    """The column of the table for a destination, as a vertex sees it.

    That of the first level on which their coordinates differ, or of the last one.
    """
    same, level = np.int64(1), np.int64(0)
    for i in range(net.coordinates.shape[1]):  # no branch: which level it is, is chance
        same &= np.int64(net.coordinates[u(vertex), u(i)] == net.goal[u(chip), u(2 * i + 1)])
        level += same
    return np.int64(net.goal[u(chip), u(2 * level)])


@_phase
def look_up(net: Net, state: State, rules: Rules, packet: Int, vertex: Int) -> None:
    """Look a packet's entry up at a vertex, and begin to load its first FIFO.

    Before the turns: arrivals follow each other without waiting for their cache misses.
    """
    packets, row = state.packets, u(packet & rules.ring)
    column = column_of(net, vertex, np.int64(packets[row, DST]))
    entry = np.int64(net.entry[u(packets[row, STATE]), u(vertex), u(column)])
    packets[row, WAY] = entry
    if entry < -1:
        prefetch(state.records, u(net.choice[u(-2 - entry), CHOICE_FIRST]))


@_phase
def route(net: Net, state: State, rules: Rules, packet: Int) -> Any:
    """The choice of a packet's next hop.

    The only one, one drawn by weight, or the one with the shortest wait.
    """
    packets, row = state.packets, u(packet & rules.ring)
    entry = np.int64(packets[row, WAY])
    if entry < 0:
        first = -2 - entry
        last = first + 1
    else:
        first, last = np.int64(net.set_start[u(entry)]), np.int64(net.set_start[u(entry + 1)])
    best = first
    if not rules.adaptive:
        if last - first > 1:
            drawn = share(state.random, 1)
            while best < last - 1 and drawn >= net.choice_limit[u(best)]:
                best += 1
    else:
        if last - first > 1:
            if state.links[row, FAR] >= 0:  # a packet does not wait for itself
                state.row_queue[state.links[row, FAR]] -= 1
            best = shortest_wait(net, state, rules, first, last)
            count_far(net, state, row, best)
        count_near(net, state, rules, row, best)
    packets[row, STATE] = net.choice[u(best), CHOICE_STATE]
    return best


@_compiled
def shortest_wait(net: Net, state: State, rules: Rules, first: Int, last: Int) -> Any:
    """Adaptive routing: the choice with the least wait for its probed link; ties are
    drawn.
    """
    best, shortest, ties = first, np.inf, 0
    for i in range(first, last):
        row = net.choice_pool[u(i), PROBE]
        wait = state.row_queue[u(row)] * rules.flits / net.row_rate[u(row)] + net.choice_delay[u(i)]
        if wait < shortest - 1e-9:
            shortest, best, ties = wait, i, 1
        elif wait <= shortest + 1e-9:
            ties += 1
            if below(state.random, 1, ties) == 0:
                best = i
    return best


@_compiled
def count_far(net: Net, state: State, row: Any, best: Int) -> None:
    """Adaptive routing: the packet counts at the link that its choice probed."""
    links, queue = state.links, state.row_queue
    links[row, FAR] = net.choice_pool[u(best), PROBE]
    queue[links[row, FAR]] += 1


@_compiled
def count_near(net: Net, state: State, rules: Rules, row: Any, best: Int) -> None:
    """Adaptive routing: count the packet at a link of its pool, the probed one if
    included.
    """
    links, queue = state.links, state.row_queue
    near = np.int64(net.pool_range[u(net.choice_pool[u(best), CHOICE_POOL]), POOL_ROW])
    far = np.int64(links[row, FAR])
    if far >= 0 and far != near:
        first, count, step = fifos_of_choice(net, best)
        for i in range(count):
            fifo = fifo_of(net, first, step, i)
            if net.channel_row[u(channel_number(rules, fifo))] == far:
                near = far
                break
    if near != far:
        queue[u(near)] += 1
    links[row, NEAR] = near


@_compiled
def claim(state: State, row: Any, link: Int) -> None:
    """Adaptive routing: the packet waits at link row ``link`` of its channel."""
    links, queue = state.links, state.row_queue
    near = np.int64(links[row, NEAR])
    if near != link:
        queue[u(near)] -= 1
        queue[u(link)] += 1
    if links[row, FAR] == near or links[row, FAR] == link:
        if links[row, FAR] == link and near != link:
            queue[u(link)] -= 1
        links[row, FAR] = -1


# --- Virtual channels


@_phase
def fifos_of_choice(net: Net, choice: Int) -> Any:
    """First FIFO, number and step, as of pools."""
    return (
        np.int64(net.choice[u(choice), CHOICE_FIRST]),
        np.int64(net.choice[u(choice), CHOICE_COUNT]),
        np.int64(net.choice[u(choice), CHOICE_STEP]),
    )


@_phase
def fifo_of(net: Net, first: Int, step: Int, i: Int) -> Any:
    """A pool's FIFO number ``i``."""
    return first + i * step if step != 0 else np.int64(net.pool_fifo[u(first + i)])


@_phase
def allocate(net: Net, state: State, rules: Rules, packet: Int, status: Int, choice: Int) -> Any:
    """Grant the packet a FIFO of its pool; -1: none has room, and the packet waits.

    ``choice``: of a fresh packet; others come from the waiters of their pool.
    """
    packets, records, row = state.packets, state.records, u(packet & rules.ring)
    if status == FRESH:
        first, count, step = fifos_of_choice(net, choice)
    else:
        pool = np.int64(packets[row, WAY])
        first = np.int64(net.pool_range[u(pool), FIRST])
        count = np.int64(net.pool_range[u(pool), COUNT])
        step = np.int64(net.pool_range[u(pool), STEP])
    granted, most = np.int64(-1), np.int64(0)
    for i in range(count):
        fifo = fifo_of(net, first, step, i)
        room = np.int64(records[u(fifo + ROOM)] >> 1)
        preferred = room == rules.capacity
        if not rules.in_order:
            preferred = room > 0 and state.queued[u(fifo_number(rules, fifo))] == 0
        if preferred:
            granted = fifo
            break
        if room > most if rules.most_room else granted < 0 and room > 0:
            granted, most = fifo, room
    if granted < 0:
        if status == FRESH:
            packets[row, WAY] = net.choice_pool[u(choice), CHOICE_POOL]
        for i in range(count):
            records[u(fifo_of(net, first, step, i) + ROOM)] |= 1
        wait_for_pool(state, rules, packet, status)
        return granted
    records[u(granted + ROOM)] -= 2
    if rules.adaptive:
        claim(state, row, np.int64(net.channel_row[u(channel_number(rules, granted))]))
    if status == POOL:
        for i in range(count):
            if records[u(fifo_of(net, first, step, i) + ROOM)] > 1:
                if not rules.in_order:
                    wake_younger(state, rules, np.int64(packets[row, WAY]), packet)
                    break
                waiting = oldest_in_pool(state, rules, np.int64(packets[row, WAY]))
                if waiting >= 0:
                    packets[u(waiting & rules.ring), STATUS] = POOL
                    wake(state, rules, waiting)
                break
    packets[row, WAY] = granted
    packets[row, STATUS] = GRANTED
    return granted


@_phase
def wait_for_pool(state: State, rules: Rules, packet: Int, status: Int) -> None:
    """Queue a packet for room in its pool: at its source in order, else in a heap by
    age.
    """
    packets, pools, row = state.packets, state.pools, u(packet & rules.ring)
    pool = np.int64(packets[row, WAY])
    if packets[row, FIFO] >= 0 or not rules.in_order:
        heap = np.int64(pools[u(pool), HEAP])
        pools[u(pool), HEAP] = push(state.links, rules.ring, heap, packet)
    elif status == POOL or pools[u(pool), QUEUE_HEAD] < 0:  # the oldest: back to the front
        if pools[u(pool), QUEUE_HEAD] < 0:
            pools[u(pool), QUEUE_TAIL] = packet
        packets[row, NEXT] = pools[u(pool), QUEUE_HEAD]
        pools[u(pool), QUEUE_HEAD] = packet
    else:
        packets[row, NEXT] = -1
        packets[u(pools[u(pool), QUEUE_TAIL] & rules.ring), NEXT] = packet
        pools[u(pool), QUEUE_TAIL] = packet


@_phase
def oldest_in_pool(state: State, rules: Rules, pool: Int) -> Any:
    """Take the oldest packet that waits for a pool; -1 where none does."""
    packets, pools = state.packets, state.pools
    queued = np.int64(pools[u(pool), QUEUE_HEAD])
    heaped = np.int64(pools[u(pool), HEAP])
    if queued >= 0 and (heaped < 0 or queued < heaped):
        following = packets[u(queued & rules.ring), NEXT]
        pools[u(pool), QUEUE_HEAD] = following
        if following < 0:
            pools[u(pool), QUEUE_TAIL] = -1
        return queued
    if heaped >= 0:
        pools[u(pool), HEAP] = pop(state.links, rules.ring, heaped)
    return heaped


# --- Links and ports


@_phase
def traverse(net: Net, state: State, rules: Rules, packet: Int, status: Int, granted: Int) -> None:
    """Send a packet over its granted channel, or let it wait.

    It waits for the channel or for its input port.
    """
    packets, records, row = state.packets, state.records, u(packet & rules.ring)
    channel, fifo = channel_of(rules, granted), np.int64(packets[row, FIFO])
    if records[u(channel + ENDS_NEXT)] != IDLE:
        packets[row, STATUS] = LINK
        waiting = np.int64(records[u(channel + WAITING)])
        records[u(channel + WAITING)] = push(state.links, rules.ring, waiting, packet)
        return
    if fifo >= 0 and not take_input_port(state, rules, packet, fifo):
        waiting = np.int64(records[u(channel + WAITING)])
        if status == LINK and waiting >= 0:  # the next one may have the channel
            records[u(channel + WAITING)] = pop(state.links, rules.ring, waiting)
            wake(state, rules, waiting)
        return
    send(net, state, rules, packet, channel, granted, fifo)


@_phase
def take_input_port(state: State, rules: Rules, packet: Int, fifo: Int) -> Any:
    """Let a packet leave the front of its FIFO through the input port.

    False where another packet is leaving there: the packet waits.
    """
    packets, records = state.packets, state.records
    port, row = channel_of(rules, fifo), u(packet & rules.ring)
    if records[u(port + PORT)] >= 0:
        packets[row, STATUS] = PORT_BUSY
        records[u(port + KIND)] |= 1
        return False
    records[u(port + PORT)] = fifo
    records[u(fifo + HEAD)] = packets[row, NEXT]
    if packets[row, NEXT] < 0:
        records[u(fifo + TAIL)] = -1
    return True


@_phase
def send(
    net: Net, state: State, rules: Rules, packet: Int, channel: Int, granted: Int, fifo: Int
) -> None:
    """The head leaves; the wheel gets the cycles of its tail's departure and its
    arrival.
    """
    counters, packets, records, wheel = state.counters, state.packets, state.records, state.wheel
    now, mask, row = rules.now, rules.mask, u(packet & rules.ring)
    kind = u(records[u(channel + KIND)] >> 1)
    serial = np.int64(net.kinds[kind, SERIAL])
    slot = (now + serial) & mask
    records[u(channel + FROM)] = fifo
    records[u(channel + ENDS_NEXT)] = wheel[ENDS, u(slot)]
    wheel[ENDS, u(slot)] = channel
    counters[HOPS_DONE] += 1
    if rules.measured:
        records[u(channel + CARRIED)] += 1
    if fifo < 0:
        counters[INJECTED] += 1
        if rules.limited_in:
            start_timer(state, rules, max(serial, rules.flits), fifo)
    delay = np.int64(net.kinds[kind, LATENCY]) + 1
    packets[row, HOPS] += 1 + net.kinds[kind, EXTERNAL]
    if records[u(channel + END)] == packets[row, DST]:
        delay = max(delay, serial)
    if not rules.in_order:
        state.carried[u(channel_number(rules, channel))] = packet
        if fifo >= 0 and serial == 1:
            state.links[row, LEAVING] = fifo
        if records[u(channel + END)] == packets[row, DST]:
            delay -= 1  # it is gone in that cycle's turn
        else:
            state.queued[u(fifo_number(rules, granted))] += 1
    slot = (now + delay) & mask
    if rules.divided and net.kinds[kind, TO_PART] != state.part:
        send_head(state, rules, packet, granted, slot, np.int64(net.kinds[kind, TO_PART]))
        return
    packets[row, STATUS] = FRESH
    packets[row, FIFO] = granted
    packets[row, NEXT] = wheel[HEADS, u(slot)]
    wheel[HEADS, u(slot)] = packet


@_phase
def at_destination(state: State, rules: Rules, packet: Int) -> Any:
    """Whether a packet is in a FIFO of its destination."""
    packets, row = state.packets, u(packet & rules.ring)
    fifo = np.int64(packets[row, FIFO])
    return fifo >= 0 and state.records[u(channel_of(rules, fifo) + END)] == packets[row, DST]


@_compiled
def eject(state: State, rules: Rules, packet: Int, status: Int) -> None:
    """Limited ejection: a packet at its destination takes a port of its chip.

    Otherwise it waits for one or for its input port.
    """
    packets, chips, row = state.packets, state.chips, u(packet & rules.ring)
    fifo, chip = np.int64(packets[row, FIFO]), np.int64(packets[row, DST])
    waiting = np.int64(chips[u(chip), EJECT_HEAP])
    if chips[u(chip), EJECTION] == 0:
        packets[row, STATUS] = LINK
        chips[u(chip), EJECT_HEAP] = push(state.links, rules.ring, waiting, packet)
    elif take_input_port(state, rules, packet, fifo):
        chips[u(chip), EJECTION] -= 1
        start_timer(state, rules, rules.flits, fifo)
        deliver(state, rules, packet)
    elif status == LINK and waiting >= 0:  # the next one may have the port
        chips[u(chip), EJECT_HEAP] = pop(state.links, rules.ring, waiting)
        wake(state, rules, waiting)


# --- Turns


@_phase
def move_packet(net: Net, state: State, rules: Rules, packet: Int) -> None:
    """Route a packet, allocate and send it, as far as it comes."""
    packets = state.packets
    status = packets[u(packet & rules.ring), STATUS]
    if rules.limited_out and at_destination(state, rules, packet):
        eject(state, rules, packet, status)
        return
    if status in (FRESH, POOL):
        choice = route(net, state, rules, packet) if status == FRESH else np.int64(-1)
        granted = allocate(net, state, rules, packet, status, choice)
        if granted < 0:
            return
    else:
        granted = np.int64(packets[u(packet & rules.ring), WAY])
    traverse(net, state, rules, packet, status, granted)


# --- The router of the RailX simulator


@_compiled
def tails_move(state: State, rules: Rules) -> None:
    """Tails that leave a FIFO in this cycle, at their packet's turn, over slow links.

    The packets that ask their pool again since the last cycle have a turn, too.
    """
    packets, records, links, wheel = state.packets, state.records, state.links, state.wheel
    slot = rules.now & rules.mask
    packet = np.int64(wheel[AGAIN, u(slot)])
    wheel[AGAIN, u(slot)] = -1
    while packet >= 0:
        following = np.int64(links[u(packet & rules.ring), SIBLING])
        packets[u(packet & rules.ring), STATUS] = POOL
        wake(state, rules, packet)
        packet = following
    channel = np.int64(wheel[ENDS, u((rules.now + 1) & rules.mask)])
    while channel >= 0:
        fifo = np.int64(records[u(channel + FROM)])
        if fifo >= 0:
            packet = np.int64(state.carried[u(channel_number(rules, channel))])
            slot_of = np.uint64(packet & rules.ring)
            has_turn = state.turns[u(slot_of >> _SIX)] >> (slot_of & _IN_WORD) & _ONE
            wake(state, rules, packet)
            links[u(slot_of), LEAVING] = fifo if has_turn else -2 - fifo
        channel = np.int64(records[u(channel + ENDS_NEXT)])


@_compiled
def make_room(net: Net, state: State, rules: Rules, packet: Int, fifo: Int) -> None:
    """A packet has left a FIFO: younger waiters may ask now, older ones next cycle."""
    state.records[u(fifo + ROOM)] += 2
    if state.records[u(fifo + ROOM)] & 1:
        number, waiters = fifo_number(rules, fifo), 0
        for i in range(net.fifo_pool_start[u(number)], net.fifo_pool_start[u(number + 1)]):
            pool = np.int64(net.fifo_pool[u(i)])
            wake_younger(state, rules, pool, packet)
            waiters += has_waiters(state, pool)
        if waiters == 0:
            state.records[u(fifo + ROOM)] -= 1


@_compiled
def wake_younger(state: State, rules: Rules, pool: Int, packet: Int) -> None:
    """Wake the oldest waiter of a pool that is younger than a packet.

    The older ones have had their turn, and get another one in the next cycle.
    """
    links, pools, wheel, ring = state.links, state.pools, state.wheel, rules.ring
    slot = (rules.now + 1) & rules.mask
    waiting = np.int64(pools[u(pool), HEAP])
    while waiting >= 0 and waiting < packet:
        rest = pop(links, ring, waiting)
        links[u(waiting & ring), SIBLING] = wheel[AGAIN, u(slot)]
        wheel[AGAIN, u(slot)] = waiting
        waiting = rest
    if waiting >= 0:
        pools[u(pool), HEAP] = pop(links, ring, waiting)
        state.packets[u(waiting & ring), STATUS] = POOL
        wake(state, rules, waiting)
    else:
        pools[u(pool), HEAP] = -1


@_phase
def take_turn(net: Net, state: State, rules: Rules, packet: Int) -> None:
    """The turn of a packet: it may arrive or move on, then its tail leaves a FIFO."""
    packets, links, row = state.packets, state.links, u(packet & rules.ring)
    leaving = np.int64(links[row, LEAVING])
    if leaving >= -1:
        if packets[row, STATUS] == ARRIVED:
            deliver(state, rules, packet)
            make_room(net, state, rules, packet, np.int64(packets[row, FIFO]))
        else:
            move_packet(net, state, rules, packet)
        leaving = np.int64(links[row, LEAVING])
    else:
        leaving = -2 - leaving
    if leaving >= 0:
        links[row, LEAVING] = -1
        make_room(net, state, rules, packet, leaving)


# --- Parts of a network


@_phase
def new_message(state: State, cycle: Int, part: Int) -> Any:
    """The box to a part for when all parts meet in ``cycle``, and a row in it."""
    box = state.boxes[u(cycle & 1), u(state.part), u(part)]
    box[0, MESSAGE] += 1
    return box, u(box[0, MESSAGE])


@_phase
def send_head(state: State, rules: Rules, packet: Int, fifo: Int, slot: Int, part: Int) -> None:
    """A head leaves for a FIFO of another part, which takes the packet over."""
    packets, source = state.packets, u(packet & rules.ring)
    box, row = new_message(state, rules.now + 1, part)
    box[row, MESSAGE] = packet
    box[row, SENT_BORN] = packets[source, BORN]
    box[row, SENT_DST] = packets[source, DST]
    box[row, SENT_FIFO] = fifo
    box[row, SENT_HOPS] = packets[source, HOPS]
    box[row, SENT_STATE] = packets[source, STATE]
    box[row, SENT_SLOT] = slot
    packets[source, BORN] = -1


@_phase
def arrive(state: State) -> None:
    """This part has sent its messages of the cycle."""
    progress, mine = state.progress, PROGRESS_STEP * state.part
    publish(progress, mine, progress[mine] + 1)


@_phase
def wait_for_others(state: State) -> None:
    """Wait until all parts have arrived as often as this one."""
    progress = state.progress
    mine = progress[PROGRESS_STEP * state.part]
    for other in range(0, len(progress), PROGRESS_STEP):
        spins = 0
        while published(progress, other) < mine:
            spins += 1
            if spins > _SPINS:
                _give_way()


@_phase
def read_messages(net: Net, state: State, rules: Rules, cycle: Int) -> None:
    """Take the messages of the other parts for ``cycle``.

    The boxes for the next cycle are empty then.
    """
    packets, wheel = state.packets, state.wheel
    for part in range(state.boxes.shape[1]):
        state.boxes[u((cycle + 1) & 1), u(state.part), u(part), 0, MESSAGE] = 0
        box = state.boxes[u(cycle & 1), u(part), u(state.part)]
        for i in range(1, box[0, MESSAGE] + 1):
            packet, fifo = np.int64(box[u(i), MESSAGE]), np.int64(box[u(i), SENT_FIFO])
            if packet < 0:
                free_room(net, state, rules, fifo, np.int64(box[u(i), FREED]))
                continue
            row, slot = u(packet & rules.ring), u(box[u(i), SENT_SLOT])
            packets[row, BORN] = box[u(i), SENT_BORN]
            packets[row, DST] = box[u(i), SENT_DST]
            packets[row, FIFO] = fifo
            packets[row, HOPS] = box[u(i), SENT_HOPS]
            packets[row, STATE] = box[u(i), SENT_STATE]
            packets[row, STATUS] = FRESH
            packets[row, NEXT] = wheel[HEADS, slot]
            wheel[HEADS, slot] = packet


# --- A cycle


@_phase
def move_packets(net: Net, state: State, rules: Rules) -> None:
    """All packets that may move take their turns, oldest first.

    The words of the ring are read from that of the oldest packet on, and its word of
    words once more at the end. Packets that a turn wakes are younger and ahead.
    """
    turns, words = state.turns, state.words
    oldest = state.counters[OLDEST] & ~63
    begin = np.uint64(oldest & rules.ring) >> _SIX
    count = len(words)
    for i in range(count + 1):
        at = np.int64(begin >> _SIX) + i
        at -= count if at >= count else 0
        mask = _ALL << (begin & _IN_WORD) if i == 0 else _ALL
        if i == count:
            mask = ~(_ALL << (begin & _IN_WORD))
        while words[u(at)] & mask != 0:
            bit = lowest_bit(words[u(at)] & mask)
            words[u(at)] &= ~(_ONE << bit)
            word = (np.int64(at) << 6) | np.int64(bit)
            while turns[u(word)] != 0:
                slot = (word << 6) | np.int64(lowest_bit(turns[u(word)]))
                turns[u(word)] &= turns[u(word)] - _ONE
                packet = oldest + ((slot - oldest) & rules.ring)
                if rules.in_order:
                    move_packet(net, state, rules, packet)
                else:
                    take_turn(net, state, rules, packet)


@_phase
def run_cycles(net: Net, state: State, until: int, plain: bool, divided: bool) -> int:
    """The cycles of :func:`advance`; ``plain``: routers in order that take the first
    parallel channel, without adaptive routing, limited ports or a trace. ``divided``:
    those of a part of the network.
    """
    now, result = state.counters[NOW], DONE
    while now < until:
        rules = rules_of(net, state, now, plain, divided)
        due = packets_due(net, state, rules)
        if not has_room(state, rules, due):
            result = NEEDS_ROOM
            break
        if not divided:
            create_packets(net, state, rules, due)
            sources_ready(state, rules)
        tails_leave(net, state, rules)
        heads_arrive(net, state, rules)
        if divided:  # its sources give a part something to do until the others are as far
            arrive(state)
            create_packets(net, state, rules, due)
            sources_ready(state, rules)
            wait_for_others(state)
            read_messages(net, state, rules, now)
        if rules.limited_in or rules.limited_out:
            ports_end(net, state, rules)
        if not rules.in_order:
            tails_move(state, rules)
        move_packets(net, state, rules)
        now += 1
    if divided:  # take the heads of the last cycle
        arrive(state)
        wait_for_others(state)
        read_messages(net, state, rules_of(net, state, now, plain, divided), now)
    state.counters[NOW] = now
    return result


@_compiled
def advance(net: Net, state: State, until: int) -> int:
    """Run cycles until ``until`` (exclusive); NEEDS_ROOM if ``packets`` must grow
    first.
    """
    if not is_plain(net):
        return run_cycles(net, state, until, False, False)
    # Most runs: compiled apart, without the tests for all that they do not have.
    return run_cycles(net, state, until, True, False)


@_phase
def is_plain(net: Net) -> Any:
    """Whether a run has nothing but what most runs have."""
    parameters = net.parameters
    special = parameters[PORTS_IN] > 0 or parameters[PORTS_OUT] > 0 or parameters[ADAPTIVE] != 0
    special = special or parameters[MOST_ROOM] != 0 or parameters[MODE] == TRACE
    return not special and parameters[IN_ORDER] != 0


@_compiled
def advance_part(net: Net, state: State, until: int) -> int:
    """Run cycles of a plain run's part, beside the threads of all other parts.

    Each part has a state of its own; all share ``boxes`` and ``progress``. A channel
    and the room behind it belong to the part before it, input ports and the packets in
    FIFOs to the part at its end. The parts meet in every cycle between its releases and
    its grants: room that they free for each other is known then, and heads that they
    send each other arrive two cycles later at the earliest. So the result is that of
    :func:`advance`.
    """
    return run_cycles(net, state, until, True, True)
