"""One design point: a network at its size, its best plan, price, power and faults."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from railx.design.rates import GroupRates, RateStore
from railx.design.settings import PointSettings
from railx.design.sizes import Sized, Usable, sized_for, usable_share, with_device_node
from railx.economics import read_catalogue
from railx.economics.catalogue import Catalogue
from railx.economics.pricing import NetworkPrice, price, total
from railx.families import family_of
from railx.performance.advice import setting_of
from railx.performance.closed import PARTS
from railx.performance.layers import Setting
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import Plan
from railx.performance.search import Job, Priced, search_below
from railx.performance.topologies import Answered
from railx.settings import SettingsError
from railx.vocabulary.topology import FamilySettings

#: What a step's time is made of besides computing, which a network or plan can change.
_BINDING = tuple(name for name in PARTS if name != "compute")
#: Fields of a plan that a row has.
_PLAN = (
    *("data", "tensor", "context", "pipeline", "expert", "virtual", "micro_batch"),
    *("micro_batches", "sharding", "recompute", "schedule"),
)
#: Share of a step above which its computation binds.
_COMPUTING = 0.8


@dataclass(frozen=True)
class NetworkCost:
    """Dollars and watts of a network a chip, by the first price set and over all.

    ``components``: units of each component of the catalogue, ``prices`` their dollars
    in the first set. Watts leave out the links inside nodes, which have no source, and
    are None where another component's have none. The ranges are over the sets that
    price every component.
    """

    usd: float
    usd_low: float
    usd_high: float
    watts: float | None
    watts_low: float | None
    watts_high: float | None
    components: Mapping[str, int]
    prices: Mapping[str, float]
    price_sets: tuple[str, ...]


def plan_words(plan: Plan) -> str:
    """The degrees of a plan that are not 1, and what it recomputes."""
    degrees = [
        f"{name} {getattr(plan, name)}"
        for name in ("data", "tensor", "context", "pipeline", "expert", "virtual")
        if getattr(plan, name) > 1
    ]
    return f"{' x '.join(degrees) or 'one device'}, {plan.sharding}, recompute {plan.recompute}"


def setting_words(network: FamilySettings) -> str:
    """The numbers of a network's settings and what differs from its family's defaults.

    Left out are latencies, and the width of links inside nodes, which the node's rate
    gives.
    """
    words = [f"ports of {network.port_gbps:g} Gbit/s"]
    for entry in fields(cast("Any", network)):
        name, value = entry.name, getattr(network, entry.name)
        if name in ("family", "port_gbps", "node", "seed") or name.endswith(("_ns", "_width")):
            continue
        if value is None or (not isinstance(value, int) and value == entry.default):
            continue
        text = " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words.append(f"{name} {text}")
    if (node := network.node) is not None:
        words.append(f"nodes of {node.chips} ({node.links}, {node.gb_s:g} GB/s)")
    return ", ".join(words)


@dataclass(frozen=True)
class BestPlan:
    """The best plan of a job on a network, its time, and what faults leave of it."""

    sized: Sized
    rates: GroupRates
    priced: Priced
    plan: Plan
    usable: Usable

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return float(self.priced.times.total_s[0])

    @property
    def expected_error(self) -> float | None:
        """The step model's mean relative error on measured runs."""
        errors = self.priced.setting.constants.errors
        return errors.get("several_nodes", errors.get("all"))

    @property
    def memory_share(self) -> float:
        """Bytes of a device over its capacity."""
        capacity = self.priced.setting.device.capacity_gb * 1e9
        return float(self.priced.memory.total_bytes[0]) / capacity


@dataclass(frozen=True)
class DesignPoint:
    """A network and a plan, with what they take.

    ``network`` are the settings that are priced, ``graph`` those that loads are of.
    ``step_s`` is the closed form's; ``step_low_s`` and ``step_high_s`` differ by its
    expected error, the mean on measured runs left out of its fit. Dollars and watts are
    of the network. ``usable`` is the share of its chips in the largest job at the
    faults. ``binds``: what takes most of the step beside computing, or computing where
    that takes four fifths. ``fidelity`` is that of the table; ``notes`` say what is not
    exact.
    """

    name: str
    family: str
    network: FamilySettings
    graph: FamilySettings
    chips: int
    gpus: int
    plan: Plan
    step_s: float
    step_low_s: float
    step_high_s: float
    expected_error: float | None
    parts_s: Mapping[str, float]
    memory_share: float
    cost: NetworkCost
    device_watts: float | None
    all_to_all_gb_s: float
    injection_gb_s: float
    usable: Usable
    network_words: str
    notes: tuple[str, ...]
    fidelity: str = "analytic"

    @property
    def usd(self) -> float:
        """Dollars of the network."""
        return self.cost.usd * self.chips

    @property
    def watts(self) -> float | None:
        """Watts of the network."""
        return None if self.cost.watts is None else self.cost.watts * self.chips

    @property
    def joules(self) -> float | None:
        """Joules of a step: the network and the devices at their rated power."""
        if self.watts is None or self.device_watts is None:
            return None
        return (self.watts + self.gpus * self.device_watts) * self.step_s

    @property
    def binds(self) -> str:
        """What takes most of the step beside computing, with its share."""
        if self.parts_s["compute"] >= _COMPUTING * self.step_s:
            return f"compute {self.parts_s['compute'] / self.step_s:.0%}"
        most = max(_BINDING, key=lambda name: self.parts_s[name])
        return f"{most} {self.parts_s[most] / self.step_s:.0%}"

    def row(self) -> dict[str, Any]:
        """Plain values, for a table or JSON."""
        plan, cost = {name: getattr(self.plan, name) for name in _PLAN}, self.cost

        def shown(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        return {
            "network": self.name,
            **shown("family", "chips", "gpus"),
            "setting": setting_words(self.network),
            "plan": plan_words(self.plan),
            **{f"plan_{name}": value for name, value in plan.items()},
            "plan_order": ",".join(self.plan.order),
            **shown("step_s", "step_low_s", "step_high_s", "expected_error"),
            "tokens_per_s": self.plan.tokens / self.step_s,
            **{f"{name}_s": seconds for name, seconds in self.parts_s.items()},
            "memory_share": self.memory_share,
            **{f"usd_chip{end}": getattr(cost, f"usd{end}") for end in ("", "_low", "_high")},
            "usd": self.usd,
            **{f"watts_chip{end}": getattr(cost, f"watts{end}") for end in ("", "_low", "_high")},
            **shown("watts", "joules", "all_to_all_gb_s", "injection_gb_s"),
            "usable_share": self.usable.share,
            "usable_basis": self.usable.basis,
            "binds": self.binds,
            "notes": "; ".join(self.notes),
            "fidelity": self.fidelity,
        }


def evaluate(
    name: str,
    network: FamilySettings,
    settings: PointSettings,
    *,
    most_chips: float = 2.0,
    store: RateStore | None = None,
    catalogue: Catalogue | None = None,
) -> DesignPoint:
    """The best plan of a job on a network of at least as many chips, and what it takes.

    ``network`` gives ports, nodes and shape; its size follows from the job, at most
    ``most_chips`` times the devices. Raises :class:`railx.errors.UserError` where there
    is no such size, no price or no plan that fits.
    """
    if (family := family_of(network)).bill is None:
        raise SettingsError("bill", f"got none of {family.name}; allowed: networks with prices")
    sized = _sized(network, settings, most_chips)
    cost = network_cost(name, sized, settings, catalogue or read_catalogue(settings.catalogue))
    best = _planned(sized, settings, store)
    *bandwidths, exact = _bandwidths(sized, best.rates)
    best.rates.keep()
    notes = {
        f"loads of a full tree of {best.rates.topology.chips} chips": sized.graph is not sized.bill,
        "detours in closed form": best.rates.has_detours,
        "all-to-all by exact loads": exact,
    }
    return DesignPoint(
        name=name,
        family=sized.bill.family,
        network=sized.bill,
        graph=sized.graph,
        chips=sized.chips,
        gpus=best.plan.devices,
        plan=best.plan,
        step_s=best.step_s,
        step_low_s=best.step_s / (1 + (best.expected_error or 0)),
        step_high_s=best.step_s * (1 + (best.expected_error or 0)),
        expected_error=best.expected_error,
        parts_s={part: float(best.priced.times.parts[part][0]) for part in PARTS},
        memory_share=best.memory_share,
        cost=cost,
        device_watts=best.priced.setting.device.watts,
        all_to_all_gb_s=bandwidths[0],
        injection_gb_s=bandwidths[1],
        usable=best.usable,
        network_words=best.rates.words,
        notes=tuple(note for note, there in notes.items() if there),
    )


def best_plan(
    network: FamilySettings,
    settings: PointSettings,
    *,
    most_chips: float = 2.0,
    store: RateStore | None = None,
) -> BestPlan:
    """The best plan of a job on a network, priced or not (:func:`evaluate`)."""
    return _planned(_sized(network, settings, most_chips), settings, store)


def _sized(network: FamilySettings, settings: PointSettings, most_chips: float) -> Sized:
    if settings.node == "device":
        network = with_device_node(network, setting_of(settings.advice).device)
    return sized_for(network, settings.gpus, most_chips * settings.gpus)


def _planned(sized: Sized, settings: PointSettings, store: RateStore | None) -> BestPlan:
    setting, bound = setting_on(sized, setting_of(settings.advice), settings, store or RateStore())
    rates = setting.network
    assert isinstance(rates, GroupRates)
    job = Job(settings.gpus, settings.batch, settings.tokens, settings.memory_share)
    priced = search_below(setting, job, bound, 1, answered=Answered(rates, bound))
    rates.keep()
    usable = usable_share(
        sized.graph,
        rates.topology.chips,
        setting.device.node_devices,
        settings.faults,
        settings.fault_samples,
        settings.seed,
    )
    return BestPlan(sized, rates, priced, priced.plans.plan(0), usable)


def setting_on(
    sized: Sized, setting: Setting, settings: PointSettings, store: RateStore
) -> tuple[Setting, TwoLevelRing]:
    """The job on a network, and rings that bound it (no latency, no contention)."""
    constants, device = setting.constants, setting.device
    port_share = settings.port_share or constants.slow_share
    rates = GroupRates(
        sized.graph,
        settings.gpus,
        device.node_devices,
        port_share=port_share,
        inside_share=constants.fast_share,
        store=store,
    )
    outside_gb_s, inside_gb_s = rates.rates_gb_s
    if rates.topology.chips == rates.topology.nodes:
        inside_gb_s = outside_gb_s
    rates.node_devices = max(device.node_devices, rates.topology.chips // rates.topology.nodes)
    bound = TwoLevelRing(
        rates.node_devices, max(inside_gb_s, outside_gb_s), outside_gb_s, 0.0, 0.0, 1.0, 1.0
    )
    return replace(setting, network=rates), bound


def network_cost(
    name: str, sized: Sized, settings: PointSettings, catalogue: Catalogue
) -> NetworkCost:
    """Dollars and watts of a network and of its links inside nodes, a chip.

    SettingsError where the first price set lacks a component or is for another port
    speed; further sets that do are left out of the ranges. Accelerators cost as in the
    first set alone.
    """

    def priced(price_set: str, node_price_set: str | None) -> NetworkPrice:
        return price(sized.bill, price_set, catalogue, node_price_set=node_price_set, name=name)

    nodes = settings.node_price_set
    first = priced(settings.price_set, nodes)
    bills = {settings.price_set: first}
    for price_set in settings.price_sets:
        try:
            catalogue.components(price_set)
        except SettingsError as error:
            raise SettingsError("price_sets", error.message) from None
        with suppress(SettingsError):
            bills.setdefault(price_set, priced(price_set, nodes))
    costs = [bill.per_chip for bill in bills.values()]
    components = {part.component: part.count for part in first.parts}
    prices = {part.component: part.price.unit_usd for part in first.parts}
    if settings.include_accelerators:
        accelerator = catalogue.price(settings.price_set, "accelerator")
        devices = accelerator.unit_cost.scaled(settings.gpus / sized.chips)
        costs = [total((cost, devices)) for cost in costs]
        components["accelerator"] = settings.gpus
        prices["accelerator"] = accelerator.unit_usd
    powers = [priced(price_set, None).per_chip.watts for price_set in bills]
    watts = [power for power in powers if power is not None]
    return NetworkCost(
        usd=costs[0].usd,
        usd_low=min(cost.low_usd for cost in costs),
        usd_high=max(cost.high_usd for cost in costs),
        watts=powers[0],
        watts_low=min(watts, default=None),
        watts_high=max(watts, default=None),
        components=components,
        prices=prices,
        price_sets=tuple(bills),
    )


def _bandwidths(sized: Sized, rates: GroupRates) -> tuple[float, float, bool]:
    """All-to-all and injection bandwidth of a chip, and whether by exact loads."""
    bill = family_of(sized.bill).bill
    assert bill is not None  # sized by it
    ports = bill.ports(sized.bill)
    port_gb_s = ports.port_gbps / 8
    injection = ports.injection * port_gb_s
    if ports.all_to_all is not None:
        return min(ports.all_to_all, ports.injection) * port_gb_s, injection, False
    return min(injection, rates.uniform_gb_s()), injection, True
