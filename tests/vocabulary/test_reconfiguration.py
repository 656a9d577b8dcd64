"""Cross-connect lists: read back as they were, and refused where they are bad.
Reconfiguration plans: safe in every step, exact at the end.
"""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import write_topology
from railx.io import read_rows
from railx.settings import SettingsError, load
from railx.vocabulary.cross_connects import (
    TransitionSettings,
    apply_plan,
    circuit_set,
    reconfiguration_plan,
    write_circuits,
    write_circuits_csv,
    write_reconfiguration,
    write_reconfiguration_csv,
)
from railx.vocabulary.topology import Circuits, Topology
from tests.builders import build, checked, choice
from tests.vocabulary.switch_files import read_circuits, read_circuits_csv, read_reconfiguration
from workflow.config import choices
from workflow.stages import circuits, transition

OPTICAL = [
    "railx_hyperx",
    "railx_torus",
    "railx_twisted_torus",
    "railx_split_3d",
    "railx_dragonfly",
    "railx_mixed",
    "tpu_v4",
]


def circuits_of(topology: Topology) -> Circuits:
    assert topology.circuits is not None
    return topology.circuits


@pytest.mark.parametrize("name", OPTICAL)
def test_lists_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    topology = build(name)
    write_circuits(tmp_path / "list.json", topology)
    write_circuits_csv(tmp_path / "list.csv", topology)
    for back in (read_circuits(tmp_path / "list.json"), read_circuits_csv(tmp_path / "list.csv")):
        rows, wanted = (
            sorted(
                zip(
                    *(getattr(circuits, name).tolist() for name in Circuits.__dataclass_fields__),
                    strict=True,
                )
            )
            for circuits in (back, circuits_of(topology))
        )
        assert rows == wanted
        assert back.dimension.dtype == np.int8


def test_a_list_says_which_node_is_behind_a_port(tmp_path: Path) -> None:
    topology = build("railx_hyperx")
    write_circuits(tmp_path / "list.json", topology)
    stored = json.loads((tmp_path / "list.json").read_text())
    assert (stored["schema"], stored["family"], len(stored["switches"])) == (
        "railx.circuits/1",
        "railx_hyperx",
        40,
    )
    first = stored["switches"][0]
    assert (first["name"], first["port_nodes"]) == ("x0-rail0", [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    # Rail 0 is the cycle 0 1 3 2 4: plus side (port 2p) of each to minus side (2p + 1)
    # of the next.
    assert first["circuits"] == [[0, 3], [2, 7], [6, 5], [4, 9], [8, 1]]
    write_circuits_csv(tmp_path / "list.csv", topology)
    with (tmp_path / "list.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200
    assert rows[0] | {"name": ""} == {
        "ocs": "0",
        "name": "",
        "dimension": "x",
        "line": "0",
        "rail": "0",
        "port_a": "0",
        "port_b": "3",
        "node_a": "0",
        "node_b": "1",
    }


def test_bad_lists_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    write_circuits(path, build("railx_torus"))
    stored = json.loads(path.read_text())
    for damage, message in (
        ({"schema": "railx.circuits/0"}, "schema 'railx.circuits/0'; allowed: railx.circuits/1"),
        (
            {"switches": [stored["switches"][0] | {"circuits": [[0, 99]]}]},
            "x0-rail0 joins ports 0 and 99",
        ),
        (
            {"switches": [stored["switches"][0] | {"circuits": [[0, 3], [3, 4]]}]},
            "port 3 of optical switch 0 is in 2 circuits",
        ),
    ):
        path.write_text(json.dumps(stored | damage))
        with pytest.raises(ValueError, match=message):
            read_circuits(path)
    (tmp_path / "list.csv").write_text("ocs,port\n0,1\n")
    with pytest.raises(ValueError, match=r"list\.csv: not a cross-connect list"):
        read_circuits_csv(tmp_path / "list.csv")
    with pytest.raises(ValueError, match="fat_tree: a topology without optical switches"):
        write_circuits(path, build("fat_tree"))


def test_a_circuit_has_no_direction() -> None:
    topology = build("railx_torus")
    circuits = circuits_of(topology)
    turned = dataclasses.replace(
        circuits,
        port_a=circuits.port_b,
        port_b=circuits.port_a,
        node_a=circuits.node_b,
        node_b=circuits.node_a,
    )
    plan = reconfiguration_plan(topology, dataclasses.replace(topology, circuits=turned))
    assert (len(plan), plan.unchanged, plan.ports_touched, plan.most_steps_of_a_switch) == (
        0,
        200,
        0,
        0,
    )


RING = [{"kind": "ring", "rails": 4, "size": 5, "stride": 1}]
ALL = [{"kind": "all_to_all", "rails": 4, "size": 5, "stride": 1}]
#: Settings of the same hardware: 5 x 5 nodes of 2 x 2 chips, 4 rails per side.
SAME: list[tuple[str, dict[str, Any]]] = [
    ("railx_hyperx", {}),
    ("railx_hyperx", {"rings": "undirected"}),
    ("railx_torus", {}),
    ("railx_dragonfly", {"rows": 5}),
    ("railx_mixed", {"x_scale": 5, "y_scale": 5, "parts_x": RING, "parts_y": ALL}),
    ("railx_split", {"sizes_x": [5], "split_x": [4], "sizes_y": [5], "split_y": [4]}),
]


@pytest.mark.parametrize("before", range(len(SAME)))
@pytest.mark.parametrize("after", range(len(SAME)))
def test_a_plan_ends_at_exactly_the_other_setting(before: int, after: int, tmp_path: Path) -> None:
    one, other = (build(SAME[i][0], **SAME[i][1]) for i in (before, after))
    plan = reconfiguration_plan(one, other)
    assert np.array_equal(apply_plan(circuits_of(one), plan), circuit_set(circuits_of(other)))
    held, wanted = (
        {tuple(row) for row in circuit_set(circuits_of(t)).tolist()} for t in (one, other)
    )
    assert (plan.unchanged, plan.disconnected, plan.connected) == (
        len(held & wanted),
        len(held - wanted),
        len(wanted - held),
    )
    back = reconfiguration_plan(other, one)
    assert (back.unchanged, back.disconnected, back.connected) == (
        plan.unchanged,
        plan.connected,
        plan.disconnected,
    )
    write_reconfiguration(tmp_path / "plan.json", plan)
    again = read_reconfiguration(tmp_path / "plan.json")
    for field in dataclasses.fields(plan):
        if field.name != "names":
            assert np.array_equal(getattr(again, field.name), getattr(plan, field.name)), field.name
    write_reconfiguration_csv(tmp_path / "plan.csv", plan)
    with (tmp_path / "plan.csv").open() as file:
        steps = [
            (int(s["ocs"]), s["action"], int(s["port_a"]), int(s["port_b"]))
            for s in csv.DictReader(file)
        ]
    names = np.array(["disconnect", "connect"])[plan.action]
    assert steps == list(
        zip(
            plan.ocs.tolist(),
            names.tolist(),
            plan.port_a.tolist(),
            plan.port_b.tolist(),
            strict=True,
        )
    )


@settings(deadline=None, max_examples=60)
@given(data=st.data(), switches=st.integers(1, 4), ports=st.integers(2, 12))
def test_plans_between_random_matchings_are_safe_and_exact(
    data: st.DataObject, switches: int, ports: int
) -> None:
    """Any two matchings: each step is checked against the ports in use, and circuits of
    both settings are never touched.
    """
    one, other = (_random(data, switches, ports) for _ in range(2))
    plan = reconfiguration_plan(one, other)
    up = {tuple(row) for row in circuit_set(circuits_of(one)).tolist()}
    both = up & {tuple(row) for row in circuit_set(circuits_of(other)).tolist()}
    in_use = {(ocs, port) for ocs, *pair in up for port in pair}
    for ocs, action, *pair in zip(
        plan.ocs.tolist(),
        plan.action.tolist(),
        plan.port_a.tolist(),
        plan.port_b.tolist(),
        strict=True,
    ):
        assert (ocs, *pair) not in both
        ends = {(ocs, port) for port in pair}
        if action == 0:
            up.remove((ocs, *pair))
            in_use -= ends
        else:
            assert not ends & in_use
            up.add((ocs, *pair))
            in_use |= ends
    assert up == {tuple(row) for row in circuit_set(circuits_of(other)).tolist()}
    assert np.array_equal(apply_plan(circuits_of(one), plan), circuit_set(circuits_of(other)))
    touched = {
        (ocs, p)
        for ocs, a, b in zip(
            plan.ocs.tolist(), plan.port_a.tolist(), plan.port_b.tolist(), strict=True
        )
        for p in (a, b)
    }
    assert plan.ports_touched == len(touched)
    assert plan.switches_touched == len({ocs for ocs, _ in touched})


def test_unsafe_plans_are_noticed() -> None:
    one, other = build("railx_torus"), build("railx_hyperx")
    plan = reconfiguration_plan(one, other)
    with pytest.raises(ValueError, match=r"step 0 disconnects ports .* which are not joined"):
        apply_plan(circuits_of(other), plan)
    turned = dataclasses.replace(
        plan,
        ocs=plan.ocs[::-1],
        action=plan.action[::-1],
        port_a=plan.port_a[::-1],
        port_b=plan.port_b[::-1],
    )
    with pytest.raises(ValueError, match=r"step 0 connects ports .* of which one is in use"):
        apply_plan(circuits_of(one), turned)


@pytest.mark.parametrize(
    ("before", "after", "changes", "message"),
    [
        (
            "railx_hyperx",
            "railx_torus",
            {"m": 1, "n": 4},
            "m: 2 before and 1 after; allowed: two settings of the same hardware",
        ),
        ("railx_hyperx", "railx_torus", {"n": 3}, "n: 2 before and 3 after"),
        ("railx_hyperx", "railx_torus", {"x_scale": 4}, "chips: 100 before and 80 after"),
        (
            "railx_torus",
            "railx_torus",
            {"x_scale": 25, "y_scale": 1},
            "optical switches: 40 before and",
        ),
        (
            "railx_twisted_torus",
            "railx_torus",
            {"x_scale": 8, "y_scale": 4},
            "optical switches: 32 before and 48 after",
        ),
        ("railx_hyperx", "fat_tree", {}, "fat_tree: a topology without optical switches"),
    ],
)
def test_other_hardware_is_refused(
    before: str, after: str, changes: dict[str, Any], message: str
) -> None:
    if changes.get("y_scale") == 1:
        changes, one = {"x_scale": 10, "y_scale": 2}, build(before, x_scale=5, y_scale=4)
        message = "optical switches: 36 before and 48 after"
    else:
        one = build(before)
    with pytest.raises(ValueError, match=message):
        reconfiguration_plan(one, build(after, **changes))


def test_other_cabling_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"optical switch 16: dimension 1 before and 0 after|cabled to node \d+ before",
    ):
        reconfiguration_plan(
            build("railx_torus", x_scale=5, y_scale=4), build("railx_torus", x_scale=4, y_scale=5)
        )


def test_only_the_wraps_change_from_a_torus_to_its_twist() -> None:
    plan = reconfiguration_plan(build("railx_straight_torus"), build("railx_twisted_torus"))
    columns, rails = 8, 4
    assert (plan.disconnected, plan.connected, plan.switches_touched) == (
        columns * rails,
        columns * rails,
        columns // 2 * rails,
    )


def test_stage_writes_lists_plans_and_one_row(tmp_path: Path) -> None:
    for name in ("railx_hyperx", "railx_torus"):
        write_topology(tmp_path / f"{name}.parquet", build(name))
    summary = circuits.STAGE.make(
        inputs={"topology": tmp_path / "railx_hyperx.parquet"},
        outputs={"circuits": tmp_path / "list.json", "csv": tmp_path / "list.csv"},
    )
    assert summary == {"family": "railx_hyperx", "optical_switches": 40, "circuits": 200}
    row = transition.STAGE.make(
        choice("transition", "hyperx_to_torus"),
        item="hyperx_to_torus",
        inputs={
            "before": tmp_path / "railx_hyperx.parquet",
            "after": tmp_path / "railx_torus.parquet",
        },
        outputs={
            "plan": tmp_path / "plan.json",
            "csv": tmp_path / "plan.csv",
            "summary": tmp_path / "plan.parquet",
        },
    )
    assert read_rows(tmp_path / "plan.parquet") == [row]
    assert (row["circuits_kept"], row["circuits_disconnected"], row["circuits_connected"]) == (
        50,
        150,
        150,
    )
    plan = read_reconfiguration(tmp_path / "plan.json")
    after = circuit_set(circuits_of(build("railx_torus")))
    assert np.array_equal(apply_plan(read_circuits(tmp_path / "list.json"), plan), after)


def test_transitions_in_conf_name_topologies_in_conf() -> None:
    for shipped in choices("transition"):
        settings_of_file = checked("transition", shipped)
        for name in (settings_of_file.before, settings_of_file.after):
            assert name in choices("topology")
    with pytest.raises(SettingsError, match=r"transition\.after: got 'a', as before"):
        load(TransitionSettings, {"before": "a", "after": "a"}, "transition")


def _random(data: st.DataObject, switches: int, ports: int) -> Topology:
    """A topology whose switches are set to random matchings; port p of every switch is
    cabled to node p // 2.
    """
    rows = []
    for ocs in range(switches):
        order = data.draw(st.permutations(range(ports)))
        joined = data.draw(st.integers(1 if ocs == switches - 1 else 0, ports // 2))
        rows += [(ocs, order[2 * k], order[2 * k + 1]) for k in range(joined)]
    ocs, a, b = np.array(rows, dtype=np.int32).T
    zeros = np.zeros_like(ocs)
    circuits = Circuits(ocs, a, b, zeros, zeros.astype(np.int8), ocs, a // 2, b // 2)
    return dataclasses.replace(
        build("railx_torus", m=1, n=1, x_scale=2, y_scale=2), circuits=circuits
    )
