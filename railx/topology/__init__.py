"""Graphs of chips, switches and optical circuits: one module per family, one interface,
exact metrics.
"""

from railx.topology.circuits import (
    ReconfigurationPlan,
    TransitionSettings,
    apply_plan,
    circuit_set,
    read_circuits,
    read_circuits_csv,
    read_plan,
    reconfiguration_plan,
    write_circuits,
    write_circuits_csv,
    write_plan,
    write_plan_csv,
)
from railx.topology.dragonfly import DragonflySettings
from railx.topology.families import (
    TopologySettings,
    bisection_ports,
    build_topology,
    halves,
    optically_switched,
    ports_per_chip,
    settings_of,
)
from railx.topology.fat_tree import FatTreeSettings
from railx.topology.hamiltonian import (
    check_decomposition,
    check_undirected,
    hamiltonian_cycles,
    undirected_rings,
)
from railx.topology.hammingmesh import HammingMeshSettings
from railx.topology.hyperx import HyperXSettings
from railx.topology.mesh_2d import Mesh2DSettings
from railx.topology.metrics import (
    check_circuits,
    chip_hop_counts,
    node_hop_counts,
    topology_metrics,
)
from railx.topology.model import (
    DIMENSIONS,
    INTERNAL,
    LINK_KINDS,
    Circuits,
    Links,
    Topology,
    read_topology,
    write_topology,
)
from railx.topology.opus_rails import OpusRailsSettings
from railx.topology.rail_only import RailOnlySettings
from railx.topology.rail_optimised import RailOptimisedSettings
from railx.topology.railx_dragonfly import RailXDragonflySettings
from railx.topology.railx_grid import LineWiring, RailPorts, line_wiring, mesh_links, rail_ports
from railx.topology.railx_hyperx import RailXHyperXSettings
from railx.topology.railx_mixed import RailXMixedSettings
from railx.topology.railx_parts import LinePart, PartSettings, part_rings, part_wiring
from railx.topology.railx_split import RailXSplitSettings
from railx.topology.railx_torus import RailXTorusSettings
from railx.topology.railx_twisted_torus import RailXTwistedTorusSettings
from railx.topology.torus_2d import Torus2DSettings
from railx.topology.torus_3d import Torus3DSettings
from railx.topology.tpu_v4 import TpuV4Settings

__all__ = [
    "DIMENSIONS",
    "INTERNAL",
    "LINK_KINDS",
    "Circuits",
    "DragonflySettings",
    "FatTreeSettings",
    "HammingMeshSettings",
    "HyperXSettings",
    "LinePart",
    "LineWiring",
    "Links",
    "Mesh2DSettings",
    "OpusRailsSettings",
    "PartSettings",
    "RailOnlySettings",
    "RailOptimisedSettings",
    "RailPorts",
    "RailXDragonflySettings",
    "RailXHyperXSettings",
    "RailXMixedSettings",
    "RailXSplitSettings",
    "RailXTorusSettings",
    "RailXTwistedTorusSettings",
    "ReconfigurationPlan",
    "Topology",
    "TopologySettings",
    "Torus2DSettings",
    "Torus3DSettings",
    "TpuV4Settings",
    "TransitionSettings",
    "apply_plan",
    "bisection_ports",
    "build_topology",
    "check_circuits",
    "check_decomposition",
    "check_undirected",
    "chip_hop_counts",
    "circuit_set",
    "halves",
    "hamiltonian_cycles",
    "line_wiring",
    "mesh_links",
    "node_hop_counts",
    "optically_switched",
    "part_rings",
    "part_wiring",
    "ports_per_chip",
    "rail_ports",
    "read_circuits",
    "read_circuits_csv",
    "read_plan",
    "read_topology",
    "reconfiguration_plan",
    "settings_of",
    "topology_metrics",
    "undirected_rings",
    "write_circuits",
    "write_circuits_csv",
    "write_plan",
    "write_plan_csv",
    "write_topology",
]
