"""The size of a network for a job, the graph that its loads are computed on, and the
largest job that failed servers leave, as a share of its chips.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, NamedTuple, cast

import numpy as np

from railx.families import build_topology, check_topology, family_named, family_of
from railx.families.nodes import check_node
from railx.performance.devices import Device
from railx.performance.topologies import chips_of
from railx.settings import SettingsError
from railx.tenancy.places import NetworkPlaces
from railx.vocabulary.arrays import BoolArray
from railx.vocabulary.topology import FamilySettings, NodeSettings

#: Smallest radix of the full trees that stand for partly filled ones.
_LEAST_RADIX = 4


class Sized(NamedTuple):
    """A network at its size.

    ``bill``: its settings, which are priced; ``graph``: settings with a graph, the same
    or those of a full tree of smaller switches.
    """

    bill: FamilySettings
    graph: FamilySettings
    chips: int


def with_device_node(settings: FamilySettings, device: Device) -> FamilySettings:
    """The network with links inside nodes as fast as in the device's usual node.

    Chips that stand alone get nodes of its size behind a switch; a node whose rate
    follows from a family's other settings stays as it is.
    """
    family = family_named(settings.family)
    if settings.node is not None or device.node_devices < 2:
        return settings
    described = family.inside(settings) if family.has_nodes and family.inside else None
    if family.has_nodes and described is None:
        return settings
    if _only_size(settings) % device.node_devices:
        # A network of one size that such nodes do not divide keeps its chips alone.
        return settings
    node = (
        NodeSettings(device.node_devices, "switch", device.fast_gb_s)
        if described is None
        else replace(described, gb_s=device.fast_gb_s)
    )
    with_node: FamilySettings = replace(cast("Any", settings), node=node)
    if described is not None:
        try:
            check_node(family, with_node)
        except SettingsError:
            return settings
    return with_node


def _only_size(settings: FamilySettings) -> int:
    """Chips of a network that has no other size; 0 where it has."""
    bill = family_named(settings.family).bill
    if bill is None:
        return build_topology(settings).chips
    chips = bill.chips(settings)
    with suppress(SettingsError):
        return int(chips) * (bill.resize(settings, 2) == bill.resize(settings, chips))
    return 0


def sized_for(settings: FamilySettings, gpus: int, most_chips: float) -> Sized:
    """The smallest network of the same kind with a chip for each of ``gpus``.

    A family without a bill has one size. SettingsError where there is no such size, it
    has more than ``most_chips`` chips, or no graph.
    """
    family = family_of(settings)
    if family.bill is None:
        chips = build_topology(settings).chips
        if not gpus <= chips <= most_chips:
            raise SettingsError(
                "chips", f"got {gpus} for a network of {chips} that has no other size"
            )
        return Sized(settings, settings, chips)
    bill = family.bill.resize(settings, gpus)
    chips = chips_of(bill)
    if chips > most_chips:
        raise SettingsError(
            "chips", f"got {chips} for {gpus}; allowed: at most {most_chips:.0f} (most_chips)"
        )
    try:
        check_topology(bill, "")
        return Sized(bill, bill, chips)
    except SettingsError as error:
        for graph in _full_trees(bill):
            if gpus <= chips_of(graph) <= most_chips:
                try:
                    check_topology(graph, "")
                except SettingsError:
                    continue
                return Sized(bill, graph, chips)
        raise error from None


def _full_trees(settings: FamilySettings) -> Iterator[FamilySettings]:
    """The same network filled, with ever larger switches up to its own."""
    names = {field.name for field in fields(cast("Any", settings))}
    partly = [name for name in names if name.startswith("populated_")]
    if not partly or "switch_radix" not in names:
        return
    most = cast("Any", settings).switch_radix
    for radix in range(_LEAST_RADIX, most + 1, 2):
        try:
            yield replace(cast("Any", settings), switch_radix=radix, **dict.fromkeys(partly))
        except SettingsError:
            continue


class Usable(NamedTuple):
    """Mean share of the chips in the largest job, and how it was got: the rule of jobs
    (drawn failures), or ``closed form`` where a job takes any units.
    """

    share: float
    basis: str


def usable_share(
    settings: FamilySettings, chips: int, server_chips: int, faults: float, samples: int, seed: int
) -> Usable:
    """The share of chips in the largest job with a share ``faults`` of servers failed.

    A server has ``server_chips``, and fails independently of others. It takes every
    unit of the family that it has a part of (:class:`railx.families.family.JobPlaces`).
    A family that does not say where its jobs fit is one of any servers.
    """
    places = family_of(settings).job_places
    if places is None or places.rule == "any":
        unit = server_chips if places is None else places.unit_chips(settings)
        return Usable((1 - faults) ** max(1, -(-unit // server_chips)), "closed form")
    network = NetworkPlaces(settings)
    rng, shares = np.random.default_rng(seed), []
    for _ in range(samples):
        healthy = _healthy(network.units, network.unit_chips, server_chips, faults, rng)
        shares.append(network.largest(np.repeat(healthy, network.unit_chips)) / chips)
    return Usable(float(np.mean(shares)), places.rule)


def _healthy(
    units: int, unit_chips: int, server_chips: int, faults: float, rng: np.random.Generator
) -> BoolArray:
    """Units without a failed server; consecutive units share one where it is larger."""
    if unit_chips >= server_chips:
        intact = (1 - faults) ** -(-unit_chips // server_chips)
        return np.asarray(rng.random(units) >= 1 - intact)
    shared = server_chips // unit_chips
    return np.repeat(rng.random(-(-units // shared)) >= faults, shared)[:units]
