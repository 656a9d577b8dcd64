"""The largest job among failed servers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.design.usable import usable_share
from railx.tenancy.largest import largest_box
from railx.vocabulary.topology import NodeSettings
from tests.builders import topology_settings


@given(
    st.sampled_from([(5,), (3, 4), (2, 3, 4)]),
    st.integers(0, 2**24 - 1),
)
def test_the_largest_box_is_that_of_brute_force(sides: tuple[int, ...], bits: int) -> None:
    healthy = np.array([bits >> unit & 1 for unit in range(math.prod(sides))], bool).reshape(sides)
    best = 0
    for start in itertools.product(*map(range, sides)):
        for lengths in itertools.product(*(range(1, side + 1) for side in sides)):
            box = itertools.product(
                *(
                    [(at + step) % side for step in range(length)]
                    for at, length, side in zip(start, lengths, sides, strict=True)
                )
            )
            if all(healthy[unit] for unit in box):
                best = max(best, math.prod(lengths))
    assert largest_box(healthy) == best


def test_a_job_on_any_nodes_loses_the_failed_ones() -> None:
    tree = topology_settings("fat_tree")
    assert usable_share(tree, 128, 8, 0.125, 1, 1) == (0.875, "closed form")
    # A cube of eight servers works where all do.
    cubes = topology_settings("tpu_v4")
    assert usable_share(cubes, 512, 8, 0.125, 1, 1).share == pytest.approx(0.875**8)
    assert usable_share(tree, 128, 8, 0.0, 1, 1).share == 1


class OneFailure:
    """Draws a single failed server, another one every time."""

    def __init__(self, seed: int) -> None:
        self.turn = seed

    def random(self, servers: int) -> np.ndarray:
        self.turn += 1
        return (np.arange(servers) != self.turn % servers).astype(float)


@pytest.mark.parametrize(
    ("name", "chips", "basis", "left"),
    [
        # A failed node of 25 in a square takes a row, a chip of 100 in a torus as well.
        ("railx_hyperx", 100, "lines", 0.8),
        ("torus_2d", 100, "blocks", 0.9),
    ],
)
def test_a_failed_server_takes_what_the_shape_of_jobs_takes(
    name: str,
    chips: int,
    basis: str,
    left: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(np.random, "default_rng", OneFailure)
    server = {"railx_hyperx": 4, "torus_2d": 1}[name]
    usable = usable_share(topology_settings(name), chips, server, server / chips, 3, 1)
    assert tuple(usable) == (pytest.approx(left), basis)


def test_nodes_of_a_torus_are_the_units_of_its_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "default_rng", OneFailure)
    settings = topology_settings("torus_2d", node={"chips": 4, "links": "switch"})
    assert settings.node == NodeSettings(4, "switch")
    usable = usable_share(settings, 100, 4, 1 / 25, 3, 1)
    assert tuple(usable) == (pytest.approx(0.8), "blocks")
