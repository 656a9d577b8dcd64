"""RailX and HammingMesh: nodes of m x m chips on a grid.

The RailX networks differ only in the circuits of their optical switches, so they share
settings, cut, placement and bill of materials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

from railx.families.family import (
    Family,
    FamilyBase,
    JobPlaces,
    LineGraph,
    shared_fields,
    size_check,
)
from railx.settings import AtLeast, NonNegative, Positive
from railx.vocabulary.counts import Ports, best_size, too_large, torus_all_to_all_ports
from railx.vocabulary.grid import Grid, grid_halves, line_circuits
from railx.vocabulary.placement import node_placement
from railx.vocabulary.topology import NodeSettings, Topology


@dataclass(frozen=True)
class NodeGridSettings(FamilyBase):
    """Nodes of m x m chips on a grid; RailX's values are the defaults."""

    m: Annotated[int, AtLeast(1)] = 2
    """Chips on a side of a node, so that a node is a mesh of m x m chips."""
    n: Annotated[int, AtLeast(1)] = 2
    """Ports on each of the 4 sides of a chip."""
    internal_width: Annotated[float, Positive()] = 4.0
    """Rate of an internal lane over the rate of an external port. Default: input files
    of the RailX simulator."""
    internal_latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight of a link inside a node, in nanoseconds. Default: an assumption;
    its ratio of 1 to 10 to the external one is that of the RailX simulator's input
    files (1 and 10 cycles)."""
    external_latency_ns: Annotated[float, NonNegative()] = 100.0
    """Time of flight of a link that leaves a node, in nanoseconds. Default: an
    assumption, about 20 m of fibre at 5 ns/m."""

    def __post_init__(self) -> None:
        """Take width and latency of the links inside from ``node``."""
        if self.node is not None and self.m > 1:
            width = self.node.gb_s / _inside_gb_s(self) * self.internal_width
            object.__setattr__(self, "internal_width", width)
            object.__setattr__(self, "internal_latency_ns", self.node.latency_ns)

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes of a row and of a column."""
        raise NotImplementedError

    @property
    def rails(self) -> int:
        """Rails of a line: ports on a side of a node."""
        return self.m * self.n

    @property
    def grid(self) -> Grid:
        """The grid of nodes."""
        columns, rows = self.shape
        node = shared_fields(self, NodeGridSettings)
        del node["node"]
        return Grid(columns=columns, rows=rows, **node)


@dataclass(frozen=True)
class RailXSettings(NodeGridSettings):
    """Nodes whose rails are plugged into optical switches."""

    ocs_radix: Annotated[int, AtLeast(2)] | None = None
    """Ports of an optical switch; null: just enough, 2 for each node of the longest
    line on it."""


@dataclass(frozen=True)
class AllToAllSettings(RailXSettings):
    """Nodes whose optical switches are set to all-to-alls."""

    rings: Literal["directed", "undirected"] = "directed"
    """Hamiltonian decomposition that the rails of an all-to-all follow: directed
    (RailX, appendix A.1) or undirected (any size, 4 and 6 nodes too)."""


NodeGridT = TypeVar("NodeGridT", bound=NodeGridSettings)
RailXT = TypeVar("RailXT", bound=RailXSettings)
ShapeT = TypeVar("ShapeT")


def circuit_line_graphs(settings: RailXSettings, topology: Topology) -> list[LineGraph]:
    """A row and a column as the optical circuits join their nodes."""
    circuits = topology.circuits
    assert circuits is not None
    lines = (line_circuits(circuits, dimension)[:, :2] for dimension in (0, 1))
    return [(int(line.max()) + 1, np.concatenate([line, line[:, ::-1]])) for line in lines]


# Bill of materials


def best_grid(
    settings: RailXT,
    chips: int,
    shapes: Sequence[tuple[int, ShapeT]],
    reshape: Callable[[ShapeT], RailXT],
    ports: Callable[[RailXT], Ports],
    *,
    max_oversize: float = 1.1,
) -> RailXT:
    """The network with the most all-to-all bandwidth among sizes close to the smallest.

    ``shapes``: candidates as (nodes, shape). ``reshape``: settings of a shape.
    Candidates have at least ``chips`` chips and at most ``max_oversize`` times those of
    the smallest. Raises SettingsError("chips") with the largest size where there is no
    candidate.
    """
    sizes = [nodes * settings.m**2 for nodes, _ in shapes]
    largest = max(sizes, default=0)
    if largest < chips:
        raise too_large(
            chips,
            largest,
            f"nodes of {settings.m} x {settings.m} chips,"
            f" {2 * longest_line(settings)}-port switches",
        )
    smallest = min(size for size in sizes if size >= chips)
    return best_size(
        [
            reshape(shape)
            for size, (_, shape) in zip(sizes, shapes, strict=True)
            if smallest <= size <= int(max_oversize * smallest)
        ],
        ports,
    )


def in_node_lanes_per_chip(node: NodeGridSettings) -> float:
    """Width of the links inside a node, in external ports per chip.

    2 m (m-1) neighbour pairs have n links each of that width.
    """
    return 2 * (node.m - 1) * node.n * node.internal_width / node.m


def _inside_gb_s(node: NodeGridSettings) -> float:
    """Rate of the links of a chip inside its node, one direction, mean of all chips."""
    return 2 * in_node_lanes_per_chip(node) * node.port_gbps / 8


def inside(settings: NodeGridSettings) -> NodeSettings | None:
    """The mesh of a node."""
    if settings.m == 1:
        return None
    latency_ns = settings.internal_latency_ns
    return NodeSettings(settings.m**2, "mesh", _inside_gb_s(settings), latency_ns)


def node_grid_family(
    name: str, settings: type[NodeGridT], **capabilities: Any
) -> Family[NodeGridT]:
    """The family of a grid of nodes, with ``capabilities`` of its own."""
    shared: dict[str, Any] = {
        "check": size_check("x_scale", lambda of: of.grid.link_rows),
        "halves": lambda of: grid_halves(of.grid),
        "ports_per_chip": lambda of: 4 * of.n,
        "routings": ("min", "balanced"),
        "switched": issubclass(settings, RailXSettings),
        "placement": lambda of, topology, sizes: node_placement(topology, sizes, of.shape),
        "has_nodes": True,
        "inside": inside,
        # Any rows times any columns of nodes; a node fails with any of its chips.
        "job_places": JobPlaces("lines", lambda of: of.shape[::-1], lambda of: of.m**2),
    }
    return Family(name=name, settings=settings, **shared | capabilities)


def longest_line(settings: RailXSettings) -> int:
    """Most nodes of a line: half the ports of a switch, or the settings' limit."""
    return max(settings.shape) if settings.ocs_radix is None else settings.ocs_radix // 2


def all_rail_lines(rails: int, longest: int) -> list[int]:
    """Sizes of a line whose all-to-all uses every rail: size - 1 divides the rails."""
    return [size for size in range(2, min(rails + 1, longest) + 1) if rails % (size - 1) == 0]


def grid_ports(grid: Grid, *, all_to_all: float | None, bisection: float | None) -> Ports:
    """Components of a grid of nodes with these bandwidths in ports per chip.

    A node has 4 r optical ports, each with a transceiver and a port of an optical
    switch.
    """
    optical = 4 * grid.rails * grid.nodes
    return Ports(
        chips=grid.chips,
        port_gbps=grid.port_gbps,
        cables={"optical": optical},
        injection=4 * grid.n,
        all_to_all=all_to_all,
        bisection=bisection,
        ocs_ports=optical,
    )


def hyperx_all_to_all_ports(grid: Grid, dimensions: Sequence[tuple[int, int]]) -> float:
    """Bound of uniform all-to-all in ports per chip: 4 n / (m h) with h mean hops.

    ``dimensions``: sizes of logical dimensions of lines, and copies of their
    all-to-alls.
    """
    # A destination is never the source itself.
    other = grid.chips / (grid.chips - 1)
    return min(
        2 * copies * (size - 1) / grid.m**2 / ((size - 1) / size * other)
        for size, copies in dimensions
    )


def hyperx_bisection_ports(grid: Grid, dimensions: Sequence[tuple[int, int]]) -> float:
    """Ports per chip of one half across a dimension: 2 links per copy and pair."""
    return min(
        4 * copies * (size // 2) * (size - size // 2) / size / grid.m**2
        for size, copies in dimensions
    )


def ring_bisection_ports(grid: Grid, ends: int) -> float:
    """Ports per chip of one half across the longest ring: ``ends`` * r a line."""
    return 2 * ends * grid.rails / max(grid.columns, grid.rows) / grid.m**2


def ring_ports(settings: NodeGridSettings) -> Ports:
    """Components of the grid, and its bandwidths in ports per chip, where lines are
    rings on all rails.
    """
    grid = settings.grid
    lengths = (grid.m * grid.columns, grid.m * grid.rows)
    bisection = ring_bisection_ports(grid, 2)
    all_to_all = torus_all_to_all_ports(lengths, grid.n)
    return grid_ports(grid, all_to_all=all_to_all, bisection=bisection)


def grid_hop_count(grid: Grid, twist: int) -> float:
    """Mean hops of chips over links in and between nodes of a torus of chips.

    The count starts at one chip, as all chips are alike. ``twist``: chips by which a
    wrap of the columns is shifted along the rows, 0 for the plain torus.
    """
    x = np.arange(grid.m * grid.columns)[:, None]
    y = np.arange(grid.m * grid.rows)[None, :]
    width, height = x.shape[0], y.shape[1]
    distance = np.full((width, height), width + height)
    for up in (-2, -1, 0, 1, 2):
        along = (x + up * twist) % width
        distance = np.minimum(distance, np.minimum(along, width - along) + np.abs(y + up * height))
    return float(distance.sum() / (width * height - 1))
