"""Networks as GraphML, for NetworkX, SST and every graph tool.

Nodes have ``kind`` (chip, switch), ``endpoints`` (1, 0: needed by SST for a router) and
``node`` (the node of the network with the chip). Edges have ``gbps`` (rate of a lane),
``lanes``, ``latency_ns``, ``kind`` and ``rail``.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

import numpy as np

from railx.exchange.wires import Exported, Wires, decimal, join, wires
from railx.vocabulary.topology import LINK_KINDS, Topology

__all__ = ["graphml", "simple_graphml"]

_KEYS = (
    ("node", "kind", "string"),
    ("node", "endpoints", "int"),
    ("node", "node", "int"),
    ("edge", "gbps", "double"),
    ("edge", "lanes", "int"),
    ("edge", "latency_ns", "double"),
    ("edge", "kind", "string"),
    ("edge", "rail", "int"),
)


def graphml(topology: Topology, name: str) -> Exported:
    """The whole network: an edge for each link, also where several are parallel."""
    return Exported(_text(topology, name, wires(topology)), _lost(topology))


def simple_graphml(topology: Topology, name: str) -> Exported:
    """A graph with at most one edge between two vertices, as SST needs it.

    Lanes add up where all have one rate; otherwise one lane has the rate of all.
    """
    links, joined = wires(topology), join(topology)
    key = links.low * topology.vertices + links.high
    where = np.unique(key, return_inverse=True)[1]
    lowest, highest = np.full(len(joined), np.inf), np.zeros(len(joined))
    np.minimum.at(lowest, where, links.gbps)
    np.maximum.at(highest, where, links.gbps)
    alike = lowest == highest
    edges = Wires(
        low=joined.low,
        high=joined.high,
        kind=joined.kind,
        gbps=np.where(alike, highest, joined.capacity_gbps),
        latency_ns=joined.latency_ns,
        rail=np.full(len(joined), -1),
        lanes=np.where(alike, joined.lanes, 1),
    )
    lost = [line for line in joined.lost if len(joined) < len(links)]
    if (links.rail >= 0).any():
        lost.append("which rail a link is on")
    return Exported(_text(topology, name, edges), (*lost, *_lost(topology)))


def _text(topology: Topology, name: str, edges: Wires) -> str:
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *(
            f'  <key id="{what}_{key}" for="{what}" attr.name="{key}" attr.type="{kind}"/>'
            for what, key, kind in _KEYS
        ),
        f'  <graph id={quoteattr(name)} edgedefault="undirected">',
    ]
    for vertex in range(topology.vertices):
        chip = vertex < topology.chips
        data = {"kind": "chip" if chip else "switch", "endpoints": int(chip)}
        if chip:
            data["node"] = int(topology.chip_node[vertex])
        lines.append(f'    <node id="{vertex}">{_data("node", data)}</node>')
    for number in range(len(edges)):
        values = {
            "gbps": decimal(edges.gbps[number]),
            "lanes": int(edges.lanes[number]),
            "latency_ns": decimal(edges.latency_ns[number]),
            "kind": LINK_KINDS[edges.kind[number]],
            "rail": int(edges.rail[number]),
        }
        ends = f'source="{edges.low[number]}" target="{edges.high[number]}"'
        lines.append(f"    <edge {ends}>{_data('edge', values)}</edge>")
    return "\n".join([*lines, "  </graph>", "</graphml>", ""])


def _data(what: str, values: Mapping[str, object]) -> str:
    return "".join(f'<data key="{what}_{key}">{value}</data>' for key, value in values.items())


def _lost(topology: Topology) -> tuple[str, ...]:
    return () if topology.circuits is None else ("optical circuits: links are there, no switches",)
