"""Plans on any topology: sizes, rates, and a search that a faster network bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.errors import UserError
from railx.families import FAMILIES, build_topology, family_of
from railx.network.group_bandwidth import MemberRates, RoutedLoads, routed_loads, strided_groups
from railx.performance import search as plan_search
from railx.performance import topologies
from railx.performance.advice import AdviceSettings, advise
from railx.performance.closed import PARTS, StepTimes
from railx.performance.devices import device_named
from railx.performance.layers import Layers, Setting
from railx.performance.models import model_named
from railx.performance.networks import Kind, Network
from railx.performance.plans import ORDERS, Array, Plan, Plans
from railx.performance.programs import constants_named, program_named
from railx.performance.search import (
    Job,
    Priced,
    Rival,
    candidates,
    first_plans,
    price,
    search,
    search_below,
)
from railx.performance.topologies import Answered, ExactLoads, node_rates_gb_s, on_devices, sized
from railx.settings import SettingsError
from railx.vocabulary.topology import Topology
from tests.builders import topology_settings

FAMILY_NAMES = [family.name for family in FAMILIES if family.name != "imported"]
H100 = device_named("h100")
JOB = Job(24, 48, 8192)


def setting_on(name: str, node_devices: int | None = None) -> tuple[Setting, Setting]:
    """A small model on a topology, and on the network that bounds it."""
    topology = sized(topology_settings(name), (), JOB.devices, "network")
    exact, bound = on_devices(
        topology, H100, JOB.devices, fast_share=0.8, slow_share=0.2, node_devices=node_devices
    )
    model = replace(model_named("llama3_8b"), layers=8)
    program, constants = program_named("torchtitan"), constants_named("torchtitan_h100")
    setting = Setting(model, H100, exact, program, constants)
    return setting, replace(setting, network=bound)


def answered_on(exact: Setting, bound: Network) -> Answered:
    """What the network of a setting was asked, and what bounds the rest."""
    assert isinstance(exact.network, ExactLoads)
    return Answered(exact.network, bound)


@pytest.mark.parametrize("node_devices", [None, 2])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_bound_of_a_network_is_faster_for_every_plan(
    name: str, node_devices: int | None
) -> None:
    exact, bound = setting_on(name, node_devices)
    plans = candidates(exact.model, JOB, exact.network.node_devices)
    some = plans.take(np.arange(0, len(plans), 29))
    for order in (0, len(ORDERS) - 1):
        placed = some.placed(order)
        exact_s, bound_s = (price(on, placed).times.total_s for on in (exact, bound))
        assert (bound_s <= exact_s).all()


@pytest.mark.parametrize("name", ["torus_2d", "opus_rails"])
@pytest.mark.parametrize("learns", [False, True])
def test_a_bounded_search_equals_pricing_every_plan(name: str, learns: bool) -> None:
    exact, bound = setting_on(name)
    answered = answered_on(exact, bound.network) if learns else None
    ideal = search(bound, JOB).plans
    every = price(exact, ideal).times.total_s
    ranked = price(exact, ideal.take(np.argsort(every, kind="stable")))

    def last(setting: Setting, plans: Plans) -> Array:
        slowest = ideal.plan(len(ideal) - 1)
        return np.array([plans.plan(row) == slowest for row in range(len(plans))])

    few = search_below(exact, JOB, bound.network, 3, [last], answered)
    first, brute = (
        plans.take(np.array(first_plans(plans, 3))).times.total_s for plans in (few, ranked)
    )
    assert first.tolist() == brute.tolist()
    # A rival is priced, too, however slow.
    assert every[-1] in few.times.total_s
    assert len(few) < len(every)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_answered_transfers_take_their_exact_time_and_others_the_bound(name: str) -> None:
    exact, bound = setting_on(name)
    plans = candidates(exact.model, JOB, exact.network.node_devices)
    some = plans.take(np.arange(0, len(plans), 97))
    answered = replace(exact, network=answered_on(exact, bound.network))
    first_s, bound_s = (price(on, some).times.total_s for on in (answered, bound))
    assert first_s.tolist() == bound_s.tolist()
    exact_s = price(exact, some.take(np.arange(3))).times.total_s
    partly_s = price(answered, some).times.total_s
    assert partly_s[:3].tolist() == exact_s.tolist()
    exact_s = price(exact, some).times.total_s
    assert (bound_s <= partly_s).all()
    assert (partly_s * (1 - 1e-9) <= exact_s).all()
    assert price(answered, some).times.total_s.tolist() == exact_s.tolist()


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_rings_and_distances_bound_every_plan(name: str) -> None:
    exact, bound = setting_on(name)
    plans = candidates(exact.model, JOB, exact.network.node_devices)
    some = plans.take(np.arange(0, len(plans), 97))
    nearer = replace(answered_on(exact, bound.network), asks=True)
    bound_s, nearer_s = (
        price(replace(exact, network=network), some).times.total_s
        for network in (bound.network, nearer)
    )
    exact_s = price(exact, some).times.total_s
    assert (bound_s <= nearer_s).all()
    assert (nearer_s * (1 - 1e-9) <= exact_s).all()


def test_what_a_gather_asked_is_exact_for_the_kinds_that_send_the_same() -> None:
    exact, bound = setting_on("torus_2d")
    answered = answered_on(exact, bound.network)
    size, members, inside = np.array([1e6]), np.array([4]), np.array([4])
    exact.network.time_s("all_gather", size, members, inside)
    scatter_s = answered.time_s("reduce_scatter", size, members, inside)
    exchange_s = answered.time_s("all_to_all", size, members, inside)
    assert scatter_s == exact.network.time_s("reduce_scatter", size, members, inside)
    assert exchange_s == bound.network.time_s("all_to_all", size, members, inside)


class Slower:
    """A network on which each transfer of a group takes longer than on another by a
    factor drawn for it; ``asked`` are the groups so far.
    """

    def __init__(self, bound: Network, seed: int) -> None:
        self.bound, self.seed = bound, seed
        self.node_devices, self.words = bound.node_devices, "slower"
        self.asked: set[tuple[str, int, int]] = set()

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        self.asked |= set(self.keys(kind, size_bytes, members, inside))
        return self.known_s(kind, size_bytes, members, inside)

    def known_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        """Of groups that were asked the time, of others that of the bound."""
        keys = self.keys(kind, size_bytes, members, inside)
        factor = [self.factor(key) if key in self.asked else 1.0 for key in keys]
        return self.bound.time_s(kind, size_bytes, members, inside) * factor

    @staticmethod
    def keys(
        kind: Kind, size_bytes: Array, members: Array, inside: Array
    ) -> list[tuple[str, int, int]]:
        _, *groups = np.broadcast_arrays(size_bytes, members, inside)
        return [(kind, int(count), int(near)) for count, near in np.transpose(groups)]

    @cache  # noqa: B019
    def factor(self, key: tuple[str, int, int]) -> float:
        return 1 + Random(f"{self.seed} {key}").choice([0.0, 0.01, 0.3, 2.0])


class AnsweredSlower(Slower):
    """What of a slower network is known, else what bounds it."""

    def __init__(self, slower: Slower) -> None:
        super().__init__(slower.bound, slower.seed)
        self.asked = slower.asked

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        return self.known_s(kind, size_bytes, members, inside)


class Between(Slower):
    """A network halfway between a slower one and what bounds it."""

    def time_s(self, kind: Kind, size_bytes: Array, members: Array, inside: Array) -> Array:
        slower_s = super().time_s(kind, size_bytes, members, inside)
        return (self.bound.time_s(kind, size_bytes, members, inside) + slower_s) / 2


def compared_by_brute_force(
    exact: Setting, bound: Setting, ideal: Plans, rivals: Sequence[Rival], shown: int
) -> Priced:
    """Plans in the order of the bound: as many again as before, all priced, until the
    bound of the rest is above the last that is shown.
    """
    every = price(exact, ideal)
    bound_s = price(bound, ideal).times.total_s
    left = np.ones(len(ideal), bool)
    rows = {*range(16), *(int(np.flatnonzero(rival(exact, ideal))[0]) for rival in rivals)}
    taken: list[int] = []
    while rows:
        taken += sorted(rows)
        left[taken] = False
        order = np.argsort(every.times.total_s[taken], kind="stable")
        ranked = every.take(np.array(taken)[order])
        last_s = ranked.times.total_s[first_plans(ranked, shown)[-1]]
        rows = set(np.flatnonzero(left & (bound_s < last_s))[: len(taken)].tolist())
    return ranked


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6), learns=st.booleans(), nears=st.booleans(), shown=st.integers(1, 4)
)
def test_a_bounded_search_shows_what_pricing_all_of_its_plans_shows(
    seed: int, learns: bool, nears: bool, shown: int
) -> None:
    _, bound = setting_on("torus_2d")
    slower = Slower(bound.network, seed)
    exact = replace(bound, network=slower)

    def staged(setting: Setting, plans: Plans) -> Array:
        return np.asarray(plans["pipeline"] == plans["pipeline"].max())

    def wide(setting: Setting, plans: Plans) -> Array:
        return np.asarray((plans["tensor"] == 8) & (plans["recompute"] == 2))

    rivals = [staged, wide]
    answered = AnsweredSlower(slower) if learns else None
    nearer = Between(bound.network, seed) if nears else None
    few = search_below(exact, JOB, bound.network, shown, rivals, answered, nearer)
    asked = len(slower.asked)
    brute = compared_by_brute_force(exact, bound, search(bound, JOB).plans, rivals, shown)
    assert asked <= len(slower.asked)
    rows = [
        [*first_plans(priced, shown)]
        + [int(np.flatnonzero(rival(exact, priced.plans))[0]) for rival in rivals]
        for priced in (few, brute)
    ]
    for ours, theirs in zip(*rows, strict=True):
        assert few.plans.plan(ours) == brute.plans.plan(theirs)
        assert few.times.total_s[ours] == brute.times.total_s[theirs]


def test_of_equal_plans_that_which_came_first_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _, setting = setting_on("torus_2d")
    some = search(setting, JOB).take(np.arange(12)[::-1])

    def equal(setting: Setting, plans: Plans) -> Priced:
        parts = dict.fromkeys(PARTS, np.ones(len(plans)))
        return replace(price(setting, plans), times=StepTimes(parts))

    monkeypatch.setattr(plan_search, "price", equal)
    compared = plan_search._Compared(setting, setting.network, some.take(np.arange(0)))
    compared.add(some)
    assert compared.last_s(len(some)) == len(PARTS)
    ours, theirs = ([p.plans.plan(row) for row in range(12)] for p in (compared.priced, some))
    assert ours == theirs


def test_a_search_that_learns_asks_less() -> None:
    _, bound = setting_on("torus_2d")
    asked = []
    for learns in (False, True):
        slower = [Slower(bound.network, seed) for seed in range(8)]
        for network in slower:
            answered = AnsweredSlower(network) if learns else None
            exact = replace(bound, network=network)
            search_below(exact, JOB, bound.network, 3, [], answered)
        asked.append(sum(len(network.asked) for network in slower))
    assert asked[1] < asked[0]


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
    with pytest.raises(UserError, match="allowed: exact loads of at most 4096"):
        sized(topology_settings("slim_fly"), (), 5000, "network")


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


def test_groups_of_a_job_in_one_rack_stay_in_it_though_the_network_has_more() -> None:
    """64 of 144 chips: the second group of 64 would lie in both racks of 72."""
    topology = sized(topology_settings("nvl72_rails"), (), 64, "network")
    exact, bound = on_devices(topology, H100, 64, fast_share=0.8, slow_share=0.2)
    assert exact.topology.chips == 144
    for members in (32, 64):
        asked = "all_gather", np.array([1e12]), np.array([members]), np.array([members])
        assert exact.time_s(*asked) == pytest.approx(bound.time_s(*asked), rel=1e-6)


@pytest.mark.parametrize("name", ["railx_hyperx", "torus_2d", "rail_optimised"])
def test_ranks_of_a_job_fill_whole_nodes(name: str) -> None:
    """Any number of them, in the order of all chips."""
    settings = topology_settings(name)
    exact, _ = on_devices(settings, H100, 22, fast_share=0.8, slow_share=0.2)
    every, _ = on_devices(settings, H100, fast_share=0.8, slow_share=0.2)
    assert exact.chips.tolist() == every.chips[:22].tolist()


def test_rails_set_to_a_ring_are_slower_than_switched_ones() -> None:
    """The same rates; a ring passes on what is meant for farther servers."""
    steps = [
        advise(AdviceSettings("llama3_8b", "h100", 64, network=name), [topology_settings(name)])
        for name in ("rail_only", "opus_rails")
    ]
    switched, ring = (advice.best[0]["step_s"] for advice in steps)
    assert switched < ring


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["torus_2d", "railx_hyperx_m4n2", "rail_optimised"])
def test_transfers_are_those_of_the_groups_of_the_plan(name: str, order: tuple[str, ...]) -> None:
    """Of groups that leave a node, however far their members lie apart."""
    setting, _ = setting_on(name)
    plan = Plan(tensor=4, data=4, pipeline=4, order=order)  # type: ignore[arg-type]
    exact = ExactLoads(build_topology(topology_settings(name)), ["min"], plan.devices, 8)
    layers = Layers(replace(setting, network=exact), Plans.of([plan]))
    size = np.array([1e9])
    sizes = [getattr(plan, axis) for axis in reversed(order)]
    ranks = np.arange(plan.devices).reshape(sizes)
    for axis in ("tensor", "data", "pipeline"):
        along = len(order) - 1 - order.index(axis)
        groups = np.moveaxis(ranks, along, -1).reshape(-1, 4)
        if groups[0, -1] >= exact.node_devices:
            for kind in ("all_gather", "all_to_all", "send"):
                expected_ns, _ = exact.fastest(exact.chips[groups], kind, 1e9)
                assert layers.collective(kind, size, axis)[0] == pytest.approx(expected_ns * 1e-9)


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
