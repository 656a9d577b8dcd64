"""Traffic patterns: shares add up, nobody sends to itself, and what cannot be is
refused in one clear line. Seeds of repeats.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from railx.network import traffic as traffic_module
from railx.network.settings import (
    AllToAllTraffic,
    ExpertTraffic,
    HotSpotTraffic,
    MatrixTraffic,
    NeighbourTraffic,
    PermutationTraffic,
    TrafficSettings,
    UniformTraffic,
)
from railx.network.traffic import hot_chips, read_matrix, repeat_seeds, traffic_flows
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology
from tests.builders import build


def mesh(columns: int, rows: int) -> Topology:
    return build("mesh_2d", x_scale=columns, y_scale=rows, n=1)


def permutation(kind: Any, offset: int = 1) -> PermutationTraffic:
    return PermutationTraffic("permutation", 1.0, kind, offset)


ANY_SIZE: list[TrafficSettings] = [
    UniformTraffic("uniform", 1.0),
    AllToAllTraffic("all_to_all", 1.0),
    permutation("random"),
    permutation("complement"),
    permutation("shift"),
    NeighbourTraffic("neighbour", 1.0),
    HotSpotTraffic("hot_spot", 1.0, 1, 0.3),
    HotSpotTraffic("hot_spot", 1.0, 4, 1.0),
    ExpertTraffic("experts", 1.0, 3, 0.7),
]


@hypothesis_settings(deadline=None, max_examples=40)
@given(
    columns=st.integers(2, 9),
    rows=st.integers(2, 9),
    seed=st.integers(0, 2**31),
    which=st.integers(0, len(ANY_SIZE) - 1),
)
def test_shares_sum_to_the_chips_and_nobody_sends_to_itself(
    columns: int, rows: int, seed: int, which: int
) -> None:
    topology = mesh(columns, rows)
    flows = traffic_flows(topology, ANY_SIZE[which], seed)
    assert flows.chips == topology.chips
    assert flows.share.sum() + flows.spread.sum() == pytest.approx(topology.chips)
    assert (flows.src != flows.dst).all()
    assert (flows.share > 0).all()
    assert len(set(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))) == len(flows)
    assert flows.demand().sum(axis=1) == pytest.approx(
        np.bincount(flows.src, weights=flows.share, minlength=flows.chips) + flows.spread
    )


def test_uniform_and_all_to_all_are_equal_shares_to_all_others() -> None:
    for pattern in ANY_SIZE[:2]:
        demand = traffic_flows(mesh(3, 4), pattern, 1).demand()
        assert demand == pytest.approx((1 - np.eye(12)) / 11)


@pytest.mark.parametrize(
    ("kind", "offset", "columns", "rows", "expected"),
    [
        ("complement", 1, 2, 3, [5, 4, 3, 2, 1, 0]),
        ("shift", 2, 2, 3, [2, 3, 4, 5, 0, 1]),
        ("shift", 8, 2, 3, [2, 3, 4, 5, 0, 1]),
        ("tornado", 1, 2, 4, [3, 4, 5, 6, 7, 0, 1, 2]),  # i + 8 / 2 - 1
        ("transpose", 1, 3, 3, [0, 3, 6, 1, 4, 7, 2, 5, 8]),
    ],
)
def test_permutations(kind: str, offset: int, columns: int, rows: int, expected: list[int]) -> None:
    flows = traffic_flows(mesh(columns, rows), permutation(kind, offset), 1)
    wanted = {(i, to) for i, to in enumerate(expected) if i != to}
    assert set(zip(flows.src.tolist(), flows.dst.tolist(), strict=True)) == wanted
    assert flows.share == pytest.approx(
        len(expected) / len(wanted)
    )  # those on the diagonal send nothing


def test_a_random_permutation_is_one_and_follows_its_seed() -> None:
    topology = mesh(8, 8)
    flows = [traffic_flows(topology, permutation("random"), seed) for seed in (1, 1, 2)]
    assert sorted(flows[0].dst.tolist()) == list(range(64))
    assert flows[0].dst.tolist() == flows[1].dst.tolist() != flows[2].dst.tolist()


def test_hot_spots_get_their_share() -> None:
    topology = mesh(5, 5)
    settings = HotSpotTraffic("hot_spot", 1.0, 3, 0.25)
    hot = hot_chips(topology, settings, 6)
    demand = traffic_flows(topology, settings, 6).demand()
    assert demand.sum(axis=1) == pytest.approx(1)
    cold = np.setdiff1d(np.arange(25), hot)
    assert demand[np.ix_(cold, hot)].sum(axis=1) == pytest.approx(0.25 + 0.75 * 3 / 24)
    assert demand[np.ix_(hot, hot)].sum(axis=1) == pytest.approx(0.25 + 0.75 * 2 / 24)
    only = traffic_flows(topology, HotSpotTraffic("hot_spot", 1.0, 1, 0.25), 6).demand()
    assert only.sum(axis=1) == pytest.approx(1)


def test_popular_experts_get_more_within_their_group() -> None:
    topology = mesh(4, 4)
    demand = traffic_flows(topology, ExpertTraffic("experts", 1.0, 6, 1.0), 3).demand()
    for group in (range(6), range(6, 12), range(12, 16)):
        inside = demand[np.ix_(group, group)]
        assert inside.sum(axis=1) == pytest.approx(1)
        # The first chip's view of the others, and the second one's of the first.
        popularity = inside[0] / inside[0, 2]
        popularity[0] = inside[1, 0] / inside[1, 2]
        popularity /= popularity.max()
        assert sorted(1 / popularity) == pytest.approx(range(1, len(group) + 1))
        for chip, row in enumerate(inside):
            rest = np.delete(popularity, chip)
            assert np.delete(row, chip) == pytest.approx(rest / rest.sum())
    even = traffic_flows(topology, ExpertTraffic("experts", 1.0, 4, 0.0), 3).demand()
    assert even[:4, :4] == pytest.approx((np.ones((4, 4)) - np.eye(4)) / 3)
    assert even.sum() == pytest.approx(16)


def test_neighbours_in_a_mesh_and_below_a_leaf_switch() -> None:
    demand = traffic_flows(mesh(3, 3), NeighbourTraffic("neighbour", 1.0), 1).demand()
    assert demand[4].tolist() == [0, 0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0]
    assert demand[0, [1, 3]].tolist() == [0.5, 0.5]
    tree = build("fat_tree", switch_radix=4, planes=2)
    flows = traffic_flows(tree, NeighbourTraffic("neighbour", 1.0), 1)
    assert len(flows) == tree.chips  # two chips per leaf
    assert (flows.src // 2 == flows.dst // 2).all()


def test_above_the_limit_traffic_to_everyone_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "MOST_EXPLICIT_CHIPS", 8)
    topology = mesh(3, 4)
    uniform = traffic_flows(topology, UniformTraffic("uniform", 1.0), 1)
    assert len(uniform) == 0
    assert uniform.spread.tolist() == [1.0] * 12
    hot = traffic_flows(topology, HotSpotTraffic("hot_spot", 1.0, 2, 0.5), 1)
    assert np.bincount(
        hot.src, weights=hot.share, minlength=hot.chips
    ) + hot.spread == pytest.approx(1)
    assert len(hot) == 12 * 2 - 2
    with pytest.raises(ValueError, match="at most 8"):
        uniform.demand()


@pytest.mark.parametrize(
    ("traffic", "message"),
    [
        (
            permutation("transpose"),
            (
                r"permutation: transpose needs a square grid and there are 12 chips; .* nearest are"
                r" 9 and 16"
            ),
        ),
        (permutation("shift", 24), r"offset: got 24, a multiple of the 12 chips; allowed: 1 to 11"),
        (HotSpotTraffic("hot_spot", 1.0, 13, 0.5), r"hot_chips: got 13; allowed: 1 to 12"),
    ],
)
def test_patterns_that_a_topology_cannot_have(traffic: TrafficSettings, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        traffic_flows(mesh(3, 4), traffic, 1)


GOOD = "0,1\n2,0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,1\n1,0,1\n1,1,0\n", r"the matrix is 3 x 3; allowed: 2 rows of 2 numbers"),
        ("0,1\n", r"the matrix is 1 x 2"),
        ("0,1\n1\n", r"line 2 has 1 numbers, line 1 has 2"),
        ("0,1\n-1,0\n", r"row 2, column 1 is -1; allowed: numbers of 0 or greater"),
        ("0,nan\n1,0\n", r"row 1, column 2 is nan; allowed: finite"),
        ("0,one\n1,0\n", r"line 1 holds 'one', not a number"),
        ("0,\n1,0\n", r"line 1 holds '', not a number"),
        ("0,1\n0,0\n", r"row 2 is empty; allowed: rows with a share greater than 0"),
        ("0,1\n\n1,0\n", r"line 2 is empty"),
        ("1,1\n1,0\n", r"row 1, column 1 is 1; allowed: 0 on the diagonal"),
        ("", r"is empty"),
    ],
)
def test_matrices_that_are_wrong_are_named_with_their_file(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        read_matrix(path, 2)
    assert "demand.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_matrices_from_csv_and_npy(tmp_path: Path) -> None:
    (tmp_path / "demand.csv").write_text(GOOD)
    np.save(tmp_path / "demand.npy", np.array([[0, 1], [2, 0]]))
    for name in ("demand.csv", "demand.npy"):
        assert read_matrix(tmp_path / name, 2).tolist() == [[0, 1], [2, 0]]
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    for name, message in (
        ("text.npy", "holds <U1"),
        ("broken.npy", "not a .npy file"),
        ("none.csv", "no such file"),
    ):
        with pytest.raises(SettingsError, match=message):
            read_matrix(tmp_path / name, 2)


def test_a_matrix_is_scaled_to_a_mean_row_of_one(tmp_path: Path) -> None:
    shares = np.array([[0, 3, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    np.save(tmp_path / "demand.npy", shares)
    flows = traffic_flows(mesh(2, 2), MatrixTraffic("matrix", 1.0, str(tmp_path / "demand.npy")), 1)
    assert flows.demand() == pytest.approx(shares * 4 / 6)


def test_the_first_is_the_given_one_and_more_repeats_keep_the_others() -> None:
    assert repeat_seeds(7, 1) == (7,)
    five = repeat_seeds(7, 5)
    assert five[:3] == repeat_seeds(7, 3)
    assert len({*five, *repeat_seeds(8, 5)}) == 10
    assert all(isinstance(seed, int) and seed >= 0 for seed in five)
