"""Which circuits groups need, and that they are always a matching."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Circuit, Configuration, Layout, Port, ports_of

RANKS = st.lists(st.integers(0, 15), min_size=2, max_size=16, unique=True)


def _is_matching(circuits: Iterable[Circuit]) -> bool:
    """Whether every port is used by one circuit at most."""
    ports = [port for circuit in circuits for port in circuit.ports]
    return len(set(ports)) == len(ports)


def test_pair_uses_the_right_port_of_the_lower_rank() -> None:
    assert Layout(1).circuits(Configuration("pair", (3, 1))) == (Circuit(right=1, left=3),)


def test_ring_of_four_on_one_rail() -> None:
    circuits = Layout(1).circuits(Configuration("ring", (0, 1, 2, 3)))
    assert circuits == (Circuit(0, 1), Circuit(1, 2), Circuit(2, 3), Circuit(3, 0))


def test_ring_of_two_uses_both_ports_of_both() -> None:
    assert ports_of(Layout(1).circuits(Configuration("ring", (0, 1)))) == {
        Port(gpu, side) for gpu in (0, 1) for side in ("left", "right")
    }


def test_group_over_two_servers_has_a_ring_on_each_rail() -> None:
    assert Layout(2).circuits(Configuration("ring", (0, 1, 2, 3))) == (
        Circuit(0, 2),
        Circuit(2, 0),
        Circuit(1, 3),
        Circuit(3, 1),
    )


def test_pair_on_different_rails_goes_through_the_server_of_the_lower_rank() -> None:
    assert Layout(2).circuits(Configuration("pair", (1, 2))) == (Circuit(0, 2),)


def test_middle_stage_keeps_both_neighbours() -> None:
    layout = Layout(1)
    both = layout.circuits(Configuration("pair", (0, 1))) + layout.circuits(
        Configuration("pair", (1, 2))
    )
    assert _is_matching(both)


@given(members=RANKS, gpus_per_server=st.integers(1, 8), kind=st.sampled_from(["pair", "ring"]))
def test_circuits_are_a_matching_within_rails(
    members: list[int], gpus_per_server: int, kind: str
) -> None:
    layout = Layout(gpus_per_server)
    configuration = Configuration(kind, tuple(members[:2] if kind == "pair" else members))  # type: ignore[arg-type]
    circuits = layout.circuits(configuration)
    assert _is_matching(circuits)
    assert all(
        layout.rail(right) == layout.rail(left) and layout.server(right) != layout.server(left)
        for right, left in circuits
    )
    assert (circuits == ()) == layout.is_scale_up(configuration.members)
    assert sorted(
        circuit for some in layout.rails(circuits).values() for circuit in some
    ) == sorted(circuits)
    if circuits and kind == "ring":
        servers = {layout.server(member) for member in configuration.members}
        rails = {layout.rail(member) for member in configuration.members}
        assert len(circuits) == len(servers) * len(rails)


def test_names_tell_configurations_apart() -> None:
    assert Configuration("ring", (2, 0)).name == "ring 0,2"
    assert Configuration("pair", (0, 2)).name == "pair 0,2"


@pytest.mark.parametrize(
    ("kind", "members"),
    [("star", (0, 1)), ("ring", (0,)), ("ring", (0, 0)), ("ring", (-1, 0)), ("pair", (0, 1, 2))],
)
def test_impossible_configurations_are_refused(kind: str, members: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Configuration(kind, members)  # type: ignore[arg-type]


def test_layout_needs_a_gpu_in_each_server() -> None:
    with pytest.raises(ValueError, match="gpus_per_server: got 0; allowed: at least 1"):
        Layout(0)
