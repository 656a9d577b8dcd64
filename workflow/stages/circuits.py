"""Stage circuits: topologies -> cross-connect lists of their optical switches, and
plans from one setting of them to another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.families import TopologySettings, build_topology, read_topology
from railx.io import write_table
from railx.settings import load
from railx.vocabulary.cross_connects import circuit_set, write_circuits, write_circuits_csv
from railx.vocabulary.reconfiguration import (
    ReconfigurationPlan,
    TransitionSettings,
    apply_plan,
    reconfiguration_plan,
)
from railx.vocabulary.reconfiguration_files import write_plan, write_plan_csv
from railx.vocabulary.topology import Topology

__all__ = ["run", "run_transition"]


def run(
    *,
    topology_path: str | Path | None = None,
    topology: TopologySettings | None = None,
    circuits_path: str | Path | None = None,
    csv_path: str | Path | None = None,
) -> dict[str, Any]:
    """Write the cross-connect list of a topology as JSON and CSV where paths are given;
    return how much there is to connect.

    The topology is that of a file, or the one that ``topology`` describes; ValueError
    where it has no optical switches.
    """
    if (topology_path is None) == (topology is None):
        raise TypeError("one of topology_path and topology is needed")
    graph = (
        read_topology(topology_path)
        if topology_path is not None
        else build_topology(load(TopologySettings, topology, "topology"))
    )
    circuits = graph.circuits
    if circuits is None:
        raise ValueError(
            f"{topology_path or 'topology'}: {graph.family} has no optical switches, so nothing to"
            " cross-connect"
        )
    if circuits_path is not None:
        write_circuits(circuits_path, graph)
    if csv_path is not None:
        write_circuits_csv(csv_path, graph)
    return {
        "family": graph.family,
        "optical_switches": int(circuits.ocs.max()) + 1,
        "circuits": len(circuits),
    }


def run_transition(
    name: str,
    transition: TransitionSettings | dict[str, str],
    *,
    before_path: str | Path,
    after_path: str | Path,
    plan_path: str | Path | None = None,
    csv_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Plan the change from one topology to another of the same hardware, and try the
    plan step by step before it is written.

    Writes the plan (JSON, CSV) and its one-row summary table where paths are given;
    returns that row. ValueError where the two are not settings of the same hardware.
    """
    settings: TransitionSettings = load(TransitionSettings, transition, "transition")
    before, after = read_topology(before_path), read_topology(after_path)
    plan = reconfiguration_plan(before, after)
    _try(plan, before, after)
    row: dict[str, Any] = {
        "transition": name,
        "before": settings.before,
        "after": settings.after,
        "before_family": before.family,
        "after_family": after.family,
        "chips": before.chips,
        "nodes": before.nodes,
        "optical_switches": plan.switches,
        "optical_switches_touched": plan.switches_touched,
        "circuits_kept": plan.kept,
        "circuits_disconnected": plan.disconnected,
        "circuits_connected": plan.connected,
        "kept_share": plan.kept / (plan.kept + plan.disconnected),
        "ports_touched": plan.ports_touched,
        "most_steps_of_a_switch": plan.most_steps_of_a_switch,
        "fidelity": "analytic",
    }
    if plan_path is not None:
        write_plan(plan_path, plan)
    if csv_path is not None:
        write_plan_csv(csv_path, plan)
    if summary_path is not None:
        write_table(summary_path, [row])
    return row


def _try(plan: ReconfigurationPlan, before: Topology, after: Topology) -> None:
    """Take the steps one by one; ValueError where they are unsafe or do not end at the
    other setting.
    """
    if before.circuits is None or after.circuits is None:
        raise ValueError("a topology without optical switches has no cross-connects")
    end = apply_plan(before.circuits, plan)
    wanted = circuit_set(after.circuits)
    if end.shape != wanted.shape or not (end == wanted).all():
        raise ValueError(
            f"{before.family} to {after.family}: the plan does not end at the circuits of the"
            " second setting"
        )
