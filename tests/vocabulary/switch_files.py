"""Files of cross-connects and of reconfiguration plans, read back with all checks."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from railx.errors import UserError
from railx.io import read_json
from railx.vocabulary.cross_connects import (
    ACTIONS,
    CIRCUITS_SCHEMA,
    RECONFIGURATION_SCHEMA,
    ReconfigurationPlan,
)
from railx.vocabulary.topology import DIMENSIONS, Circuits

_COLUMNS = ("ocs", "name", "dimension", "line", "rail", "port_a", "port_b", "node_a", "node_b")


def read_circuits(path: str | Path) -> Circuits:
    """Read a file of :func:`write_circuits`; ValueError names the file and the first
    fault.
    """
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("schema") != CIRCUITS_SCHEMA:
        schema = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise UserError(
            f"{path}: schema {schema!r}; allowed: {CIRCUITS_SCHEMA}, a cross-connect list"
        )
    rows: list[tuple[int, ...]] = []
    for switch in stored["switches"]:
        nodes, dimension = switch["port_nodes"], DIMENSIONS.index(switch["dimension"])
        for k, (a, b) in enumerate(switch["circuits"]):
            if not (0 <= a < len(nodes) and 0 <= b < len(nodes)) or None in (nodes[a], nodes[b]):
                raise UserError(
                    f"{path}: {switch['name']} joins ports {a} and {b}; allowed: ports with a node"
                    " in port_nodes"
                )
            line = switch["line"] if switch["line"] is not None else switch["lines"][k]
            rows.append((switch["ocs"], a, b, switch["rail"], dimension, line, nodes[a], nodes[b]))
    return _checked(_from_rows(rows), path)


def read_circuits_csv(path: str | Path) -> Circuits:
    """Read a file of :func:`write_circuits_csv`; ValueError names the file and first
    fault.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ())) != _COLUMNS:
            raise UserError(
                f"{path}: not a cross-connect list; allowed: a first line {','.join(_COLUMNS)}"
            )
        rows = [
            (
                int(ocs),
                int(a),
                int(b),
                int(rail),
                DIMENSIONS.index(dimension),
                int(line),
                int(node_a),
                int(node_b),
            )
            for ocs, _, dimension, line, rail, a, b, node_a, node_b in reader
        ]
    return _checked(_from_rows(rows), path)


def read_reconfiguration(path: str | Path) -> ReconfigurationPlan:
    """Read a file of :func:`write_reconfiguration`; names of unchanged switches are
    lost.

    Raises ValueError where the file is not a plan.
    """
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("schema") != RECONFIGURATION_SCHEMA:
        schema = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise UserError(
            f"{path}: schema {schema!r}; allowed: {RECONFIGURATION_SCHEMA}, a reconfiguration plan"
        )
    names = [f"unused{i}" for i in range(stored["optical_switches"])]
    rows = []
    for switch in stored["switches"]:
        names[switch["ocs"]] = switch["name"]
        for code, key in enumerate(ACTIONS):
            rows += [(switch["ocs"], code, a, b) for a, b in switch[key]]
    ocs, action, port_a, port_b = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return ReconfigurationPlan(
        stored["before"],
        stored["after"],
        ocs,
        action,
        port_a,
        port_b,
        stored["kept"],
        stored["optical_switches"],
        tuple(names),
    )


def _from_rows(rows: Sequence[tuple[int, ...]]) -> Circuits:
    ocs, a, b, rail, dimension, line, node_a, node_b = (
        np.array(rows, dtype=np.int64).reshape(-1, 8).T
    )
    i = np.int32
    return Circuits(
        ocs.astype(i),
        a.astype(i),
        b.astype(i),
        rail.astype(i),
        dimension.astype(np.int8),
        line.astype(i),
        node_a.astype(i),
        node_b.astype(i),
    )


def _checked(circuits: Circuits, path: str | Path) -> Circuits:
    """The circuits; ValueError where two share a port."""
    ocs = np.tile(circuits.ocs, 2).astype(np.int64)
    port = np.concatenate([circuits.port_a, circuits.port_b]).astype(np.int64)
    span = int(port.max(initial=0)) + 1
    ports, uses = np.unique(ocs * span + port, return_counts=True)
    if len(uses) and uses.max() > 1:
        switch, twice = divmod(int(ports[uses.argmax()]), span)
        raise UserError(
            f"{path}: port {twice} of optical switch {switch} is in {int(uses.max())} circuits;"
            " allowed: at most 1"
        )
    return circuits
