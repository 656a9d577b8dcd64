"""A network from a file: its graph, and a cut through the middle of it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.families.imported.files import Network, read_network
from railx.families.imported.settings import ImportedSettings
from railx.io import in_repository
from railx.settings import SettingsError
from railx.vocabulary.topology import (
    INTERNAL,
    Links,
    Topology,
    check_size,
    chip_nodes,
    kind_code,
)

__all__ = ["bisection_ports", "build", "check", "halves", "ports_per_chip"]

FloatArray = NDArray[np.float64]


def check(settings: ImportedSettings) -> None:
    """Refuse a file that is not there, is not the one that was meant, or is broken."""
    network = _network(settings)
    check_size("path", 2 * len(network.links))
    if len(network.chips) % settings.chips_per_node:
        raise SettingsError(
            "chips_per_node",
            f"got {settings.chips_per_node}; allowed: a divisor of the {len(network.chips)} chips",
        )


def build(settings: ImportedSettings) -> Topology:
    """Build the network; chips and switches are numbered in the order of the file.

    Links that the file gives no kind are ``internal`` in a node, ``leaf`` between a
    chip and a switch, ``local`` elsewhere.
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

    A switch is where more of its bandwidth leads, in half 0 where both are equal;
    switches are asked in turn until none changes sides.
    """
    topology = build(settings)
    links, chips = topology.links, topology.chips
    half = np.zeros(topology.vertices, dtype=np.int8)
    half[:chips] = np.arange(chips) >= chips // 2
    order = np.argsort(links.src, kind="stable")
    start = np.searchsorted(links.src[order], np.arange(topology.vertices + 1))
    known = np.arange(topology.vertices) < chips
    # Each change lowers the bandwidth across the cut, so this ends.
    for _ in range(topology.vertices + 1):
        changed = False
        for switch in range(chips, topology.vertices):
            own = order[start[switch] : start[switch + 1]]
            near, rate = links.dst[own], links.capacity_gbps[own]
            rate = np.where(known[near], rate, 0.0)
            better = np.int8(rate[half[near] == 1].sum() > rate[half[near] == 0].sum())
            changed |= bool(better != half[switch]) or not known[switch]
            half[switch], known[switch] = better, True
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
    """Ports of the chip that has the fewest, by the bandwidth that leaves its node."""
    topology = build(settings)
    links = topology.links
    outside = links.kind != INTERNAL
    rate = np.bincount(
        links.src[outside], links.capacity_gbps[outside], minlength=topology.vertices
    )
    return max(1, int(rate[: topology.chips].min() / settings.port_gbps))


def _links(settings: ImportedSettings, network: Network, nodes: NDArray[np.int32]) -> Links:
    """Row 2i leads from the first vertex of link i to the other, row 2i + 1 back."""
    ends = np.array([(link.one, link.other) for link in network.links], dtype=np.int32)
    src = ends.ravel()
    dst = ends[:, ::-1].ravel()
    kind = [link.kind or _kind(link.one, link.other, nodes) for link in network.links]
    gbps = [settings.port_gbps if link.gbps is None else link.gbps for link in network.links]
    latency_ns = [
        settings.latency_ns if link.latency_ns is None else link.latency_ns
        for link in network.links
    ]
    return Links(
        src=src,
        dst=dst,
        kind=np.repeat(np.array([kind_code(name) for name in kind], dtype=np.int8), 2),
        gbps=np.repeat(np.array(gbps, dtype=np.float64), 2),
        latency_ns=np.repeat(np.array(latency_ns, dtype=np.float64), 2),
        rail=np.repeat(np.array([link.rail for link in network.links], dtype=np.int32), 2),
        lanes=np.repeat(np.array([link.lanes for link in network.links], dtype=np.int32), 2),
    )


def _kind(one: int, other: int, nodes: NDArray[np.int32]) -> str:
    chips = len(nodes)
    if one < chips and other < chips:
        return "internal" if nodes[one] == nodes[other] else "local"
    return "leaf" if min(one, other) < chips else "local"


def _network(settings: ImportedSettings) -> Network:
    """What the file holds, read once as long as it stays as it is."""
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
