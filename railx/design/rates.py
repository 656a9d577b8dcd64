"""Exact rates of groups on large networks, kept for the next search.

Rates of a network do not depend on the job, and scale with the rates of its links. So
they are computed once for its settings and kept in a file. Two facts make them cheap:

* planes carry equal shares, so that one plane of as many times the rate stands for all;
* a detour over a random router (``valiant``) loads links as twice uniform traffic does,
  whatever the pattern, where each chip sends and receives as much as the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from railx.families import build_topology, family_of, static_routing_names
from railx.file_cache import read_cached, write_cached
from railx.network.group_bandwidth import MemberRates, member_rates, messages_of, rounds_of
from railx.performance.networks import Kind
from railx.performance.topologies import (
    ExactLoads,
    Way,
    algorithms_of,
    circuits_delay_ns,
    node_rates_gb_s,
    routings_for,
)
from railx.settings import SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.topology import FamilySettings

#: Files kept; the oldest goes first.
_MOST_FILES = 512
#: The routing whose rates follow from those of uniform traffic.
_DETOURS = "valiant"


class RateStore:
    """Rates of groups in files, one for each network.

    ``folder``: None keeps nothing. ``code``: a digest of the code that computes them.
    """

    def __init__(self, folder: Path | None = None, code: str = "") -> None:
        self.folder, self.code = folder, code

    def _name(self, settings: FamilySettings) -> str:
        return hashlib.sha256(f"{self.code}\0{settings!r}".encode()).hexdigest()

    def read(self, settings: FamilySettings) -> dict[str, list[float]]:
        """The rates of a network by key; empty where none can be read."""
        return (self.folder and read_cached(self.folder, self._name(settings))) or {}

    def keep(self, settings: FamilySettings, rates: Mapping[str, list[float]]) -> None:
        """Keep the rates of a network where the folder can be written to."""
        if self.folder is not None:
            write_cached(self.folder, self._name(settings), dict(rates), _MOST_FILES)


def folded(settings: FamilySettings) -> FamilySettings:
    """One plane of a network with the rate of all its planes.

    The settings themselves where the network has one plane or its planes differ.
    """
    planes = getattr(settings, "planes", 1)
    if planes > 1:
        with suppress(SettingsError):
            single: FamilySettings = replace(
                cast("Any", settings), planes=1, port_gbps=settings.port_gbps * planes
            )
            family_of(single).check(single)
            return single
    return settings


class _Rates(NamedTuple):
    """Rates of a pattern; ``crossing``: largest share of traffic that leaves a node."""

    between_gb_s: float
    inside_gb_s: float
    flight_ns: float
    crossing: float


class GroupRates(ExactLoads):
    """Rates of groups on a network of any size, for the model of a training step.

    ``port_share`` and ``inside_share``: factors of the rates between and inside nodes.
    """

    def __init__(
        self,
        settings: FamilySettings,
        ranks: int,
        node_devices: int,
        *,
        port_share: float,
        inside_share: float,
        store: RateStore,
    ) -> None:
        self._delayed = folded(settings)
        # Rates do not depend on the time of a change.
        circuits = family_of(settings).traffic_circuits
        self.settings = circuits.with_change(self._delayed, 0.0) if circuits else self._delayed
        topology = build_topology(self.settings)
        offered = [name for name in family_of(settings).routings if name in static_routing_names()]
        super().__init__(topology, offered, ranks, node_devices)
        outside_rate, inside_rate = node_rates_gb_s(topology)
        self._factors = port_share, inside_share
        self.rates_gb_s = outside_rate * port_share, inside_rate * inside_share
        self._store = store
        self._unit: dict[str, list[float]] = store.read(self.settings)
        self._stored = len(self._unit)

    @property
    def words(self) -> str:
        outside, inside = self.rates_gb_s
        return (
            f"exact loads of {self.topology.family} with {self.topology.chips} chips, {inside:.4g}"
            f" GB/s in nodes of {self.topology.chips // self.topology.nodes}, {outside:.4g} between"
        )

    def keep(self) -> None:
        """Keep what was computed since for the next search."""
        if len(self._unit) > self._stored:
            self._store.keep(self.settings, self._unit)
            self._stored = len(self._unit)

    def ways(self, groups: IntArray, kind: Kind) -> list[Way]:
        """The ways of a transfer that are worth a look on a large network.

        As :meth:`ExactLoads.ways`; detours stand beside minimal paths where they have a
        closed form.
        """
        routings = routings_for(self.settings, kind, self.routings)
        offered = [name for name in routings if name != _DETOURS or self.has_detours]
        return self._ways(groups, kind, offered, algorithms_of(kind, groups.shape[1]))

    @property
    def has_detours(self) -> bool:
        """Whether transfers may take detours over random routers."""
        return _DETOURS in self.routings and self._detour_gb_s is not None

    def uniform_gb_s(self) -> float:
        """Rate of a chip while all of the job send to all, over minimal paths."""
        return self._rates_of("direct", "min", self.chips[None, :]).between_gb_s

    def _way(self, algorithm: str, routing: str, groups: IntArray, sent: float, halves: int) -> Way:
        outside, inside = self._factors
        detour = routing == _DETOURS
        unit = self._rates_of(algorithm, "min" if detour else routing, groups)
        between, flight = unit.between_gb_s, unit.flight_ns
        if detour and unit.crossing:
            assert self._detour_gb_s is not None
            between, flight = self._detour_gb_s / unit.crossing, 2 * flight
        rates = MemberRates(between * outside, unit.inside_gb_s * inside, flight)
        latency_ns = flight * rounds_of(algorithm, groups.shape[1]) * halves
        latency_ns += circuits_delay_ns(self._delayed, routing, between)
        return Way(algorithm, routing, sent, rates, latency_ns)

    @cached_property
    def _detour_gb_s(self) -> float | None:
        """Rate of a chip whose packets all take a detour, if that has a closed form."""
        bill = family_of(self.settings).bill
        if bill is None:
            return None
        ports = bill.ports(self.settings)
        if ports.all_to_all is None:
            return None
        return min(ports.injection, ports.all_to_all / 2) * ports.port_gbps / 8

    def _rates_of(self, algorithm: str, routing: str, groups: IntArray) -> _Rates:
        name = hashlib.sha256(np.ascontiguousarray(groups).tobytes()).hexdigest()[:24]
        key = f"{algorithm} {routing} {groups.shape[1]} {name}"
        if key not in self._unit:
            loads = self._loads_of(routing)
            assert loads is not None
            rates = member_rates(loads, groups, algorithm)
            both = [rates.between_gb_s, rates.inside_gb_s]
            self._unit[key] = [*both, rates.flight_ns, self._crossing(algorithm, groups)]
        return _Rates(*self._unit[key])

    def _crossing(self, algorithm: str, groups: IntArray) -> float:
        """Largest share of a member's traffic that leaves its node."""
        node, members = np.asarray(self.topology.chip_node)[groups], groups.shape[1]
        if algorithm == "direct":
            key = node + self.topology.nodes * np.arange(len(groups))[:, None]
            fewest = np.unique(key, return_counts=True)[1].min()
            return float((members - fewest) / (members - 1))
        messages = messages_of(algorithm, members)
        far = node[:, messages.member] != node[:, messages.other]
        first = np.flatnonzero(np.diff(messages.member, prepend=-1))
        return float(np.add.reduceat(far * messages.share, first, axis=1).max())
