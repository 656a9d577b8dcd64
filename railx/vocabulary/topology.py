"""The one data structure of this room: a topology as arrays of links and optical
circuits, and its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from railx.settings import SettingsError

__all__ = [
    "DIMENSIONS",
    "INTERNAL",
    "LINK_KINDS",
    "Circuits",
    "Links",
    "Topology",
    "check_size",
    "join_links",
    "kind_code",
    "read_topology",
    "write_topology",
]

#: What a link is, by code: inside a node, a rail of RailX, a side of a plain mesh or
#: torus, a tier of a fat tree, a board's port to its row or column switch, a dimension
#: of a HyperX, inside a Dragonfly group or between two, an optical circuit between
#: nodes.
LINK_KINDS = (
    "internal",
    "rail_x",
    "rail_y",
    "torus_x",
    "torus_y",
    "leaf",
    "aggregation",
    "core",
    "torus_z",
    "row",
    "column",
    "hyperx",
    "local",
    "global",
    "optical",
)
INTERNAL = 0
DIMENSIONS = ("x", "y", "z")

#: Above this a topology does not fit a workstation's memory (about 26 bytes a row in
#: memory, more while building).
_MOST_LINK_ROWS = 50_000_000


@dataclass(frozen=True, eq=False)
class Links:
    """Directed links, one row each; a full-duplex link is two rows. All arrays have the
    same length.

    ``src`` and ``dst`` are vertices (chips first, then switches), ``kind`` a code of
    :data:`LINK_KINDS`, ``gbps`` the rate of one lane in one direction (10^9 bit/s),
    ``latency_ns`` the time of flight, ``rail`` the rail's index in its line (-1 where
    there is none) and ``lanes`` the number of parallel identical channels that the row
    stands for.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    kind: NDArray[np.int8]
    gbps: NDArray[np.float64]
    latency_ns: NDArray[np.float64]
    rail: NDArray[np.int32]
    lanes: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.src)

    @property
    def capacity_gbps(self) -> NDArray[np.float64]:
        """The rate of all lanes of each row together, one direction, in 10^9 bit/s."""
        return self.gbps * self.lanes


@dataclass(frozen=True, eq=False)
class Circuits:
    """Optical cross-connects, one row each: port_a and port_b of optical switch ``ocs``
    are joined, in both directions.

    ``dimension`` is a code of :data:`DIMENSIONS`, ``line`` the row (x) or column (y) of
    nodes that the switch serves. The node at position a of its line owns the ports 2a
    (plus side) and 2a + 1 (minus side) of every switch of the line, so that a circuit
    takes rail ``rail`` from the plus side of ``node_a`` to the minus side of
    ``node_b``. A switch that serves all cubes (TPU v4) or all servers (Opus) numbers
    its ports by cube or server in the same way; what ``line`` means there its family
    says.
    """

    ocs: NDArray[np.int32]
    port_a: NDArray[np.int32]
    port_b: NDArray[np.int32]
    rail: NDArray[np.int32]
    dimension: NDArray[np.int8]
    line: NDArray[np.int32]
    node_a: NDArray[np.int32]
    node_b: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ocs)


@dataclass(frozen=True, eq=False)
class Topology:
    """A network: ``chips`` vertices 0..chips-1, then ``switches`` electrical switches,
    and the links between them.

    ``settings`` is the plain mapping it was built from, ``chip_node`` (int32[chips])
    the node of each chip; ``circuits`` is None where there are no optical switches.
    """

    family: str
    settings: dict[str, Any]
    chips: int
    nodes: int
    switches: int
    chip_node: NDArray[np.int32]
    links: Links
    circuits: Circuits | None

    @property
    def vertices(self) -> int:
        return self.chips + self.switches


def kind_code(name: str) -> int:
    """The code of a link kind."""
    return LINK_KINDS.index(name)


def join_links(parts: list[Links]) -> Links:
    """The rows of several link tables one after another."""
    return Links(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in Links.__dataclass_fields__
        }
    )


def check_size(key: str, rows: int) -> None:
    """Refuse a topology whose link table would not fit in memory; ``key`` is the
    setting to lower.
    """
    if rows > _MOST_LINK_ROWS:
        raise SettingsError(
            key,
            f"the topology would need {rows:,} directed links; allowed: at most"
            f" {_MOST_LINK_ROWS:,}, choose a smaller size",
        )


def write_topology(path: str | Path, topology: Topology, name: str | None = None) -> None:
    """Write one Parquet file: links and circuits as rows told apart by ``element``,
    everything else as metadata, also the ``name`` (None: its family's).
    """
    import pyarrow as pa

    from railx.io import write_table

    links, circuits = topology.links, topology.circuits
    link_columns = _columns(links, {"kind": LINK_KINDS})
    tables = [pa.table({"element": _constant("link", len(links)), **link_columns})]
    if circuits is not None:
        circuit_columns = _columns(circuits, {"dimension": DIMENSIONS})
        tables.append(pa.table({"element": _constant("circuit", len(circuits)), **circuit_columns}))
    table = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
    write_table(path, table, metadata={"name": name or topology.family, **_metadata(topology)})


def read_topology(path: str | Path) -> Topology:
    """Read what :func:`write_topology` wrote; ValueError names a file that is not a
    topology.
    """
    import pyarrow.compute as pc

    from railx.io import read_metadata, read_table

    metadata = read_metadata(path)
    missing = sorted(
        {"family", "settings", "chips", "nodes", "switches", "chips_per_node"} - set(metadata)
    )
    if missing:
        raise ValueError(
            f"{path}: not a topology file, its metadata lack {', '.join(missing)}; allowed: a file"
            " of `railx topology`"
        )
    table = read_table(path)
    links, circuits = (
        table.filter(pc.equal(table["element"].cast("string"), element))
        for element in ("link", "circuit")
    )
    chips = int(metadata["chips"])
    return Topology(
        family=str(metadata["family"]),
        settings=dict(metadata["settings"]),
        chips=chips,
        nodes=int(metadata["nodes"]),
        switches=int(metadata["switches"]),
        chip_node=chip_nodes(chips, int(metadata["chips_per_node"])),
        links=_from_table(Links, links, {"kind": LINK_KINDS}),
        circuits=(
            _from_table(Circuits, circuits, {"dimension": DIMENSIONS}) if len(circuits) else None
        ),
    )


def chip_nodes(chips: int, chips_per_node: int) -> NDArray[np.int32]:
    """The node of each chip where nodes are runs of consecutive chips."""
    return (np.arange(chips, dtype=np.int32) // np.int32(chips_per_node)).astype(np.int32)


def _metadata(topology: Topology) -> Mapping[str, Any]:
    return {
        "schema": "railx.topology/1",
        "family": topology.family,
        "settings": topology.settings,
        "chips": topology.chips,
        "nodes": topology.nodes,
        "switches": topology.switches,
        "chips_per_node": topology.chips // topology.nodes,
    }


def _constant(text: str, count: int) -> Any:
    return _named(np.zeros(count, dtype=np.int8), (text,))


def _named(codes: NDArray[np.int8], names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(names, pa.string()))


def _columns(rows: Links | Circuits, named: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    import pyarrow as pa

    values = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
    return {
        name: _named(value, named[name]) if name in named else pa.array(value)
        for name, value in values.items()
    }


def _from_table(cls: Any, table: Any, named: Mapping[str, tuple[str, ...]]) -> Any:
    """Rebuild a struct of arrays from its Parquet columns; names go back to codes."""
    columns = {}
    for name, field in cls.__dataclass_fields__.items():
        column = table[name].combine_chunks()
        dtype = {
            "gbps": np.float64,
            "latency_ns": np.float64,
            "kind": np.int8,
            "dimension": np.int8,
        }.get(field.name, np.int32)
        if name in named:
            column = column.dictionary_encode() if not hasattr(column, "dictionary") else column
            code = np.array(
                [
                    named[name].index(text)
                    for text in column.dictionary.to_pylist()
                    if text is not None
                ],
                dtype=np.int8,
            )
            columns[name] = code[column.indices.to_numpy(zero_copy_only=False).astype(np.int64)]
        else:
            columns[name] = column.to_numpy(zero_copy_only=False).astype(dtype)
    return cls(**columns)
