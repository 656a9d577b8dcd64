"""The range of the three cost claims of RailX's abstract, and its sensitivities.

The boundaries are closed forms over price ratios. Prices are relative to a transceiver:
x = c_o / c_t of an OCS port, y = c_s / c_t of an electrical switch port, and z of an
in-node lane. Both relative claims are half-planes above a straight line y = slope x +
intercept. A RailX chip costs u (1 + x) + l z with u = 4 n / m optical ports and l
in-node lanes. An end port of the tree costs a y + c, with a = 5 and c = 6 for three
full tiers (RailX, cost model). With h external hops and routing that reaches a share s
of the ideal all-to-all:

* per injection, limit q: (1 + x) / m < q (a y + c), so slope = 1 / (m q a) and
  intercept = slope - c / a;
* per all-to-all, limit q: h (1 + x) / s < q (a y + c), so slope = h / (s q a) and
  intercept = slope - c / a.

So the cost per all-to-all depends on m and n only through h = 2 (1 - 1/k) N / (N - 1),
close to 2. At the abstract's limits (0.1 and 0.5) the all-to-all claim is the harder
one wherever m > 5 s / h, which is from m = 3 on. The absolute claim does not depend on
y: it is a strip around c_t + c_o = USD / optical ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from railx.economics.catalogue import Catalogue, Rows, read_catalogue
from railx.economics.sensitivity import PRICED, in_node_lanes_of, named_prices
from railx.economics.settings import EconomicsSettings, PricedNetwork
from railx.settings import SettingsError
from railx.vocabulary.counts import TreeBill
from railx.vocabulary.topology import FamilySettings

CLAIMS = ("injection", "all_to_all", "absolute")


@dataclass(frozen=True)
class _Case:
    """All but the prices; ``factor`` differs from the base case, at ``level``."""

    factor: str
    level: float | None
    railx: PricedNetwork
    tree: PricedNetwork
    share: float = 1.0
    lane: float = 0.0
    leaf_cable: float = 2.0


@dataclass(frozen=True)
class _Line:
    """A boundary: y = slope x + intercept.

    x and y are price ratios (injection, all_to_all). The absolute line is c_o = slope
    c_t + intercept in USD.
    """

    slope: float
    intercept: float

    def at(self, x: float) -> float:
        return self.slope * x + self.intercept


@dataclass(frozen=True)
class _Prices:
    """A point of the map; USD are None on the grid of ratios."""

    name: str | None
    ocs: float
    switch: float
    transceiver_usd: float | None
    source: str


def claim_map(settings: EconomicsSettings, catalogue: Catalogue | None = None) -> Rows:
    """One row per case, claim and point.

    Points are the named price sets in every case (view ``price_set``) and a grid at the
    base case (``grid``). ``value`` is the cost ratio of RailX to the tree, or USD of
    the absolute claim.

    ``boundary_slope`` and ``boundary_intercept`` give the line where it equals
    ``limit``. For the relative claims this is switch port over OCS port, each in
    transceivers. For the absolute one it is OCS port over transceiver in USD, and a
    strip of the tolerance around it counts as holding. ``switch_port_at_boundary`` is
    the line at the point's OCS port price. ``binding`` says which relative claim needs
    the dearer switch port there. Errors as for the bill of materials.
    """
    catalogue = catalogue or read_catalogue(settings.catalogue)
    named, rows = [], []
    for name, usd, source in named_prices(settings.sensitivity.price_sets, catalogue):
        unit, ocs, switch = (usd[component] for component in PRICED)
        named.append(_Prices(name, ocs / unit, switch / unit, unit, source))
    for case in _cases(settings):
        lines = {
            claim: _boundary(claim, case, settings)
            for claim in CLAIMS
            if claim != "absolute" or case.factor in _ABSOLUTE
        }
        for prices in named:
            rows += [_row("price_set", case, claim, prices, lines, settings) for claim in lines]
        if case.factor == "base":
            axes = settings.claim_map
            for x, y in product(axes.ocs_port_over_transceiver, axes.switch_port_over_transceiver):
                point = _Prices(None, x, y, None, "price ratios alone")
                rows += [_row("grid", case, claim, point, lines, settings) for claim in CLAIMS[:2]]
    return rows


#: The values that leave the network of the absolute claim (200,704 chips at 1.8 TB/s)
#: unchanged.
_ABSOLUTE = ("base", "in_node_lane_over_transceiver")


def _cases(settings: EconomicsSettings) -> Iterator[_Case]:
    railx, tree = (
        settings.networks[settings.sensitivity.railx],
        settings.networks[settings.sensitivity.fat_trees[0]],
    )
    base, chosen = _Case("base", None, railx, tree), settings.claim_map
    bill, square = _tree_bill(tree), railx.bill.square
    assert square is not None  # the settings' own check
    if bill.leaf in tree.copper_links:
        first = settings.sensitivity.fat_trees[0]
        raise SettingsError(
            "sensitivity.fat_trees",
            f"got {first!r} first; allowed: a tree with transceivers to the leaf first",
        )
    usual_tiers = bill.tiers(tree.topology)

    def squared(m: int | None = None, n: int | None = None) -> dict[str, Any]:
        """The largest square all-to-all of nodes of m x m chips and n ports."""
        return {"railx": replace(railx, topology=square(railx.topology, m, n))}

    def filled(tiers: int, taper: float) -> dict[str, Any]:
        return {"tree": replace(tree, topology=bill.filled(tree.topology, tiers, taper))}

    def sized(chips: int) -> dict[str, Any]:
        larger = railx.at_scale(chips)
        return {"railx": larger, "tree": tree.at_scale(larger.chips)}

    changes: dict[str, Callable[[Any], dict[str, Any]]] = {
        "m": lambda m: squared(m=m),
        "n": lambda n: squared(n=n),
        "chips": sized,
        "all_to_all_share": lambda share: {"share": share},
        "in_node_lane_over_transceiver": lambda lane: {"lane": lane},
        "tiers": lambda tiers: filled(tiers, 1.0),
        "leaf_cable_over_transceiver": lambda cable: {"leaf_cable": cable},
        "taper": lambda taper: filled(usual_tiers, taper),
    }
    yield base
    for factor, change in changes.items():
        for level in getattr(chosen, factor):
            yield replace(base, factor=factor, level=level, **change(level))


def _tree_bill(tree: PricedNetwork) -> TreeBill[FamilySettings]:
    assert tree.bill.tree is not None  # the settings' own check
    return tree.bill.tree


def _boundary(claim: str, case: _Case, settings: EconomicsSettings) -> _Line:
    railx, limits = case.railx.counts, settings.sensitivity
    ports = railx.components["transceiver"] / railx.chips
    lanes = in_node_lanes_of(case.railx) * case.lane
    if claim == "absolute":
        return _Line(-(1 + lanes / ports), limits.absolute_cost_usd / (ports * railx.chips))
    bandwidth, given = (
        getattr(counts, f"{claim}_gb_s_per_chip") for counts in (railx, case.tree.counts)
    )
    bandwidth *= case.share if claim == "all_to_all" else 1.0
    switch_ports, optics = _tree_parts(case)
    scale = given / (bandwidth * _limit(claim, settings) * switch_ports)
    return _Line(ports * scale, (ports + lanes) * scale - optics / switch_ports)


def _limit(claim: str, settings: EconomicsSettings) -> float:
    limit: float = getattr(settings.sensitivity, f"{claim}_cost_limit")
    return limit


def _tree_parts(case: _Case) -> tuple[float, float]:
    """Switch ports and transceivers a chip of the tree, with the case's leaf cable."""
    tree, ports = case.tree.counts, case.tree.ports
    leaf_cables = ports.cables[_tree_bill(case.tree).leaf] / 2 / tree.chips
    optics = tree.components.get("transceiver", 0) / tree.chips
    switch_ports = tree.components["electrical_switch_port"] / tree.chips
    return switch_ports, optics + leaf_cables * (case.leaf_cable - 2)


def _row(
    view: str,
    case: _Case,
    claim: str,
    prices: _Prices,
    lines: dict[str, _Line],
    settings: EconomicsSettings,
) -> dict[str, Any]:
    limits, line = settings.sensitivity, lines[claim]
    unit = prices.transceiver_usd
    if claim == "absolute":
        assert unit is not None
        limit, tolerance = limits.absolute_cost_usd, limits.absolute_cost_tolerance
        # The cost is linear in the distance from the origin along both prices; on the
        # line it is the limit.
        value = limit * (prices.ocs - line.slope) * unit / line.intercept
        holds, at_boundary, binding = abs(value / limit - 1) <= tolerance, None, None
    else:
        limit, tolerance = _limit(claim, settings), 0.0
        switch_ports, optics = _tree_parts(case)
        at_boundary = line.at(prices.ocs)
        value = (
            limit * (switch_ports * at_boundary + optics) / (switch_ports * prices.switch + optics)
        )
        holds = value < limit
        binding = at_boundary >= max(lines[other].at(prices.ocs) for other in CLAIMS[:2])
    return {
        "view": view,
        "factor": case.factor,
        "level": case.level,
        "claim": claim,
        "prices": prices.name,
        "transceiver_usd": unit,
        "ocs_port_usd": None if unit is None else prices.ocs * unit,
        "electrical_switch_port_usd": None if unit is None else prices.switch * unit,
        "ocs_port_over_transceiver": prices.ocs,
        "switch_port_over_transceiver": prices.switch,
        "value": value,
        "limit": limit,
        "tolerance": tolerance,
        "holds": bool(holds),
        "boundary_slope": line.slope,
        "boundary_intercept": line.intercept,
        "switch_port_at_boundary": at_boundary,
        "binding": binding,
        "source": prices.source,
        "fidelity": "analytic",
    }
