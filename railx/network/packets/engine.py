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

Data are arrays of structs of int32, one cache line per packet: at saturation the time
goes to cache misses, not to arithmetic. Columns carry the names below; -1 is none
everywhere. Channels are the lanes of link rows in order. FIFO c * virtual_channels + v
is the input buffer behind channel c.
"""

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="assignment,no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit

#: What the compiler takes as an integer.
Int: TypeAlias = int | np.integer[Any]
Function = TypeVar("Function", bound=Callable[..., Any])

# Packets: age, cycle of creation, destination, vertex, state in the routing table, what
# it waits for, FIFO (-1 at its source), next in a list, heap links, pool and after the
# grant the granted FIFO, state after the hop, links taken (external ones << 16),
# adaptive routing: link rows whose queue counts it (the probed one further on, the one
# it stands before).
(
    SEQ,
    BORN,
    DST,
    VERTEX,
    STATE,
    STATUS,
    FIFO,
    NEXT,
    CHILD,
    SIBLING,
    WAY,
    NEXT_STATE,
    HOPS,
    FAR,
    NEAR,
) = range(15)
PACKET_COLUMNS = 16
# Channels: busy, next in the wheel, FIFO it is fed from, number of waiting packets,
# cycles of a packet, latency, vertex at its end, link row, FIFO that is leaving its
# input port, 1 << 16 where it leaves a node, packets carried in the window, packets
# that wait for its input port.
(
    BUSY,
    WHEEL_NEXT,
    FROM,
    WAITING,
    SERIAL,
    LATENCY,
    END,
    ROW,
    PORT,
    EXTERNAL,
    CARRIED,
    PORT_WAITERS,
) = range(12)
CHANNEL_COLUMNS = 16
# FIFOs: first and last packet, packets that still fit, channel.
HEAD, TAIL, ROOM, CHANNEL = range(4)
FIFO_COLUMNS = 4
# Pools: first FIFO, one past the last, source packets that wait (in order of age), heap
# of other packets, last cycle woken, first link row.
FIRST, LAST, QUEUE_HEAD, QUEUE_TAIL, HEAP, STAMP, POOL_ROW = range(7)
POOL_COLUMNS = 8
# Chips: source queue (injection ports only), free injection ports, heap that waits for
# ejection, free ejection ports.
SOURCE_HEAD, SOURCE_TAIL, INJECTION, EJECT_HEAP, EJECTION = range(5)
CHIP_COLUMNS = 5
# Counters.
(
    NOW,
    CREATED,
    INJECTED,
    DELIVERED,
    HOPS_DONE,
    FREE,
    FREE_COUNT,
    TIMER_FREE,
    W_DELIVERED,
    W_HOPS,
    W_EXTERNAL,
    W_CREATED,
) = range(12)
COUNTERS = 12
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
) = range(13)
PARAMETERS = 13
# Traffic modes.
UNIFORM, ALL_TO_ALL, FLOWS, HOT_SPOT, TRACE = range(5)
# What a packet waits for: nothing yet; pulled from a pool's waiters; woken with its
# grant; pulled from a channel's waiters; its input port.
FRESH, POOL, GRANTED, LINK, PORT_BUSY = range(5)

DONE, NEEDS_ROOM = 0, 1

#: Wraps every index: an unsigned index skips the test for negative values, which makes
#: the core a third faster.
u = np.uint32

#: The packet of a key (age << 32 | packet).
PACKET = 0xFFFFFFFF


def _phase(function: Function) -> Function:
    """Inline a part of a cycle into its callers, which hold its compiled code
    on disk.
    """
    return cast("Function", njit(_nrt=False, forceinline=True)(function))


def _compiled(function: Function) -> Function:
    """Compile with a disk cache.

    Nothing here allocates, so arrays go without reference counts, whose atomic updates
    would take half of the time.
    """
    return cast("Function", njit(cache=True, _nrt=False)(function))


class Net(NamedTuple):
    """The constants of a run."""

    parameters: Any  # int64[PARAMETERS]
    rates: Any  # float64[2]: packets per cycle, share of hot traffic
    pool_fifo: Any  # int32[]: FIFOs of the pools
    fifo_pool_start: Any  # int32[fifos + 1]
    fifo_pool: Any  # int32[]: pools of each FIFO
    entry: Any  # int32[states, vertices, columns]: the set, or -2 - choice where it has one alone
    coordinates: (
        Any  # int32[vertices, levels - 1]: coordinates that are compared with a destination's
    )
    goal: Any  # int32[chips, 2 * levels]: column and coordinate of each level
    set_start: Any  # int32[sets + 1]
    choice: Any  # int32[choices, 3]: pool, state after the hop, probed link row
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
    packets: Any  # int32[slots, PACKET_COLUMNS]
    channels: Any  # int32[channels, CHANNEL_COLUMNS]
    fifos: Any  # int32[fifos, FIFO_COLUMNS]
    pools: Any  # int32[pools, POOL_COLUMNS]
    chips: Any  # int32[chips, CHIP_COLUMNS]
    timers: Any  # int32[timers, 2]: next, what
    waiting_for: Any  # int64[channels, ...]: heaps of keys, who waits for each channel
    wheel: Any  # int32[3, cycles]: heads that arrive, channels that end, timers that end
    row_queue: Any  # int32[link rows]: packets that wait for or are assigned to the row
    work: Any  # int32[]: FIFOs to look at in this cycle
    agenda: Any  # int64[]: age << 32 | packet
    later: Any  # int64[]: heap of what a grant wakes in the same cycle
    histogram: Any  # int64[cycles]: latencies in the window
    batches: Any  # int64[batches, 2]: sum of latencies, packets
    arrival: Any  # int32[]: cycle of delivery by age (traces only)


@_phase
def key_of(packets: Any, packet: Int) -> Any:
    """Age, then packet: what lists of packets are sorted by."""
    return np.int64(packets[u(packet), SEQ]) << 32 | packet


@_compiled
def meld(packets: Any, a: Int, b: Int) -> Any:
    """Join two pairing heaps; the older root stays on top."""
    if a < 0:
        return b
    if b < 0:
        return a
    if packets[u(b), SEQ] < packets[u(a), SEQ]:
        a, b = b, a
    packets[u(b), SIBLING] = packets[u(a), CHILD]
    packets[u(a), CHILD] = b
    return a


@_compiled
def push(packets: Any, root: Int, packet: Int) -> Any:
    packets[u(packet), CHILD] = -1
    packets[u(packet), SIBLING] = -1
    return meld(packets, root, packet)


@_compiled
def pop(packets: Any, root: Any) -> Any:
    """The heap without its root."""
    node = np.int64(packets[u(root), CHILD])
    paired = np.int64(-1)
    while node >= 0:
        other = np.int64(packets[u(node), SIBLING])
        following = np.int64(-1) if other < 0 else np.int64(packets[u(other), SIBLING])
        joined = np.int64(meld(packets, node, other))
        packets[u(joined), SIBLING] = paired
        paired = joined
        node = following
    root = np.int64(-1)
    while paired >= 0:
        following = np.int64(packets[u(paired), SIBLING])
        root = np.int64(meld(packets, root, paired))
        paired = following
    return root


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


@_compiled
def heap_push(heap: Any, size: Int, key: Int) -> None:
    slot = size
    while slot > 0:
        above = (slot - 1) >> 1
        if heap[u(above)] <= key:
            break
        heap[u(slot)] = heap[u(above)]
        slot = above
    heap[u(slot)] = key


@_compiled
def heap_pop(heap: Any, size: Int) -> None:
    """Drop the least of ``size`` keys."""
    key = heap[u(size - 1)]
    slot = 0
    while True:
        child = 2 * slot + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and heap[u(child + 1)] < heap[u(child)]:
            child += 1
        if heap[u(child)] >= key:
            break
        heap[u(slot)] = heap[u(child)]
        slot = child
    heap[u(slot)] = key


@_compiled
def sort(keys: Any, count: Int) -> None:
    """Shell sort (Ciura's gaps), in place: insertion sort for a quiet network's short
    lists.
    """
    gap = 1
    while gap * 9 < count * 4:
        gap = gap * 9 // 4 + 1
    while True:
        for i in range(gap, count):
            key = keys[u(i)]
            j = i - gap
            while j >= 0 and keys[u(j)] > key:
                keys[u(j + gap)] = keys[u(j)]
                j -= gap
            keys[u(j + gap)] = key
        if gap == 1:
            break
        gap = 1 if gap < 12 else gap * 4 // 9


class Rules(NamedTuple):
    """The parameters of a run as numbers, which the compiler keeps in registers."""

    vcs: Any  # virtual channels of a channel
    mask: Any  # cycles of the wheel less one
    flits: Any  # of a packet
    source_cycles: Any
    limited_in: Any
    limited_out: Any
    warmup: Any
    finish: Any
    adaptive: Any
    capacity: Any  # packets of a FIFO
    trace: Any
    now: Any
    measured: Any  # whether now is in the window
    batch: Any  # of the window


@_phase
def rules_of(net: Net, now: Int) -> Any:
    """The rules of cycle ``now``."""
    parameters = net.parameters
    warmup, finish = parameters[WARMUP], parameters[FINISH]
    return Rules(
        vcs=parameters[VCS],
        mask=parameters[MASK],
        flits=parameters[FLITS],
        source_cycles=parameters[SOURCE_CYCLES],
        limited_in=parameters[PORTS_IN] > 0,
        limited_out=parameters[PORTS_OUT] > 0,
        warmup=warmup,
        finish=finish,
        adaptive=parameters[ADAPTIVE] != 0,
        capacity=parameters[CAPACITY],
        trace=parameters[MODE] == TRACE,
        now=now,
        measured=warmup <= now < finish,
        batch=(now - warmup) * parameters[BATCHES] // (finish - warmup),
    )


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
    for _ in range(due):
        src, dst = draw(net, state)
        packet = counters[FREE]
        counters[FREE] = packets[u(packet), NEXT]
        packets[u(packet), SEQ] = counters[CREATED]
        packets[u(packet), BORN] = rules.now
        packets[u(packet), DST] = dst
        packets[u(packet), VERTEX] = src
        packets[u(packet), STATE] = 0
        packets[u(packet), STATUS] = FRESH
        packets[u(packet), FIFO] = -1
        packets[u(packet), HOPS] = 0
        packets[u(packet), FAR] = -1
        packets[u(packet), NEXT] = wheel[0, u(slot)]
        wheel[0, u(slot)] = packet
        counters[CREATED] += 1
    counters[FREE_COUNT] -= due
    if rules.measured:
        counters[W_CREATED] += due


# --- Events of the wheel


@_phase
def heads_arrive(state: State, rules: Rules) -> Any:
    """Heads arrive: at the end of their FIFO, or ready at their source."""
    packets, fifos, channels = state.packets, state.fifos, state.channels
    wheel, agenda, work = state.wheel, state.agenda, state.work
    heads = looks = 0
    slot = rules.now & rules.mask
    packet = np.int64(wheel[0, u(slot)])
    wheel[0, u(slot)] = -1
    while packet >= 0:
        following = np.int64(packets[u(packet), NEXT])
        fifo = np.int64(packets[u(packet), FIFO])
        if fifo >= 0:
            packets[u(packet), NEXT] = -1
            last = fifos[u(fifo), TAIL]
            fifos[u(fifo), TAIL] = packet
            if last >= 0:
                packets[u(last), NEXT] = packet
            else:
                fifos[u(fifo), HEAD] = packet
                # While another packet leaves this FIFO, its tail's event will look.
                if channels[u(fifos[u(fifo), CHANNEL]), PORT] != fifo:
                    work[u(looks)] = fifo
                    looks += 1
        else:
            agenda[u(heads)] = key_of(packets, packet)
            heads += 1
        packet = following
    return heads, looks


@_phase
def take_injection_ports(state: State, heads: Int) -> Any:
    """Limited injection: as many packets as a chip has free ports may move, oldest
    first.
    """
    packets, chips, agenda = state.packets, state.chips, state.agenda
    sort(agenda, heads)
    for i in range(heads):
        packet = agenda[u(i)] & PACKET
        chip = packets[u(packet), VERTEX]
        packets[u(packet), NEXT] = -1
        last = chips[u(chip), SOURCE_TAIL]
        chips[u(chip), SOURCE_TAIL] = packet
        if last >= 0:
            packets[u(last), NEXT] = packet
        else:
            chips[u(chip), SOURCE_HEAD] = packet
    taken = 0
    for i in range(heads):
        chip = packets[u(agenda[u(i)] & PACKET), VERTEX]
        if chips[u(chip), INJECTION] > 0 and chips[u(chip), SOURCE_HEAD] >= 0:
            chips[u(chip), INJECTION] -= 1
            # Never overtakes i: at most one packet is taken for each one seen.
            agenda[u(taken)] = key_of(packets, pop_source(state, chip))
            taken += 1
    return taken


@_phase
def pop_source(state: State, chip: Int) -> Any:
    """Take the oldest packet of a chip's source queue."""
    packets, chips = state.packets, state.chips
    packet = np.int64(chips[u(chip), SOURCE_HEAD])
    chips[u(chip), SOURCE_HEAD] = packets[u(packet), NEXT]
    if packets[u(packet), NEXT] < 0:
        chips[u(chip), SOURCE_TAIL] = -1
    return packet


@_phase
def tails_leave(state: State, rules: Rules, heads: Int, looks: Int) -> Any:
    """Tails have left: the channel, the input port and the space behind it are free.

    The oldest packet that waits for the channel may move.
    """
    channels, fifos, waiting_for = state.channels, state.fifos, state.waiting_for
    wheel, agenda, work = state.wheel, state.agenda, state.work
    slot = rules.now & rules.mask
    channel = np.int64(wheel[1, u(slot)])
    wheel[1, u(slot)] = -1
    while channel >= 0:
        following = np.int64(channels[u(channel), WHEEL_NEXT])
        channels[u(channel), BUSY] = 0
        if rules.adaptive:
            state.row_queue[channels[u(channel), ROW]] -= 1
        waiters = np.int64(channels[u(channel), WAITING])
        if waiters > 0:
            agenda[u(heads)] = waiting_for[u(channel), 0]
            heads += 1
            heap_pop(waiting_for[u(channel)], waiters)
            channels[u(channel), WAITING] = waiters - 1
        fifo = np.int64(channels[u(channel), FROM])
        if fifo >= 0:
            channels[u(fifos[u(fifo), CHANNEL]), PORT] = -1
            work[u(looks)] = -2 - fifo
            looks += 1
        channel = following
    return heads, looks


@_phase
def ports_end(state: State, rules: Rules, heads: Int, looks: Int) -> Any:
    """Injection and ejection ports end; the oldest packet that waits may move."""
    packets, channels, fifos, chips = state.packets, state.channels, state.fifos, state.chips
    counters, timers, wheel = state.counters, state.timers, state.wheel
    agenda, work = state.agenda, state.work
    slot = rules.now & rules.mask
    timer = np.int64(wheel[2, u(slot)])
    wheel[2, u(slot)] = -1
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
                agenda[u(heads)] = key_of(packets, pop_source(state, chip))
                heads += 1
        else:
            chip = np.int64(channels[u(fifos[u(what), CHANNEL]), END])
            chips[u(chip), EJECTION] += 1
            channels[u(fifos[u(what), CHANNEL]), PORT] = -1
            work[u(looks)] = -2 - what
            looks += 1
            waiting = np.int64(chips[u(chip), EJECT_HEAP])
            if waiting >= 0:
                chips[u(chip), EJECT_HEAP] = pop(packets, waiting)
                packets[u(waiting), STATUS] = LINK
                agenda[u(heads)] = key_of(packets, waiting)
                heads += 1
        timer = following
    return heads, looks


@_phase
def start_timer(state: State, rules: Rules, cycles: Int, what: Int) -> None:
    """Occupy a port for ``cycles``.

    ``what``: the FIFO to eject from, or -1 less the chip to inject at.
    """
    counters, timers, wheel = state.counters, state.timers, state.wheel
    timer = counters[TIMER_FREE]
    counters[TIMER_FREE] = timers[u(timer), 0]
    slot = (rules.now + cycles) & rules.mask
    timers[u(timer), 0] = wheel[2, u(slot)]
    timers[u(timer), 1] = what
    wheel[2, u(slot)] = timer


# --- Fronts of FIFOs


@_phase
def look_at_fronts(net: Net, state: State, rules: Rules, heads: Int, looks: Int) -> Any:
    """Handle FIFOs with a new front.

    Packets at their destination leave the network, others have to move on, and free
    room wakes its waiters.
    """
    packets, fifos, agenda = state.packets, state.fifos, state.agenda
    for i in range(looks):
        fifo = np.int64(state.work[u(i)])
        freed = fifo < -1
        if freed:
            fifo = -2 - fifo
            fifos[u(fifo), ROOM] += 1
            heads = wake_port(state, rules, np.int64(fifos[u(fifo), CHANNEL]), heads)
        packet = np.int64(fifos[u(fifo), HEAD])
        if not rules.limited_out:
            while packet >= 0 and packets[u(packet), VERTEX] == packets[u(packet), DST]:
                following = np.int64(packets[u(packet), NEXT])
                deliver(state, rules, packet)
                fifos[u(fifo), ROOM] += 1
                freed = True
                packet = following
            fifos[u(fifo), HEAD] = packet
            if packet < 0:
                fifos[u(fifo), TAIL] = -1
        if packet >= 0:
            agenda[u(heads)] = key_of(packets, packet)
            heads += 1
        if freed:
            heads = wake_pools(net, state, rules, fifo, heads)
    return heads


@_phase
def wake_port(state: State, rules: Rules, port: Int, heads: Int) -> Any:
    """Wake the packets of other FIFOs that wait for a free input port."""
    packets, channels = state.packets, state.channels
    if channels[u(port), PORT_WAITERS] > 0:
        channels[u(port), PORT_WAITERS] = 0
        for other in range(port * rules.vcs, port * rules.vcs + rules.vcs):
            packet = np.int64(state.fifos[u(other), HEAD])
            if packet >= 0 and packets[u(packet), STATUS] == PORT_BUSY:
                packets[u(packet), STATUS] = GRANTED
                state.agenda[u(heads)] = key_of(packets, packet)
                heads += 1
    return heads


@_phase
def wake_pools(net: Net, state: State, rules: Rules, fifo: Int, heads: Int) -> Any:
    """A FIFO has room: wake the oldest waiter of each of its pools, once per cycle."""
    packets, pools = state.packets, state.pools
    for j in range(net.fifo_pool_start[u(fifo)], net.fifo_pool_start[u(fifo + 1)]):
        pool = np.int64(net.fifo_pool[u(j)])
        if pools[u(pool), STAMP] != rules.now and (
            pools[u(pool), QUEUE_HEAD] >= 0 or pools[u(pool), HEAP] >= 0
        ):
            pools[u(pool), STAMP] = rules.now
            packet = oldest_in_pool(packets, pools, pool)
            packets[u(packet), STATUS] = POOL
            state.agenda[u(heads)] = key_of(packets, packet)
            heads += 1
    return heads


@_phase
def deliver(state: State, rules: Rules, packet: Int) -> None:
    """The tail has arrived: count the packet and free its slot."""
    counters, packets, batches = state.counters, state.packets, state.batches
    counters[DELIVERED] += 1
    if rules.warmup <= rules.now < rules.finish:
        latency = rules.now - packets[u(packet), BORN]
        counters[W_DELIVERED] += 1
        counters[W_HOPS] += packets[u(packet), HOPS] & 0xFFFF
        counters[W_EXTERNAL] += packets[u(packet), HOPS] >> 16
        state.histogram[u(latency)] += 1
        batches[rules.batch, 0] += latency
        batches[rules.batch, 1] += 1
    if rules.trace:
        state.arrival[packets[u(packet), SEQ]] = rules.now
    if rules.adaptive and packets[u(packet), FAR] >= 0:
        state.row_queue[packets[u(packet), FAR]] -= 1
    packets[u(packet), NEXT] = counters[FREE]
    counters[FREE] = packet
    counters[FREE_COUNT] += 1


# --- Routing


@_phase
def column_of(net: Net, vertex: Int, chip: Int) -> Any:
    """The column of the table for a destination, as a vertex sees it.

    That of the first level on which their coordinates differ, or of the last one.
    """
    levels = net.coordinates.shape[1]
    level = 0
    while (
        level < levels
        and net.coordinates[u(vertex), u(level)] == net.goal[u(chip), u(2 * level + 1)]
    ):
        level += 1
    return np.int64(net.goal[u(chip), u(2 * level)])


@_phase
def route(net: Net, state: State, rules: Rules, packet: Int) -> None:
    """Choose the pool of a packet's next hop.

    The only choice, one drawn by weight, or the one with the shortest wait.
    """
    packets = state.packets
    vertex = np.int64(packets[u(packet), VERTEX])
    column = column_of(net, vertex, np.int64(packets[u(packet), DST]))
    entry = np.int64(net.entry[u(packets[u(packet), STATE]), u(vertex), u(column)])
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
            best = shortest_wait(net, state, rules, first, last)
            count_far(net, state, packet, best)
        count_near(net, state, packet, best)
    packets[u(packet), WAY] = net.choice[u(best), 0]
    packets[u(packet), NEXT_STATE] = net.choice[u(best), 1]


@_phase
def shortest_wait(net: Net, state: State, rules: Rules, first: Int, last: Int) -> Any:
    """Adaptive routing: the choice with the least wait for its probed link; ties are
    drawn.
    """
    best, shortest, ties = first, np.inf, 0
    for i in range(first, last):
        row = net.choice[u(i), 2]
        wait = state.row_queue[u(row)] * rules.flits / net.row_rate[u(row)] + net.choice_delay[u(i)]
        if wait < shortest - 1e-9:
            shortest, best, ties = wait, i, 1
        elif wait <= shortest + 1e-9:
            ties += 1
            if below(state.random, 1, ties) == 0:
                best = i
    return best


@_phase
def count_far(net: Net, state: State, packet: Int, best: Int) -> None:
    """Adaptive routing: the packet counts at the link that its choice probed."""
    packets, queue = state.packets, state.row_queue
    if packets[u(packet), FAR] >= 0:
        queue[packets[u(packet), FAR]] -= 1
    packets[u(packet), FAR] = net.choice[u(best), 2]
    queue[packets[u(packet), FAR]] += 1


@_phase
def count_near(net: Net, state: State, packet: Int, best: Int) -> None:
    """Adaptive routing: count the packet at a link of its pool, the probed one if
    included.
    """
    packets, queue, pools = state.packets, state.row_queue, state.pools
    pool = np.int64(net.choice[u(best), 0])
    near = np.int64(pools[u(pool), POOL_ROW])
    far = np.int64(packets[u(packet), FAR])
    if far >= 0 and far != near:
        for i in range(pools[u(pool), FIRST], pools[u(pool), LAST]):
            if state.channels[state.fifos[u(net.pool_fifo[u(i)]), CHANNEL], ROW] == far:
                near = far
                break
    if near != far:
        queue[u(near)] += 1
    packets[u(packet), NEAR] = near


@_phase
def claim(state: State, packet: Int, row: Int) -> None:
    """Adaptive routing: the packet waits at link row ``row`` of its granted channel."""
    packets, queue = state.packets, state.row_queue
    near = np.int64(packets[u(packet), NEAR])
    if near != row:
        queue[u(near)] -= 1
        queue[u(row)] += 1
    if packets[u(packet), FAR] == near or packets[u(packet), FAR] == row:
        if packets[u(packet), FAR] == row and near != row:
            queue[u(row)] -= 1
        packets[u(packet), FAR] = -1


# --- Virtual channels


@_phase
def allocate(net: Net, state: State, rules: Rules, packet: Int, status: Int, waking: Int) -> Any:
    """Grant the packet a FIFO of its pool; -1: none has room, and the packet waits.

    Returns also how many packets a grant of this cycle has woken.
    """
    packets, pools, fifos = state.packets, state.pools, state.fifos
    pool = np.int64(packets[u(packet), WAY])
    granted = np.int64(-1)
    for i in range(pools[u(pool), FIRST], pools[u(pool), LAST]):
        room = fifos[u(net.pool_fifo[u(i)]), ROOM]
        if room == rules.capacity:
            granted = np.int64(net.pool_fifo[u(i)])
            break
        if granted < 0 and room > 0:
            granted = np.int64(net.pool_fifo[u(i)])
    if granted < 0:
        wait_for_pool(state, packet, pool, status)
        return granted, waking
    fifos[u(granted), ROOM] -= 1
    packets[u(packet), WAY] = granted
    packets[u(packet), STATUS] = GRANTED
    if rules.adaptive:
        claim(state, packet, np.int64(state.channels[u(fifos[u(granted), CHANNEL]), ROW]))
    if status == POOL:
        for i in range(pools[u(pool), FIRST], pools[u(pool), LAST]):
            if fifos[u(net.pool_fifo[u(i)]), ROOM] > 0:
                waiting = oldest_in_pool(packets, pools, pool)
                if waiting >= 0:
                    packets[u(waiting), STATUS] = POOL
                    heap_push(state.later, waking, key_of(packets, waiting))
                    waking += 1
                break
    return granted, waking


@_phase
def wait_for_pool(state: State, packet: Int, pool: Int, status: Int) -> None:
    """Queue a packet for room in its pool: at its source in order, else in a heap by
    age.
    """
    packets, pools = state.packets, state.pools
    if packets[u(packet), FIFO] >= 0:
        pools[u(pool), HEAP] = push(packets, pools[u(pool), HEAP], packet)
    elif status == POOL or pools[u(pool), QUEUE_HEAD] < 0:  # the oldest: back to the front
        if pools[u(pool), QUEUE_HEAD] < 0:
            pools[u(pool), QUEUE_TAIL] = packet
        packets[u(packet), NEXT] = pools[u(pool), QUEUE_HEAD]
        pools[u(pool), QUEUE_HEAD] = packet
    else:
        packets[u(packet), NEXT] = -1
        packets[u(pools[u(pool), QUEUE_TAIL]), NEXT] = packet
        pools[u(pool), QUEUE_TAIL] = packet


@_phase
def oldest_in_pool(packets: Any, pools: Any, pool: Int) -> Any:
    """Take the oldest packet that waits for a pool; -1 where none does."""
    queued = np.int64(pools[u(pool), QUEUE_HEAD])
    heaped = np.int64(pools[u(pool), HEAP])
    if queued >= 0 and (heaped < 0 or packets[u(queued), SEQ] < packets[u(heaped), SEQ]):
        pools[u(pool), QUEUE_HEAD] = packets[u(queued), NEXT]
        if packets[u(queued), NEXT] < 0:
            pools[u(pool), QUEUE_TAIL] = -1
        return queued
    if heaped >= 0:
        pools[u(pool), HEAP] = pop(packets, heaped)
    return heaped


# --- Links and ports


@_phase
def traverse(state: State, rules: Rules, packet: Int, status: Int, waking: Int) -> Any:
    """Send a packet over its granted channel, or let it wait.

    It waits for the channel or for its input port. Returns the number of packets woken.
    """
    packets, channels, waiting_for = state.packets, state.channels, state.waiting_for
    granted, fifo = np.int64(packets[u(packet), WAY]), np.int64(packets[u(packet), FIFO])
    channel = np.int64(state.fifos[u(granted), CHANNEL])
    waiters = np.int64(channels[u(channel), WAITING])
    if channels[u(channel), BUSY] != 0:
        packets[u(packet), STATUS] = LINK
        heap_push(waiting_for[u(channel)], waiters, key_of(packets, packet))
        channels[u(channel), WAITING] = waiters + 1
        return waking
    if fifo >= 0 and not take_input_port(state, packet, fifo):
        if status == LINK and waiters > 0:  # the next one may have the channel
            heap_push(state.later, waking, waiting_for[u(channel), 0])
            waking += 1
            heap_pop(waiting_for[u(channel)], waiters)
            channels[u(channel), WAITING] = waiters - 1
        return waking
    send(state, rules, packet, channel, granted, fifo)
    return waking


@_phase
def take_input_port(state: State, packet: Int, fifo: Int) -> Any:
    """Let a packet leave the front of its FIFO through the input port.

    False where another packet is leaving there: the packet waits.
    """
    packets, channels, fifos = state.packets, state.channels, state.fifos
    port = np.int64(fifos[u(fifo), CHANNEL])
    if channels[u(port), PORT] >= 0:
        packets[u(packet), STATUS] = PORT_BUSY
        channels[u(port), PORT_WAITERS] += 1
        return False
    channels[u(port), PORT] = fifo
    fifos[u(fifo), HEAD] = packets[u(packet), NEXT]
    if packets[u(packet), NEXT] < 0:
        fifos[u(fifo), TAIL] = -1
    return True


@_phase
def send(state: State, rules: Rules, packet: Int, channel: Int, granted: Int, fifo: Int) -> None:
    """The head leaves; the wheel gets the cycles of its tail's departure and its
    arrival.
    """
    counters, packets, channels, wheel = state.counters, state.packets, state.channels, state.wheel
    now, mask = rules.now, rules.mask
    serial = np.int64(channels[u(channel), SERIAL])
    slot = (now + serial) & mask
    channels[u(channel), BUSY] = 1
    channels[u(channel), FROM] = fifo
    channels[u(channel), WHEEL_NEXT] = wheel[1, u(slot)]
    wheel[1, u(slot)] = channel
    counters[HOPS_DONE] += 1
    if rules.measured:
        channels[u(channel), CARRIED] += 1
    if fifo < 0:
        counters[INJECTED] += 1
        if rules.limited_in:
            port = -1 - np.int64(packets[u(packet), VERTEX])
            start_timer(state, rules, max(serial, rules.flits), port)
    vertex = np.int64(channels[u(channel), END])
    delay = np.int64(channels[u(channel), LATENCY]) + 1
    if vertex == packets[u(packet), DST]:
        delay = max(delay, serial)
    packets[u(packet), VERTEX] = vertex
    packets[u(packet), STATE] = packets[u(packet), NEXT_STATE]
    packets[u(packet), STATUS] = FRESH
    packets[u(packet), FIFO] = granted
    packets[u(packet), HOPS] += 1 + channels[u(channel), EXTERNAL]
    slot = (now + delay) & mask
    packets[u(packet), NEXT] = wheel[0, u(slot)]
    wheel[0, u(slot)] = packet


@_phase
def eject(state: State, rules: Rules, packet: Int, status: Int, waking: Int) -> Any:
    """Limited ejection: a packet at its destination takes a port of its chip.

    Otherwise it waits for one or for its input port. Returns the number of packets
    woken.
    """
    packets, chips = state.packets, state.chips
    fifo, chip = np.int64(packets[u(packet), FIFO]), np.int64(packets[u(packet), VERTEX])
    if chips[u(chip), EJECTION] == 0:
        packets[u(packet), STATUS] = LINK
        chips[u(chip), EJECT_HEAP] = push(packets, chips[u(chip), EJECT_HEAP], packet)
        return waking
    if not take_input_port(state, packet, fifo):
        waiting = np.int64(chips[u(chip), EJECT_HEAP])
        if status == LINK and waiting >= 0:  # the next one may have the port
            chips[u(chip), EJECT_HEAP] = pop(packets, waiting)
            heap_push(state.later, waking, key_of(packets, waiting))
            waking += 1
        return waking
    chips[u(chip), EJECTION] -= 1
    start_timer(state, rules, rules.flits, fifo)
    deliver(state, rules, packet)
    return waking


# --- A cycle


@_phase
def move_packets(net: Net, state: State, rules: Rules, heads: Int) -> None:
    """Route, allocate and send the packets that may move now, oldest first.

    Packets woken by a grant take their turn by age.
    """
    packets, agenda, later = state.packets, state.agenda, state.later
    if heads > 1:
        sort(agenda, heads)
    at = waking = 0  # entries seen of the agenda; of later
    while at < heads or waking > 0:
        if waking > 0 and (at == heads or later[u(0)] < agenda[u(at)]):
            packet = later[u(0)] & PACKET
            heap_pop(later, waking)
            waking -= 1
        else:
            packet = agenda[u(at)] & PACKET
            at += 1
        status = packets[u(packet), STATUS]
        if packets[u(packet), VERTEX] == packets[u(packet), DST]:
            waking = eject(state, rules, packet, status, waking)
            continue
        if status == FRESH:
            route(net, state, rules, packet)
        if status in (FRESH, POOL):
            granted, waking = allocate(net, state, rules, packet, status, waking)
            if granted < 0:
                continue
        waking = traverse(state, rules, packet, status, waking)


@_compiled
def advance(net: Net, state: State, until: int) -> int:
    """Run cycles until ``until`` (exclusive); NEEDS_ROOM if ``packets`` must grow
    first.
    """
    now = state.counters[NOW]
    while now < until:
        rules = rules_of(net, now)
        due = packets_due(net, state, rules)
        if due > state.counters[FREE_COUNT]:
            state.counters[NOW] = now
            return NEEDS_ROOM
        create_packets(net, state, rules, due)
        heads, looks = heads_arrive(state, rules)
        if rules.limited_in and heads > 0:
            heads = take_injection_ports(state, heads)
        heads, looks = tails_leave(state, rules, heads, looks)
        if rules.limited_in or rules.limited_out:
            heads, looks = ports_end(state, rules, heads, looks)
        heads = look_at_fronts(net, state, rules, heads, looks)
        move_packets(net, state, rules, heads)
        now += 1
    state.counters[NOW] = now
    return DONE
