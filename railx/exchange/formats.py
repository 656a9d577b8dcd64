"""The formats in which a network can be written, by their names on the command line.

* A list of links (CSV).
* BookSim2 (``topology = anynet``, ``network_file``): every vertex is a router, and a
  chip a node on its own router. A line holds a router and all its neighbours, each with
  the cycles of the channel in that direction.
* GraphML: nodes have ``kind`` (chip, switch), ``endpoints`` (1, 0: needed by SST for a
  router) and ``node`` (the node of the network with the chip). Edges have ``gbps``
  (rate of a lane), ``lanes``, ``latency_ns``, ``kind`` and ``rail``.
* InfraGraph: a ``chip`` is an xpu and its ports, a ``switch`` an asic and its ports;
  every port is joined to the xpu or asic. A link takes as many ports on both sides as
  it has lanes. The file is written line by line, because the package takes minutes for
  large networks.
* ASTRA-sim (:mod:`railx.exchange.astra_network`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import ceil
from xml.sax.saxutils import quoteattr

import numpy as np

from railx.exchange.astra_network import analytical, ns3
from railx.exchange.wires import Exported, Wires, decimal, join, wires
from railx.vocabulary.topology import LINK_KINDS, Topology


def edge_list(topology: Topology, name: str) -> Exported:
    """The links; chips are called by their number, switches ``switch0``, ..."""
    chips = topology.chips
    lines = ["src,dst,gbps,lanes,latency_ns,kind,rail"]
    for *ends, values in wires(topology).rows():
        names = [vertex if vertex < chips else f"switch{vertex - chips}" for vertex in ends]
        lines.append(",".join(map(str, (*names, *values.values()))))
    return Exported("\n".join([*lines, ""]), (*_lost_nodes(topology), *_lost_circuits(topology)))


def anynet(topology: Topology, name: str, *, cycle_ns: float = 1.0) -> Exported:
    """The network; latencies are whole cycles, at least 1, rounded up."""
    joined = join(topology)
    near: list[list[tuple[int, int]]] = [[] for _ in range(topology.vertices)]
    columns = (values.tolist() for values in (joined.low, joined.high, joined.latency_ns))
    for low, high, latency_ns in zip(*columns, strict=True):
        # What is a whole number of cycles stays one whatever the last bit says.
        cycles = max(1, ceil(round(latency_ns / cycle_ns, 9)))
        near[low].append((high, cycles))
        near[high].append((low, cycles))
    lines = []
    for vertex, neighbours in enumerate(near):
        words = [f"router {vertex}", *([f"node {vertex}"] if vertex < topology.chips else [])]
        words += [f"router {neighbour} {cycles}" for neighbour, cycles in sorted(neighbours)]
        lines.append(" ".join(words))
    lost = (
        "bandwidths: every channel carries one flit a cycle",
        *(("parallel links between two vertices are one",) if joined.lost else ()),
        "routings: BookSim2 takes one shortest path, on any virtual channel",
    )
    return Exported("\n".join([*lines, ""]), lost)


_KEYS = (
    *(("node", "kind", "string"), ("node", "endpoints", "int"), ("node", "node", "int")),
    *(("edge", "gbps", "double"), ("edge", "lanes", "int"), ("edge", "latency_ns", "double")),
    *(("edge", "kind", "string"), ("edge", "rail", "int")),
)


def graphml(topology: Topology, name: str) -> Exported:
    """The whole network: an edge for each link, also where several are parallel."""
    return Exported(_text(topology, name, wires(topology)), _lost_circuits(topology))


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
    lost = (*_lost_rails(links), *_lost_circuits(topology))
    if len(joined) < len(links):
        lost = (*joined.lost, *lost)
    return Exported(_text(topology, name, edges), lost)


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
    for low, high, values in edges.rows():
        lines.append(f'    <edge source="{low}" target="{high}">{_data("edge", values)}</edge>')
    return "\n".join([*lines, "  </graph>", "</graphml>", ""])


def _data(what: str, values: Mapping[str, object]) -> str:
    return "".join(f'<data key="{what}_{key}">{value}</data>' for key, value in values.items())


def _lost_nodes(topology: Topology) -> tuple[str, ...]:
    return ("which node of the network a chip is in",) if topology.nodes < topology.chips else ()


def _lost_rails(links: Wires) -> tuple[str, ...]:
    return ("which rail a link is on",) if (links.rail >= 0).any() else ()


def _lost_circuits(topology: Topology) -> tuple[str, ...]:
    return () if topology.circuits is None else ("optical circuits: links are there, no switches",)


def infragraph(topology: Topology, name: str) -> Exported:
    """The network as YAML; links of one kind, rate and latency share a description."""
    links = wires(topology)
    chips = topology.chips
    used = np.bincount(links.low, links.lanes, minlength=topology.vertices)
    used += np.bincount(links.high, links.lanes, minlength=topology.vertices)
    ports = used.astype(np.int64)
    devices = [("chip", "xpu", "xpu", int(ports[:chips].max()), chips)]
    if topology.switches:
        devices.append(("switch", "asic", "switch", int(ports[chips:].max()), topology.switches))
    described = [links.kind.tolist(), links.gbps.tolist(), links.latency_ns.tolist()]
    kinds = list(zip(*described, strict=True))
    link_name = {
        link_kind: f"{LINK_KINDS[link_kind[0]]}_{number}"
        for number, link_kind in enumerate(dict.fromkeys(kinds))
    }
    lines = [f"name: {json.dumps(name)}", "devices:"]
    for device, middle, choice, port_count, _ in devices:
        lines += [f"- name: {device}", "  components:"]
        for part, count, what in ((middle, 1, choice), ("port", port_count, "port")):
            lines += [f"  - name: {part}", f"    count: {count}", f"    choice: {what}"]
        lines += [
            "  links:",
            "  - name: inside",
            "  edges:",
            f"  - ep1: {{component: {middle}}}",
            "    ep2: {component: port}",
            "    scheme: many2many",
            "    link: inside",
        ]
    lines.append("links:")
    for (_, gbps, latency_ns), named in link_name.items():
        lines += [
            f"- name: {named}",
            "  physical:",
            "    bandwidth:",
            "      choice: gigabits_per_second",
            f"      gigabits_per_second: {_real(gbps)}",
            f"    latency: {{choice: ns, ns: {_real(latency_ns)}}}",
        ]
    lines.append("instances:")
    for device, *_, count in devices:
        lines += [f"- name: {device}", f"  device: {device}", f"  count: {count}"]
    lines.append("edges:")
    taken = [0] * topology.vertices
    ends_of = zip(links.low.tolist(), links.high.tolist(), strict=True)
    for vertices, lanes, kind in zip(ends_of, links.lanes.tolist(), kinds, strict=True):
        ends = []
        for vertex in vertices:
            first = taken[vertex]
            taken[vertex] += lanes
            vertex_name = f"chip[{vertex}]" if vertex < chips else f"switch[{vertex - chips}]"
            port = f"port[{first}]" if lanes == 1 else f"port[{first}:{first + lanes}]"
            ends.append(f'{{instance: "{vertex_name}", component: "{port}"}}')
        lines += [
            f"- ep1: {ends[0]}",
            f"  ep2: {ends[1]}",
            "  scheme: one2one",
            f"  link: {link_name[kind]}",
        ]
    lost = (*_lost_nodes(topology), *_lost_rails(links), *_lost_circuits(topology))
    return Exported("\n".join([*lines, ""]), lost)


def _real(value: float) -> str:
    """A number that YAML reads as a real one."""
    text = decimal(value)
    return text if "." in text else f"{text}.0"


#: How each format that ``railx export topology --format`` takes is written.
NETWORK_FORMATS: dict[str, Callable[[Topology, str], Exported]] = {
    "graphml": graphml,
    "graphml-simple": simple_graphml,
    "edges": edge_list,
    "astra-analytical": analytical,
    "astra-ns3": ns3,
    "infragraph": infragraph,
    "anynet": anynet,
}
