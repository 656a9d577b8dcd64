"""Where ranks stand: every rank on a chip of its own, neighbours in rank next to each
other, room counted right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.families import rank_placement
from railx.mapping.layout import group_levels, group_members
from railx.mapping.settings import LayoutSettings
from railx.settings import SettingsError
from railx.vocabulary.placement import snake
from tests.builders import build

#: As railx_hyperx, 5 x 5 nodes.
UNSPLIT: dict[str, Any] = {"sizes_x": [5], "sizes_y": [5], "split_x": [4], "split_y": [4]}
CASES: list[tuple[str, dict[str, Any], tuple[int, int, int], str]] = [
    ("railx_hyperx", {}, (4, 5, 5), "grid"),
    ("railx_torus", {}, (4, 4, 5), "grid"),
    ("railx_twisted_torus", {}, (4, 5, 5), "snake"),
    ("railx_split", {}, (4, 9, 9), "runs"),
    ("railx_split", UNSPLIT, (4, 4, 4), "grid"),
    ("hammingmesh", {}, (4, 2, 2), "grid"),
    ("torus_2d", {}, (4, 5, 5), "grid"),
    ("torus_2d", {}, (10, 2, 5), "grid"),
    ("mesh_2d", {}, (4, 2, 2), "grid"),
    ("torus_3d", {}, (4, 4, 4), "grid"),
    ("torus_3d", {}, (8, 4, 2), "grid"),
    ("hyperx", {}, (4, 2, 3), "runs"),
    ("dragonfly", {}, (4, 4, 4), "runs"),
    ("fat_tree", {}, (16, 4, 2), "runs"),
    ("rail_only", {}, (8, 4, 4), "runs"),
    ("rail_optimised", {}, (16, 4, 2), "runs"),
    ("opus_rails", {}, (4, 8, 4), "runs"),
]


@pytest.mark.parametrize(("name", "changes", "sizes", "kind"), CASES)
def test_every_rank_has_a_chip_of_its_own(
    name: str, changes: dict[str, Any], sizes: tuple[int, int, int], kind: str
) -> None:
    topology = build(name, **changes)
    placement = rank_placement(topology, sizes)
    assert placement.kind == kind
    assert placement.chips.shape == sizes
    assert len(np.unique(placement.chips)) == np.prod(sizes)
    assert placement.chips.min() >= 0
    assert placement.chips.max() < topology.chips


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("railx_hyperx", (4, 5, 5)),
        ("torus_2d", (4, 5, 5)),
        ("torus_2d", (10, 2, 5)),
        ("torus_3d", (8, 4, 2)),
        ("mesh_2d", (4, 2, 2)),
    ],
)
def test_neighbours_in_a_node_are_linked(name: str, sizes: tuple[int, int, int]) -> None:
    topology = build(name)
    linked = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    chips = rank_placement(topology, sizes).chips
    for node in chips.reshape(sizes[0], -1).T:
        assert all(pair in linked for pair in zip(node.tolist(), node[1:].tolist(), strict=False))


def test_nodes_of_a_row_and_of_a_column_share_rails() -> None:
    """On RailX ranks along x differ in the column of nodes alone, ranks along y in the
    row alone.
    """
    node = rank_placement(build("railx_hyperx"), (4, 5, 5)).chips // 4
    column, row = node % 5, node // 5
    assert (column == column[:1, :, :1]).all()
    assert (row == row[:1, :1, :]).all()
    assert (np.diff(column, axis=1) != 0).all()
    assert (np.diff(row, axis=2) != 0).all()


def test_snake_through_another_grid_keeps_the_ranks_of_a_row_adjacent() -> None:
    """5 x 5 nodes on 8 x 4: consecutive nodes are neighbours in the grid."""
    node = rank_placement(build("railx_twisted_torus"), (4, 5, 5)).chips[0].T.ravel() // 4
    y, x = np.divmod(node, 8)
    assert (np.abs(np.diff(x)) + np.abs(np.diff(y)) == 1).all()


def test_runs_stay_below_a_switch_where_there_is_room() -> None:
    """Leaves of 25 chips hold 3 nodes of 8 uncut; 64 nodes of 16 are cut in halves,
    since 50 leaves hold one whole node each.
    """
    tree = build("fat_tree_1250")
    eight = rank_placement(tree, (8, 10, 10)).chips // 25
    assert (eight == eight[:1]).all()
    sixteen = rank_placement(tree, (16, 8, 8)).chips.reshape(2, 8, -1) // 25
    assert (sixteen == sixteen[:, :1]).all()


@given(columns=st.integers(1, 9), rows=st.integers(1, 9))
def test_snake_visits_every_place_by_single_steps_and_closes_where_it_can(
    columns: int, rows: int
) -> None:
    way = snake(columns, rows)
    assert sorted(way.tolist()) == list(range(columns * rows))
    y, x = np.divmod(way, columns)
    steps = np.abs(np.diff(x)) + np.abs(np.diff(y))
    assert (steps == 1).all()
    if columns * rows % 2 == 0 and min(columns, rows) > 1:
        assert abs(x[-1] - x[0]) + abs(y[-1] - y[0]) == 1


LAYOUT = LayoutSettings(
    mesh={"tensor": 2, "data": 2}, x={"expert": 2, "sequence": 2}, y={"data": 3, "pipeline": 2}
)


@pytest.mark.parametrize(
    "over",
    [("tensor",), ("data",), ("sequence", "data"), ("sequence", "expert", "data"), ("pipeline",)],
)
def test_groups_of_any_parallelisms_hold_every_rank_once(over: tuple[str, ...]) -> None:
    chips = np.arange(4 * 4 * 6).reshape(4, 4, 6)
    groups = group_members(LAYOUT, chips, over)
    members = int(np.prod([LAYOUT.degree(name) for name in over]))
    assert groups.shape == (96 // members, members)
    assert sorted(groups.ravel().tolist()) == list(range(96))


def test_levels_of_a_group_span_it() -> None:
    """Members reached along one axis after the other are the members of the whole
    group.
    """
    chips = np.arange(4 * 4 * 6).reshape(4, 4, 6)
    over = ("sequence", "data")
    levels = group_levels(LAYOUT, chips, over)
    assert [level.shape[1] for level in levels] == [2, 2, 3]
    group_of = {
        int(chip): set(group.tolist())
        for group in group_members(LAYOUT, chips, over)
        for chip in group
    }
    reached = {chip: {chip} for chip in group_of}
    for level in levels:
        along = {int(chip): set(group.tolist()) for group in level for chip in group}
        reached = {
            chip: set().union(*(along[other] for other in others))
            for chip, others in reached.items()
        }
    assert reached == group_of


def test_members_are_in_rank_order() -> None:
    chips = np.arange(4 * 2 * 2).reshape(4, 2, 2)
    layout = LayoutSettings(mesh={"tensor": 4}, x={"data": 2}, y={"pipeline": 2})
    assert group_members(layout, chips, ("pipeline",))[0].tolist() == [
        chips[0, 0, 0],
        chips[0, 0, 1],
    ]
    assert group_members(layout, chips, ("tensor",))[0].tolist() == chips[:, 0, 0].tolist()


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("railx_hyperx", (4, 6, 5), "at most 4 x 5 x 5; the nearest is 4 x 5 x 5"),
        ("railx_hyperx", (8, 2, 2), "at most 4 x 5 x 5; the nearest is 4 x 2 x 2"),
        ("torus_2d", (4, 8, 8), "at most 4 x 5 x 5; the nearest is 4 x 5 x 5"),
        ("torus_3d_1331", (16, 8, 8), "at most 16 x 11 x 5; the nearest is 16 x 8 x 5"),
        (
            "fat_tree",
            (16, 4, 4),
            "on fat_tree of 128 chips: at most so many in all; the nearest is 16 x 4 x 2",
        ),
    ],
)
def test_a_job_without_room_names_the_nearest(
    name: str, sizes: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        rank_placement(build(name), sizes)
    assert str(raised.value).startswith(
        f"layout: got {' x '.join(map(str, sizes))} (chips of a node x nodes of a row"
    )
    assert str(raised.value).endswith(message)
