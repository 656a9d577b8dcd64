"""The formats in which a network can be written, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from railx.exchange.anynet import anynet
from railx.exchange.astra_network import analytical, ns3
from railx.exchange.edges import edge_list
from railx.exchange.graphml import graphml, simple_graphml
from railx.exchange.infragraph import infragraph
from railx.exchange.wires import Exported
from railx.vocabulary.topology import Topology

__all__ = ["NETWORK_FORMATS", "NetworkFormat"]


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
