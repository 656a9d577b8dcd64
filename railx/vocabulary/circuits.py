"""Cross-connect lists of optical switches, and plans that take the switches from one
setting to another.

A cross-connect joins two ports of one switch in both directions, so that (port_a,
port_b) and (port_b, port_a) are the same circuit. Files, both with every circuit of a
topology:

* JSON (schema ``railx.circuits/1``): per switch its number, name, dimension, line and
  rail (null where it serves several lines), the node behind each port (null: no circuit
  uses the port) and the list of [port_a, port_b].
* CSV: one row a circuit, ``ocs, name, dimension, line, rail, port_a, port_b, node_a,
  node_b``.

A plan (JSON schema ``railx.reconfiguration/1``) lists for each switch that changes what
to disconnect and then what to connect. Switches do not wait for each other; inside one
switch all its disconnects come before its connects, so that no port is in two circuits
at any time. Circuits that both settings have stay up.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from railx.io import read_json, write_text
from railx.settings import NotEmpty, SettingsError, to_dict
from railx.vocabulary.topology import DIMENSIONS, Circuits, Topology

__all__ = [
    "ACTIONS",
    "CIRCUITS_SCHEMA",
    "PLAN_SCHEMA",
    "ReconfigurationPlan",
    "TransitionSettings",
    "apply_plan",
    "circuit_set",
    "read_circuits",
    "read_circuits_csv",
    "read_plan",
    "reconfiguration_plan",
    "switch_names",
    "write_circuits",
    "write_circuits_csv",
    "write_plan",
    "write_plan_csv",
]

IntArray = NDArray[np.int64]

CIRCUITS_SCHEMA = "railx.circuits/1"
PLAN_SCHEMA = "railx.reconfiguration/1"
ACTIONS = ("disconnect", "connect")
_COLUMNS = ("ocs", "name", "dimension", "line", "rail", "port_a", "port_b", "node_a", "node_b")


@dataclass(frozen=True)
class TransitionSettings:
    """Names of two topologies of an experiment, settings of the same hardware, to plan
    the change from one to the other.
    """

    before: Annotated[str, NotEmpty()]
    after: Annotated[str, NotEmpty()]

    def __post_init__(self) -> None:
        if self.before == self.after:
            raise SettingsError(
                "after", f"got {self.after!r}, as before; allowed: another topology"
            )


@dataclass(frozen=True, eq=False)
class ReconfigurationPlan:
    """Steps from one setting of the switches to another, in a safe order: by switch,
    its disconnects before its connects.

    ``ocs``, ``action`` (an index of :data:`ACTIONS`), ``port_a`` < ``port_b`` (int64)
    have one entry a step. ``before`` and ``after`` are the settings of the two
    topologies, ``kept`` the circuits that stay up, ``switches`` all switches, ``names``
    their names.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    ocs: IntArray
    action: IntArray
    port_a: IntArray
    port_b: IntArray
    kept: int
    switches: int
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ocs)

    @property
    def disconnected(self) -> int:
        """Circuits that are taken down."""
        return int((self.action == 0).sum())

    @property
    def connected(self) -> int:
        """Circuits that are set up."""
        return int((self.action == 1).sum())

    @property
    def switches_touched(self) -> int:
        """Switches with at least one step."""
        return len(np.unique(self.ocs))

    @property
    def ports_touched(self) -> int:
        """Ports of switches in at least one step."""
        port = np.concatenate([self.port_a, self.port_b])
        return (
            len(np.unique(np.tile(self.ocs, 2) * (int(port.max()) + 1) + port)) if len(self) else 0
        )

    @property
    def most_steps_of_a_switch(self) -> int:
        """Steps of the switch that changes most: how long the change takes where
        switches work at once, one step after another.
        """
        return int(np.bincount(self.ocs).max()) if len(self) else 0


def circuit_set(circuits: Circuits) -> IntArray:
    """The circuits without their direction: rows (ocs, lower port, higher port),
    sorted; shape (circuits, 3).
    """
    low, high = (
        np.minimum(circuits.port_a, circuits.port_b),
        np.maximum(circuits.port_a, circuits.port_b),
    )
    return _sorted_rows(np.stack([circuits.ocs, low, high], axis=1).astype(np.int64))


def switch_names(circuits: Circuits) -> tuple[str, ...]:
    """The name of each switch: dimension and line, then the rail, as in ``x3-rail7``;
    ``x-rail7`` where it serves several lines.
    """
    dimension, line, rail = _switches(circuits)
    return tuple(
        f"{DIMENSIONS[d]}{'' if at < 0 else at}-rail{r}" if d >= 0 else f"unused{i}"
        for i, (d, at, r) in enumerate(
            zip(dimension.tolist(), line.tolist(), rail.tolist(), strict=True)
        )
    )


def write_circuits(path: str | Path, topology: Topology) -> None:
    """Write the cross-connect list as JSON, one line a switch; ValueError where the
    topology has no optical switches.
    """
    circuits = _circuits(topology)
    head = {
        "schema": CIRCUITS_SCHEMA,
        "family": topology.family,
        "settings": to_dict(topology.settings),
        "nodes": topology.nodes,
    }
    lines = [json.dumps(switch) for switch in _switch_entries(circuits)]
    text = json.dumps(head)[:-1] + ', "switches": [\n' + ",\n".join(lines) + "\n]}\n"
    write_text(path, text)


def read_circuits(path: str | Path) -> Circuits:
    """Read what :func:`write_circuits` wrote; ValueError names the file and the first
    thing that is wrong in it.
    """
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("schema") != CIRCUITS_SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise ValueError(
            f"{path}: schema {found!r}; allowed: {CIRCUITS_SCHEMA}, a cross-connect list"
        )
    rows: list[tuple[int, ...]] = []
    for switch in stored["switches"]:
        nodes, dimension = switch["port_nodes"], DIMENSIONS.index(switch["dimension"])
        for k, (a, b) in enumerate(switch["circuits"]):
            if not (0 <= a < len(nodes) and 0 <= b < len(nodes)) or None in (nodes[a], nodes[b]):
                raise ValueError(
                    f"{path}: {switch['name']} joins ports {a} and {b}; allowed: ports with a node"
                    " in port_nodes"
                )
            line = switch["line"] if switch["line"] is not None else switch["lines"][k]
            rows.append((switch["ocs"], a, b, switch["rail"], dimension, line, nodes[a], nodes[b]))
    return _checked(_from_rows(rows), path)


def write_circuits_csv(path: str | Path, topology: Topology) -> None:
    """Write the cross-connect list as CSV, one row a circuit; ValueError where the
    topology has no optical switches.
    """
    circuits = _circuits(topology)
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
    _write_csv(
        path,
        _COLUMNS,
        zip(
            circuits.ocs.tolist(),
            names,
            dimensions,
            *(column.tolist() for column in others),
            strict=True,
        ),
    )


def read_circuits_csv(path: str | Path) -> Circuits:
    """Read what :func:`write_circuits_csv` wrote; ValueError names the file and the
    first thing that is wrong in it.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ())) != _COLUMNS:
            raise ValueError(
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


def reconfiguration_plan(before: Topology, after: Topology) -> ReconfigurationPlan:
    """The steps that take the optical switches from the circuits of ``before`` to
    exactly those of ``after``.

    Raises ValueError where the two are not settings of the same hardware: other m, n,
    chips, nodes or optical switches, a switch of another line or rail, or a port cabled
    to another node.
    """
    old, new = _circuits(before), _circuits(after)
    _check_same_hardware(before, after)
    rows_old, rows_new = circuit_set(old), circuit_set(new)
    key_old, key_new = _keys(rows_old, rows_new)
    down, up = rows_old[~np.isin(key_old, key_new)], rows_new[~np.isin(key_new, key_old)]
    rows = np.concatenate([down, up])
    action = np.repeat(np.array([0, 1]), [len(down), len(up)])
    order = np.lexsort((rows[:, 2], rows[:, 1], action, rows[:, 0]))
    names_old, names_new = switch_names(old), switch_names(new)
    return ReconfigurationPlan(
        before=to_dict(before.settings),
        after=to_dict(after.settings),
        ocs=rows[order, 0],
        action=action[order],
        port_a=rows[order, 1],
        port_b=rows[order, 2],
        kept=len(rows_old) - len(down),
        switches=len(names_old),
        names=tuple(
            a if not a.startswith("unused") else b
            for a, b in zip(names_old, names_new, strict=True)
        ),
    )


def apply_plan(circuits: Circuits, plan: ReconfigurationPlan) -> IntArray:
    """Take the steps one by one from ``circuits``; the circuits at the end as
    :func:`circuit_set` gives them.

    Raises ValueError at the first step that disconnects a circuit that is not there or
    connects a port that is in use.
    """
    start = circuit_set(circuits)
    steps = np.stack([plan.ocs, plan.port_a, plan.port_b], axis=1)
    span = max((int(rows[:, 1:].max()) + 1 for rows in (start, steps) if len(rows)), default=1)
    switches = max((int(rows[:, 0].max()) + 1 for rows in (start, steps) if len(rows)), default=0)
    joined = np.full(switches * span, -1)  # the port that each port is joined to
    joined[start[:, 0] * span + start[:, 1]], joined[start[:, 0] * span + start[:, 2]] = (
        start[:, 2],
        start[:, 1],
    )
    other: list[int] = joined.tolist()
    for step, (action, (ocs, a, b)) in enumerate(
        zip(plan.action.tolist(), steps.tolist(), strict=True)
    ):
        at_a, at_b = ocs * span + a, ocs * span + b
        if action == 0:
            if other[at_a] != b:
                raise ValueError(
                    f"plan: step {step} disconnects ports {a} and {b} of optical switch {ocs},"
                    " which are not joined"
                )
            other[at_a] = other[at_b] = -1
        elif other[at_a] >= 0 or other[at_b] >= 0 or a == b:
            raise ValueError(
                f"plan: step {step} connects ports {a} and {b} of optical switch {ocs}, of which"
                " one is in use"
            )
        else:
            other[at_a], other[at_b] = b, a
    end = np.array(other, dtype=np.int64).reshape(-1, span)
    ocs_of, port = np.nonzero(end > np.arange(span))
    return np.stack([ocs_of, port, end[ocs_of, port]], axis=1)


def write_plan(path: str | Path, plan: ReconfigurationPlan) -> None:
    """Write a plan as JSON, one line a switch that changes."""
    head = {
        "schema": PLAN_SCHEMA,
        "before": plan.before,
        "after": plan.after,
        "kept": plan.kept,
        "disconnected": plan.disconnected,
        "connected": plan.connected,
        "optical_switches": plan.switches,
        "optical_switches_touched": plan.switches_touched,
        "ports_touched": plan.ports_touched,
    }
    lines = []
    pairs = np.stack([plan.port_a, plan.port_b], axis=1)
    bounds = np.flatnonzero(np.diff(plan.ocs, prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        down = first + int((plan.action[first:last] == 0).sum())
        ocs = int(plan.ocs[first])
        entry = {
            "ocs": ocs,
            "name": plan.names[ocs],
            "disconnect": pairs[first:down].tolist(),
            "connect": pairs[down:last].tolist(),
        }
        lines.append(json.dumps(entry))
    write_text(path, json.dumps(head)[:-1] + ', "switches": [\n' + ",\n".join(lines) + "\n]}\n")


def read_plan(path: str | Path) -> ReconfigurationPlan:
    """Read what :func:`write_plan` wrote (names of switches without a step are lost);
    ValueError where it is not a plan.
    """
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("schema") != PLAN_SCHEMA:
        found = stored.get("schema") if isinstance(stored, dict) else type(stored).__name__
        raise ValueError(
            f"{path}: schema {found!r}; allowed: {PLAN_SCHEMA}, a reconfiguration plan"
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


def write_plan_csv(path: str | Path, plan: ReconfigurationPlan) -> None:
    """Write a plan as CSV, one row a step in the order to take them."""
    names = np.array(plan.names)[plan.ocs].tolist()
    actions = np.array(ACTIONS)[plan.action].tolist()
    steps = range(len(plan))
    columns = (steps, plan.ocs.tolist(), names, actions, plan.port_a.tolist(), plan.port_b.tolist())
    _write_csv(
        path, ("step", "ocs", "name", "action", "port_a", "port_b"), zip(*columns, strict=True)
    )


def _circuits(topology: Topology) -> Circuits:
    if topology.circuits is None:
        raise ValueError(
            f"{topology.family}: a topology without optical switches has no cross-connects"
        )
    return topology.circuits


def _switches(circuits: Circuits) -> tuple[IntArray, IntArray, IntArray]:
    """Dimension, line (-1: several) and rail of each switch; dimension -1 where no
    circuit uses it.
    """
    count = int(circuits.ocs.max()) + 1 if len(circuits) else 0
    dimension, line, rail = (np.full(count, -1) for _ in range(3))
    dimension[circuits.ocs], line[circuits.ocs], rail[circuits.ocs] = (
        circuits.dimension,
        circuits.line,
        circuits.rail,
    )
    line[circuits.ocs[circuits.line != line[circuits.ocs]]] = -1
    return dimension, line, rail


def _port_nodes(circuits: Circuits) -> IntArray:
    """The node behind each port of each switch: shape (switches, ports), -1 where no
    circuit uses the port.
    """
    ports = int(max(circuits.port_a.max(), circuits.port_b.max())) + 1
    nodes = np.full((int(circuits.ocs.max()) + 1, ports), -1)
    nodes[circuits.ocs, circuits.port_a] = circuits.node_a
    nodes[circuits.ocs, circuits.port_b] = circuits.node_b
    return nodes


def _switch_entries(circuits: Circuits) -> list[dict[str, Any]]:
    dimension, line, rail = _switches(circuits)
    names, nodes = switch_names(circuits), _port_nodes(circuits)
    order = np.argsort(circuits.ocs, kind="stable")
    pairs = np.stack([circuits.port_a, circuits.port_b], axis=1)[order].tolist()
    lines = circuits.line[order].tolist()
    bounds = np.concatenate([[0], np.cumsum(np.bincount(circuits.ocs))]).tolist()
    entries = []
    for ocs, name in enumerate(names):
        own = slice(bounds[ocs], bounds[ocs + 1])
        if own.start == own.stop:
            continue
        entry: dict[str, Any] = {"ocs": ocs, "name": name, "dimension": DIMENSIONS[dimension[ocs]]}
        entry["line"] = int(line[ocs]) if line[ocs] >= 0 else None
        entry["rail"] = int(rail[ocs])
        entry["port_nodes"] = [node if node >= 0 else None for node in nodes[ocs].tolist()]
        entry["circuits"] = pairs[own]
        if entry["line"] is None:
            entry["lines"] = lines[own]
        entries.append(entry)
    return entries


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
    """The circuits, where no port is in two of them."""
    ocs = np.tile(circuits.ocs, 2).astype(np.int64)
    port = np.concatenate([circuits.port_a, circuits.port_b]).astype(np.int64)
    span = int(port.max(initial=0)) + 1
    ports, uses = np.unique(ocs * span + port, return_counts=True)
    if len(uses) and uses.max() > 1:
        switch, twice = divmod(int(ports[uses.argmax()]), span)
        raise ValueError(
            f"{path}: port {twice} of optical switch {switch} is in {int(uses.max())} circuits;"
            " allowed: at most 1"
        )
    return circuits


def _check_same_hardware(before: Topology, after: Topology) -> None:
    """Refuse two topologies whose nodes or cabling differ."""
    old_settings, new_settings = to_dict(before.settings), to_dict(after.settings)
    for what, one, other in (
        ("m", old_settings.get("m"), new_settings.get("m")),
        ("n", old_settings.get("n"), new_settings.get("n")),
        ("chips", before.chips, after.chips),
        ("nodes", before.nodes, after.nodes),
        ("electrical switches", before.switches, after.switches),
    ):
        if one != other:
            raise ValueError(
                f"{what}: {one} before and {other} after; allowed: two settings of the same"
                " hardware"
            )
    old, new = _circuits(before), _circuits(after)
    tables = [_switches(circuits) for circuits in (old, new)]
    counts = [len(table[0]) for table in tables]
    if counts[0] != counts[1]:
        raise ValueError(
            f"optical switches: {counts[0]} before and {counts[1]} after; allowed: the same"
            " switches, so the same numbers of rows and columns of nodes and the same cabling"
        )
    used = (tables[0][0] >= 0) & (tables[1][0] >= 0)
    for what, one_table, other_table in zip(("dimension", "line", "rail"), *tables, strict=True):
        wrong = np.flatnonzero(used & (one_table != other_table))
        if len(wrong):
            ocs = int(wrong[0])
            raise ValueError(
                f"optical switch {ocs}: {what} {one_table[ocs]} before and {other_table[ocs]}"
                " after; allowed: the same cabling"
            )
    one_ports, other_ports = _port_nodes(old), _port_nodes(new)
    span = min(one_ports.shape[1], other_ports.shape[1])
    one_ports, other_ports = one_ports[:, :span], other_ports[:, :span]
    moved = np.argwhere((one_ports >= 0) & (other_ports >= 0) & (one_ports != other_ports))
    if len(moved):
        ocs, port = moved[0].tolist()
        raise ValueError(
            f"port {port} of optical switch {ocs}: cabled to node {one_ports[ocs, port]} before and"
            f" {other_ports[ocs, port]} after; allowed: the same cabling"
        )


def _keys(*tables: IntArray) -> list[IntArray]:
    """One number for each row of tables (ocs, port, port) with the same meaning in all
    of them.
    """
    span = max((int(table[:, 1:].max()) + 1 for table in tables if len(table)), default=1)
    return [(table[:, 0] * span + table[:, 1]) * span + table[:, 2] for table in tables]


def _sorted_rows(rows: IntArray) -> IntArray:
    return rows[np.lexsort(rows.T[::-1])]


def _write_csv(path: str | Path, columns: tuple[str, ...], rows: Any) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())
