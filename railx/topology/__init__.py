"""Graphs of chips, switches and optical circuits: one module per family, one interface, exact metrics."""

from railx.topology.families import TopologySettings, bisection_ports, build_topology, halves, ports_per_chip, settings_of
from railx.topology.fat_tree import FatTreeSettings
from railx.topology.hamiltonian import check_decomposition, check_undirected, hamiltonian_cycles, undirected_rings
from railx.topology.metrics import check_circuits, chip_hop_counts, node_hop_counts, topology_metrics
from railx.topology.model import DIMENSIONS, INTERNAL, LINK_KINDS, Circuits, Links, Topology, read_topology, write_topology
from railx.topology.railx_grid import LineWiring, line_wiring, mesh_links
from railx.topology.railx_hyperx import RailXHyperXSettings
from railx.topology.railx_torus import RailXTorusSettings
from railx.topology.torus_2d import Torus2DSettings

__all__ = [
    "DIMENSIONS",
    "INTERNAL",
    "LINK_KINDS",
    "Circuits",
    "FatTreeSettings",
    "LineWiring",
    "Links",
    "RailXHyperXSettings",
    "RailXTorusSettings",
    "Topology",
    "TopologySettings",
    "Torus2DSettings",
    "bisection_ports",
    "build_topology",
    "check_circuits",
    "check_decomposition",
    "check_undirected",
    "chip_hop_counts",
    "halves",
    "hamiltonian_cycles",
    "line_wiring",
    "mesh_links",
    "node_hop_counts",
    "ports_per_chip",
    "read_topology",
    "settings_of",
    "topology_metrics",
    "undirected_rings",
    "write_topology",
]
