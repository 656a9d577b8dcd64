"""Cross-connect lists of optical switches and their files.

A cross-connect joins two ports of one switch in both directions, so that (port_a,
port_b) and (port_b, port_a) are the same circuit. Files, both with every circuit of a
topology:

* JSON (schema ``railx.circuits/1``): per switch its number, name, dimension, line and
  rail (null where it serves several lines), the node behind each port (null: no circuit
  uses the port) and the list of [port_a, port_b].
* CSV: one row per circuit, ``ocs, name, dimension, line, rail, port_a, port_b, node_a,
  node_b``.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from railx.errors import UserError
from railx.io import write_text
from railx.settings import to_dict
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.topology import DIMENSIONS, Circuits, Topology

CIRCUITS_SCHEMA = "railx.circuits/1"
_COLUMNS = ("ocs", "name", "dimension", "line", "rail", "port_a", "port_b", "node_a", "node_b")


def circuits_of(topology: Topology) -> Circuits:
    """The circuits of a topology; ValueError where it has no optical switches."""
    if topology.circuits is None:
        raise UserError(
            f"{topology.family}: a topology without optical switches has no cross-connects"
        )
    return topology.circuits


def circuit_set(circuits: Circuits) -> IntArray:
    """The circuits without direction, sorted: rows (ocs, lower port, higher port)."""
    low, high = (
        np.minimum(circuits.port_a, circuits.port_b),
        np.maximum(circuits.port_a, circuits.port_b),
    )
    rows = np.stack([circuits.ocs, low, high], axis=1).astype(np.int64)
    return rows[np.lexsort(rows.T[::-1])]


def switch_names(circuits: Circuits) -> tuple[str, ...]:
    """The names of the switches: ``x3-rail7``, or ``x-rail7`` for several lines."""
    dimension, line, rail = switch_places(circuits)
    return tuple(
        f"{DIMENSIONS[d]}{'' if at < 0 else at}-rail{r}" if d >= 0 else f"unused{i}"
        for i, (d, at, r) in enumerate(
            zip(dimension.tolist(), line.tolist(), rail.tolist(), strict=True)
        )
    )


def switch_places(circuits: Circuits) -> tuple[IntArray, IntArray, IntArray]:
    """Dimension (-1: unused), line (-1: several) and rail of each switch."""
    count = int(circuits.ocs.max()) + 1 if len(circuits) else 0
    dimension, line, rail = (np.full(count, -1) for _ in range(3))
    dimension[circuits.ocs], line[circuits.ocs], rail[circuits.ocs] = (
        circuits.dimension,
        circuits.line,
        circuits.rail,
    )
    line[circuits.ocs[circuits.line != line[circuits.ocs]]] = -1
    return dimension, line, rail


def port_nodes(circuits: Circuits) -> IntArray:
    """The node behind each port (-1: unused): shape (switches, ports)."""
    ports = int(max(circuits.port_a.max(), circuits.port_b.max())) + 1
    nodes = np.full((int(circuits.ocs.max()) + 1, ports), -1)
    nodes[circuits.ocs, circuits.port_a] = circuits.node_a
    nodes[circuits.ocs, circuits.port_b] = circuits.node_b
    return nodes


def write_circuits(path: str | Path, topology: Topology) -> None:
    """Write the cross-connect list as JSON, one line per switch.

    ValueError where the topology has no optical switches.
    """
    circuits = circuits_of(topology)
    head = {
        "schema": CIRCUITS_SCHEMA,
        "family": topology.family,
        "settings": to_dict(topology.settings),
        "nodes": topology.nodes,
    }
    lines = [json.dumps(switch) for switch in _switch_entries(circuits)]
    text = json.dumps(head)[:-1] + ', "switches": [\n' + ",\n".join(lines) + "\n]}\n"
    write_text(path, text)


def write_circuits_csv(path: str | Path, topology: Topology) -> None:
    """Write the cross-connect list as CSV, one row per circuit.

    ValueError where the topology has no optical switches.
    """
    circuits = circuits_of(topology)
    names = np.array(switch_names(circuits))[circuits.ocs].tolist()
    dimensions = np.array(DIMENSIONS)[circuits.dimension].tolist()
    others = (
        circuits.line,
        circuits.rail,
        circuits.port_a,
        circuits.port_b,
        circuits.node_a,
        circuits.node_b,
    )
    columns = (circuits.ocs.tolist(), names, dimensions, *(column.tolist() for column in others))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(zip(*columns, strict=True))
    write_text(path, text.getvalue())


def _switch_entries(circuits: Circuits) -> list[dict[str, Any]]:
    dimension, line, rail = switch_places(circuits)
    names, nodes = switch_names(circuits), port_nodes(circuits)
    order = np.argsort(circuits.ocs, kind="stable")
    pairs = np.stack([circuits.port_a, circuits.port_b], axis=1)[order].tolist()
    lines = circuits.line[order].tolist()
    bounds = np.concatenate([[0], np.cumsum(np.bincount(circuits.ocs))]).tolist()
    entries = []
    for ocs, name in enumerate(names):
        rows = slice(bounds[ocs], bounds[ocs + 1])
        if rows.start == rows.stop:
            continue
        entry: dict[str, Any] = {"ocs": ocs, "name": name, "dimension": DIMENSIONS[dimension[ocs]]}
        entry["line"] = int(line[ocs]) if line[ocs] >= 0 else None
        entry["rail"] = int(rail[ocs])
        entry["port_nodes"] = [node if node >= 0 else None for node in nodes[ocs].tolist()]
        entry["circuits"] = pairs[rows]
        if entry["line"] is None:
            entry["lines"] = lines[rows]
        entries.append(entry)
    return entries
