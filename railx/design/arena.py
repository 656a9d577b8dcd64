"""All networks side by side: bounds, packets, collectives, step times, prices, faults.

Each row is one value of a network at one size, with its unit and fidelity. Networks
have the same node and the same ports a chip where their settings say so; the links
inside nodes are free in ``usd_chip`` and charged in ``usd_chip_with_node``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, cast

import numpy as np

from railx.design.point import BestPlan, best_plan, plan_words, setting_on
from railx.design.rates import GroupRates, RateStore
from railx.design.settings import ArenaSettings, PointSettings, ServingJob
from railx.design.sizes import Sized, sized_for, with_device_node
from railx.economics import read_catalogue
from railx.economics.pricing import NetworkPrice, price
from railx.errors import UserError
from railx.families import build_routing, build_topology, family_of
from railx.network.group_bandwidth import (
    member_rates,
    ranks_in_order,
    rounds_of,
    routed_loads,
    strided_groups,
)
from railx.network.metrics import bisection, topology_metrics
from railx.network.packets.simulate import simulate_packets
from railx.network.settings import StaticNetworkSettings, UniformTraffic
from railx.network.throughput import simulate_static
from railx.network.traffic import circuits_for
from railx.performance.advice import setting_of
from railx.performance.devices import device_named
from railx.performance.models import model_named
from railx.performance.networks import Kind
from railx.performance.plans import Plans
from railx.performance.serving import decode_times, prefill_times, serving_memory_bytes
from railx.performance.topologies import chips_of, routings_for
from railx.settings import SettingsError
from railx.tenancy.places import NetworkPlaces
from railx.tenancy.trace import network_rows, read_trace
from railx.vocabulary.topology import FamilySettings, Topology

Row = dict[str, Any]
_COLUMNS = (
    *("network", "family", "asked_chips", "chips", "subject", "measure", "value", "unit"),
    *("fidelity", "note"),
)
#: Sequences of a replica that are tried.
_SEQUENCES = tuple(2**power for power in range(9))
_TENSOR = (1, 2, 4, 8)


def arena_rows(
    name: str, settings: ArenaSettings, seed: int, store: RateStore | None = None
) -> Iterator[Row]:
    """All rows of one network: one value each.

    Columns: network, family, asked_chips, chips, subject (a job, a pattern at a load, a
    group of a collective, or empty), measure, value, unit, fidelity, note. A size that
    the network lacks, a job that fits no plan and a measure without a closed form have
    no value; ``note`` says why.
    """
    network = with_device_node(settings.networks[name], device_named(settings.point.devices))
    for asked in settings.chips:
        row = {"network": name, "family": network.family, "asked_chips": asked, "chips": None}
        rows: Iterable[Row]
        try:
            sized = _sized(network, asked, settings)
        except SettingsError as error:
            rows = [_value("", "size", None, "chips", "analytic", str(error))]
        else:
            row["chips"] = sized.chips
            rows = _measures(name, network, sized, settings, asked, seed, store or RateStore())
        for further in rows:
            full = row | further
            yield {column: full[column] for column in _COLUMNS}


def _sized(network: FamilySettings, asked: int, settings: ArenaSettings) -> Sized:
    """The smallest size with as many chips, or the largest where none has a graph."""
    bill = family_of(network).bill
    if bill is None:
        chips = build_topology(network).chips
        if chips < asked / settings.most_chips:
            raise SettingsError("chips", f"got {asked} for a network of {chips}, its only size")
        return sized_for(network, min(asked, chips), settings.most_chips * asked)
    chips = asked
    try:
        bill.resize(network, asked)
    except SettingsError:
        chips = _largest(network, asked)
        if chips < asked / settings.most_chips:
            raise
    if asked <= settings.graph_chips:
        try:
            return sized_for(network, chips, settings.most_chips * asked)
        except SettingsError:
            for fewer in range(chips - 1, int(asked / settings.most_chips), -1):
                with suppress(SettingsError):
                    return sized_for(network, fewer, chips)
            raise
    large = bill.resize(network, chips)
    return Sized(large, large, chips_of(large))


def _largest(network: FamilySettings, below: int) -> int:
    """The most chips that a family reaches, fewer than ``below``."""
    bill = family_of(network).bill
    assert bill is not None
    low, high = 1, below
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low = max(middle, chips_of(bill.resize(network, middle)))
        except SettingsError:
            high = middle
    return low


def _measures(
    name: str,
    network: FamilySettings,
    sized: Sized,
    settings: ArenaSettings,
    asked: int,
    seed: int,
    store: RateStore,
) -> Iterator[Row]:
    yield from _prices(name, sized, settings)
    if asked > settings.graph_chips:
        return
    graph = build_topology(sized.graph)
    bound = 0.0
    for row in _static(graph, seed):
        bound = row["value"] if row["measure"] == "uniform_bound" else bound
        yield row
    yield from _collectives(graph, settings)
    yield from _faults(sized.graph, settings, seed)
    gb_s = sized.graph.port_gbps / 8
    yield from _packets(graph, settings, bound / gb_s, gb_s, seed)
    yield from _jobs(name, network, settings, min(asked, sized.chips), store)


def _value(
    subject: str, measure: str, value: float | None, unit: str, fidelity: str, note: str = ""
) -> Row:
    row = {"subject": subject, "measure": measure, "unit": unit, "fidelity": fidelity, "note": note}
    return row | {"value": None if value is None else float(value)}


def _prices(name: str, sized: Sized, settings: ArenaSettings) -> Iterator[Row]:
    """Dollars and watts a chip, nodes free and charged, cables, and bandwidths."""
    catalogue, point = read_catalogue(settings.point.catalogue), settings.point
    bill = family_of(sized.bill).bill
    if bill is None:
        yield _value("", "usd_chip", None, "USD", "analytic", "no bill of materials")
        return
    try:
        free = price(sized.bill, point.price_set, catalogue, name=name)
    except SettingsError as error:
        yield _value("", "usd_chip", None, "USD", "analytic", error.message)
        return
    yield from _price_rows("", free)
    for component, count in free.counts.components.items():
        yield _value(component, "units_chip", count / free.counts.chips, "units", "analytic")
    for kind, ends in bill.ports(sized.bill).cables.items():
        yield _value(kind, "cable_ends_chip", ends / free.counts.chips, "ends", "analytic")
    yield _value("", "injection", free.counts.injection_gb_s_per_chip, "GB/s", "analytic")
    all_to_all = free.counts.all_to_all_gb_s_per_chip
    note = "" if all_to_all is not None else "no closed form"
    yield _value("", "all_to_all_closed_form", all_to_all, "GB/s", "analytic", note)
    if point.node_price_set is not None:
        charged = price(
            sized.bill, point.price_set, catalogue, node_price_set=point.node_price_set, name=name
        )
        yield from _price_rows("_with_node", charged)


def _price_rows(suffix: str, priced: NetworkPrice) -> Iterator[Row]:
    cost = priced.per_chip
    unknown = "" if cost.watts is not None else "a part without watts in the catalogue"
    yield _value("", f"usd_chip{suffix}", cost.usd, "USD", "analytic", priced.charges)
    yield _value("", f"usd_chip{suffix}_low", cost.low_usd, "USD", "analytic")
    yield _value("", f"usd_chip{suffix}_high", cost.high_usd, "USD", "analytic")
    yield _value("", f"watts_chip{suffix}", cost.watts, "W", "analytic", unknown)


#: Metrics of the graph that are compared: their units, and why there is none.
_METRICS: Mapping[str, tuple[str, str]] = {
    "diameter_node_hops": ("hops", "too large for a search"),
    "mean_node_hops": ("hops", "too large for a search"),
    "minimal_paths_mean": ("paths", "too large to count"),
    "disjoint_paths_min": ("paths", "too large to count"),
    "bisection_gb_s_per_chip": ("GB/s", "no natural cut"),
}


def _static(graph: Topology, seed: int) -> Iterator[Row]:
    """Metrics of the graph and the exact bound of uniform traffic, minimal routing.

    The bisection is that of the network without added nodes, whose links do not carry
    what leaves them.
    """
    settings = graph.settings
    metrics = topology_metrics(graph)
    if settings.node is not None and not family_of(settings).has_nodes:
        metrics |= bisection(build_topology(replace(cast("Any", settings), node=None)))
    for measure, (unit, why) in _METRICS.items():
        value = metrics[measure]
        yield _value("", measure, value, unit, "analytic", why if value is None else "")
    routing = StaticNetworkSettings("static", "min")
    summary, _ = simulate_static(graph, UniformTraffic("uniform", 1.0), routing, "", seed=seed)
    yield _value("uniform", "uniform_bound", summary["bound_gb_s_per_chip"], "GB/s", "analytic")


def _collectives(graph: Topology, settings: ArenaSettings) -> Iterator[Row]:
    """All-reduce and all-to-all of consecutive chips, all groups at once, in ms."""
    ranks = 2 ** int(np.log2(graph.chips))
    chips = ranks_in_order(graph, ranks)
    column = np.sort(chips).astype(np.int32)
    size = 64 if ranks >= 128 else max(2, ranks // 2)
    loads_by = cache(lambda routing: routed_loads(graph, routing, column))
    kinds: list[tuple[Kind, str, int]] = [("all_reduce", "ring", 2), ("all_to_all", "direct", 1)]
    for collective, algorithm, halves in kinds:
        loads = loads_by(routings_for(graph.settings, collective, ("min",))[0])
        for stride in (1, ranks // size):
            rates = member_rates(loads, strided_groups(chips, size, stride), algorithm)
            time_ms = settings.payload_mb * (halves * (size - 1) / size) / rates.gb_s
            time_ms += rates.flight_ns * rounds_of(algorithm, size) * halves / 1e6
            subject = f"{collective} of {size}, {'consecutive' if stride == 1 else 'strided'}"
            yield _value(subject, "collective", time_ms, "ms", "analytic")


def _faults(network: FamilySettings, settings: ArenaSettings, seed: int) -> Iterator[Row]:
    """Shares of the chips under the trace, means over its time and draws.

    ``largest``: those of the largest job, also the least that 99 % of the time has.
    ``usable``: those of small jobs that fit at once.
    """
    trace = settings.trace
    if trace is None:
        return
    try:
        places = NetworkPlaces(network)
        if places.chips > (most := trace.servers * trace.chips_per_server):
            raise SettingsError("chips", f"got {places.chips}; allowed: {most}, those of the trace")
    except SettingsError as error:
        yield _value("fault trace", "largest_share", None, "", "analytic", error.message)
        return
    faults = read_trace(trace.file, trace.servers, trace.days)
    for size in (None, *trace.job_chips):
        subject = "fault trace" if size is None else f"fault trace, jobs of {size}"
        share = "largest_share" if size is None else "usable_share"
        asked = replace(trace, job_chips=(size or 1,))
        try:
            rows = [
                row
                for draw in range(trace.draws)
                for row in network_rows(asked, faults, places, draw, seed)
            ]
        except SettingsError as error:
            yield _value(subject, share, None, "", "analytic", error.message)
            continue
        shares, days = (np.array([row[column] for row in rows]) for column in (share, "days"))
        yield _value(subject, share, np.average(shares, weights=days), "", "analytic")
        if size is None:
            order = np.argsort(shares)
            first = np.searchsorted(np.cumsum(days[order]), 0.01 * days.sum())
            yield _value(subject, "largest_share_p1", shares[order][first], "", "analytic")


def _packets(
    graph: Topology, settings: ArenaSettings, bound: float, gb_s: float, seed: int
) -> Iterator[Row]:
    """Latency and accepted rate; ``bound`` is in flits per chip and cycle."""
    table = build_routing(graph, settings.packets.routing, grouped=True)
    small = graph.chips <= settings.packet_chips
    loads = settings.loads_over_bound if small else (max(settings.loads_over_bound),)
    for pattern, traffic in settings.traffics.items():
        if not small and traffic.pattern != "uniform":
            continue
        wired, routes = circuits_for(graph, traffic, seed), table
        if wired is not graph:
            routes = build_routing(wired, settings.packets.routing, grouped=True)
        for share in loads:
            subject = f"{pattern} at {share:g}"
            loaded = replace(traffic, load=share * bound)
            try:
                result = simulate_packets(wired, routes, loaded, settings.packets, seed)
            except SettingsError as error:
                yield _value(subject, "latency_mean", None, "ns", "packet", error.message)
                continue
            cycle_ns = settings.packets.cycle_ns
            accepted = result.accepted_flits_per_chip_cycle
            yield _value(subject, "offered", share * bound * gb_s, "GB/s", "packet")
            yield _value(subject, "accepted", accepted * gb_s, "GB/s", "packet")
            latencies = {"mean": result.latency_mean_cycles, "p99": result.latency_p99_cycles}
            for which, cycles in latencies.items():
                yield _value(subject, f"latency_{which}", cycles * cycle_ns, "ns", "packet")


def _jobs(
    name: str, network: FamilySettings, settings: ArenaSettings, gpus: int, store: RateStore
) -> Iterator[Row]:
    for job_name, job in settings.jobs.items():
        point = replace(settings.point, gpus=gpus, model=job.model, tokens=job.tokens)
        try:
            if isinstance(job, ServingJob):
                measures = best_serving(network, job, point, settings.most_chips, store)
                for measure, (value, unit) in measures.items():
                    yield _value(job_name, measure, value, unit, "analytic")
                continue
            best = best_plan(network, point, most_chips=settings.most_chips, store=store)
        except UserError as error:
            yield _value(job_name, "step", None, "s", "analytic", str(error))
            continue
        yield from _trained(job_name, best, _watts(name, best, point))
        yield from _changes(job_name, network, point, settings.most_chips, store)


def _changes(
    job: str, network: FamilySettings, point: PointSettings, most_chips: float, store: RateStore
) -> Iterator[Row]:
    """Step times where each layer's experts wait for a change of circuits."""
    circuits = family_of(network).traffic_circuits
    if circuits is None or not model_named(point.model).experts:
        return
    for name, change_ms in circuits.changes_ms.items():
        changing = circuits.with_change(network, change_ms)
        best = best_plan(changing, point, most_chips=most_chips, store=store)
        note = f"{change_ms:g} ms a layer and micro-batch: {plan_words(best.plan)}"
        yield _value(job, f"step_{name}", best.step_s, "s", "analytic", note)


def _watts(name: str, best: BestPlan, point: PointSettings) -> float | None:
    """Watts of the network and the devices at rated power; None without both."""
    device_watts, bill = best.priced.setting.device.watts, best.sized.bill
    if family_of(bill).bill is None or device_watts is None:
        return None
    try:
        priced = price(bill, point.price_set, read_catalogue(point.catalogue), name=name)
    except SettingsError:
        return None
    watts = priced.per_chip.watts
    return None if watts is None else watts * best.sized.chips + best.plan.devices * device_watts


def _trained(job: str, best: BestPlan, watts: float | None) -> Iterator[Row]:
    step_s, error = best.step_s, 1 + (best.expected_error or 0)
    values = {
        "step": (step_s, "s"),
        "step_low": (step_s / error, "s"),
        "step_high": (step_s * error, "s"),
        "tokens_per_s": (best.plan.tokens / step_s, "tokens/s"),
        "joules_step": (None if watts is None else watts * step_s, "J"),
        "memory_share": (best.memory_share, ""),
        "usable_share": (best.usable.share, ""),
        "idle_chips": (best.sized.chips - best.plan.devices, "chips"),
    }
    notes = {"step": plan_words(best.plan), "usable_share": best.usable.basis}
    for measure, (value, unit) in values.items():
        yield _value(job, measure, value, unit, "analytic", notes.get(measure, ""))


def best_serving(
    network: FamilySettings,
    job: ServingJob,
    point: PointSettings,
    most_chips: float,
    store: RateStore,
) -> dict[str, tuple[float, str]]:
    """Most tokens a second of all chips: values with units by measure.

    Tensor degrees up to 8 that divide the heads, one stage, as many sequences as fit
    into memory and latency. UserError where nothing fits.
    """
    setting = setting_of(point.advice)
    experts = setting.model.experts or 1
    if experts % job.expert:
        raise UserError(f"expert: got {job.expert}; allowed: a divisor of the experts, {experts}")
    sized = sized_for(network, point.gpus, most_chips * point.gpus)
    setting, _ = setting_on(sized, setting, point, store)
    # Replicas fill whole expert groups; the other devices are idle.
    shapes = [
        (point.gpus // tensor // job.expert * job.expert, tensor, sequences)
        for tensor, sequences in product(_TENSOR, _SEQUENCES if job.kind == "decode" else (1,))
        if setting.model.heads % tensor == 0
    ]
    data, tensor, sequences = np.array([shape for shape in shapes if shape[0]]).reshape(-1, 3).T
    if not len(data):
        raise UserError(
            f"expert: got {job.expert}; allowed: at most the {point.gpus} devices of the job"
        )
    same = {"expert": job.expert, "sequence_tokens": job.tokens}
    plans = Plans.table({"data": data, "tensor": tensor, "micro_batch": sequences, **same})
    capacity = setting.device.capacity_gb * 1e9 * point.memory_share
    fits = serving_memory_bytes(setting, plans, float(job.tokens)) <= capacity
    plans = plans.take(fits)
    if not len(plans):
        raise UserError(
            f"{job.model}: fits no plan for {job.kind}; allowed: a larger expert degree"
        )
    if job.kind == "decode":
        times, most_ms = decode_times(setting, plans, float(job.tokens)), job.most_latency_ms
    else:
        times, most_ms = prefill_times(setting, plans), np.inf
    allowed = times.total_s * 1e3 <= most_ms
    if not allowed.any():
        raise UserError(
            f"{job.model}: a token takes {times.total_s.min() * 1e3:.3g} ms; allowed:"
            f" {job.most_latency_ms:g} (most_latency_ms)"
        )
    best = int(np.argmax(np.where(allowed, times.tokens_per_s, 0.0)))
    rates = setting.network
    assert isinstance(rates, GroupRates)
    rates.keep()
    moved = sum(times.parts[name][best] for name in ("tensor", "context", "expert", "pipeline"))
    return {
        "step": (float(times.total_s[best]), "s"),
        "tokens_per_s": (float(times.tokens_per_s[best]), "tokens/s"),
        "tensor_degree": (float(plans["tensor"][best]), ""),
        "sequences": (float(plans["micro_batch"][best]), ""),
        "exchanged_share": (float(moved / times.total_s[best]), ""),
    }
