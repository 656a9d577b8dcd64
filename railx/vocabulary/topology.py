"""The one data structure of networks: arrays of links and optical circuits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from railx.errors import UserError
from railx.settings import AtLeast, NonNegative, Positive, SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array

#: Kinds of links, by code: inside a node, a rail of RailX, a side of a plain mesh or
#: torus, a tier of a fat tree, a board's port to its row or column switch, a dimension
#: of a HyperX, inside a Dragonfly group or between two, an optical circuit between
#: nodes, two routers of any other graph.
LINK_KINDS = (
    *("internal", "rail_x", "rail_y", "torus_x", "torus_y", "leaf", "aggregation", "core"),
    *("torus_z", "row", "column", "hyperx", "local", "global", "optical", "router"),
)
INTERNAL = 0
DIMENSIONS = ("x", "y", "z")

#: Above this a topology exceeds a workstation's memory (about 26 bytes per row in
#: memory, more while building).
MOST_LINK_ROWS = 50_000_000


@dataclass(frozen=True)
class NodeSettings:
    """The links inside a node, the same words for every network."""

    chips: Annotated[int, AtLeast(2)] = 16
    """Chips of a node. Default: RailX's nodes of 4 x 4 chips."""
    links: Literal["mesh", "switch"] = "switch"
    """A mesh between neighbours, or a link of each chip to one switch."""
    gb_s: Annotated[float, Positive()] = 1200.0
    """Rate of the links of a chip inside its node, one direction, in 10^9 byte/s: the
    mean of all chips of a mesh. Default: RailX's nodes of 4 x 4 chips with 2 ports on a
    side, links inside 4 times as wide."""
    latency_ns: Annotated[float, NonNegative()] = 10.0
    """Time of flight of a link, in nanoseconds. Default: an assumption, as inside a
    RailX node."""


class FamilySettings(Protocol):
    """Settings of every network family: its name and the rate of an external port.

    ``port_gbps``: one direction, in 10^9 bit/s. ``node``: links inside nodes.
    """

    @property
    def family(self) -> str: ...

    @property
    def port_gbps(self) -> float: ...

    @property
    def node(self) -> NodeSettings | None: ...


@dataclass(frozen=True, eq=False)
class Links:
    """Directed links, one row each; a full-duplex link is two rows.

    All arrays have the same length. ``src`` and ``dst`` are vertices (chips first, then
    switches), ``kind`` a code of :data:`LINK_KINDS`, ``gbps`` the rate of one lane in
    one direction (10^9 bit/s), ``latency_ns`` the time of flight, ``rail`` the rail's
    index in its line (-1 where there is none) and ``lanes`` the number of parallel
    identical channels of the row.
    """

    src: Int32Array
    dst: Int32Array
    kind: NDArray[np.int8]
    gbps: FloatArray
    latency_ns: FloatArray
    rail: Int32Array
    lanes: Int32Array

    def __len__(self) -> int:
        return len(self.src)

    @property
    def capacity_gbps(self) -> FloatArray:
        """The rate of all lanes of each row together, one direction, in 10^9 bit/s."""
        return self.gbps * self.lanes


@dataclass(frozen=True, eq=False)
class Circuits:
    """Optical cross-connects, one row each.

    port_a and port_b of optical switch ``ocs`` are joined in both directions.
    ``dimension`` is a code of :data:`DIMENSIONS`, ``line`` the row (x) or column (y) of
    nodes on the switch. The node at position a of its line owns the ports 2a (plus
    side) and 2a + 1 (minus side) of every switch of the line. A circuit takes rail
    ``rail`` from the plus side of ``node_a`` to the minus side of ``node_b``. A switch
    that serves all cubes (TPU v4) or all servers (Opus) numbers its ports by cube or
    server in the same way; its family defines ``line``.
    """

    ocs: Int32Array
    port_a: Int32Array
    port_b: Int32Array
    rail: Int32Array
    dimension: NDArray[np.int8]
    line: Int32Array
    node_a: Int32Array
    node_b: Int32Array

    def __len__(self) -> int:
        return len(self.ocs)


@dataclass(frozen=True, eq=False)
class Topology:
    """A network: chips, electrical switches, and the links between them.

    Vertices 0..chips-1 are the chips, followed by ``switches`` switches. ``settings``
    are the settings of its family, ``chip_node`` (int32[chips]) the node of each chip;
    ``circuits`` is None without optical switches.
    """

    settings: FamilySettings
    chips: int
    nodes: int
    switches: int
    chip_node: Int32Array
    links: Links
    circuits: Circuits | None

    @property
    def family(self) -> str:
        """Name of the network family."""
        return self.settings.family

    @property
    def vertices(self) -> int:
        return self.chips + self.switches


Rows = TypeVar("Rows", Links, Circuits)


def kind_code(name: str) -> int:
    """The code of a link kind; ValueError for names outside :data:`LINK_KINDS`."""
    if name not in LINK_KINDS:
        raise UserError(f"link kind: got {name!r}; allowed: {', '.join(LINK_KINDS)}")
    return LINK_KINDS.index(name)


def duplex_links(
    a: NDArray[np.integer],
    b: NDArray[np.integer],
    kind: str,
    gbps: float,
    latency_ns: float,
    *,
    lanes: int = 1,
    rail: NDArray[np.integer] | int = -1,
) -> Links:
    """Full-duplex links between pairs of vertices, as arrays of equal shape.

    Row 2i goes from ``a`` to ``b``, row 2i + 1 back. ``gbps``: rate of a lane in one
    direction; ``latency_ns``: time of flight; ``rail``: rail index of both rows.
    """
    a, b, index = (np.ravel(array) for array in np.broadcast_arrays(a, b, rail))
    rows = 2 * a.size
    return Links(
        src=np.stack([a, b], axis=1).ravel().astype(np.int32),
        dst=np.stack([b, a], axis=1).ravel().astype(np.int32),
        kind=np.full(rows, kind_code(kind), dtype=np.int8),
        gbps=np.full(rows, gbps, dtype=np.float64),
        latency_ns=np.full(rows, latency_ns, dtype=np.float64),
        rail=np.repeat(index, 2).astype(np.int32),
        lanes=np.full(rows, lanes, dtype=np.int32),
    )


def plus_to_minus_circuits(
    a: NDArray[np.integer],
    b: NDArray[np.integer],
    *,
    ocs: NDArray[np.integer],
    rail: NDArray[np.integer],
    dimension: int,
    line: NDArray[np.integer] | int,
    node_a: NDArray[np.integer] | None = None,
    node_b: NDArray[np.integer] | None = None,
) -> Circuits:
    """Circuits from the plus port of positions ``a`` to the minus port of ``b``.

    Arrays have equal lengths; ``dimension`` is a code of :data:`DIMENSIONS`. ``node_a``
    and ``node_b``: the nodes at these positions; None: those of the same numbers.
    """
    nodes = a if node_a is None else node_a, b if node_b is None else node_b
    columns = np.broadcast_arrays(ocs, 2 * a, 2 * b + 1, rail, dimension, line, *nodes)
    typed: list[Any] = [column.astype(np.int32) for column in columns]
    typed[4] = typed[4].astype(np.int8)
    return Circuits(*typed)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of several tables of links, or of circuits, one after another."""
    table = type(parts[0])
    return table(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in table.__dataclass_fields__
        }
    )


def topology_of(
    settings: FamilySettings,
    links: Sequence[Links],
    *,
    chips: int,
    chips_per_node: int = 1,
    switches: int = 0,
    circuits: Circuits | None = None,
) -> Topology:
    """The network of these links; its nodes are runs of ``chips_per_node`` chips."""
    return Topology(
        settings=settings,
        chips=chips,
        nodes=chips // chips_per_node,
        switches=switches,
        chip_node=chip_nodes(chips, chips_per_node),
        links=join_rows(links),
        circuits=circuits,
    )


def check_size(key: str, rows: int) -> None:
    """Refuse a link table that exceeds memory; ``key`` is the setting to lower."""
    if rows > MOST_LINK_ROWS:
        raise SettingsError(
            key,
            f"the topology would need {rows:,} directed links; allowed: at most"
            f" {MOST_LINK_ROWS:,}, choose a smaller size",
        )


def nearest(value: int, fits: Sequence[int]) -> str:
    """The next below and above a value of ascending ``fits``, in words."""
    near = [fit for fit in fits if fit < value][-1:] + [fit for fit in fits if fit > value][:1]
    return f"the nearest {'is' if len(near) == 1 else 'are'} {' and '.join(map(str, near))}"


def two_nearest(value: int, fits: Iterable[int]) -> str:
    """The two ``fits`` closest to a value, the lower of equals, in order and words."""
    near = sorted(fits, key=lambda fit: (abs(fit - value), fit))[:2]
    return " and ".join(map(str, sorted(near)))


def chip_nodes(chips: int, chips_per_node: int) -> Int32Array:
    """The node of each chip where nodes are runs of consecutive chips."""
    return (np.arange(chips, dtype=np.int32) // np.int32(chips_per_node)).astype(np.int32)
