"""Every family: sizes against closed forms, ports, full-duplex symmetry, circuits,
files, refusals, and routing tables to the last number, every choice of a packet on
small networks.
"""

import dataclasses
import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import (
    FAMILIES,
    build_routing,
    build_topology,
    check_topology,
    family_of,
    read_topology,
    write_topology,
)
from railx.families.railx_hyperx import RailXHyperXSettings
from railx.io import read_metadata, write_table
from railx.network.metrics import check_optical_circuits
from railx.settings import SettingsError, to_dict
from railx.vocabulary.grid import line_wiring
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import INTERNAL, LINK_KINDS, Circuits, Links, Topology
from tests.builders import choice, topology_settings
from tests.loops import for_every
from workflow.config import choices

CONFIGS = choices("topology")
SMALL = [name for name in CONFIGS if not name.endswith(("_full", "_largest"))]


@for_every("name", CONFIGS)
def test_configs_list_every_field(name: str) -> None:
    plain = choice("topology", name)
    assert to_dict(topology_settings(name)) == plain


@for_every("name", SMALL)
def test_switched_families_are_those_with_circuits(name: str) -> None:
    assert family_of(topology_settings(name)).switched == (
        build_topology(topology_settings(name)).circuits is not None
    )


@for_every("name", SMALL)
def test_links_are_full_duplex_and_use_every_port(name: str) -> None:
    topology = build_topology(topology_settings(name))
    links = topology.links
    forward = sorted(
        zip(
            links.src,
            links.dst,
            links.kind,
            links.rail,
            links.lanes,
            links.gbps,
            links.latency_ns,
            strict=True,
        )
    )
    backward = sorted(
        zip(
            links.dst,
            links.src,
            links.kind,
            links.rail,
            links.lanes,
            links.gbps,
            links.latency_ns,
            strict=True,
        )
    )
    assert forward == backward
    # Links to a scale-up switch or of a node are no ports of the network.
    counted = (links.kind != INTERNAL) | (np.maximum(links.src, links.dst) < topology.chips)
    if topology.settings.node is not None:
        counted = links.kind != INTERNAL
    ports = np.bincount(
        links.src[counted], weights=links.lanes[counted], minlength=topology.vertices
    )
    per_chip = family_of(topology.settings).ports_per_chip(topology.settings)
    assert ports[: topology.chips].max() == per_chip
    assert (
        name.startswith("mesh") or (ports[: topology.chips] == per_chip).all()
    )  # the edge of a mesh has ports to spare


@for_every("name", SMALL)
def test_files_give_back_the_same_topology(name: str, tmp_path: Path) -> None:
    topology = build_topology(topology_settings(name))
    write_topology(tmp_path / "topology.parquet", topology, "mine")
    assert read_metadata(tmp_path / "topology.parquet")["name"] == "mine"
    again = read_topology(tmp_path / "topology.parquet")
    for field in ("family", "settings", "chips", "nodes", "switches"):
        assert getattr(again, field) == getattr(topology, field)
    assert again.settings == topology_settings(name)
    _assert_same_arrays(Links, again.links, topology.links)
    assert np.array_equal(again.chip_node, topology.chip_node)
    assert (again.circuits is None) == (topology.circuits is None)
    if topology.circuits is not None:
        _assert_same_arrays(Circuits, again.circuits, topology.circuits)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "other.parquet", {"a": [1]})
    with pytest.raises(ValueError, match=r"other\.parquet: not a topology file"):
        read_topology(tmp_path / "other.parquet")


def test_railx_at_full_scale_has_the_derived_counts() -> None:
    topology = build_topology(topology_settings("railx_hyperx_full"))
    assert (topology.chips, topology.nodes) == (200_704, 4_096)
    assert topology.circuits is not None
    assert 2 * len(topology.circuits) == 1_032_192
    assert int(topology.circuits.ocs.max()) + 1 == 8_064
    assert int(max(topology.circuits.port_a.max(), topology.circuits.port_b.max())) == 127
    check_optical_circuits(topology)


@settings(deadline=None, max_examples=30)
@given(m=st.integers(1, 4), n=st.integers(1, 4), rings=st.sampled_from(["directed", "undirected"]))
def test_hyperx_joins_every_pair_of_a_line(m: int, n: int, rings: str) -> None:
    if m * n < 2 or (m * n in (3, 5) and rings == "directed"):
        return
    topology = build_topology(topology_settings("railx_hyperx", m=m, n=n, rings=rings))
    check_optical_circuits(topology)
    side, links = m * n + 1, topology.links
    assert topology.nodes == side**2
    assert topology.chips == side**2 * m**2
    node = topology.chip_node
    external = links.kind != INTERNAL
    a, b = node[links.src[external]], node[links.dst[external]]
    joined = np.zeros((topology.nodes, topology.nodes), dtype=int)
    np.add.at(joined, (a, b), 1)
    same_row = np.arange(topology.nodes)[:, None] // side == np.arange(topology.nodes) // side
    same_column = np.arange(topology.nodes)[:, None] % side == np.arange(topology.nodes) % side
    assert np.array_equal(joined, 2 * (same_row ^ same_column))


def test_rails_follow_their_cycle_from_plus_to_minus_side() -> None:
    topology = build_topology(topology_settings("railx_hyperx", m=2, n=2))
    links = topology.links
    first = np.flatnonzero((links.kind == LINK_KINDS.index("rail_x")) & (links.rail == 3))[0]
    # Rail 3 of row 0 is the cycle 3 0 2 1 4; rail 3 sits on chip row 3 // 2 = 1: chip
    # (1, 1) of node 3 to chip (0, 1) of node 0.
    assert (links.src[first], links.dst[first]) == (3 * 4 + 3, 0 * 4 + 2)


def test_line_wiring_puts_the_minus_side_first() -> None:
    wiring = line_wiring(build_topology(topology_settings("railx_hyperx", m=2, n=2)), 0)
    off_diagonal = ~np.eye(5, dtype=bool)
    assert not wiring.plus[off_diagonal][:, 0].any()
    assert wiring.plus[off_diagonal][:, 1].all()
    assert np.array_equal(wiring.rail[..., 1], wiring.rail[..., 0].T)


@settings(deadline=None, max_examples=15)
@given(m=st.integers(1, 3), n=st.integers(1, 3), x=st.integers(2, 5), y=st.integers(2, 5))
def test_railx_torus_is_a_torus_of_chips(m: int, n: int, x: int, y: int) -> None:
    topology = build_topology(topology_settings("railx_torus", m=m, n=n, x_scale=x, y_scale=y))
    check_optical_circuits(topology)
    plain = build_topology(topology_settings("torus_2d", n=n, x_scale=m * x, y_scale=m * y))
    node, local = topology.chip_node.astype(int), np.arange(topology.chips) % m**2
    place = (node // x * m + local // m) * m * x + node % x * m + local % m
    assert np.array_equal(_lanes(topology, place), _lanes(plain, np.arange(plain.chips)))


def test_check_circuits_notices_damage() -> None:
    topology = build_topology(topology_settings("railx_hyperx", m=2, n=2))
    assert topology.circuits is not None
    taken = dataclasses.replace(
        topology.circuits, port_a=_changed(topology.circuits.port_a, 0, topology.circuits.port_a[1])
    )
    with pytest.raises(ValueError, match="port 2 of optical switch 0 is used 2 times"):
        check_optical_circuits(dataclasses.replace(topology, circuits=taken))
    astray = dataclasses.replace(topology.circuits, node_a=_changed(topology.circuits.node_a, 0, 7))
    with pytest.raises(ValueError, match="port 0 of optical switch 0 is not one of node 7's ports"):
        check_optical_circuits(dataclasses.replace(topology, circuits=astray))
    torus = build_topology(topology_settings("railx_torus", m=2, n=2, x_scale=5, y_scale=5))
    with pytest.raises(ValueError, match="pairs of nodes are joined instead of 200"):
        check_optical_circuits(dataclasses.replace(topology, circuits=torus.circuits))
    with pytest.raises(ValueError, match="port 9 does not exist; allowed: 0 to 7"):
        check_optical_circuits(
            dataclasses.replace(
                torus,
                settings=dataclasses.replace(torus.settings, ocs_radix=8, x_scale=4, y_scale=4),
            )
        )
    negative = dataclasses.replace(torus.circuits, port_b=_changed(torus.circuits.port_b, 0, -1))
    with pytest.raises(ValueError, match="port -1 does not exist; allowed: 0 to 9"):
        check_optical_circuits(dataclasses.replace(torus, circuits=negative))
    with pytest.raises(ValueError, match=r"torus_2d: .* no circuits to check"):
        check_optical_circuits(build_topology(topology_settings("torus_2d")))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "railx_hyperx",
            {"m": 3, "n": 1},
            (
                r"topology\.n: m \* n = 3 rails .* N = 4 .*allowed: m \* n = 2, 4 or at least 6, or"
                r" rings"
            ),
        ),
        ("railx_hyperx", {"m": 1, "n": 5}, r"topology\.n: m \* n = 5 rails .* N = 6"),
        (
            "railx_hyperx",
            {"m": 1, "n": 1},
            r"topology\.n: m \* n = 1 .*allowed: m \* n of at least 2",
        ),
        ("railx_hyperx", {"m": 0}, r"topology\.m: got 0; allowed: at least 1"),
        (
            "railx_hyperx",
            {"m": 2, "n": 3, "ocs_radix": 12},
            r"topology\.ocs_radix: got 12; allowed: at least 14.*or n = 2 for this",
        ),
        (
            "railx_hyperx",
            {"m": 8, "n": 1, "ocs_radix": 12},
            r"topology\.ocs_radix: .*no n fits this radix",
        ),
        (
            "railx_hyperx",
            {"m": 10, "n": 200},
            r"topology\.n: the topology would need [\d,]+ directed links",
        ),
        (
            "railx_torus",
            {"x_scale": 9, "ocs_radix": 16},
            r"topology\.ocs_radix: got 16; allowed: at least 18.*at most 8",
        ),
        ("railx_torus", {"y_scale": 1}, r"topology\.y_scale: got 1; allowed: at least 2"),
        (
            "torus_2d",
            {"x_scale": 10_000, "y_scale": 10_000},
            r"topology\.x_scale: the topology would need",
        ),
        (
            "fat_tree",
            {"switch_radix": 7},
            r"topology\.switch_radix: got 7; allowed: an even number.*6 and 8",
        ),
        (
            "fat_tree",
            {"switch_radix": 128, "planes": 36},
            r"topology\.switch_radix: the topology would need",
        ),
        (
            "fat_tree",
            {"family": "thin_tree"},
            r"topology\.family: got 'thin_tree'; allowed: fat_tree, ",
        ),
    ],
)
def test_impossible_sizes_name_the_key_and_what_works(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_topology(topology_settings(name, **changes))


@pytest.mark.parametrize(("m", "n"), [(3, 1), (1, 5)])
def test_undirected_rings_wire_the_sizes_without_a_directed_decomposition(m: int, n: int) -> None:
    topology = build_topology(topology_settings("railx_hyperx", m=m, n=n, rings="undirected"))
    check_optical_circuits(topology)
    assert topology.nodes == (m * n + 1) ** 2
    assert isinstance(topology.settings, RailXHyperXSettings)


def _lanes(topology: Topology, place: np.ndarray) -> np.ndarray:
    lanes = np.zeros((topology.chips, topology.chips), dtype=int)
    np.add.at(lanes, (place[topology.links.src], place[topology.links.dst]), topology.links.lanes)
    return lanes


def _changed(array: np.ndarray, index: int, value: int) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


def _assert_same_arrays(cls: Any, one: Any, other: Any) -> None:
    for field in dataclasses.fields(cls):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


#: The first digits of a digest of all tables of a family at its default settings, to
#: all chips and to some; ub_mesh stands for the graphs of routers. Who changes a table
#: on purpose writes the new one here.
DIGESTS = {
    "railx_hyperx": "1a727fb9aebd",
    "railx_torus": "83bcefc4d87a",
    "railx_twisted_torus": "844471c8209e",
    "railx_split": "8eef28335c7f",
    "railx_dragonfly": "ba6a783a8e7a",
    "railx_mixed": "01cb918aa633",
    "torus_2d": "aa9df0cd2373",
    "torus_3d": "6621b380606a",
    "mesh_2d": "05d7014da543",
    "hammingmesh": "b3beec46a89d",
    "hyperx": "42452993661f",
    "dragonfly": "762e9619c430",
    "fat_tree": "b187374ea4a0",
    "rail_optimised": "7cf746307c72",
    "rail_only": "ead4885a795f",
    "opus_rails": "aef88657bbaf",
    "tpu_v4": "739e1cf2c932",
    "mixnet": "2139fc1b604e",
    "ub_mesh": "8dbff9662fb7",
    "hpn": "60099de7d1d4",
    "khop_ring": "b1fd2b2c4d3f",
    "imported": "3422e5961f2c",
}


def digest(table: RoutingTable) -> bytes:
    """What leads from every vertex to every destination, however sets are numbered.

    Weights are rounded, as sums may be on other machines.
    """
    pools = [
        (table.pool_link[first:end].tolist(), int(channel), int(lane))
        for (first, end), channel, lane in zip(
            pairwise(table.pool_start), table.pool_class, table.pool_lane, strict=True
        )
    ]
    numbers = zip(
        [pools[pool] for pool in table.choice_pool],
        *(column.tolist() for column in (table.choice_state, table.choice_probe)),
        *(np.round(column, 9).tolist() for column in (table.choice_weight, table.choice_delay_ns)),
        strict=True,
    )
    choices = list(map(repr, numbers))
    names = [
        hashlib.sha256("".join(choices[first:end]).encode()).digest()[:8]
        for first, end in pairwise(table.set_start)
    ]
    entry = np.frombuffer(b"".join([*names, bytes(8)]), dtype=np.int64)[table.entry]
    return hashlib.sha256(entry.tobytes()).digest()


@pytest.mark.parametrize("name", DIGESTS)
def test_tables_are_as_they_were(name: str) -> None:
    family: Any = next(family for family in FAMILIES if family.name == name)
    topology = build_topology(family.settings(family=name))
    some = np.arange(0, topology.chips, 3, dtype=np.int32)
    whole = hashlib.sha256()
    for routing in family_of(topology).routings:
        for destinations in (None, some):
            whole.update(digest(build_routing(topology, routing, destinations)))
    assert whole.hexdigest()[:12] == DIGESTS[name]
