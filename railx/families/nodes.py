"""Nodes for families whose chips stand alone: every capability with the links inside.

Closed forms of the family alone (loads, cuts, symmetry, columns of grouped tables) do
not hold for the composed network, so those capabilities are missing there.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from math import isclose
from typing import Any, cast

from railx.families.family import Apart, Family, FamilyBase, JobPlaces, any_chips
from railx.settings import SettingsError
from railx.vocabulary.counts import Bill
from railx.vocabulary.nodes import (
    NodeOrder,
    check_divides,
    loads_inside,
    route_nodes,
    run_order,
    with_nodes,
    without_nodes,
)
from railx.vocabulary.placement import Placement, Sizes, order_placement
from railx.vocabulary.routing.table import Destinations, RoutingTable
from railx.vocabulary.topology import FamilySettings, NodeSettings, Topology

#: Capabilities that do not depend on links inside nodes; the others are missing.
_SAME = ("name", "settings", "ports_per_chip", "routings", "switched", "check_circuits", "inside")
#: Networks that a size is looked for in, where nodes must divide it.
_MOST_SIZES = 64


def composed(family: Family[Any]) -> Family[Any]:
    """The family with the nodes that its settings name."""
    bill = family.bill

    def check(settings: FamilySettings) -> None:
        family.check(settings)
        order_of(family, settings, _chips(family, settings))

    def build(settings: FamilySettings) -> Topology:
        topology = family.build(settings)
        return with_nodes(topology, order_of(family, settings, topology.chips), _node(settings))

    def route(
        settings: FamilySettings,
        topology: Topology,
        routing: str,
        destinations: Destinations = None,
    ) -> RoutingTable:
        node, order = _node(settings), order_of(family, settings, topology.chips)
        alone = without_nodes(topology, order, node)
        return route_nodes(
            topology, family.route(settings, alone, routing, destinations), order, node
        )

    def apart(settings: FamilySettings, topology: Topology) -> Apart:
        node, order = _node(settings), order_of(family, settings, topology.chips)
        alone = without_nodes(topology, order, node)
        plain: FamilySettings = replace(cast("FamilyBase", settings), node=None)
        between = replace(alone, settings=plain)
        return between, partial(loads_inside, order, node)

    def placement(settings: FamilySettings, topology: Topology, sizes: Sizes) -> Placement:
        order = order_of(family, settings, topology.chips)
        if sizes[0] > order.size and family.placement is not None:
            alone = without_nodes(topology, order, _node(settings))
            return family.placement(settings, alone, sizes)
        return order_placement(topology, sizes, order)

    return Family(
        **{name: getattr(family, name) for name in _SAME},
        job_places=_job_places(family),
        build=build,
        check=check,
        route=route,
        apart=apart if family.traffic_circuits is None else None,
        placement=placement,
        bill=None if bill is None else _bill(family, bill),
    )


def _job_places(family: Family[Any]) -> JobPlaces[Any] | None:
    """Places of a network with nodes; None for other rules than any chips or blocks.

    A mesh fails with any of its chips; chips of a switch fail alone. Jobs smaller than
    a node stay in one.
    """
    places = family.job_places
    if places is not None and places.rule in ("blocks", "boxes"):

        def shape(settings: FamilySettings) -> tuple[int, ...]:
            block = order_of(family, settings, 0).shape[::-1]
            sides = zip(places.shape(settings), block, strict=True)
            return tuple(side // length for side, length in sides)

        return replace(places, shape=shape, unit_chips=lambda of: _node(of).chips)
    if places is None or places.rule != "any":
        return None

    def unit_chips(settings: FamilySettings) -> int:
        node, alone = _node(settings), places.unit_chips(settings)
        return math.lcm(node.chips, alone) if node.links == "mesh" else alone

    return any_chips(
        lambda settings: math.prod(places.shape(settings)) * places.unit_chips(settings),
        unit_chips,
        domain_chips=lambda settings: _node(settings).chips,
    )


def _bill(family: Family[Any], bill: Bill[Any]) -> Bill[Any]:
    def check(settings: FamilySettings) -> None:
        bill.check(settings)
        check_divides(bill.chips(settings), _node(settings))

    def resize(settings: FamilySettings, chips: int) -> FamilySettings:
        size = _node(settings).chips
        target = -(-chips // size) * size
        for _ in range(_MOST_SIZES):
            sized = bill.resize(settings, target)
            count = bill.chips(sized)
            if count % size == 0:
                return sized
            target = (count // size + 1) * size
        raise SettingsError(
            "chips",
            f"got {chips}; allowed: sizes of {family.name} that nodes of {size} chips divide, none"
            f" of which is near; the nearest is {count} chips without nodes",
        )

    return replace(bill, check=check, resize=resize)


def order_of(family: Family[Any], settings: FamilySettings, chips: int) -> NodeOrder:
    """The nodes of a network; SettingsError("node.chips") where none divide it."""
    node = _node(settings)
    if family.node_order is not None:
        return family.node_order(settings, node.chips)
    check_divides(chips, node)
    return run_order(chips, node.chips)


def inside_nodes(family: Family[Any], settings: FamilySettings) -> list[NodeSettings]:
    """All links inside nodes and on boards, which no bill of the family has."""
    chosen = None if family.has_nodes else settings.node
    return [links for links in (family.inside(settings), chosen) if links is not None]


def check_node(family: Family[Any], settings: FamilySettings) -> None:
    """Refuse a node other than the one that a family's other settings describe."""
    node = settings.node
    if not family.has_nodes or node is None:
        return
    described = family.inside(settings)
    if described is None:
        raise SettingsError(
            "node", f"allowed: null on {family.name}, whose nodes have single chips"
        )
    for field in fields(node):
        got, allowed = getattr(node, field.name), getattr(described, field.name)
        same = isclose(got, allowed) if isinstance(got, float) else got == allowed
        if not same:
            raise SettingsError(
                f"node.{field.name}",
                f"got {got}; allowed: {allowed}, as the other settings of {family.name} say",
            )


def _chips(family: Family[Any], settings: FamilySettings) -> int:
    if family.bill is not None:
        with suppress(SettingsError):
            return family.bill.chips(settings)
    chips = getattr(settings, "chips", None)
    return chips if isinstance(chips, int) else family.build(settings).chips


def _node(settings: FamilySettings) -> NodeSettings:
    assert settings.node is not None  # a family is composed where it has nodes
    return settings.node
