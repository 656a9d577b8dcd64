"""Plans on any topology: sizes, rates, and a search that a faster network bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace

import numpy as np
import pytest

from railx.errors import UserError
from railx.families import FAMILIES, build_topology, family_of
from railx.network.group_bandwidth import MemberRates, RoutedLoads, routed_loads, strided_groups
from railx.performance import topologies
from railx.performance.advice import AdviceSettings, advise
from railx.performance.devices import device_named
from railx.performance.layers import Setting
from railx.performance.models import model_named
from railx.performance.plans import ORDERS, Array, Plans
from railx.performance.programs import constants_named, program_named
from railx.performance.search import (
    Job,
    candidates,
    first_plans,
    price,
    search,
    search_below,
)
from railx.performance.topologies import ExactLoads, node_rates_gb_s, on_devices, sized
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology
from tests.builders import topology_settings

FAMILY_NAMES = [family.name for family in FAMILIES if family.name != "imported"]
H100 = device_named("h100")
JOB = Job(24, 48, 8192)


def setting_on(name: str) -> tuple[Setting, Setting]:
    """A small model on a topology, and on the network that bounds it."""
    topology = sized(topology_settings(name), (), JOB.devices, "network")
    exact, bound = on_devices(topology, H100, fast_share=0.8, slow_share=0.2)
    model = replace(model_named("llama3_8b"), layers=8)
    program, constants = program_named("torchtitan"), constants_named("torchtitan_h100")
    setting = Setting(model, H100, exact, program, constants)
    return setting, replace(setting, network=bound)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_bound_of_a_network_is_faster_for_every_plan(name: str) -> None:
    exact, bound = setting_on(name)
    plans = candidates(exact.model, JOB, exact.network.node_devices)
    some = plans.take(np.arange(0, len(plans), 29))
    for order in (0, len(ORDERS) - 1):
        placed = some.placed(order)
        exact_s, bound_s = (price(on, placed).times.total_s for on in (exact, bound))
        assert (bound_s <= exact_s).all()


@pytest.mark.parametrize("name", ["torus_2d", "opus_rails"])
def test_a_bounded_search_equals_pricing_every_plan(name: str) -> None:
    exact, bound = setting_on(name)
    ideal = search(bound, JOB).plans
    every = price(exact, ideal).times.total_s
    ranked = price(exact, ideal.take(np.argsort(every, kind="stable")))

    def last(setting: Setting, plans: Plans) -> Array:
        slowest = ideal.plan(len(ideal) - 1)
        return np.array([plans.plan(row) == slowest for row in range(len(plans))])

    few = search_below(exact, JOB, bound.network, 3, [last])
    first, brute = (
        plans.take(np.array(first_plans(plans, 3))).times.total_s for plans in (few, ranked)
    )
    assert first.tolist() == brute.tolist()
    # A rival is priced, too, however slow.
    assert every[-1] in few.times.total_s
    assert len(few) < len(every)


@pytest.mark.parametrize(
    ("name", "inside_gb_s", "outside_gb_s"),
    [("rail_optimised", 0.8 * 450, 0.2 * 50), ("torus_3d", 0.0, 0.8 * 450)],
)
def test_chips_send_as_fast_as_the_device(
    name: str, inside_gb_s: float, outside_gb_s: float
) -> None:
    exact, _ = on_devices(topology_settings(name), H100, fast_share=0.8, slow_share=0.2)
    assert node_rates_gb_s(exact.topology) == pytest.approx((outside_gb_s, inside_gb_s))
    assert exact.node_devices == 8


def test_a_topology_has_the_next_size_that_there_is() -> None:
    small, large = topology_settings("railx_hyperx"), topology_settings("railx_hyperx_m4n2")
    advice = advise(AdviceSettings("llama3_8b", "h100", 130, network="x"), [small, large])
    assert "exact loads of railx_" in advice.as_dict()["network_model"]
    assert "with 144 chips" in advice.as_dict()["network_model"]
    assert advice.expected_error is None
    with pytest.raises(
        UserError, match="network: got mesh_2d for 1000 devices, which comes with 64"
    ):
        sized(topology_settings("mesh_2d"), (), 1000, "network")


@pytest.mark.parametrize("name", ["torus_2d", "opus_rails"])
def test_known_rates_give_the_same_advice_without_routing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, topology = (
        AdviceSettings("llama3_8b", "h100", 64, network=name),
        [topology_settings(name)],
    )
    known: dict[str, Sequence[float]] = {}
    first = advise(settings, topology, known)
    assert first.as_dict() == advise(settings, topology).as_dict()
    slower: dict[str, Sequence[float]] = {
        key: (rates[0] / 2, rates[1] / 2, rates[2]) for key, rates in known.items()
    }
    again = json.loads(json.dumps(known))
    assert advise(settings, topology, slower).best[0]["step_s"] > first.best[0]["step_s"]
    monkeypatch.setattr(topologies, "routed_loads", None)
    assert advise(settings, topology, again).as_dict() == first.as_dict()


def test_a_routing_with_too_large_a_table_is_left_out_unless_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = setting_on("hyperx")[0].network
    assert isinstance(network, ExactLoads)
    assert len(network.routings) > 1
    groups = strided_groups(network.chips, 2, 1)

    def too_large(topology: Topology, routing: str, destinations: None) -> RoutedLoads:
        if routing != allowed:
            raise SettingsError("routing", "got a table of 4.3 GiB")
        return routed_loads(topology, routing, destinations)

    monkeypatch.setattr(topologies, "routed_loads", too_large)
    allowed = network.routings[0]
    assert {way.routing for way in network.ways(groups, "all_gather")} == {allowed}
    allowed = ""
    alone = ExactLoads(network.topology, network.routings[:1], selective=True)
    with pytest.raises(SettingsError, match="routing: got a table"):
        alone.ways(groups, "all_gather")
    with pytest.raises(SettingsError, match="routing: got a table"):
        ExactLoads(network.topology, network.routings).ways(groups, "all_gather")


def test_rates_are_remembered_for_the_groups_that_they_were_asked_of() -> None:
    network = setting_on("torus_2d")[0].network
    assert isinstance(network, ExactLoads)
    for stride in (1, 4):
        groups = strided_groups(network.chips, 4, stride)
        alone = ExactLoads(network.topology, network.routings).ways(groups, "all_gather")
        assert network.ways(groups, "all_gather") == alone


@pytest.mark.parametrize("family", [family.name for family in FAMILIES if family.same_loads])
def test_routings_with_the_loads_of_another_give_its_rates(family: str) -> None:
    topology = build_topology(topology_settings(family))
    network = ExactLoads(topology, ("min", *family_of(topology).same_loads))
    for members, stride in ((2, 1), (4, 8), (8, 2), (64, 1)):
        groups = strided_groups(network.chips, members, stride)
        rates: dict[str, list[MemberRates]] = {}
        for way in network.ways(groups, "all_gather"):
            rates.setdefault(way.routing, []).append(way.rates)
        shortest, *others = rates.values()
        assert others
        for same in others:
            for one, other in zip(same, shortest, strict=True):
                assert astuple(one) == pytest.approx(astuple(other), rel=1e-12)


def test_rails_set_to_a_ring_are_slower_than_switched_ones() -> None:
    """The same rates; a ring passes on what is meant for farther servers."""
    steps = [
        advise(AdviceSettings("llama3_8b", "h100", 64, network=name), [topology_settings(name)])
        for name in ("rail_only", "opus_rails")
    ]
    switched, ring = (advice.best[0]["step_s"] for advice in steps)
    assert switched < ring


def test_detours_are_asked_only_where_shortest_paths_stay_below_half_of_the_ports() -> None:
    """A gather's ring first, directly only where that is slow as well."""
    exact, _ = on_devices(topology_settings("dragonfly"), H100, fast_share=0.8, slow_share=0.2)
    complete = ExactLoads(exact.topology, exact.routings, None, exact.node_devices)
    half_gb_s, asked = node_rates_gb_s(exact.topology)[0] / 2, []
    for members in (2, 4, 8):
        ways = complete.job_ways("all_gather", members, 1)
        expected = [way for way in ways if way.routing != "valiant"]
        for way in reversed([way for way in ways if way.routing == "valiant"]):
            if max(way.rates.gb_s for way in expected) < half_gb_s:
                expected.append(way)
        assert exact.job_ways("all_gather", members, 1) == expected
        asked.append([way.algorithm for way in expected if way.routing == "valiant"])
    assert asked == [["direct"], ["ring"], []]
