"""Cross-connect lists of optical switches, and the steps from one setting of the
switches to another; both with their files.

A cross-connect joins two ports of one switch in both directions, so that (port_a,
port_b) and (port_b, port_a) are the same circuit. Files, both with every circuit of a
topology:

* JSON (schema ``railx.circuits/1``): per switch its number, name, dimension, line and
  rail (null where it serves several lines), the node behind each port (null: no circuit
  uses the port) and the list of [port_a, port_b].
* CSV: one row per circuit, ``ocs, name, dimension, line, rail, port_a, port_b, node_a,
  node_b``.

A reconfiguration plan lists for each switch that changes the circuits to disconnect and
then those to connect. Switches do not wait for each other. In a switch all disconnects
come before its connects, so that no port is ever in two circuits. Circuits of both
settings stay up. Its files are JSON with a line per switch
(``railx.reconfiguration/1``) and CSV with a row per step.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from railx.errors import UserError
from railx.io import write_text
from railx.settings import NotEmpty, SettingsError, to_dict
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
    ports = np.sort(np.stack([circuits.port_a, circuits.port_b], axis=1), axis=1)
    rows = np.column_stack([circuits.ocs, ports]).astype(np.int64)
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
    at = circuits.ocs
    dimension[at], line[at], rail[at] = circuits.dimension, circuits.line, circuits.rail
    line[at[circuits.line != line[at]]] = -1
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
    _write_switches(path, head, _switch_entries(circuits))


def _write_switches(path: str | Path, head: dict[str, Any], switches: list[dict[str, Any]]) -> None:
    """Write JSON with a line for each of the ``switches``."""
    lines = ",\n".join(json.dumps(switch) for switch in switches)
    write_text(path, json.dumps(head)[:-1] + ', "switches": [\n' + lines + "\n]}\n")


def _write_csv(path: str | Path, header: tuple[str, ...], *columns: Iterable[Any]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))
    write_text(path, text.getvalue())


def write_circuits_csv(path: str | Path, topology: Topology) -> None:
    """Write the cross-connect list as CSV, one row per circuit.

    ValueError where the topology has no optical switches.
    """
    circuits = circuits_of(topology)
    names = np.array(switch_names(circuits))[circuits.ocs].tolist()
    dimensions = np.array(DIMENSIONS)[circuits.dimension].tolist()
    others = (getattr(circuits, column).tolist() for column in _COLUMNS[3:])
    _write_csv(path, _COLUMNS, circuits.ocs.tolist(), names, dimensions, *others)


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
        entry: dict[str, Any] = {
            "ocs": ocs,
            "name": name,
            "dimension": DIMENSIONS[dimension[ocs]],
            "line": int(line[ocs]) if line[ocs] >= 0 else None,
            "rail": int(rail[ocs]),
            "port_nodes": [node if node >= 0 else None for node in nodes[ocs].tolist()],
            "circuits": pairs[rows],
        }
        entries.append(entry if line[ocs] >= 0 else entry | {"lines": lines[rows]})
    return entries


ACTIONS = ("disconnect", "connect")


@dataclass(frozen=True)
class TransitionSettings:
    """Two topologies of an experiment on the same hardware, before and after."""

    before: Annotated[str, NotEmpty()]
    """Name of the topology whose circuits are up at first."""
    after: Annotated[str, NotEmpty()]
    """Name of the topology whose circuits are up at the end."""

    def __post_init__(self) -> None:
        if self.before == self.after:
            raise SettingsError(
                "after", f"got {self.after!r}, as before; allowed: another topology"
            )


@dataclass(frozen=True, eq=False)
class ReconfigurationPlan:
    """Steps from one setting of the switches to another, in a safe order.

    The steps are sorted by switch, its disconnects first. ``ocs``, ``action`` (an index
    of :data:`ACTIONS`), ``port_a`` < ``port_b`` (int64) have one entry per step.
    ``before`` and ``after`` are the circuits of the two topologies, ``unchanged`` those
    that stay up, ``switches`` the number of switches, ``names`` their names.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    ocs: IntArray
    action: IntArray
    port_a: IntArray
    port_b: IntArray
    unchanged: int
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
        return len(set(zip(np.tile(self.ocs, 2).tolist(), port.tolist(), strict=True)))

    @property
    def most_steps_of_a_switch(self) -> int:
        """Steps of the busiest switch: the duration where all work at once."""
        return int(np.bincount(self.ocs).max()) if len(self) else 0


def reconfiguration_plan(before: Topology, after: Topology) -> ReconfigurationPlan:
    """The steps from the circuits of ``before`` to exactly those of ``after``.

    Raises ValueError for different hardware: other m, n, chips, nodes or optical
    switches, a switch of another line or rail, or a port cabled to another node.
    """
    old, new = circuits_of(before), circuits_of(after)
    check_same_hardware(before, after)
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
        unchanged=len(rows_old) - len(down),
        switches=len(names_old),
        names=tuple(
            a if not a.startswith("unused") else b
            for a, b in zip(names_old, names_new, strict=True)
        ),
    )


def apply_plan(circuits: Circuits, plan: ReconfigurationPlan) -> IntArray:
    """Apply the steps one by one to ``circuits``.

    Returns the final circuits as :func:`circuit_set` does. Raises ValueError at the
    first step that disconnects a missing circuit or connects a port in use.
    """
    start = circuit_set(circuits)
    steps = np.stack([plan.ocs, plan.port_a, plan.port_b], axis=1)
    span = max((int(rows[:, 1:].max()) + 1 for rows in (start, steps) if len(rows)), default=1)
    switches = max((int(rows[:, 0].max()) + 1 for rows in (start, steps) if len(rows)), default=0)
    joined = np.full(switches * span, -1)  # the port that each port is joined to
    for near, far in ((1, 2), (2, 1)):
        joined[start[:, 0] * span + start[:, near]] = start[:, far]
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


def check_end(plan: ReconfigurationPlan, before: Topology, after: Topology) -> None:
    """Take the steps one by one.

    ValueError where they are unsafe or do not end at the other setting.
    """
    end = apply_plan(circuits_of(before), plan)
    target = circuit_set(circuits_of(after))
    if end.shape != target.shape or not (end == target).all():
        raise UserError(
            f"{before.family} to {after.family}: the plan does not end at the circuits of the"
            " second setting"
        )


def check_same_hardware(before: Topology, after: Topology) -> None:
    """Refuse different nodes or cabling: ValueError names the difference."""
    old_settings, new_settings = to_dict(before.settings), to_dict(after.settings)
    for what, old_value, new_value in (
        ("m", old_settings.get("m"), new_settings.get("m")),
        ("n", old_settings.get("n"), new_settings.get("n")),
        ("chips", before.chips, after.chips),
        ("nodes", before.nodes, after.nodes),
        ("electrical switches", before.switches, after.switches),
    ):
        if old_value != new_value:
            raise UserError(
                f"{what}: {old_value} before and {new_value} after; allowed: two settings of the"
                " same hardware"
            )
    old, new = circuits_of(before), circuits_of(after)
    tables = [switch_places(circuits) for circuits in (old, new)]
    counts = [len(table[0]) for table in tables]
    if counts[0] != counts[1]:
        raise UserError(
            f"optical switches: {counts[0]} before and {counts[1]} after; allowed: the same"
            " switches, so the same numbers of rows and columns of nodes and the same cabling"
        )
    used = (tables[0][0] >= 0) & (tables[1][0] >= 0)
    for what, old_table, new_table in zip(("dimension", "line", "rail"), *tables, strict=True):
        wrong = np.flatnonzero(used & (old_table != new_table))
        if len(wrong):
            ocs = int(wrong[0])
            raise UserError(
                f"optical switch {ocs}: {what} {old_table[ocs]} before and {new_table[ocs]}"
                " after; allowed: the same cabling"
            )
    old_ports, new_ports = port_nodes(old), port_nodes(new)
    span = min(old_ports.shape[1], new_ports.shape[1])
    old_ports, new_ports = old_ports[:, :span], new_ports[:, :span]
    moved = np.argwhere((old_ports >= 0) & (new_ports >= 0) & (old_ports != new_ports))
    if len(moved):
        ocs, port = moved[0].tolist()
        raise UserError(
            f"port {port} of optical switch {ocs}: cabled to node {old_ports[ocs, port]} before and"
            f" {new_ports[ocs, port]} after; allowed: the same cabling"
        )


def _keys(*tables: IntArray) -> list[IntArray]:
    """A number for each row (ocs, port, port), with the same meaning in all tables."""
    span = max((int(table[:, 1:].max()) + 1 for table in tables if len(table)), default=1)
    return [(table[:, 0] * span + table[:, 1]) * span + table[:, 2] for table in tables]


RECONFIGURATION_SCHEMA = "railx.reconfiguration/1"


def write_reconfiguration(path: str | Path, plan: ReconfigurationPlan) -> None:
    """Write a plan as JSON, one line per switch that changes."""
    head = {
        "schema": RECONFIGURATION_SCHEMA,
        "before": plan.before,
        "after": plan.after,
        "kept": plan.unchanged,
        "disconnected": plan.disconnected,
        "connected": plan.connected,
        "optical_switches": plan.switches,
        "optical_switches_touched": plan.switches_touched,
        "ports_touched": plan.ports_touched,
    }
    switches = []
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
        switches.append(entry)
    _write_switches(path, head, switches)


def write_reconfiguration_csv(path: str | Path, plan: ReconfigurationPlan) -> None:
    """Write a plan as CSV, one row per step in the order to take them."""
    names = np.array(plan.names)[plan.ocs].tolist()
    actions = np.array(ACTIONS)[plan.action].tolist()
    ocs, port_a, port_b = (column.tolist() for column in (plan.ocs, plan.port_a, plan.port_b))
    header = ("step", "ocs", "name", "action", "port_a", "port_b")
    _write_csv(path, header, range(len(plan)), ocs, names, actions, port_a, port_b)
