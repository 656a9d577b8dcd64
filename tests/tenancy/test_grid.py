"""Placements and circuits: own ports only, own nodes only, nothing that has failed; bad
shapes in one line.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_topology
from railx.families.family import PlaceRule
from railx.families.railx_hyperx import RailXHyperXSettings
from railx.families.railx_torus import RailXTorusSettings
from railx.settings import SettingsError
from railx.tenancy import GridJobSettings, check_job
from railx.tenancy.allocate import find_nodes
from railx.tenancy.grid import (
    Faults,
    NodeGrid,
    PlacedJob,
    check_placements,
    placement_circuits,
    position_rings,
    random_faults,
    usable_rails,
)
from railx.tenancy.settings import Wiring
from railx.tenancy.study import allocate_jobs

jobs = st.builds(
    lambda a, b, s: GridJobSettings(a, b, "torus" if s == "ring" and min(a, b) > 1 else s),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["hyperx", "torus", "ring"]),
)


@given(
    st.lists(jobs, min_size=1, max_size=8),
    st.integers(4, 8),
    st.integers(4, 9),
    st.integers(0, 2**32),
)
@settings(max_examples=80, deadline=None)
def test_jobs_never_share_and_never_touch_failures(
    wanted: list[GridJobSettings], side: int, rails: int, seed: int
) -> None:
    grid = NodeGrid(side, rails)
    wanted = [job for job in wanted if max(job.rows, job.columns) <= min(side, rails + 1)]
    rng = np.random.default_rng(seed)
    faults = random_faults(
        grid, int(rng.integers(0, 4)), int(rng.integers(0, 5)), int(rng.integers(0, 5)), rng
    )
    placed = allocate_jobs(grid, wanted, faults)
    found = [placement for placement in placed if placement is not None]
    circuits = [placement_circuits(grid, placement, faults) for placement in found]
    counts = check_placements(grid, faults, list(zip(found, circuits, strict=True)))
    assert counts["nodes"] == sum(placement.nodes for placement in found)
    ports = [
        (int(o), int(p))
        for own in circuits
        for ends in (own.port_a, own.port_b)
        for o, p in zip(own.ocs, ends, strict=True)
    ]
    assert len(ports) == len(set(ports)) == counts["ports"]
    for placement, own in zip(found, circuits, strict=True):
        joined = set(own.node_a.tolist()) | set(own.node_b.tolist())
        mine = {row * side + column for row in placement.rows for column in placement.columns}
        assert joined == (mine if placement.nodes > 1 else set())
        assert not mine & {row * side + column for row, column in faults.nodes}
    for job, placement in zip(wanted, placed, strict=True):
        if placement is not None:
            assert sorted((len(placement.rows), len(placement.columns))) == sorted(
                (job.rows, job.columns)
            )
            assert placement.setting == job.setting


@given(
    st.integers(2, 8), st.integers(2, 8), st.sampled_from(["hyperx", "torus"]), st.integers(7, 11)
)
@settings(max_examples=40, deadline=None)
def test_circuits_of_a_job_are_the_setting_on_its_own_nodes(
    rows: int, columns: int, setting: Wiring, rails: int
) -> None:
    grid = NodeGrid(9, rails)
    placement = PlacedJob(tuple(range(9 - rows, 9)), tuple(range(columns)), setting)
    circuits = placement_circuits(grid, placement)
    links: dict[tuple[int, int], int] = {}
    for a, b in zip(circuits.node_a.tolist(), circuits.node_b.tolist(), strict=True):
        links[min(a, b), max(a, b)] = links.get((min(a, b), max(a, b)), 0) + 1
    assert len(circuits) == rails * rows * columns * 2
    for a in range(81):
        for b in range(a + 1, 81):
            inside = all(
                node // 9 in placement.rows and node % 9 in placement.columns for node in (a, b)
            )
            in_line = a // 9 == b // 9 or a % 9 == b % 9
            if setting == "hyperx" and inside and in_line:
                assert links[a, b] >= 2
            elif not (inside and in_line):
                assert (a, b) not in links


def test_a_job_on_the_whole_grid_is_the_topology_itself() -> None:
    """The circuits equal those that the topology room builds, number by number."""
    own = {
        "port_gbps": 400.0,
        "internal_width": 4.0,
        "internal_latency_ns": 1.0,
        "external_latency_ns": 10.0,
        "ocs_radix": None,
    }
    hyperx = build_topology(
        RailXHyperXSettings(family="railx_hyperx", m=4, n=2, rings="directed", **own)
    )  # type: ignore[arg-type]
    torus = build_topology(
        RailXTorusSettings(family="railx_torus", m=4, n=2, x_scale=9, y_scale=9, **own)
    )  # type: ignore[arg-type]
    settings_of: list[tuple[Wiring, object]] = [("hyperx", hyperx), ("torus", torus)]
    for setting, topology in settings_of:
        ours = placement_circuits(
            NodeGrid(9, 8), PlacedJob(tuple(range(9)), tuple(range(9)), setting)
        )
        theirs = topology.circuits  # type: ignore[attr-defined]
        for field in dataclasses.fields(ours):
            np.testing.assert_array_equal(
                getattr(ours, field.name), getattr(theirs, field.name), err_msg=field.name
            )


def test_a_failed_rail_or_switch_leaves_its_line_the_other_rails() -> None:
    grid = NodeGrid(9, 8)
    faults = Faults(rails=frozenset({(2, 4, 0, 3)}), switches=frozenset({(0, 2, 5), (1, 4, 0)}))
    assert usable_rails(grid, faults, 0, 2, range(9)).tolist() == [0, 1, 2, 4, 6, 7]
    assert usable_rails(grid, faults, 0, 2, [0, 1]).tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert usable_rails(grid, faults, 1, 4, range(9)).tolist() == list(range(1, 8))
    with pytest.raises(
        ValueError,
        match=(
            r"row 2: hyperx: an all-to-all of 9 nodes needs 8 rails and 6 are usable; .*at most 7"
            r" nodes"
        ),
    ):
        placement_circuits(grid, PlacedJob(tuple(range(9)), tuple(range(9)), "hyperx"), faults)
    ring = PlacedJob((2,), tuple(range(9)), "ring")
    circuits = placement_circuits(grid, ring, faults)
    assert len(circuits) == 6 * 9
    assert check_placements(grid, faults, [(ring, circuits)])["circuits"] == 54


def test_the_check_finds_every_offence() -> None:
    grid = NodeGrid(5, 4)
    one = PlacedJob((0, 1), (0, 1, 2), "torus")
    wired = placement_circuits(grid, one)
    other = PlacedJob((1, 2), (2, 3), "torus")
    with pytest.raises(ValueError, match="job 1: takes a node of another job"):
        check_placements(grid, Faults(), [(one, wired), (other, placement_circuits(grid, other))])
    with pytest.raises(ValueError, match="job 0: takes a failed node"):
        check_placements(grid, Faults(nodes=frozenset({(1, 2)})), [(one, wired)])
    with pytest.raises(ValueError, match="job 0: uses a failed rail"):
        check_placements(grid, Faults(rails=frozenset({(1, 2, 1, 3)})), [(one, wired)])
    with pytest.raises(ValueError, match="job 0: uses a failed switch"):
        check_placements(grid, Faults(switches=frozenset({(0, 1, 2)})), [(one, wired)])
    apart = PlacedJob((3, 4), (3, 4), "torus")
    with pytest.raises(ValueError, match="job 1: has a circuit to a node that is not its own"):
        check_placements(grid, Faults(), [(one, wired), (apart, wired)])
    twice = dataclasses.replace(wired, port_b=wired.port_a)
    with pytest.raises(ValueError, match="on a port that its node does not own"):
        check_placements(grid, Faults(), [(one, twice)])
    doubled = dataclasses.replace(
        wired,
        **{f.name: np.tile(getattr(wired, f.name), 2) for f in dataclasses.fields(wired)},  # type: ignore[arg-type]
    )
    with pytest.raises(ValueError, match="a port of a switch that is in use"):
        check_placements(grid, Faults(), [(one, doubled)])


@given(
    st.integers(0, 2**32),
    st.floats(0.2, 1),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(["first_fit", "best_fit"]),
)
@settings(max_examples=120, deadline=None)
def test_searches_return_free_nodes_of_the_right_shape(
    seed: int, density: float, rows: int, columns: int, policy: str
) -> None:
    free = np.random.default_rng(seed).random((7, 8)) < density
    rules: tuple[PlaceRule, ...] = ("blocks", "lines")
    block, product = (
        find_nodes(free, rows, columns, rule, policy)  # type: ignore[arg-type]
        for rule in rules
    )
    for found in (block, product):
        if found is not None:
            assert free[np.ix_(*found)].all()
            assert sorted(map(len, found)) == sorted((rows, columns))
            assert all(len(set(lines.tolist())) == len(lines) for lines in found)
    turns = {(rows, columns), (columns, rows)}
    fits = any(
        np.roll(free, (-i, -j), axis=(0, 1))[:a, :b].all()
        for a, b in turns
        if a <= 7 and b <= 8
        for i in range(7)
        for j in range(8)
    )
    assert (block is not None) == fits  # the search for a block is exact
    if min(rows, columns) == 1:  # so is the search within one line
        longest = max(rows, columns)
        room = [longest <= free.sum(axis=1).max(), longest <= free.sum(axis=0).max()]
        assert (product is not None) == any(room)


def test_an_idle_grid_takes_every_shape_in_wide_masks() -> None:
    """More than 64 columns need a second word of bits."""
    free = np.ones((3, 130), dtype=np.bool_)
    free[1, 70] = False
    found = find_nodes(free, 3, 129, "lines", "best_fit", turn=False)
    assert found is not None
    assert 70 not in found[1]
    assert find_nodes(free, 3, 130, "lines", "best_fit") is None


@pytest.mark.parametrize(
    ("length", "rails"), [(1, 3), (2, 3), (4, 3), (6, 5), (6, 12), (5, 4), (10, 9), (7, 8)]
)
def test_rings_of_a_line_join_every_pair_twice(length: int, rails: int) -> None:
    rings = position_rings(length, rails, "hyperx")
    assert rings.shape == ((rails, length) if length > 1 else (0, 1))
    links = np.zeros((length, length), dtype=np.int64)
    for ring in rings:
        np.add.at(links, (ring, np.roll(ring, -1)), 1)
    links += links.T
    assert (links[~np.eye(length, dtype=np.bool_)] >= 2).all()


def test_shapes_that_cannot_be_are_refused_in_one_line() -> None:
    grid = NodeGrid(16, 8)
    with pytest.raises(
        SettingsError, match=r"columns: got 17; allowed: at most 16, .* nearest is 16"
    ):
        check_job(GridJobSettings(1, 17, "ring"), 16, 8)
    with pytest.raises(
        SettingsError,
        match=(
            r"columns: an all-to-all of 12 nodes needs 11 rails and a side has 8; .*nearest is"
            r" 9.*torus"
        ),
    ):
        placement_circuits(grid, PlacedJob((0, 1), tuple(range(12)), "hyperx"))
    with pytest.raises(
        SettingsError, match=r"setting: got ring for 2 x 3 nodes; .*the nearest is 1 x 6"
    ):
        GridJobSettings(2, 3, "ring")
    with pytest.raises(
        ValueError, match=r"rows: got \[0, 16\]; allowed: distinct positions from 0 to 15"
    ):
        PlacedJob((0, 16), (1,), "torus").check(grid)
    with pytest.raises(
        ValueError,
        match=r"faults.nodes: \(16, 0\) lies outside the grid; allowed: \(0 to 15, 0 to 15\)",
    ):
        Faults(nodes=frozenset({(16, 0)})).check(grid)
    with pytest.raises(
        ValueError,
        match=(
            r"faults.switches: \(0, 0, 8\) lies outside the grid; allowed: \(0 to 1, 0 to 15, 0"
            r" to 7\)"
        ),
    ):
        Faults(switches=frozenset({(0, 0, 8)})).check(grid)
