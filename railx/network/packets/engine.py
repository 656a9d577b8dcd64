"""The compiled core of the packet simulator: one function that advances a network by
cycles.

Event driven. A wheel of cycles holds what will happen: heads that arrive, tails that
leave a link, ports that end. Only the packets that such an event can move are looked
at, oldest first; all others wait in a list of what they wait for: *pool* (room in a
virtual channel), *link* (the granted channel is busy) or *port* (their input port is
busy). Since every release comes with an event and all releases of a cycle come before
its grants, a packet that found no room needs no second look until the next release.

Arrays of structs of int32, one cache line a packet: at saturation the time goes to
cache misses, not to arithmetic. Columns carry the names below; -1 is none everywhere.
Channels are the lanes of link rows, one after another; FIFO c * virtual_channels + v is
the input buffer behind channel c.
"""

# Types inside compiled functions are Numba's to check. mypy:
# disable-error-code="untyped-decorator,assignment,return-value,no-any-return"

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
_FRESH, _POOL, _GRANTED, _LINK, _PORT = range(5)

DONE, NEEDS_ROOM = 0, 1

#: Around every index: an unsigned one needs no look whether it counts from the end,
#: which makes the whole third faster.
u = np.uint32


def _compiled(function: Function) -> Function:
    """Compile, and keep it on disk. Nothing here allocates, so arrays go without
    reference counts, whose atomic updates would take half of the time.
    """
    return cast("Function", njit(cache=True, _nrt=False)(function))


class Net(NamedTuple):
    """What does not change during a run."""

    parameters: Any  # int64[PARAMETERS]
    rates: Any  # float64[2]: packets a cycle, share of hot traffic
    pool_fifo: Any  # int32[]: FIFOs of the pools
    fifo_pool_start: Any  # int32[fifos + 1]
    fifo_pool: Any  # int32[]: pools of each FIFO
    entry: Any  # int32[states, vertices, chips]: the set, or -2 - choice where it has one alone
    set_start: Any  # int32[sets + 1]
    choice: Any  # int32[choices, 3]: pool, state after the hop, probed link row
    choice_limit: Any  # float64[choices]: running sum of weights inside the set
    choice_delay: Any  # float64[choices]: cycles
    row_rate: Any  # float64[link rows]: flits a cycle of all lanes
    source: Any  # int32[F]
    target: Any  # int32[F]
    accept: Any  # float64[F]
    alias: Any  # int32[F]


class State(NamedTuple):
    """What a run changes."""

    counters: Any  # int64[COUNTERS]
    random: Any  # uint64[2]: traffic, routing
    packets: Any  # int32[slots, PACKET_COLUMNS]
    channels: Any  # int32[channels, CHANNEL_COLUMNS]
    fifos: Any  # int32[fifos, FIFO_COLUMNS]
    pools: Any  # int32[pools, POOL_COLUMNS]
    chips: Any  # int32[chips, CHIP_COLUMNS]
    timers: Any  # int32[timers, 2]: next, what
    waiting_for: Any  # int64[channels, ...]: heaps of the packets (age << 32 | packet) that wait for each channel
    wheel: Any  # int32[3, cycles]: heads that arrive, channels that end, timers that end
    row_queue: Any  # int32[link rows]: packets that wait for or are assigned to the row
    work: Any  # int32[]: FIFOs to look at in this cycle
    agenda: Any  # int64[]: age << 32 | packet
    later: Any  # int64[]: heap of what a grant wakes in the same cycle
    histogram: Any  # int64[cycles]: latencies in the window
    batches: Any  # int64[batches, 2]: sum of latencies, packets
    arrival: Any  # int32[]: cycle of delivery by age (traces only)


@_compiled
def _meld(packets: Any, a: Int, b: Int) -> Any:
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
def _push(packets: Any, root: Int, packet: Int) -> Any:
    packets[u(packet), CHILD] = -1
    packets[u(packet), SIBLING] = -1
    return _meld(packets, root, packet)


@_compiled
def _pop(packets: Any, root: Any) -> Any:
    """The heap without its root."""
    node = np.int64(packets[u(root), CHILD])
    paired = np.int64(-1)
    while node >= 0:
        other = np.int64(packets[u(node), SIBLING])
        following = np.int64(-1) if other < 0 else np.int64(packets[u(other), SIBLING])
        joined = np.int64(_meld(packets, node, other))
        packets[u(joined), SIBLING] = paired
        paired = joined
        node = following
    root = np.int64(-1)
    while paired >= 0:
        following = np.int64(packets[u(paired), SIBLING])
        root = np.int64(_meld(packets, root, paired))
        paired = following
    return root


@_compiled
def _random(random: Any, stream: int) -> Any:
    """64 random bits (splitmix64)."""
    random[stream] += np.uint64(0x9E3779B97F4A7C15)
    z = random[stream]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@_compiled
def _below(random: Any, stream: int, limit: Int) -> Any:
    """A random integer from 0 to limit - 1 (limit < 2^31; the bias is below 2^-1)."""
    return np.int64(
        ((_random(random, stream) >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)
    )


@_compiled
def _share(random: Any, stream: int) -> Any:
    """A random number from 0 to below 1."""
    return np.float64(_random(random, stream) >> np.uint64(11)) * 1.1102230246251565e-16


@_compiled
def _heap_push(heap: Any, size: Int, key: Int) -> None:
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap[u(above)] <= key:
            break
        heap[u(place)] = heap[u(above)]
        place = above
    heap[u(place)] = key


@_compiled
def _heap_pop(heap: Any, size: Int) -> None:
    """Drop the least of ``size`` keys."""
    key = heap[u(size - 1)]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size - 1:
            break
        if below + 1 < size - 1 and heap[u(below + 1)] < heap[u(below)]:
            below += 1
        if heap[u(below)] >= key:
            break
        heap[u(place)] = heap[u(below)]
        place = below
    heap[u(place)] = key


@_compiled
def _sort(keys: Any, count: Int) -> None:
    """Shell sort (Ciura's gaps): in place, and an insertion sort for the short lists of
    a quiet network.
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


@_compiled
def _oldest_in_pool(packets: Any, pools: Any, pool: Int) -> Any:
    """Take the oldest packet that waits for a pool; -1 where none does."""
    queued = np.int64(pools[u(pool), QUEUE_HEAD])
    heaped = np.int64(pools[u(pool), HEAP])
    if queued >= 0 and (heaped < 0 or packets[u(queued), SEQ] < packets[u(heaped), SEQ]):
        pools[u(pool), QUEUE_HEAD] = packets[u(queued), NEXT]
        if packets[u(queued), NEXT] < 0:
            pools[u(pool), QUEUE_TAIL] = -1
        return queued
    if heaped >= 0:
        pools[u(pool), HEAP] = _pop(packets, heaped)
    return heaped


@_compiled
def _draw(
    mode: int,
    chips: int,
    number: int,
    hot_share: float,
    random: Any,
    source: Any,
    target: Any,
    accept: Any,
    alias: Any,
) -> Any:
    """Source and destination of packet ``number``."""
    if mode == TRACE:
        return np.int64(source[number]), np.int64(target[number])
    if mode == FLOWS:
        flow = _below(random, 0, len(source))
        if _share(random, 0) >= accept[flow]:
            flow = np.int64(alias[flow])
        return np.int64(source[flow]), np.int64(target[flow])
    if mode == ALL_TO_ALL:
        src = number % chips
        return src, (src + 1 + number // chips % (chips - 1)) % chips
    src = _below(random, 0, chips)
    if mode == HOT_SPOT and _share(random, 0) < hot_share:
        own = np.int64(alias[src])  # place of the source among the hot chips
        others = len(target) - (1 if own >= 0 else 0)
        if others > 0:
            picked = _below(random, 0, others)
            return src, np.int64(target[picked + 1 if 0 <= own <= picked else picked])
    dst = _below(random, 0, chips - 1)
    return src, dst + 1 if dst >= src else dst


@_compiled
def _choose(
    packet: Int,
    adaptive: bool,
    flits: int,
    packets: Any,
    entry: Any,
    set_start: Any,
    choice: Any,
    choice_limit: Any,
    choice_delay: Any,
    row_rate: Any,
    queue: Any,
    random: Any,
    pools: Any,
    pool_fifo: Any,
    fifos: Any,
    channels: Any,
) -> None:
    """Fix the pool of a packet's next hop (and for adaptive routing, which queues count
    it).
    """
    own = np.int64(
        entry[
            u(packets[u(packet), STATE]), u(packets[u(packet), VERTEX]), u(packets[u(packet), DST])
        ]
    )
    if own < 0:
        first = -2 - own
        last = first + 1
    else:
        first, last = np.int64(set_start[u(own)]), np.int64(set_start[u(own + 1)])
    best = first
    if not adaptive:
        if last - first > 1:
            drawn = _share(random, 1)
            while best < last - 1 and drawn >= choice_limit[u(best)]:
                best += 1
    else:
        if last - first > 1:
            least = np.inf
            ties = 0
            for i in range(first, last):
                row = choice[u(i), 2]
                wait = queue[u(row)] * flits / row_rate[u(row)] + choice_delay[u(i)]
                if wait < least - 1e-9:
                    least, best, ties = wait, i, 1
                elif wait <= least + 1e-9:
                    ties += 1
                    if _below(random, 1, ties) == 0:
                        best = i
            if packets[u(packet), FAR] >= 0:
                queue[packets[u(packet), FAR]] -= 1
            packets[u(packet), FAR] = choice[u(best), 2]
            queue[packets[u(packet), FAR]] += 1
        pool = np.int64(choice[u(best), 0])
        near = np.int64(pools[u(pool), POOL_ROW])
        far = np.int64(packets[u(packet), FAR])
        if far >= 0 and far != near:
            for i in range(pools[u(pool), FIRST], pools[u(pool), LAST]):
                if channels[fifos[u(pool_fifo[u(i)]), CHANNEL], ROW] == far:
                    near = far
                    break
        if near != far:
            queue[u(near)] += 1
        packets[u(packet), NEAR] = near
    packets[u(packet), WAY] = choice[u(best), 0]
    packets[u(packet), NEXT_STATE] = choice[u(best), 1]


@_compiled
def _claim(packets: Any, queue: Any, packet: Int, row: Int) -> None:
    """Adaptive routing: the packet has been granted a channel of link row ``row`` and
    waits there now.
    """
    near = np.int64(packets[u(packet), NEAR])
    if near != row:
        queue[u(near)] -= 1
        queue[u(row)] += 1
    if packets[u(packet), FAR] == near or packets[u(packet), FAR] == row:
        if packets[u(packet), FAR] == row and near != row:
            queue[u(row)] -= 1
        packets[u(packet), FAR] = -1


@_compiled
def advance(net: Any, state: Any, until: int) -> int:
    """Run cycles until cycle ``until`` (exclusive); NEEDS_ROOM where ``packets`` must
    grow before the next cycle.
    """
    parameters = net.parameters
    vcs, mask, flits, source_cycles = (
        parameters[VCS],
        parameters[MASK],
        parameters[FLITS],
        parameters[SOURCE_CYCLES],
    )
    limited_in, limited_out = parameters[PORTS_IN] > 0, parameters[PORTS_OUT] > 0
    warmup, finish, adaptive, capacity = (
        parameters[WARMUP],
        parameters[FINISH],
        parameters[ADAPTIVE] != 0,
        parameters[CAPACITY],
    )
    mode, chip_count, batch_count = parameters[MODE], parameters[CHIPS], parameters[BATCHES]
    trace = mode == TRACE
    rate, hot_share = net.rates[0], net.rates[1]
    source, target, accept, alias = net.source, net.target, net.accept, net.alias
    entry, set_start, choice, choice_limit, choice_delay = (
        net.entry,
        net.set_start,
        net.choice,
        net.choice_limit,
        net.choice_delay,
    )
    row_rate, row_queue, random = net.row_rate, state.row_queue, state.random
    histogram, batches, arrival = state.histogram, state.batches, state.arrival
    pool_fifo, fifo_pool_start, fifo_pool = net.pool_fifo, net.fifo_pool_start, net.fifo_pool
    counters, packets, channels, fifos, pools, chips = (
        state.counters,
        state.packets,
        state.channels,
        state.fifos,
        state.pools,
        state.chips,
    )
    timers, wheel, agenda, later, work = (
        state.timers,
        state.wheel,
        state.agenda,
        state.later,
        state.work,
    )
    waiting_for = state.waiting_for
    now = counters[NOW]
    while now < until:
        measured = warmup <= now < finish
        batch = (now - warmup) * batch_count // (finish - warmup)
        due = 0
        if trace:
            number = counters[CREATED]
            while number + due < len(alias) and alias[number + due] == now:
                due += 1
        else:
            due = np.int64(np.floor((now + 1) * rate + 1e-9)) - np.int64(
                np.floor(now * rate + 1e-9)
            )
        if due > counters[FREE_COUNT]:
            counters[NOW] = now
            return NEEDS_ROOM
        heads = 0  # entries of the agenda
        looks = 0  # entries of work
        # Sources.
        for _ in range(due):
            src, dst = _draw(
                mode,
                chip_count,
                counters[CREATED],
                hot_share,
                random,
                source,
                target,
                accept,
                alias,
            )
            packet = counters[FREE]
            counters[FREE] = packets[u(packet), NEXT]
            packets[u(packet), SEQ] = counters[CREATED]
            packets[u(packet), BORN] = now
            packets[u(packet), DST] = dst
            packets[u(packet), VERTEX] = src
            packets[u(packet), STATE] = 0
            packets[u(packet), STATUS] = _FRESH
            packets[u(packet), FIFO] = -1
            packets[u(packet), HOPS] = 0
            packets[u(packet), FAR] = -1
            slot = (now + source_cycles) & mask
            packets[u(packet), NEXT] = wheel[0, u(slot)]
            wheel[0, u(slot)] = packet
            counters[CREATED] += 1
        counters[FREE_COUNT] -= due
        if measured:
            counters[W_CREATED] += due
        # Heads that arrive: at their next input, or ready at their source.
        slot = now & mask
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
                    # While another packet leaves this FIFO, its tail's event will look
                    # here.
                    if channels[u(fifos[u(fifo), CHANNEL]), PORT] != fifo:
                        work[u(looks)] = fifo
                        looks += 1
            else:
                agenda[u(heads)] = np.int64(packets[u(packet), SEQ]) << 32 | packet
                heads += 1
            packet = following
        if limited_in and heads > 0:
            # One FIFO a chip in order of age; free injection ports take its packets
            # below.
            _sort(agenda, heads)
            for i in range(heads):
                packet = agenda[u(i)] & 0xFFFFFFFF
                chip = packets[u(packet), VERTEX]
                packets[u(packet), NEXT] = -1
                last = chips[u(chip), SOURCE_TAIL]
                chips[u(chip), SOURCE_TAIL] = packet
                if last >= 0:
                    packets[u(last), NEXT] = packet
                else:
                    chips[u(chip), SOURCE_HEAD] = packet
            ready = heads
            heads = 0
            for i in range(ready):
                packet = agenda[u(i)] & 0xFFFFFFFF
                chip = packets[u(packet), VERTEX]
                if chips[u(chip), INJECTION] > 0 and chips[u(chip), SOURCE_HEAD] >= 0:
                    chips[u(chip), INJECTION] -= 1
                    taken = np.int64(chips[u(chip), SOURCE_HEAD])
                    chips[u(chip), SOURCE_HEAD] = packets[u(taken), NEXT]
                    if packets[u(taken), NEXT] < 0:
                        chips[u(chip), SOURCE_TAIL] = -1
                    # Never overtakes i: at most one packet is taken for each one seen.
                    agenda[u(heads)] = np.int64(packets[u(taken), SEQ]) << 32 | taken
                    heads += 1
        # Tails that have left: the channel, the input port and the space behind it are
        # free.
        channel = np.int64(wheel[1, u(slot)])
        wheel[1, u(slot)] = -1
        while channel >= 0:
            following = np.int64(channels[u(channel), WHEEL_NEXT])
            channels[u(channel), BUSY] = 0
            if adaptive:
                row_queue[channels[u(channel), ROW]] -= 1
            waiters = np.int64(channels[u(channel), WAITING])
            if waiters > 0:
                agenda[u(heads)] = waiting_for[u(channel), 0]
                heads += 1
                _heap_pop(waiting_for[u(channel)], waiters)
                channels[u(channel), WAITING] = waiters - 1
            fifo = np.int64(channels[u(channel), FROM])
            if fifo >= 0:
                channels[u(fifos[u(fifo), CHANNEL]), PORT] = -1
                work[u(looks)] = -2 - fifo
                looks += 1
            channel = following
        # Injection and ejection ports that end.
        if limited_in or limited_out:
            timer = np.int64(wheel[2, u(slot)])
            wheel[2, u(slot)] = -1
            while timer >= 0:
                following = np.int64(timers[u(timer), 0])
                what = np.int64(timers[u(timer), 1])
                timers[u(timer), 0] = counters[TIMER_FREE]
                counters[TIMER_FREE] = timer
                if what < 0:
                    chip = -1 - what
                    packet = np.int64(chips[u(chip), SOURCE_HEAD])
                    if packet < 0:
                        chips[u(chip), INJECTION] += 1
                    else:
                        chips[u(chip), SOURCE_HEAD] = packets[u(packet), NEXT]
                        if packets[u(packet), NEXT] < 0:
                            chips[u(chip), SOURCE_TAIL] = -1
                        agenda[u(heads)] = np.int64(packets[u(packet), SEQ]) << 32 | packet
                        heads += 1
                else:
                    chip = np.int64(channels[u(fifos[u(what), CHANNEL]), END])
                    chips[u(chip), EJECTION] += 1
                    channels[u(fifos[u(what), CHANNEL]), PORT] = -1
                    work[u(looks)] = -2 - what
                    looks += 1
                    waiting = np.int64(chips[u(chip), EJECT_HEAP])
                    if waiting >= 0:
                        chips[u(chip), EJECT_HEAP] = _pop(packets, waiting)
                        packets[u(waiting), STATUS] = _LINK
                        agenda[u(heads)] = np.int64(packets[u(waiting), SEQ]) << 32 | waiting
                        heads += 1
                timer = following
        # FIFOs with a new front: packets that are there leave the network, the next one
        # has to move on.
        for i in range(looks):
            fifo = np.int64(work[u(i)])
            freed = fifo < -1
            if freed:
                fifo = -2 - fifo
                fifos[u(fifo), ROOM] += 1
                port = np.int64(fifos[u(fifo), CHANNEL])
                if channels[u(port), PORT_WAITERS] > 0:
                    channels[u(port), PORT_WAITERS] = 0
                    for other in range(port * vcs, port * vcs + vcs):
                        packet = np.int64(fifos[u(other), HEAD])
                        if packet >= 0 and packets[u(packet), STATUS] == _PORT:
                            packets[u(packet), STATUS] = _GRANTED
                            agenda[u(heads)] = np.int64(packets[u(packet), SEQ]) << 32 | packet
                            heads += 1
            packet = np.int64(fifos[u(fifo), HEAD])
            if not limited_out:
                while packet >= 0 and packets[u(packet), VERTEX] == packets[u(packet), DST]:
                    following = np.int64(packets[u(packet), NEXT])
                    _deliver(
                        packet,
                        now,
                        warmup,
                        finish,
                        batch,
                        trace,
                        adaptive,
                        counters,
                        packets,
                        histogram,
                        batches,
                        arrival,
                        row_queue,
                    )
                    fifos[u(fifo), ROOM] += 1
                    freed = True
                    packet = following
                fifos[u(fifo), HEAD] = packet
                if packet < 0:
                    fifos[u(fifo), TAIL] = -1
            if packet >= 0:
                agenda[u(heads)] = np.int64(packets[u(packet), SEQ]) << 32 | packet
                heads += 1
            if freed:
                for j in range(fifo_pool_start[u(fifo)], fifo_pool_start[u(fifo + 1)]):
                    pool = np.int64(fifo_pool[u(j)])
                    if pools[u(pool), STAMP] != now and (
                        pools[u(pool), QUEUE_HEAD] >= 0 or pools[u(pool), HEAP] >= 0
                    ):
                        pools[u(pool), STAMP] = now
                        packet = _oldest_in_pool(packets, pools, pool)
                        packets[u(packet), STATUS] = _POOL
                        agenda[u(heads)] = np.int64(packets[u(packet), SEQ]) << 32 | packet
                        heads += 1
        # The packets that may move now, oldest first.
        if heads > 1:
            _sort(agenda, heads)
        at = 0
        waking = 0  # entries of later
        while at < heads or waking > 0:
            if waking > 0 and (at == heads or later[u(0)] < agenda[u(at)]):
                packet = later[u(0)] & 0xFFFFFFFF
                _heap_pop(later, waking)
                waking -= 1
            else:
                packet = agenda[u(at)] & 0xFFFFFFFF
                at += 1
            status = packets[u(packet), STATUS]
            fifo = np.int64(packets[u(packet), FIFO])
            vertex = np.int64(packets[u(packet), VERTEX])
            if vertex == packets[u(packet), DST]:  # only with limited ejection
                if chips[u(vertex), EJECTION] == 0:
                    packets[u(packet), STATUS] = _LINK
                    chips[u(vertex), EJECT_HEAP] = _push(
                        packets, chips[u(vertex), EJECT_HEAP], packet
                    )
                    continue
                port = np.int64(fifos[u(fifo), CHANNEL])
                if channels[u(port), PORT] >= 0:
                    packets[u(packet), STATUS] = _PORT
                    channels[u(port), PORT_WAITERS] += 1
                    waiting = np.int64(chips[u(vertex), EJECT_HEAP])
                    if status == _LINK and waiting >= 0:
                        chips[u(vertex), EJECT_HEAP] = _pop(packets, waiting)
                        _heap_push(
                            later, waking, np.int64(packets[u(waiting), SEQ]) << 32 | waiting
                        )
                        waking += 1
                    continue
                chips[u(vertex), EJECTION] -= 1
                channels[u(port), PORT] = fifo
                fifos[u(fifo), HEAD] = packets[u(packet), NEXT]
                if packets[u(packet), NEXT] < 0:
                    fifos[u(fifo), TAIL] = -1
                timer = counters[TIMER_FREE]
                counters[TIMER_FREE] = timers[u(timer), 0]
                slot = (now + flits) & mask
                timers[u(timer), 0] = wheel[2, u(slot)]
                timers[u(timer), 1] = fifo
                wheel[2, u(slot)] = timer
                _deliver(
                    packet,
                    now,
                    warmup,
                    finish,
                    batch,
                    trace,
                    adaptive,
                    counters,
                    packets,
                    histogram,
                    batches,
                    arrival,
                    row_queue,
                )
                continue
            if status in (_FRESH, _POOL):
                if status == _FRESH:
                    _choose(
                        packet,
                        adaptive,
                        flits,
                        packets,
                        entry,
                        set_start,
                        choice,
                        choice_limit,
                        choice_delay,
                        row_rate,
                        row_queue,
                        random,
                        pools,
                        pool_fifo,
                        fifos,
                        channels,
                    )
                pool = np.int64(packets[u(packet), WAY])
                granted = np.int64(-1)
                for i in range(pools[u(pool), FIRST], pools[u(pool), LAST]):
                    room = fifos[u(pool_fifo[u(i)]), ROOM]
                    if room == capacity:
                        granted = np.int64(pool_fifo[u(i)])
                        break
                    if granted < 0 and room > 0:
                        granted = np.int64(pool_fifo[u(i)])
                if granted < 0:
                    if fifo >= 0:
                        pools[u(pool), HEAP] = _push(packets, pools[u(pool), HEAP], packet)
                    elif (
                        status == _POOL or pools[u(pool), QUEUE_HEAD] < 0
                    ):  # the oldest: back to the front
                        if pools[u(pool), QUEUE_HEAD] < 0:
                            pools[u(pool), QUEUE_TAIL] = packet
                        packets[u(packet), NEXT] = pools[u(pool), QUEUE_HEAD]
                        pools[u(pool), QUEUE_HEAD] = packet
                    else:
                        packets[u(packet), NEXT] = -1
                        packets[u(pools[u(pool), QUEUE_TAIL]), NEXT] = packet
                        pools[u(pool), QUEUE_TAIL] = packet
                    continue
                fifos[u(granted), ROOM] -= 1
                packets[u(packet), WAY] = granted
                packets[u(packet), STATUS] = _GRANTED
                if adaptive:
                    _claim(
                        packets,
                        row_queue,
                        packet,
                        np.int64(channels[u(fifos[u(granted), CHANNEL]), ROW]),
                    )
                if status == _POOL:
                    for i in range(pools[u(pool), FIRST], pools[u(pool), LAST]):
                        if fifos[u(pool_fifo[u(i)]), ROOM] > 0:
                            waiting = _oldest_in_pool(packets, pools, pool)
                            if waiting >= 0:
                                packets[u(waiting), STATUS] = _POOL
                                _heap_push(
                                    later,
                                    waking,
                                    np.int64(packets[u(waiting), SEQ]) << 32 | waiting,
                                )
                                waking += 1
                            break
            granted = np.int64(packets[u(packet), WAY])
            channel = np.int64(fifos[u(granted), CHANNEL])
            if channels[u(channel), BUSY] != 0:
                packets[u(packet), STATUS] = _LINK
                waiters = np.int64(channels[u(channel), WAITING])
                _heap_push(
                    waiting_for[u(channel)],
                    waiters,
                    np.int64(packets[u(packet), SEQ]) << 32 | packet,
                )
                channels[u(channel), WAITING] = waiters + 1
                continue
            if fifo >= 0:
                port = np.int64(fifos[u(fifo), CHANNEL])
                if channels[u(port), PORT] >= 0:
                    packets[u(packet), STATUS] = _PORT
                    channels[u(port), PORT_WAITERS] += 1
                    waiters = np.int64(channels[u(channel), WAITING])
                    if status == _LINK and waiters > 0:
                        _heap_push(later, waking, waiting_for[u(channel), 0])
                        waking += 1
                        _heap_pop(waiting_for[u(channel)], waiters)
                        channels[u(channel), WAITING] = waiters - 1
                    continue
                channels[u(port), PORT] = fifo
                fifos[u(fifo), HEAD] = packets[u(packet), NEXT]
                if packets[u(packet), NEXT] < 0:
                    fifos[u(fifo), TAIL] = -1
            # The head leaves.
            serial = np.int64(channels[u(channel), SERIAL])
            slot = (now + serial) & mask
            channels[u(channel), BUSY] = 1
            channels[u(channel), FROM] = fifo
            channels[u(channel), WHEEL_NEXT] = wheel[1, u(slot)]
            wheel[1, u(slot)] = channel
            counters[HOPS_DONE] += 1
            if measured:
                channels[u(channel), CARRIED] += 1
            if fifo < 0:
                counters[INJECTED] += 1
                if limited_in:
                    timer = counters[TIMER_FREE]
                    counters[TIMER_FREE] = timers[u(timer), 0]
                    slot = (now + max(serial, flits)) & mask
                    timers[u(timer), 0] = wheel[2, u(slot)]
                    timers[u(timer), 1] = -1 - vertex
                    wheel[2, u(slot)] = timer
            vertex = np.int64(channels[u(channel), END])
            delay = np.int64(channels[u(channel), LATENCY]) + 1
            if vertex == packets[u(packet), DST]:
                delay = max(delay, serial)
            packets[u(packet), VERTEX] = vertex
            packets[u(packet), STATE] = packets[u(packet), NEXT_STATE]
            packets[u(packet), STATUS] = _FRESH
            packets[u(packet), FIFO] = granted
            packets[u(packet), HOPS] += 1 + channels[u(channel), EXTERNAL]
            slot = (now + delay) & mask
            packets[u(packet), NEXT] = wheel[0, u(slot)]
            wheel[0, u(slot)] = packet
        now += 1
    counters[NOW] = now
    return DONE


@_compiled
def _deliver(
    packet: Int,
    now: int,
    warmup: int,
    finish: int,
    batch: int,
    trace: bool,
    adaptive: bool,
    counters: Any,
    packets: Any,
    histogram: Any,
    batches: Any,
    arrival: Any,
    queue: Any,
) -> None:
    """The tail is there: count the packet and free its slot."""
    counters[DELIVERED] += 1
    if warmup <= now < finish:
        latency = now - packets[u(packet), BORN]
        counters[W_DELIVERED] += 1
        counters[W_HOPS] += packets[u(packet), HOPS] & 0xFFFF
        counters[W_EXTERNAL] += packets[u(packet), HOPS] >> 16
        histogram[u(latency)] += 1
        batches[batch, 0] += latency
        batches[batch, 1] += 1
    if trace:
        arrival[packets[u(packet), SEQ]] = now
    if adaptive and packets[u(packet), FAR] >= 0:
        queue[packets[u(packet), FAR]] -= 1
    packets[u(packet), NEXT] = counters[FREE]
    counters[FREE] = packet
    counters[FREE_COUNT] += 1


@njit(cache=True)
def alias_table(share: Any, accept: Any, alias: Any) -> None:
    """Vose's table: flow i is kept with probability accept[i], else alias[i] takes its
    place.
    """
    count = len(share)
    mean = share.sum() / count
    small = np.empty(count, np.int64)
    large = np.empty(count, np.int64)
    smalls = larges = 0
    for i in range(count):
        accept[i] = share[i] / mean
        alias[i] = i
        if accept[i] < 1:
            small[smalls] = i
            smalls += 1
        else:
            large[larges] = i
            larges += 1
    while smalls > 0 and larges > 0:
        smalls -= 1
        less, more = small[smalls], large[larges - 1]
        alias[less] = more
        accept[more] -= 1 - accept[less]
        if accept[more] < 1:
            larges -= 1
            small[smalls] = more
            smalls += 1
    for i in range(smalls):
        accept[small[i]] = 1
    for i in range(larges):
        accept[large[i]] = 1


@njit(cache=True)
def mean_latency(
    entry: Any, set_start: Any, share: Any, follow: Any, end: Any, step: Any, last_step: Any
) -> Any:
    """Expected unloaded latency over all ordered pairs of chips, from the source's
    first routing to the arrival of the tail.

    Of each choice: ``share``, state after the hop (``follow``), vertex at the end of
    the hop, cycles of the hop, and cycles where it is the last one. NaN where a packet
    does not arrive.
    """
    states, vertices, chips = entry.shape
    total = 0.0
    value = np.empty((states, vertices))
    for target in range(chips):
        value[:] = np.nan
        changed = True
        while changed:
            changed = False
            for state in range(states):
                for vertex in range(vertices):
                    own = entry[state, vertex, target]
                    if own < 0 or not np.isnan(value[state, vertex]):
                        continue
                    expected = 0.0
                    for i in range(set_start[own], set_start[own + 1]):
                        if share[i] > 0:
                            if end[i] == target:
                                expected += share[i] * last_step[i]
                            else:
                                expected += share[i] * (step[i] + value[follow[i], end[i]])
                    if not np.isnan(expected):
                        value[state, vertex] = expected
                        changed = True
        for chip in range(chips):
            if chip != target:
                total += value[0, chip]
    return total / (chips * (chips - 1))
