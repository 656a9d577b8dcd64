"""The formats in which a network can be written, by their names on the command line.

Two are written here: a list of links (CSV), and the network of the simulator BookSim2
(``topology = anynet``, ``network_file``). There every vertex is a router, and a chip a
node on its own router. A line holds a router and all its neighbours, each with the
cycles of the channel in that direction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from railx.exchange.astra_network import analytical, ns3
from railx.exchange.graphml import graphml, simple_graphml
from railx.exchange.infragraph import infragraph
from railx.exchange.wires import Exported, decimal, join, wires
from railx.vocabulary.topology import LINK_KINDS, Topology

__all__ = ["NETWORK_FORMATS", "NetworkFormat", "anynet", "edge_list"]


def edge_list(topology: Topology, name: str) -> Exported:
    """The links; chips are called by their number, switches ``switch0``, ..."""
    links, chips = wires(topology), topology.chips
    lines = ["src,dst,gbps,lanes,latency_ns,kind,rail"]
    for number in range(len(links)):
        ends = [
            str(vertex) if vertex < chips else f"switch{vertex - chips}"
            for vertex in (int(links.low[number]), int(links.high[number]))
        ]
        fields = (
            decimal(links.gbps[number]),
            str(links.lanes[number]),
            decimal(links.latency_ns[number]),
            LINK_KINDS[links.kind[number]],
            str(links.rail[number]),
        )
        lines.append(",".join((*ends, *fields)))
    lost = ["which node of the network a chip is in"] if topology.nodes < chips else []
    if topology.circuits is not None:
        lost.append("optical circuits: links are there, no switches")
    return Exported("\n".join([*lines, ""]), tuple(lost))


def anynet(topology: Topology, name: str, *, cycle_ns: float = 1.0) -> Exported:
    """The network; latencies are whole cycles, at least 1, rounded up."""
    joined = join(topology)
    near: list[list[tuple[int, int]]] = [[] for _ in range(topology.vertices)]
    for low, high, latency_ns in zip(
        joined.low.tolist(), joined.high.tolist(), joined.latency_ns.tolist(), strict=True
    ):
        # What is a whole number of cycles stays one whatever the last bit says.
        cycles = max(1, ceil(round(latency_ns / cycle_ns, 9)))
        near[low].append((high, cycles))
        near[high].append((low, cycles))
    lines = []
    for vertex, neighbours in enumerate(near):
        words = [f"router {vertex}"]
        if vertex < topology.chips:
            words.append(f"node {vertex}")
        words += [f"router {neighbour} {cycles}" for neighbour, cycles in sorted(neighbours)]
        lines.append(" ".join(words))
    lost = (
        "bandwidths: every channel carries one flit a cycle",
        *(("parallel links between two vertices are one",) if joined.lost else ()),
        "routings: BookSim2 takes one shortest path, on any virtual channel",
    )
    return Exported("\n".join([*lines, ""]), lost)


@dataclass(frozen=True)
class NetworkFormat:
    """How networks are written for a tool, and how the file ends by custom."""

    write: Callable[[Topology, str], Exported]
    ending: str
    reader: str


#: What ``railx export topology --format`` takes.
NETWORK_FORMATS = {
    "graphml": NetworkFormat(graphml, ".graphml", "NetworkX, igraph, Gephi"),
    "graphml-simple": NetworkFormat(simple_graphml, ".graphml", "SST (topoAny)"),
    "edges": NetworkFormat(edge_list, ".csv", "spreadsheets, railx"),
    "astra-analytical": NetworkFormat(analytical, ".yml", "ASTRA-sim, analytical"),
    "astra-ns3": NetworkFormat(ns3, ".txt", "ASTRA-sim, ns-3"),
    "infragraph": NetworkFormat(infragraph, ".yaml", "InfraGraph"),
    "anynet": NetworkFormat(anynet, ".anynet", "BookSim2"),
}
