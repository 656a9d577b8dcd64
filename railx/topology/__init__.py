"""Graphs of chips, switches and optical circuits: one module per family, one interface, exact metrics."""

from railx.topology.dragonfly import DragonflySettings
from railx.topology.families import TopologySettings, bisection_ports, build_topology, halves, ports_per_chip, settings_of
from railx.topology.fat_tree import FatTreeSettings
from railx.topology.hamiltonian import check_decomposition, check_undirected, hamiltonian_cycles, undirected_rings
from railx.topology.hammingmesh import HammingMeshSettings
from railx.topology.hyperx import HyperXSettings
from railx.topology.mesh_2d import Mesh2DSettings
from railx.topology.metrics import check_circuits, chip_hop_counts, node_hop_counts, topology_metrics
from railx.topology.model import DIMENSIONS, INTERNAL, LINK_KINDS, Circuits, Links, Topology, read_topology, write_topology
from railx.topology.railx_grid import LineWiring, line_wiring, mesh_links
from railx.topology.railx_hyperx import RailXHyperXSettings
from railx.topology.railx_torus import RailXTorusSettings
from railx.topology.torus_2d import Torus2DSettings
from railx.topology.torus_3d import Torus3DSettings

__all__ = [
    "DIMENSIONS",
    "INTERNAL",
    "LINK_KINDS",
    "Circuits",
    "DragonflySettings",
    "FatTreeSettings",
    "HammingMeshSettings",
    "HyperXSettings",
    "LineWiring",
    "Links",
    "Mesh2DSettings",
    "RailXHyperXSettings",
    "RailXTorusSettings",
    "Topology",
    "TopologySettings",
    "Torus2DSettings",
    "Torus3DSettings",
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
