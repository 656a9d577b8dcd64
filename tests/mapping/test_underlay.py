"""What groups get from networks at equal rates and at equal cost, by closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railx.mapping.underlay import (
    UnderlaySettings,
    UnderlyingNetwork,
    underlays,
)
from railx.performance.topologies import at_rates, node_rates_gb_s
from railx.settings import SettingsError
from tests.builders import build, topology_settings

OUTSIDE, INSIDE = 6.25, 87.5


def network(topology: str, priced: str, *, switch_ms: float = 0.0, **more: Any) -> Any:
    routing = "balanced" if topology == "opus_rails" else "min"
    groups = more.pop("groups", {})
    own = topology_settings(topology, **more)
    return UnderlyingNetwork(
        topology, own, routing, groups, topology_settings(priced), switch_ms=switch_ms
    )


def _servers(servers: int) -> Any:
    return topology_settings("opus_rails", servers=servers)


def settings() -> UnderlaySettings:
    groups = {"16": _servers(2), "32": _servers(4)}
    networks = {
        "rails": network("rail_optimised", "rail_optimised_1280", pods=1),
        "tree": network("fat_tree", "fat_tree_1250"),
        "ring": network("opus_rails", "opus_rails_1280", servers=8),
        "set": network("opus_rails", "opus_rails_1280", servers=8, groups=groups),
    }
    catalogue = "resources/catalogue/prices.csv"
    return UnderlaySettings(
        catalogue, "opus_400g", ("plan",), networks, (OUTSIDE, 50.0), INSIDE, "rails", 64
    )


def rates(name: str, basis: str = "equal_rate") -> dict[int, float]:
    found = next(under for under in underlays(settings(), name) if under.basis == basis)
    return dict(found.all_to_all_gb_s)


def test_a_server_binds_up_to_its_size_and_its_ports_beyond() -> None:
    """A member keeps 1/d of its bytes, and 8 of d members are in its server."""
    wanted = {d: INSIDE * d / (d - 1) for d in (2, 4, 8)}
    wanted |= {d: OUTSIDE * d / (d - 8) for d in (16, 32, 64)}
    assert rates("rails") == pytest.approx(wanted)


def test_a_tree_without_servers_binds_everywhere() -> None:
    assert rates("tree") == pytest.approx({d: OUTSIDE * d / (d - 1) for d in (2, 4, 8, 16, 32, 64)})


def test_rings_set_for_groups_are_as_short_as_these() -> None:
    """Two servers of a ring of eight are joined by one of their two ports, of a ring of
    their own by both.
    """
    ring, own = rates("ring"), rates("set")
    assert own[16] == pytest.approx(2 * ring[16]) == pytest.approx(rates("rails")[16])
    assert own[32] == pytest.approx(2 * ring[32])
    assert {d: own[d] for d in (2, 4, 8, 64)} == pytest.approx({d: ring[d] for d in (2, 4, 8, 64)})


def test_equal_cost_is_the_reference_at_the_first_rate() -> None:
    found = {name: underlays(settings(), name) for name in settings().networks}
    reference = found["rails"][0].usd_per_device
    assert reference is not None
    for own in found.values():
        assert [(under.basis, under.outside_gb_s) for under in own[:2]] == [
            ("equal_rate", OUTSIDE),
            ("equal_rate", 50.0),
        ]
        at_cost = own[2]
        assert at_cost.basis == "equal_cost"
        assert at_cost.usd_per_device == pytest.approx(reference)
        first = own[0].usd_per_device
        assert first is not None
        assert at_cost.outside_gb_s == pytest.approx(OUTSIDE * reference / first)
    assert found["ring"][2].outside_gb_s > 2 * OUTSIDE, "optical switches cost less"


@pytest.mark.parametrize("name", ["railx_hyperx", "fat_tree", "rail_optimised"])
def test_rates_are_set_outside_and_inside_apart(name: str) -> None:
    before = build(name)
    _, inside = node_rates_gb_s(before)
    after = at_rates(before, 3.0, 40.0)
    assert node_rates_gb_s(after) == pytest.approx((3.0, 40.0 if inside else 0.0))
    assert after.links.src is before.links.src


def test_what_does_not_fit_is_named() -> None:
    good = settings()
    with pytest.raises(SettingsError, match=r"^reference: got 'ring_x'; allowed: rails, tree"):
        replace(good, reference="ring_x")
    with pytest.raises(SettingsError, match=r"^plans: is empty"):
        replace(good, plans=())
    with pytest.raises(SettingsError, match=r"^networks\.tree\.routing: got 'valiant'; allowed: "):
        replace(
            good,
            networks={"tree": replace(good.networks["tree"], routing="valiant")},
            reference=None,
        )
    for size in ("3", "64", "128", "x"):
        groups = {size: _servers(2)}
        ring = {"ring": replace(good.networks["ring"], groups=groups)}
        allowed = rf"^networks\.ring\.groups\.{size}: unknown size; allowed: 2, 4, 8, 16, 32$"
        with pytest.raises(SettingsError, match=allowed):
            replace(good, networks=ring, reference=None)
    small = replace(good.networks["ring"], topology=topology_settings("opus_rails", servers=4))
    with pytest.raises(
        SettingsError, match=r"^underlay\.networks\.ring\.topology: has 32 chips; allowed: 64"
    ):
        underlays(replace(good, networks={**good.networks, "ring": small}), "ring")
    groups = {"16": topology_settings("opus_rails", chips_per_server=4, servers=2)}
    one = replace(small, topology=good.networks["ring"].topology, groups=groups)
    with pytest.raises(SettingsError, match=r"^underlay\.networks\.ring\.groups\.16: has 8 chips"):
        underlays(replace(good, networks={**good.networks, "ring": one}), "ring")
    fast = {**good.networks, "tree": network("fat_tree", "fat_tree_1250", port_gbps=1600.0)}
    fast["tree"] = replace(fast["tree"], priced=fast["tree"].topology)
    key = r"^underlay\.networks\.tree\.priced\.port_gbps: got 1600 Gb/s per priced port"
    with pytest.raises(SettingsError, match=key):
        underlays(replace(good, networks=fast), "tree")
    listed = replace(good.networks["tree"], topology=None)
    assert underlays(replace(good, networks={**good.networks, "tree": listed}), "tree") == []
