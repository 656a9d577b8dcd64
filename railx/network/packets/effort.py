"""Estimates of packet simulations, which refuse endless ones."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from railx.effort import Cost, LimitSettings, check_cost, in_words, note
from railx.families import build_routing, build_topology, family_of
from railx.families.sizes import vertex_count
from railx.network.settings import PacketNetworkSettings
from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings

#: Repeats from which their number, not their length, decides the duration of a sweep.
_MANY_REPEATS = 100
#: Bytes for each cycle of the slowest link: three words in lists of events as long as
#: the next power of two.
_CYCLE_BYTES = 24.0
#: Bytes for each state, vertex and chip of a table over all pairs, its making and codes
#: included: 2.2 to 4.4 arrays of int32 at 1,000 to 1,500 chips, 5.9 on a mesh.
_PAIR_BYTES = 12.0
#: Bytes for each port of each chip where the routing table grows with groups of
#: destinations: about what 10,000 chips of 24 ports take.
_PORT_BYTES = 2e3
#: Bytes for each state, group and vertex while such a table is made: what thin tori
#: take; router graphs take 5 to 20.
_GROUP_BYTES = 23.0
#: States of a torus, and more than any table has (dragonfly_plus, ``valiant``: 78).
_USUAL_STATES, _MOST_STATES = 5, 128


def check_packets(
    key: str,
    network: PacketNetworkSettings,
    chips: int,
    loads: tuple[float, ...],
    runs: int,
    limits: LimitSettings,
    repeats: int = 1,
) -> None:
    """Refuse packet simulations that would not end.

    ``runs``: further runs besides those of ``loads`` in each of ``repeats``.
    SettingsError names the key below ``key``, or the load of traffic where it is empty.
    """
    prefix = f"{key}." if key else ""
    cycles = network.warmup_cycles + network.measured_cycles
    packets = float(chips) * cycles / network.packet_flits
    # The saturation point is unknown; one flit per chip and cycle is of its order.
    total = Cost(5e-9 * chips * cycles + 2e-6 * packets) * ((runs + len(loads)) * repeats)
    if key and repeats >= _MANY_REPEATS:
        check_cost(f"{prefix}repeats", repeats, total, limits)
    check_cost(f"{prefix}network.measured_cycles", network.measured_cycles, total, limits)
    for load in loads:
        # A chip that offers more than it can send keeps its packets, cycle by cycle.
        waiting = Cost(2e-6, 16) * (packets * load)
        check_cost(f"{prefix}loads" if key else "traffic.load", load, waiting, limits)


def check_latencies(
    key: str, settings: FamilySettings, network: PacketNetworkSettings, limits: LimitSettings
) -> None:
    """Refuse links with more cycles of packets in flight than fit in memory."""
    for field in fields(settings):  # type: ignore[arg-type]
        if field.name.endswith("latency_ns"):
            latency_ns = float(getattr(settings, field.name))
            cycles = latency_ns / network.cycle_ns
            cost = Cost(bytes=_CYCLE_BYTES * cycles)
            check_cost(f"{key}.{field.name}", latency_ns, cost, limits)


def check_table(
    key: str, name: str, settings: FamilySettings, routing: str, limits: LimitSettings
) -> None:
    """Refuse a routing table that exceeds memory; name routings that fit."""
    family, vertices = family_of(settings), vertex_count(settings)
    grouped = {name: _over_groups(settings, name, limits) for name in family.grouped_routings}
    table = grouped.get(routing) or _over_pairs(settings, routing, limits)
    if limits.excess(note(table)) > 1:
        smaller = " or ".join(name for name, cost in grouped.items() if limits.excess(cost) <= 1)
        raise SettingsError(
            key,
            f"got {name} of {vertices:,} chips and switches; allowed: fewer, as the routing table"
            f" of {routing} would take {in_words(table, limits)}"
            f"{smaller and f', or routing {smaller}'}",
        )


def _over_groups(settings: FamilySettings, routing: str, limits: LimitSettings) -> Cost:
    """The cost of a table over groups, with its states where these decide.

    Elsewhere with those of a torus: then the graph is not built.
    """
    family, vertices = family_of(settings), vertex_count(settings)
    ports = vertices * _PORT_BYTES * family.ports_per_chip(settings)
    groups = family.groups(settings, routing) if family.groups else 0
    usual, most = (
        Cost(bytes=max(ports, vertices * _GROUP_BYTES * groups * states))
        for states in (_USUAL_STATES, _MOST_STATES)
    )
    if limits.excess(usual) > 1 or limits.excess(most) <= 1:
        return usual
    states = _states(settings, routing)
    return Cost(bytes=max(ports, vertices * _GROUP_BYTES * groups * states))


def _states(settings: FamilySettings, routing: str) -> int:
    """States of a table to one chip."""
    return build_routing(build_topology(settings), routing, np.zeros(1, dtype=np.int32)).states


def _over_pairs(settings: FamilySettings, routing: str, limits: LimitSettings) -> Cost:
    """The cost of a table over all pairs, by the states of a table to one chip.

    Without states where these alone exceed the limits: then the graph is not built.
    """
    vertices = vertex_count(settings)
    entries = Cost(bytes=4.0 * vertices**2)
    if limits.excess(entries) > 1:
        return entries
    chips = build_topology(settings).chips
    return Cost(bytes=_PAIR_BYTES * _states(settings, routing) * vertices * chips)
