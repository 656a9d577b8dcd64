"""The packet simulator's cycle model once more, in plain Python that looks at
everything in every cycle.

Slow and simple on purpose: no wake-up lists, no incremental counters. It shares no code
with the simulator but the meaning of the settings, and it draws its choices from the
same generator, written anew, in the same order (oldest packet first).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from railx.network.settings import PacketNetworkSettings
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology

_64_BITS = (1 << 64) - 1


class Draws:
    """splitmix64, the stream that the simulator draws choices from."""

    def __init__(self, seed: int) -> None:
        self.state = int(np.random.SeedSequence(seed).generate_state(2, np.uint64)[1])

    def bits(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _64_BITS
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
        return z ^ (z >> 31)

    def share(self) -> float:
        return (self.bits() >> 11) / 2**53

    def below(self, limit: int) -> int:
        return ((self.bits() >> 32) * limit) >> 32


@dataclass(eq=False)
class Channel:
    row: int
    end: int
    serial: int
    latency: int
    fifos: list[Fifo] = field(default_factory=list)
    busy_until: int = 0
    port_until: int = 0  # the input port behind it
    carries: Packet | None = None  # whose tail has not left yet


@dataclass(eq=False)
class Fifo:
    channel: Channel
    packets: deque[Packet] = field(default_factory=deque)
    reserved: int = 0  # packets
    leaving_until: int = 0
    coming: set[Packet] = field(default_factory=set)  # on their way to it, to go on


@dataclass(eq=False)
class Packet:
    age: int
    born: int
    vertex: int
    dst: int
    state: int = 0
    fifo: Fifo | None = None  # None at the source
    arrives: int = 0  # in its next FIFO
    on_the_way: bool = False
    choice: int = -1
    granted: Fifo | None = None
    has_port: bool = False  # an injection port
    near: int = -1
    far: int = -1
    delivered: int = -1


class Reference:
    def __init__(
        self, topology: Topology, table: RoutingTable, network: PacketNetworkSettings, seed: int
    ) -> None:
        self.topology, self.table, self.network = topology, table, network
        self.draws = Draws(seed)
        port = topology.settings.port_gbps
        links = topology.links
        # The table must already have the channels that the network asks for.
        number = len(table.channel_class)
        assert network.virtual_channels in (None, number)
        self.of_class: dict[int, list[int]] = {}
        for place, own in enumerate(table.channel_class.tolist()):
            self.of_class.setdefault(own, []).append(place)
        self.lanes: list[list[Channel]] = []
        for row in range(len(links)):
            serial = math.ceil(network.packet_flits * port / links.gbps[row] - 1e-9)
            latency = round(links.latency_ns[row] / network.cycle_ns)
            lanes = [
                Channel(row, int(links.dst[row]), max(serial, 1), latency)
                for _ in range(links.lanes[row])
            ]
            for channel in lanes:
                channel.fifos = [Fifo(channel) for _ in range(number)]
            self.lanes.append(lanes)
        self.rate = links.gbps / port * links.lanes
        self.channels = [channel for lanes in self.lanes for channel in lanes]
        self.capacity = network.buffer_flits // network.packet_flits
        self.packets: list[Packet] = []
        self.releases: list[tuple[int, Packet, Fifo]] = []
        self.in_order = network.router == "in_order"
        self.injection: list[list[int]] = [
            [0] * (network.injection_ports or 0) for _ in range(topology.chips)
        ]
        self.ejection: list[list[int]] = [
            [0] * (network.ejection_ports or 0) for _ in range(topology.chips)
        ]
        self.most_reserved = 0

    def run(
        self, cycle: Sequence[int], src: Sequence[int], dst: Sequence[int], cycles: int
    ) -> list[int]:
        """The cycle in which each packet arrives, -1 where it does not."""
        created = 0
        for now in range(cycles):
            while created < len(cycle) and cycle[created] == now:
                self.packets.append(Packet(created, now, int(src[created]), int(dst[created])))
                created += 1
            self.step(now)
        return [packet.delivered for packet in self.packets] + [-1] * (len(cycle) - created)

    def step(self, now: int) -> None:
        for packet in self.packets:
            if packet.on_the_way and packet.arrives == now:
                assert packet.fifo is not None
                packet.on_the_way = False
                packet.fifo.packets.append(packet)
                packet.fifo.coming.discard(packet)
        for channel in self.channels:
            if channel.busy_until <= now:
                channel.carries = None
        if self.in_order:
            for when, _, fifo in self.releases:
                if when == now:
                    fifo.reserved -= 1
            if self.network.ejection_ports is None:
                self.eject_all(now)
            for packet in sorted(self.candidates(now), key=lambda packet: packet.age):
                self.try_to_move(packet, now)
        else:
            self.turns(now)
        for channel in self.channels:
            self.most_reserved = max(self.most_reserved, *(fifo.reserved for fifo in channel.fifos))

    def turns(self, now: int) -> None:
        """The router of the RailX simulator: each packet moves, or arrives, and then
        frees what its tail leaves.
        """
        candidates = set(self.candidates(now))
        for packet in self.packets:
            if packet.on_the_way and packet.arrives == now + 1 and self.at_end(packet):
                assert packet.fifo is not None
                packet.on_the_way, packet.delivered = False, now + 1
                packet.fifo.reserved -= 1
            elif packet in candidates:
                self.try_to_move(packet, now)
            for when, leaving, fifo in self.releases:
                if when == now + 1 and leaving is packet:
                    fifo.reserved -= 1
        self.releases = [release for release in self.releases if release[0] > now + 1]

    def at_end(self, packet: Packet) -> bool:
        return packet.fifo is not None and packet.fifo.channel.end == packet.dst

    def eject_all(self, now: int) -> None:
        for channel in self.channels:
            for fifo in channel.fifos:
                while (
                    fifo.packets
                    and fifo.packets[0].dst == channel.end
                    and fifo.leaving_until <= now
                ):
                    packet = fifo.packets.popleft()
                    packet.delivered, packet.near, packet.far = now, -1, -1
                    fifo.reserved -= 1

    def candidates(self, now: int) -> list[Packet]:
        fronts = [
            fifo.packets[0]
            for channel in self.channels
            for fifo in channel.fifos
            if fifo.packets and fifo.leaving_until <= now
        ]
        ready = [
            p
            for p in self.packets
            if p.fifo is None and p.delivered < 0 and p.born + self.network.source_cycles <= now
        ]
        if self.network.injection_ports is None:
            return fronts + ready
        for packet in ready:  # by age
            free = [i for i, until in enumerate(self.injection[packet.vertex]) if until <= now]
            if not packet.has_port and free:
                packet.has_port = True
                self.injection[packet.vertex][free[0]] = 1 << 60
        return fronts + [packet for packet in ready if packet.has_port]

    def try_to_move(self, packet: Packet, now: int) -> None:
        if packet.vertex == packet.dst:
            self.try_to_eject(packet, now)
            return
        if packet.choice < 0:
            packet.choice = self.choose(packet)
        if packet.granted is None:
            packet.granted = self.grant(packet.choice, now)
            if packet.granted is None:
                return
            packet.granted.reserved += 1
            row = packet.granted.channel.row
            if packet.far == packet.near or packet.far == row:
                packet.far = -1
            packet.near = row
        channel = packet.granted.channel
        if channel.busy_until > now or (
            packet.fifo is not None and packet.fifo.channel.port_until > now
        ):
            return
        end = now + channel.serial
        channel.busy_until, channel.carries = end, packet
        self.leave_input(packet, now, end)
        packet.near = -1
        packet.state = int(self.table.choice_state[packet.choice])
        packet.fifo, packet.granted, packet.choice = packet.granted, None, -1
        packet.vertex = channel.end
        packet.on_the_way = True
        if not self.at_end(packet):
            packet.fifo.coming.add(packet)
        packet.arrives = now + channel.latency + 1
        if packet.vertex == packet.dst:
            packet.arrives = max(packet.arrives, end)

    def leave_input(self, packet: Packet, now: int, end: int) -> None:
        if packet.fifo is None:
            if self.network.injection_ports is not None:
                ports = self.injection[packet.vertex]
                ports[ports.index(1 << 60)] = max(end, now + self.network.packet_flits)
            return
        assert packet.fifo.packets.popleft() is packet
        packet.fifo.leaving_until = packet.fifo.channel.port_until = end
        self.releases.append((end, packet, packet.fifo))

    def try_to_eject(self, packet: Packet, now: int) -> None:
        assert packet.fifo is not None
        free = [i for i, until in enumerate(self.ejection[packet.dst]) if until <= now]
        if not free or packet.fifo.channel.port_until > now:
            return
        end = now + self.network.packet_flits
        self.ejection[packet.dst][free[0]] = end
        self.leave_input(packet, now, end)
        packet.delivered, packet.near, packet.far = now, -1, -1

    def grant(self, choice: int, now: int) -> Fifo | None:
        table = self.table
        pool = int(table.choice_pool[choice])
        rows = table.pool_link[table.pool_start[pool] : table.pool_start[pool + 1]]
        channels = [channel for row in rows for channel in self.lanes[row]]
        if table.pool_lane[pool] >= 0:
            channels = [self.lanes[row][table.pool_lane[pool]] for row in rows]
        numbers = self.of_class[int(table.pool_class[pool])]
        fifos = [channel.fifos[number] for number in numbers for channel in channels]
        room = [fifo for fifo in fifos if fifo.reserved < self.capacity]
        if self.network.parallel_channels == "most_room":
            return min(room, key=lambda fifo: fifo.reserved, default=None)
        empty = [fifo for fifo in room if fifo.reserved == 0]
        if not self.in_order:
            empty = [
                fifo
                for fifo in room
                if not fifo.packets and not fifo.coming and fifo.leaving_until <= now
            ]
        return (empty or room or [None])[0]

    def choose(self, packet: Packet) -> int:
        table = self.table
        own = int(table.entry[packet.state, packet.vertex, packet.dst])
        choices = range(int(table.set_start[own]), int(table.set_start[own + 1]))
        if table.selection == "weighted":
            if len(choices) == 1:
                return choices[0]
            drawn, total = (
                self.draws.share(),
                np.cumsum(table.choice_weight[choices.start : choices.stop]),
            )
            return next(
                (i for i, limit in zip(choices, total, strict=True) if drawn < limit), choices[-1]
            )
        best = choices[0]
        if len(choices) > 1:
            packet.far = -1
            best = self.shortest_wait(choices)
            packet.far = self.probe(best)
        pool = table.choice_pool[best]
        rows = table.pool_link[table.pool_start[pool] : table.pool_start[pool + 1]].tolist()
        packet.near = packet.far if packet.far in rows else rows[0]
        return best

    def probe(self, choice: int) -> int:
        first = self.table.pool_link[self.table.pool_start[self.table.choice_pool[choice]]]
        return int(
            self.table.choice_probe[choice] if self.table.choice_probe[choice] >= 0 else first
        )

    def shortest_wait(self, choices: range) -> int:
        waits = []
        for i in choices:
            row = self.probe(i)
            queued = sum(
                row in (packet.near, packet.far) for packet in self.packets if packet.delivered < 0
            )
            queued += sum(channel.carries is not None for channel in self.lanes[row])
            flits = queued * self.network.packet_flits
            waits.append(
                flits / self.rate[row] + self.table.choice_delay_ns[i] / self.network.cycle_ns
            )
        best, least, ties = choices[0], math.inf, 0
        for i, wait in zip(choices, waits, strict=True):
            if wait < least - 1e-9:
                best, least, ties = i, wait, 1
            elif wait <= least + 1e-9:
                ties += 1
                if self.draws.below(ties) == 0:
                    best = i
        return best
