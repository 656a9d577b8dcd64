"""Network family ``imported``: any connected network, read from a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.families.family import Family, FamilyBase
from railx.families.imported.files import read_network
from railx.families.imported.network import Network
from railx.settings import AtLeast, NonNegative, NotEmpty, SettingsError
from railx.vocabulary.arrays import Int32Array
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS, route_hops
from railx.vocabulary.routing.table import Destinations, RoutingTable
from railx.vocabulary.topology import (
    INTERNAL,
    FamilySettings,
    Links,
    Topology,
    check_size,
    chip_nodes,
    kind_code,
)

__all__ = ["FAMILY", "ImportedSettings", "route"]


@dataclass(frozen=True)
class ImportedSettings(FamilyBase):
    """A network from a file.

    ``port_gbps`` is also the rate of lanes without a rate in the file.
    """

    family: Literal["imported"]

    path: Annotated[str, NotEmpty()] = "resources/topologies/petersen.graphml"
    """The file: GraphML (.graphml), a list of links (.csv, .txt), or a network of
    ASTRA-sim or InfraGraph (.yml, .yaml, .json), as described in docs/exchange.md.
    Default: the Petersen graph, ten chips with three ports each."""
    digest: str | None = None
    """SHA-256 that the file must have; null takes any file. `railx import topology`
    prints it."""
    chips_per_node: Annotated[int, AtLeast(1)] = 1
    """Chips of a node: runs of consecutive chips of the file."""
    latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight of the links that the file gives none, in nanoseconds. Default: an
    assumption, short electrical links, as inside a RailX node."""


# Graph


def check(settings: ImportedSettings) -> None:
    """Refuse a file that is missing, broken or of another digest."""
    network = _network(settings)
    check_size("path", 2 * len(network.links))
    if len(network.chips) % settings.chips_per_node:
        raise SettingsError(
            "chips_per_node",
            f"got {settings.chips_per_node}; allowed: a divisor of the {len(network.chips)} chips",
        )
    if settings.node is not None and settings.chips_per_node > 1:
        raise SettingsError(
            "node", f"allowed: null beside chips_per_node = {settings.chips_per_node}, or that as 1"
        )


def build(settings: ImportedSettings) -> Topology:
    """Build the network; chips and switches are numbered in the order of the file.

    Links without a kind are ``internal`` in a node, ``leaf`` between a chip and a
    switch, ``router`` elsewhere.
    """
    network = _network(settings)
    chips = len(network.chips)
    nodes = chip_nodes(chips, settings.chips_per_node)
    return Topology(
        settings=settings,
        chips=chips,
        nodes=chips // settings.chips_per_node,
        switches=len(network.switches),
        chip_node=nodes,
        links=_links(settings, network, nodes),
        circuits=None,
    )


def halves(settings: ImportedSettings) -> NDArray[np.int8]:
    """Half (0 or 1) of each vertex: chips are cut in the middle of their order.

    A switch joins the half with more of its bandwidth (0 on a tie), in repeated passes
    until no switch changes sides.
    """
    topology = build(settings)
    links, chips = topology.links, topology.chips
    half = np.zeros(topology.vertices, dtype=np.int8)
    half[:chips] = np.arange(chips) >= chips // 2
    order = np.argsort(links.src, kind="stable")
    start = np.searchsorted(links.src[order], np.arange(topology.vertices + 1))
    assigned = np.arange(topology.vertices) < chips
    # Each change lowers the bandwidth across the cut, so this ends.
    for _ in range(topology.vertices + 1):
        changed = False
        for switch in range(chips, topology.vertices):
            rows = order[start[switch] : start[switch + 1]]
            near, rate = links.dst[rows], links.capacity_gbps[rows]
            rate = np.where(assigned[near], rate, 0.0)
            better = np.int8(rate[half[near] == 1].sum() > rate[half[near] == 0].sum())
            changed |= bool(better != half[switch]) or not assigned[switch]
            half[switch], assigned[switch] = better, True
        if not changed:
            break
    return half


def bisection_ports(settings: ImportedSettings) -> int:
    """Ports in one direction across that cut, counted in the graph."""
    topology, half = build(settings), halves(settings)
    links = topology.links
    crossing = (half[links.src] == 0) & (half[links.dst] == 1)
    return round(float(links.capacity_gbps[crossing].sum()) / settings.port_gbps)


def ports_per_chip(settings: ImportedSettings) -> int:
    """Ports of the chip with the fewest, by the bandwidth that leaves its node."""
    topology = build(settings)
    links = topology.links
    outside = links.kind != INTERNAL
    rate = np.bincount(
        links.src[outside], links.capacity_gbps[outside], minlength=topology.vertices
    )
    return max(1, int(rate[: topology.chips].min() / settings.port_gbps))


def _links(settings: ImportedSettings, network: Network, nodes: Int32Array) -> Links:
    """Row 2i leads from the first vertex of link i to the other, row 2i + 1 back."""
    ends = np.array([link.ends for link in network.links], dtype=np.int32)
    rows = [
        (
            kind_code(link.kind or _kind(*link.ends, nodes)),
            settings.port_gbps if link.gbps is None else link.gbps,
            settings.latency_ns if link.latency_ns is None else link.latency_ns,
            link.rail,
            link.lanes,
        )
        for link in network.links
    ]
    types = np.int8, np.float64, np.float64, np.int32, np.int32
    columns: list[Any] = [
        np.repeat(np.array(column, dtype=dtype), 2)
        for column, dtype in zip(zip(*rows, strict=True), types, strict=True)
    ]
    return Links(ends.ravel(), ends[:, ::-1].ravel(), *columns)


def _kind(a: int, b: int, nodes: Int32Array) -> str:
    """The kind of a link between the vertices a and b."""
    chips = len(nodes)
    if a < chips and b < chips:
        return "internal" if nodes[a] == nodes[b] else "router"
    return "leaf" if min(a, b) < chips else "router"


def _network(settings: ImportedSettings) -> Network:
    """The network of the file, cached until the file changes."""
    # Imported here: railx.io loads pyarrow.
    from railx.io import in_repository

    path = in_repository(settings.path)
    try:
        state = path.stat()
    except OSError as error:
        raise SettingsError(
            "path", f"got {settings.path}: {error.strerror}; allowed: a file to read"
        ) from None
    try:
        network, digest = _read(path, state.st_mtime_ns, state.st_size)
    except UserError as error:
        raise SettingsError("path", str(error)) from None
    if settings.digest is not None and settings.digest != digest:
        raise SettingsError(
            "digest", f"got {settings.digest}; allowed: {digest}, that of {settings.path}"
        )
    return network


@lru_cache(maxsize=4)
def _read(path: Path, changed_ns: int, size: int) -> tuple[Network, str]:
    return read_network(path), hashlib.sha256(path.read_bytes()).hexdigest()


# Routing


def route(
    settings: FamilySettings, topology: Topology, routing: str, destinations: Destinations = None
) -> RoutingTable:
    """The table of :func:`railx.vocabulary.routing.hop_paths.route_hops`."""
    return route_hops(topology, routing, destinations)


FAMILY = Family(
    name="imported",
    settings=ImportedSettings,
    build=build,
    check=check,
    halves=halves,
    bisection_ports=bisection_ports,
    ports_per_chip=ports_per_chip,
    routings=HOP_ROUTINGS,
    route=route,
)
