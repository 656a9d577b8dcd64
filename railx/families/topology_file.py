"""The file of a topology: a Parquet table of its links and circuits, with metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.families.registry import TopologySettings, node_of_chips
from railx.settings import load, to_dict
from railx.vocabulary.topology import (
    DIMENSIONS,
    LINK_KINDS,
    MOST_LINK_ROWS,
    Circuits,
    FamilySettings,
    Links,
    Topology,
)

#: The columns of codes, as words in the file.
_WORDS = {"kind": LINK_KINDS, "dimension": DIMENSIONS}


def write_topology(path: str | Path, topology: Topology, name: str | None = None) -> None:
    """Write a Parquet file: links and circuits as rows, distinguished by ``element``.

    Everything else is metadata, including ``name`` (None: the family's name).
    """
    import pyarrow as pa

    from railx.io import as_words, write_table

    tables = []
    for element, rows in (("link", topology.links), ("circuit", topology.circuits)):
        if rows is not None:
            elements = as_words(np.zeros(len(rows), dtype=np.int8), (element,))
            columns = {
                name: as_words(getattr(rows, name), _WORDS[name])
                if name in _WORDS
                else pa.array(getattr(rows, name))
                for name in rows.__dataclass_fields__
            }
            tables.append(pa.table({"element": elements, **columns}))
    table = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
    write_table(path, table, metadata={"name": name or topology.family, **_metadata(topology)})


def read_topology(path: str | Path) -> Topology:
    """Read a file of :func:`write_topology` and parse its settings.

    ValueError names a file that is not a topology, SettingsError a setting that its
    family does not take.
    """
    from railx.io import read_metadata, read_table, written_by

    metadata = read_metadata(path)
    missing = sorted(
        {"family", "settings", "chips", "nodes", "switches", "chips_per_node"} - set(metadata)
    )
    if missing:
        raise UserError(
            f"{path}: not a topology file, its metadata lack {', '.join(missing)}; allowed: a file"
            " of `railx topology`"
        )
    table = read_table(path)
    settings: FamilySettings = load(TopologySettings, metadata["settings"], "topology")
    with written_by(path, "railx topology --out"):
        links, circuits = (_rows(table, element) for element in ("link", "circuit"))
        counts = ("chips", "nodes", "switches", "chips_per_node")
        chips, nodes, switches, chips_per_node = (metadata[name] for name in counts)
        if chips != nodes * chips_per_node or not 0 < chips + switches <= MOST_LINK_ROWS:
            got = ", ".join(f"{name} {metadata[name]}" for name in counts)
            raise ValueError(f"{got}, which contradict each other")
        topology = Topology(
            settings=settings,
            chips=chips,
            nodes=nodes,
            switches=switches,
            chip_node=node_of_chips(settings, chips, chips_per_node),
            links=_from_table(Links, links),
            circuits=_from_table(Circuits, circuits) if len(circuits) else None,
        )
        ends = np.concatenate([topology.links.src, topology.links.dst])
        if len(ends) and not 0 <= ends.min() <= ends.max() < topology.vertices:
            raise ValueError(f"links of vertices {ends.min()} to {ends.max()}")
    return topology


def _metadata(topology: Topology) -> Mapping[str, Any]:
    return {
        "schema": "railx.topology/1",
        "family": topology.family,
        "settings": to_dict(topology.settings),
        "chips": topology.chips,
        "nodes": topology.nodes,
        "switches": topology.switches,
        "chips_per_node": topology.chips // topology.nodes,
    }


def _rows(table: Any, element: str) -> Any:
    """The rows of an element.

    Consecutive rows are a slice; only others need pyarrow.compute, which takes a tenth
    of a second to load.
    """
    column = table["element"].combine_chunks()
    column = column if hasattr(column, "dictionary") else column.dictionary_encode()
    words = column.dictionary.to_pylist()
    if element not in words:
        return table.slice(0, 0)
    codes = column.indices.to_numpy(zero_copy_only=False)
    (rows,) = np.nonzero(codes == words.index(element))
    if not len(rows):
        return table.slice(0, 0)
    first, count = int(rows[0]), len(rows)
    return table.slice(first, count) if rows[-1] - first + 1 == count else table.take(rows)


def _from_table(cls: Any, table: Any) -> Any:
    """Rebuild a struct of arrays from its Parquet columns; names go back to codes."""
    from railx.io import as_numbers
    from railx.vocabulary.arrays import as_integers

    columns = {}
    for name in cls.__dataclass_fields__:
        if name in _WORDS:
            columns[name] = as_numbers(table[name], _WORDS[name]).astype(np.int8)
        elif name in ("gbps", "latency_ns"):
            columns[name] = table[name].to_numpy().astype(np.float64)
            if not (columns[name] >= 0).all() or np.isinf(columns[name]).any():
                raise ValueError(f"{name} {columns[name][:1]}")
        else:
            columns[name] = as_integers(table[name], np.int32)
    return cls(**columns)
