"""UB-Mesh: racks of fully joined chips, in a full mesh of racks (2503.20377).

A rack is a full mesh of the chips of a board times a full mesh of its boards. The racks
of a pod are a full mesh along rows and along columns. Chips reach other racks through
low-radix switches, which are one switch for each rack here: links between racks are a
capacity of the rack, not of a chip. Published: 72 lanes a chip, 16 of them to other
racks, 128 lanes between two racks of a line. Derived: four lanes between two chips of a
rack. Assumptions: the rate of a lane (second hand, a third party's simulator), and that
all low-radix switches of a rack act as one. Left out: CPUs, the spare chip of a rack.

Paths are minimal, Valiant's or UGAL's, hop k on virtual channel k. The paper's own rule
against deadlock needs two channels; its details are not published. Borrow, its third
strategy, takes the 256 lanes of a rack to the high-radix switches too
(``borrow_lanes``). How these join racks inside a pod is not published; they are one
switch here (assumption).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from railx.families.family import Family, FamilyBase, any_chips, size_check
from railx.families.imported import route
from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.routing.hop_paths import HOP_ROUTINGS
from railx.vocabulary.topology import NodeSettings, Topology, duplex_links, topology_of

__all__ = ["FAMILY", "UBMeshSettings"]


@dataclass(frozen=True)
class UBMeshSettings(FamilyBase):
    """A pod of racks; chips are numbered rack by rack and board by board."""

    family: Literal["ub_mesh"]

    chips_per_board: Annotated[int, AtLeast(2)] = 4
    """Chips of a board, all joined."""
    boards: Annotated[int, AtLeast(2)] = 4
    """Boards of a rack; chips in the same place of all boards are joined."""
    rack_columns: Annotated[int, AtLeast(1)] = 2
    """Racks of a row."""
    rack_rows: Annotated[int, AtLeast(1)] = 2
    """Racks of a column."""
    lanes: Annotated[int, AtLeast(1)] = 4
    """Lanes between two chips of a rack (derived)."""
    uplink_lanes: Annotated[int, AtLeast(1)] = 16
    """Lanes of a chip to other racks."""
    rack_lanes: Annotated[int, AtLeast(1)] = 128
    """Lanes between two racks of a row or column."""
    borrow_lanes: Annotated[int, AtLeast(0)] = 0
    """Lanes of a rack to the high-radix switch, which other racks are two hops behind
    (Borrow); 256 are published. Default: paths over racks alone."""
    port_gbps: Annotated[float, Positive()] = 112.0
    """Rate of a lane in one direction, in 10^9 bit/s (second hand, low confidence)."""
    internal_latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight inside a rack, in nanoseconds. Default: an assumption, as inside a
    RailX node."""
    external_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight between racks, in nanoseconds. Default: an assumption, about 20 m
    at 5 ns/m."""

    @property
    def rack_chips(self) -> int:
        return self.chips_per_board * self.boards

    @property
    def mesh_lanes(self) -> int:
        """Lanes of a chip inside its rack."""
        return self.lanes * (self.chips_per_board + self.boards - 2)

    @property
    def racks(self) -> int:
        return self.rack_columns * self.rack_rows

    @property
    def chips(self) -> int:
        return self.rack_chips * self.racks


def link_rows(settings: UBMeshSettings) -> int:
    """About the number of directed links."""
    return settings.chips * (settings.chips_per_board + settings.boards) + settings.racks**2


def _full_meshes(vertices: IntArray) -> tuple[IntArray, IntArray]:
    """Both ends of the links of full meshes; vertices: int[meshes, length]."""
    low, high = np.triu_indices(vertices.shape[1], 1)
    return vertices[:, low].ravel(), vertices[:, high].ravel()


def build(settings: UBMeshSettings) -> Topology:
    """Build the pod; the switch of each rack follows the chips."""
    chip = np.arange(settings.chips)
    grid = chip.reshape(settings.racks, settings.boards, settings.chips_per_board)
    switch = settings.chips + np.arange(settings.racks)
    rack = switch.reshape(settings.rack_rows, settings.rack_columns)
    inside, outside = settings.internal_latency_ns, settings.external_latency_ns
    boards, across = grid.reshape(-1, settings.chips_per_board), grid.transpose(0, 2, 1)
    ends = [
        (*_full_meshes(boards), "internal", settings.lanes, inside),
        (*_full_meshes(across.reshape(-1, settings.boards)), "internal", settings.lanes, inside),
        (chip, switch[chip // settings.rack_chips], "leaf", settings.uplink_lanes, inside),
        (*_full_meshes(rack), "router", settings.rack_lanes, outside),
        (*_full_meshes(rack.T), "router", settings.rack_lanes, outside),
    ]
    if settings.borrow_lanes:
        high_radix = np.full_like(switch, settings.chips + settings.racks)
        ends.append((switch, high_radix, "router", settings.borrow_lanes, outside))
    links = [
        duplex_links(a, b, kind, settings.port_gbps, latency_ns, lanes=lanes)
        for a, b, kind, lanes, latency_ns in ends
    ]
    return topology_of(
        settings,
        links,
        chips=settings.chips,
        chips_per_node=settings.rack_chips,
        switches=settings.racks + (settings.borrow_lanes > 0),
    )


def inside(settings: UBMeshSettings) -> NodeSettings:
    """The full meshes of a rack."""
    gb_s = settings.mesh_lanes * settings.port_gbps / 8
    return NodeSettings(settings.rack_chips, "mesh", gb_s, settings.internal_latency_ns)


FAMILY = Family(
    name="ub_mesh",
    settings=UBMeshSettings,
    build=build,
    check=size_check("boards", link_rows),
    # 72 in the published pod.
    ports_per_chip=lambda of: of.mesh_lanes + of.uplink_lanes,
    has_nodes=True,
    inside=inside,
    routings=HOP_ROUTINGS,
    route=route,
    hop_loads={"min": "min"},
    # All-path routing leads round a failed chip; small jobs stay in a rack.
    job_places=any_chips(lambda of: of.chips, domain_chips=lambda of: of.rack_chips),
)
