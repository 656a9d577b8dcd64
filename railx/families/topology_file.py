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
    Circuits,
    FamilySettings,
    Links,
    Topology,
)


def write_topology(path: str | Path, topology: Topology, name: str | None = None) -> None:
    """Write a Parquet file: links and circuits as rows, distinguished by ``element``.

    Everything else is metadata, including ``name`` (None: the family's name).
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
    """Read a file of :func:`write_topology` and parse its settings.

    ValueError names a file that is not a topology, SettingsError a setting that its
    family does not take.
    """
    from railx.io import read_metadata, read_table

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
    links, circuits = (_rows(table, element) for element in ("link", "circuit"))
    chips = int(metadata["chips"])
    settings: FamilySettings = load(TopologySettings, metadata["settings"], "topology")
    return Topology(
        settings=settings,
        chips=chips,
        nodes=int(metadata["nodes"]),
        switches=int(metadata["switches"]),
        chip_node=node_of_chips(settings, chips, int(metadata["chips_per_node"])),
        links=_from_table(Links, links, {"kind": LINK_KINDS}),
        circuits=(
            _from_table(Circuits, circuits, {"dimension": DIMENSIONS}) if len(circuits) else None
        ),
    )


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


def _constant(text: str, count: int) -> Any:
    from railx.io import as_words

    return as_words(np.zeros(count, dtype=np.int8), (text,))


def _columns(rows: Links | Circuits, named: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    import pyarrow as pa

    from railx.io import as_words

    values = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
    return {
        name: as_words(value, named[name]) if name in named else pa.array(value)
        for name, value in values.items()
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


def _from_table(cls: Any, table: Any, named: Mapping[str, tuple[str, ...]]) -> Any:
    """Rebuild a struct of arrays from its Parquet columns; names go back to codes."""
    from railx.io import as_numbers

    columns = {}
    for name, field in cls.__dataclass_fields__.items():
        dtype = {
            "gbps": np.float64,
            "latency_ns": np.float64,
            "kind": np.int8,
            "dimension": np.int8,
        }.get(field.name, np.int32)
        if name in named:
            columns[name] = as_numbers(table[name], named[name]).astype(dtype)
        else:
            columns[name] = table[name].to_numpy().astype(dtype)
    return cls(**columns)
