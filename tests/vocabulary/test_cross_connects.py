"""Cross-connect lists: read back as they were, and refused where they are bad."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from railx.vocabulary.cross_connects import (
    write_circuits,
    write_circuits_csv,
)
from railx.vocabulary.reconfiguration import reconfiguration_plan
from railx.vocabulary.topology import Circuits, Topology
from tests.builders import build
from tests.vocabulary.switch_files import read_circuits, read_circuits_csv

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
