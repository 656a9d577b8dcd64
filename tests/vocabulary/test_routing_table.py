"""Routing tables: what the checks must find, loads against walked packets, hops against
breadth-first search.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.families import build_routing, build_topology
from railx.families.torus_2d import Torus2DSettings
from railx.network.metrics import chip_hop_counts
from railx.settings import SettingsError
from railx.vocabulary.routing import node_walks
from railx.vocabulary.routing.analysis import (
    check_deadlock_free,
    check_delivery,
    path_lengths,
    spread_options,
    table_lane_loads,
    with_virtual_channels,
)
from railx.vocabulary.routing.table import RoutingTable, TableBuilder
from railx.vocabulary.topology import Topology
from tests.builders import topology_settings


def torus(columns: int, rows: int, lanes: int = 1) -> Topology:
    return build_topology(Torus2DSettings("torus_2d", n=lanes, x_scale=columns, y_scale=rows))


def ring_table(
    topology: Topology,
    *,
    virtual_channels: int,
    give_up_at: int | None = None,
    circle: bool = False,
) -> RoutingTable:
    """Always up the only ring of a 1-wide walk along x, on one virtual channel;
    deliberately wrong in the ways asked for.
    """
    builder = TableBuilder(topology, "up", states=1, virtual_channels=virtual_channels)
    chip = np.arange(topology.chips)
    columns = topology.settings.x_scale
    up = chip // columns * columns + (chip + 1) % columns
    along_y = (chip + columns) % topology.chips
    for to in range(topology.chips):
        same_row = chip // columns == to // columns
        nearer = np.where(same_row | circle, up, along_y)
        builder.entry[0, : topology.chips, to] = builder.single(
            builder.pools_between(chip, nearer, 0), 0
        )
    if give_up_at is not None:
        builder.entry[0, give_up_at, :] = -1
    return builder.build()


def test_a_ring_on_one_channel_can_deadlock_and_the_check_names_the_circle() -> None:
    topology = torus(5, 3)
    table = ring_table(topology, virtual_channels=1)
    check_delivery(topology, table)
    with pytest.raises(
        ValueError,
        match=(
            r"up on torus_2d: packets can wait for each other in a circle: torus_\w \d+ to \d+ on"
        ),
    ):
        check_deadlock_free(topology, table)


def test_a_dead_end_is_named() -> None:
    topology = torus(5, 3)
    with pytest.raises(ValueError, match="in state 0 at 4 has nowhere to go"):
        check_delivery(topology, ring_table(topology, virtual_channels=1, give_up_at=4))


def test_a_packet_that_goes_round_for_ever_is_named() -> None:
    topology = torus(5, 3)
    with pytest.raises(ValueError, match="goes round for ever"):
        check_delivery(topology, ring_table(topology, virtual_channels=1, circle=True))


def test_a_link_from_elsewhere_is_named() -> None:
    topology = torus(4, 3)
    builder = TableBuilder(topology, "elsewhere", states=1, virtual_channels=1)
    builder.entry[:] = builder.choice_set([(builder.pool([0], 0), 0)])
    with pytest.raises(ValueError, match="link 0 does not start at vertex"):
        check_delivery(topology, builder.build())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 7), st.integers(2, 7), st.sampled_from(["min", "balanced"]), st.integers(1, 3)
)
def test_dimension_order_on_any_torus(columns: int, rows: int, routing: str, lanes: int) -> None:
    topology = torus(columns, rows, lanes)
    table = build_routing(topology, routing)
    check_delivery(topology, table)
    check_deadlock_free(topology, table)
    hops = path_lengths(topology, table)
    counted: Any = chip_hop_counts(topology)
    assert np.array_equal(
        np.bincount(np.round(hops.links).astype(int).ravel(), minlength=len(counted)), counted
    )
    assert np.array_equal(hops.links, hops.external_links)
    # Every packet loads one lane of one link per hop.
    loads = table_lane_loads(topology, table)
    assert (loads * topology.links.lanes).sum() == pytest.approx(
        hops.links.sum() / (topology.chips - 1)
    )


def test_a_block_of_destinations_is_a_part_of_the_whole() -> None:
    topology = torus(5, 4)
    whole = build_routing(topology, "balanced")
    parts = [
        build_routing(topology, "balanced", np.arange(first, first + 5, dtype=np.int32))
        for first in range(0, 20, 5)
    ]
    summed = sum(table_lane_loads(topology, part) for part in parts)
    assert np.allclose(summed, table_lane_loads(topology, whole), atol=1e-12, rtol=0)


def test_given_demand_loads_only_the_ways_of_its_packets() -> None:
    topology = torus(5, 4)
    demand = np.zeros((20, 20))
    demand[0, 2] = 3.0
    loads = table_lane_loads(topology, build_routing(topology, "min"), demand)
    links = topology.links
    used = {
        (int(links.src[row]), int(links.dst[row])): float(loads[row])
        for row in np.flatnonzero(loads)
    }
    assert used == {(0, 1): 3.0, (1, 2): 3.0}
    with pytest.raises(ValueError, match=r"demand: shape \(3, 20\); allowed: \(20, 20\)"):
        table_lane_loads(topology, build_routing(topology, "min"), demand[:3])


def test_a_routing_that_a_family_does_not_offer_is_refused() -> None:
    with pytest.raises(
        SettingsError, match="routing: got 'adaptive'; allowed on torus_2d: min, balanced"
    ):
        build_routing(torus(4, 4), "adaptive")


def test_wrong_channels_weights_and_links_are_refused() -> None:
    topology = torus(4, 4)
    builder = TableBuilder(topology, "mine", states=1, virtual_channels=2)
    with pytest.raises(ValueError, match="mine: virtual channel 2; allowed: 0 to 1"):
        builder.pool([0], 2)
    with pytest.raises(ValueError, match=r"mine: weights .* allowed: 2 shares that sum to 1"):
        builder.choice_set([(0, 0), (1, 0)], [0.5, 0.4])
    with pytest.raises(ValueError, match=r"mine: weights .* sum to 1"):
        builder.choice_sets(np.arange(3), np.zeros(3), np.array([1, 0.5, 0.4]), np.array([1, 3]))
    with pytest.raises(ValueError, match="mine: no link from vertex 0 to vertex 5"):
        builder.pools_between(np.array([0]), np.array([5]), 0)


@given(
    calls=st.lists(
        st.lists(st.tuples(st.integers(-1, 400), st.integers(0, 6)), min_size=1, max_size=8),
        min_size=1,
        max_size=8,
    )
)
def test_a_choice_alone_has_one_set_whenever_it_is_asked(
    calls: list[list[tuple[int, int]]],
) -> None:
    """Numbered by pool and state within a call, whatever was asked before."""
    builder = TableBuilder(torus(3, 3), "up", states=7, virtual_channels=1)
    numbers: dict[tuple[int, int], int] = {}
    for number, choices in enumerate(calls):
        for choice in sorted(set(choices)):
            if choice[0] >= 0:
                numbers.setdefault(choice, len(numbers))
        pools, states = np.array(choices).T
        sets = builder.single(pools, states)
        if number % 2 and pools[0] >= 0:
            assert builder.choice_set([choices[0]]) == sets[0]
        assert sets.tolist() == [numbers.get(choice, -1) for choice in choices]
    table = builder.build()
    alone = zip(table.choice_pool.tolist(), table.choice_state.tolist(), strict=True)
    assert list(alone) == list(numbers)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["rows", "pair", "between", "single"]),
            st.integers(0, 35),
            st.integers(0, 1),
            st.integers(-1, 0),
        ),
        max_size=12,
    )
)
def test_pools_are_numbered_as_they_come(calls: list[tuple[str, int, int, int]]) -> None:
    """By link rows, channel and lane; rows may be one, all of a pair, or others."""
    topology = torus(3, 2)
    links, builder = topology.links, TableBuilder(topology, "up", states=1, virtual_channels=2)
    pairs = sorted(set(zip(links.src.tolist(), links.dst.tolist(), strict=True)))
    joining = {
        pair: tuple(np.flatnonzero((links.src == pair[0]) & (links.dst == pair[1])).tolist())
        for pair in pairs
    }
    assert {len(rows) for rows in joining.values()} == {1, 2}
    numbers: dict[tuple[tuple[int, ...], int, int], int] = {}
    for call, drawn, vc, lane in calls:
        row = drawn % len(links)
        pair = pairs[drawn % len(pairs)]
        if call == "single":
            keys = [((at,), vc, -1) for at in sorted({row, 0})]
            found = builder.row_pools(np.array([row, -1, 0]), vc)
            asked, none = [((row,), vc, -1), ((0,), vc, -1)], int(found[1])
            got = found[[0, 2]].tolist()
            assert none == -1
        elif call == "between":
            keys = [(rows, vc, lane) for rows in joining.values()]
            asked = [(joining[pair], vc, lane)]
            got = [int(builder.pools_between(np.array(pair[0]), np.array(pair[1]), vc, lane))]
        else:
            rows = joining[pair] if call == "pair" else tuple({row: 0, (row + 7) % len(links): 0})
            keys = asked = [(rows, vc, lane)]
            got = [builder.pool(rows, vc, lane)]
        for key in keys:
            numbers.setdefault(key, len(numbers))
        assert got == [numbers[key] for key in asked]
    builder.entry[:] = builder.choice_set([(builder.pool([0], 0), 0)])
    numbers.setdefault(((0,), 0, -1), len(numbers))
    table = builder.build()
    split = np.split(table.pool_link, table.pool_start[1:-1])
    channels = zip(table.pool_class.tolist(), table.pool_lane.tolist(), strict=True)
    assert [(tuple(rows), *at) for rows, at in zip(split, channels, strict=True)] == list(numbers)


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from([0.5, 0.25, 1.0])),
        max_size=8,
    )
)
def test_merged_sets_have_the_choices_of_both(merges: list[tuple[int, int, float]]) -> None:
    builder = TableBuilder(torus(3, 3), "up", states=2, virtual_channels=1)
    sets = [((0, 0, 1.0),), ((1, 1, 1.0),), ((0, 0, 0.75), (2, 1, 0.25))]
    for number, row in enumerate(sets):
        choices, weights = [choice[:2] for choice in row], [choice[2] for choice in row]
        assert builder.choice_set(choices, weights) == number
    for one, other, share in merges:
        first, second = one % len(sets), other % len(sets)
        kept = [(first, share), (second, 1 - share)][: 1 if share == 1 else 2]
        row = tuple((*choice[:2], choice[2] * part) for at, part in kept for choice in sets[at])
        number = int(builder.merge(np.array([first]), np.array([second]), share)[0])
        assert number == (sets.index(row) if row in sets else len(sets))
        sets += [] if row in sets else [row]
    table = builder.build()
    columns = table.choice_pool, table.choice_state, table.choice_weight
    every = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [
        tuple(every[a:b]) for a, b in zip(table.set_start[:-1], table.set_start[1:], strict=True)
    ] == sets


@pytest.mark.parametrize("name", ["railx_dragonfly", "railx_hyperx", "railx_mixed"])
def test_shares_are_divided_block_by_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = build_topology(topology_settings(name))
    tables = []
    for block in (1, 1 << 30):
        monkeypatch.setattr(node_walks, "_BLOCK", block)
        tables.append(build_routing(topology, "balanced"))
    for field in dataclasses.fields(RoutingTable):
        parts = [getattr(table, field.name) for table in tables]
        if isinstance(parts[0], np.ndarray):
            assert parts[0].tolist() == parts[1].tolist()


def test_spare_virtual_channels_carry_the_loads_of_their_class() -> None:
    topology = torus(5, 4)
    table = build_routing(topology, "min")
    more = with_virtual_channels(topology, table, 5)
    options = spread_options(topology, more)
    assert set(options.vc.tolist()) == set(range(5))
    first = options.start[table.entry[0, 0, 1]]
    last = options.start[table.entry[0, 0, 1] + 1]
    own = int(table.pool_class[table.choice_pool[table.set_start[table.entry[0, 0, 1]]]])
    assert options.vc[first:last].tolist() == np.flatnonzero(more.channel_class == own).tolist()
    assert options.weight[first:last].tolist() == pytest.approx(
        [1 / (last - first)] * (last - first)
    )
    assert np.allclose(
        table_lane_loads(topology, more), table_lane_loads(topology, table), atol=1e-12, rtol=0
    )
    check_deadlock_free(topology, more)


def test_spare_virtual_channels_do_not_make_up_for_a_class() -> None:
    """A ring on one class closes a circle, whatever the number of its channels."""
    topology = torus(5, 4)
    table = build_routing(topology, "min")
    for number in (1, 3):
        merged = dataclasses.replace(
            table,
            channel_class=np.zeros(number, dtype=np.int32),
            pool_class=np.zeros_like(table.pool_class),
        )
        with pytest.raises(ValueError, match="wait for each other in a circle"):
            check_deadlock_free(topology, merged)
