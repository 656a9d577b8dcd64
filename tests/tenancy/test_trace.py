"""Networks under faults: where jobs fit against brute force on small networks, and the
published trace.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.errors import UserError
from railx.families import FAMILIES, TopologySettings, build_topology
from railx.settings import SettingsError, load, to_dict
from railx.tenancy.places import NetworkPlaces
from railx.tenancy.settings import SYSTEMS, TraceSettings, place_rule
from railx.tenancy.trace import read_trace, spare_table, trace_table
from railx.vocabulary.arrays import BoolArray
from tests.builders import ROOT
from workflow.config import compose_stage

#: Small networks: family and settings.
SMALL: dict[str, dict[str, Any]] = {
    "railx": {"family": "railx_torus", "m": 2, "x_scale": 4, "y_scale": 3},
    "hammingmesh": {"family": "hammingmesh", "m": 2, "x_scale": 3, "y_scale": 4},
    "torus": {"family": "torus_2d", "x_scale": 4, "y_scale": 3},
    "cubes": {"family": "tpu_v4", "cube_side": 2, "x_cubes": 2, "y_cubes": 2, "z_cubes": 1},
    "mesh": {"family": "mesh_2d", "x_scale": 4, "y_scale": 3},
    "layers": {"family": "hyperx", "shape": [2, 3, 4]},
    "tree": {"family": "fat_tree", "switch_radix": 4},
    "tree_meshes": {"family": "fat_tree", "switch_radix": 4, "node": {"chips": 4, "links": "mesh"}},
    "tree_switches": {
        "family": "fat_tree",
        "switch_radix": 4,
        "node": {"chips": 4, "links": "switch"},
    },
    "servers": {"family": "rail_only", "chips_per_server": 6, "servers": 3},
    "groups": {"family": "dragonfly", "p": 3, "a": 2, "h": 1, "groups": 3},
    "racks": {
        "family": "ub_mesh",
        "chips_per_board": 2,
        "boards": 3,
        "rack_rows": 3,
        "rack_columns": 1,
    },
    "ring": {"family": "khop_ring", "nodes": 9, "chips_per_node": 2, "reach": 2},
}


def network(name: str) -> NetworkPlaces:
    return NetworkPlaces(load(TopologySettings, SMALL[name], "topology"))


@cache
def settings_of(name: str = "small") -> TraceSettings:
    trace: TraceSettings = compose_stage([f"tenancy={name}"], ["tenancy"])["tenancy"].trace
    return trace


def fits(name: str, units: tuple[int, ...], of: NetworkPlaces) -> bool:
    """Whether a job may take exactly these units, by the words of the rule."""
    if of.places.rule == "any":
        return True
    if of.places.rule == "runs":
        # In some order each follows the one before within the reach, round the ring.
        for start in range(len(units)):
            walk = units[start:] + tuple(unit + of.units for unit in units[:start])
            if all(b - a <= 2 for a, b in pairwise(walk)):
                return True
        return False
    rows, columns = (
        sorted(set(line)) for line in zip(*(divmod(u, of.shape[1]) for u in units), strict=True)
    )
    if len(rows) * len(columns) != len(units):
        return False
    if of.places.rule == "lines":
        return True
    wraps = of.places.rule == "blocks"
    return all(
        any(
            sorted((first + step) % length for step in range(len(lines))) == lines
            for first in range(length if wraps else length - len(lines) + 1)
        )
        for lines, length in ((rows, of.shape[0]), (columns, of.shape[1]))
    )


@pytest.mark.parametrize("name", list(SMALL))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_largest_job_is_that_of_all_sets_of_units(name: str, data: Any) -> None:
    of = network(name)
    failed = data.draw(st.sets(st.integers(0, of.chips - 1), max_size=5))
    healthy = np.ones(of.chips, dtype=np.bool_)
    healthy[list(failed)] = False
    working = [
        unit
        for unit in range(of.units)
        if healthy[unit * of.unit_chips : (unit + 1) * of.unit_chips].all()
    ]
    largest = next(
        (
            size
            for size in range(len(working), 0, -1)
            if any(fits(name, units, of) for units in combinations(working, size))
        ),
        0,
    )
    assert of.largest(healthy) == largest * of.unit_chips


def most_jobs(working: frozenset[int], lines: list[list[int]], units: int) -> int:
    """Jobs of so many units, each in a line, by trying all of the first unit's."""
    if not working:
        return 0
    first = min(working)
    best = most_jobs(working - {first}, lines, units)
    for line in lines:
        if first in line:
            others = sorted(working & set(line) - {first})
            for chosen in combinations(others, units - 1):
                rest = working - {first, *chosen}
                best = max(best, 1 + most_jobs(rest, lines, units))
    return best


@given(st.sets(st.integers(0, 11), max_size=4), st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_small_jobs_of_railx_fill_rows_or_columns(failed: set[int], units: int) -> None:
    of = network("railx")
    healthy = np.ones(of.chips, dtype=np.bool_)
    healthy[[4 * unit for unit in failed]] = False
    working = frozenset(range(12)) - failed
    grid = np.arange(12).reshape(3, 4)
    rows, columns = grid.tolist(), grid.T.tolist()
    best = max(most_jobs(working, lines, units) for lines in (rows, columns))
    assert of.usable(healthy, 4 * units) == 4 * units * best
    assert of.usable(healthy, 4) == 4 * len(working) == of.usable(healthy, 2)
    assert of.usable(healthy, 3) == 3 * len(working)


@pytest.mark.parametrize("name", ["servers", "groups", "racks"])
@given(failed=st.sets(st.integers(0, 17), max_size=6), size=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_small_jobs_stay_behind_one_switch(name: str, failed: set[int], size: int) -> None:
    of = network(name)
    healthy = np.ones(18, dtype=np.bool_)
    healthy[list(failed)] = False
    expected = sum(int(healthy[6 * a : 6 * a + 6].sum()) // size for a in range(3))
    assert of.usable(healthy, size) == size * expected
    assert of.usable(healthy, 12) == 12 * (int(healthy.sum()) // 12)


def test_nodes_change_what_a_fault_takes() -> None:
    healthy = np.ones(16, dtype=np.bool_)
    healthy[[0, 5]] = False
    names = ("tree", "tree_switches", "tree_meshes")
    assert [network(name).largest(healthy) for name in names] == [14, 14, 8]
    # Jobs of two chips: anywhere; within a switch's four chips; in whole meshes.
    assert [network(name).usable(healthy, 2) for name in names] == [14, 12, 8]
    assert [network(name).usable(healthy, 3) for name in names] == [12, 12, 6]


def test_a_ring_passes_single_failed_nodes() -> None:
    of = network("ring")

    def without(*nodes: int) -> BoolArray:
        healthy = np.ones(18, dtype=np.bool_)
        healthy[[2 * node for node in nodes]] = False
        return healthy

    assert of.largest(without(3)) == 16
    assert of.largest(without(3, 4)) == 14
    # Two breaks leave two runs, of 2 and 3 nodes.
    assert of.largest(without(0, 1, 4, 5)) == 6
    assert of.usable(without(0, 1, 4, 5), 4) == 8
    assert of.usable(without(0, 1, 4, 5), 6) == 6


def test_every_network_of_the_trace_has_a_rule_and_units_of_its_chips() -> None:
    for name, of in settings_of("full_scale").networks.items():
        places = NetworkPlaces(of)
        assert places.chips == build_topology(of).chips, name
        assert places.largest(np.ones(places.chips, dtype=np.bool_)) == places.chips
    for family in FAMILIES:
        places_of = family.job_places
        assert (places_of is None) == (family.name == "imported")
    assert [place_rule(system) for system in SYSTEMS] == ["lines", "lines", "blocks"]
    graph: Any = load(TopologySettings, {"family": "imported"}, "topology")
    with pytest.raises(SettingsError, match=r"^family: got 'imported', which does not say where"):
        NetworkPlaces(graph)


def test_a_failed_chip_splits_a_mesh_but_not_a_torus() -> None:
    healthy = np.ones(12, dtype=np.bool_)
    healthy[1] = False  # of a row of four
    # Columns 2, 3 and, around the rim of the torus, 0.
    assert (network("mesh").largest(healthy), network("torus").largest(healthy)) == (8, 9)
    assert network("mesh").usable(healthy, 3) == 9
    # Chips that are routers of a HyperX fail with their layer.
    healthy = np.ones(24, dtype=np.bool_)
    healthy[1] = False
    assert network("layers").largest(healthy) == 18


def test_the_published_trace_has_its_numbers() -> None:
    """584 faults on 231 of 400 servers in 349 days; servers down: mean 9.26, median
    1.75 %, 90th percentile 5.5 %, 99th 7.75 %, most 8.75 %.
    """
    chosen = settings_of()
    trace = read_trace(chosen.file, 400, 349.0)
    intervals = list(trace.sampled(None))
    days = np.array([length for _, length, _ in intervals])
    down = np.array([int(servers.sum()) for _, _, servers in intervals])
    assert days.sum() == pytest.approx(349)
    assert (days @ down) / 349 == pytest.approx(9.26, abs=0.005)
    order = np.argsort(down)
    at = np.searchsorted(np.cumsum(days[order]) / 349, [0.5, 0.9, 0.99])
    assert (down[order][at] / 4).tolist() == [1.75, 5.5, 7.75]
    assert down.max() / 4 == 8.75
    lines = (ROOT / chosen.file).read_text().splitlines()[1:]
    assert sum(",fault_start," in line for line in lines) == 584
    assert len({line.split(",")[1] for line in lines}) == 231
    sampled = list(trace.sampled(30.0))
    assert sum(length for _, length, _ in sampled) == pytest.approx(349)
    assert len(sampled) == 12


def test_tables_are_consistent() -> None:
    chosen = settings_of()
    rows = trace_table(chosen, seed=1)
    assert len(rows) == 12 * len(chosen.networks) * len(chosen.job_chips)
    for row in rows:
        assert 0 <= row["largest_share"] <= row["healthy_share"] <= 1
        assert 0 <= row["usable_share"] <= row["healthy_share"]
    by_place = {(row["network"], row["from_days"], row["job_chips"]): row for row in rows}
    for (name, start, size), row in by_place.items():
        # A ring of larger reach, or any chips behind switches, are never worse.
        if name == "khop_ring_2":
            assert row["largest_share"] <= by_place["khop_ring_3", start, size]["largest_share"]
        if name == "khop_ring_3":
            assert row["usable_share"] <= by_place["fat_tree", start, size]["usable_share"]
    spares = spare_table(chosen, rows)
    assert len(spares) == len(chosen.networks) * len(chosen.spare_shares)
    assert trace_table(chosen, seed=1) == rows
    for name in chosen.networks:
        shares = [row["time_share"] for row in spares if row["network"] == name]
        assert shares == sorted(shares)
        some = [row for row in rows if row["network"] == name and row["job_chips"] == 16]
        fits_at = sum(row["days"] for row in some if row["largest_share"] >= 0.9 - 1e-12) / 349
        assert shares[chosen.spare_shares.index(0.1)] == pytest.approx(fits_at)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("1.0,3,fault_start\n2.0,4,fault_end\n", "a fault ends at 2.0 days that has not begun"),
        ("1.0,9,fault_start\n", "line 2: got server 9 at 1.0 days; allowed: servers 0 to 8"),
        ("1.0,3,down\n", "line 2: allowed: a time, a server's number, and fault_start or"),
    ],
)
def test_broken_traces_are_named(tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"time_days,node,event\n{lines}")
    with pytest.raises(UserError, match=words):
        read_trace(file, 9, 10.0)


def test_overlapping_faults_end_with_the_last(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "time_days,node,event\n1,0,fault_start\n2,0,fault_start\n3,0,fault_end\n5,0,fault_end\n"
    )
    trace = read_trace(file, 1, 10.0)
    down = {start: bool(servers[0]) for start, _, servers in trace.sampled(None)}
    assert down == {0.0: False, 1.0: True, 2.0: True, 3.0: True, 5.0: False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"networks": {"graph": {"family": "imported"}}}, "networks.graph.family: got 'imported'"),
        ({"servers": 300}, r"got 3072 chips; allowed: at most 2400, the servers'"),
        ({"job_chips": [512]}, "job_chips: got 512; allowed: at most 256, the chips of a line of"),
    ],
)
def test_networks_and_jobs_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    plain = to_dict(settings_of()) | changes
    with pytest.raises(SettingsError, match=words):
        load(TraceSettings, plain, "trace")
