"""What settings would cost, estimated before any job, so that nothing endless starts.

The estimates are rough, of one slow core: they are there to refuse what could never end
or fit, not to plan by. A field that makes work stands in :data:`COSTS` with what one of
it costs; where several fields multiply, :data:`PRODUCTS` has a function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from railx.settings import SettingsError

if TYPE_CHECKING:
    from railx.network.settings import PacketNetworkSettings

__all__ = [
    "COSTS",
    "PRODUCTS",
    "Cost",
    "check_effort",
    "check_latencies",
    "check_packets",
    "in_words",
]

#: Two days on one core: more than any experiment of conf/ takes, on a whole machine.
MOST_S = 2 * 86_400.0
MOST_BYTES = 64 * 2.0**30
#: Repeats that nobody needs to see a spread.
_MANY = 100
#: Bytes of a packet simulation for each cycle of its slowest link: three words in lists
#: of events as long as the next power of two.
_CYCLE_BYTES = 24.0


@dataclass(frozen=True)
class Cost:
    """Seconds on one core and bytes of memory."""

    seconds: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Cost:
        """The cost of so many."""
        return Cost(self.seconds * count, self.bytes * count)

    @property
    def over(self) -> float:
        """How many times more than allowed it is."""
        return max(self.seconds / MOST_S, self.bytes / MOST_BYTES)


#: What one of a field costs, by class and field: a count of things that are drawn,
#: stored, simulated or waited for.
COSTS: Mapping[str, Cost] = {
    "QuantileCorpusSettings.sequences": Cost(1e-6, 80),
    "MixtureCorpusSettings.sequences": Cost(1e-6, 80),
    "BatchSettings.batches": Cost(0.02, 1e4),
    "BatchSettings.batch_size": Cost(1e-4, 1e3),
    "ClusterSettings.devices": Cost(1e-3, 1e4),
    "ModelSettings.layers": Cost(0.01, 1e6),
    "ModelSettings.hidden": Cost(0, 1e3),
    "ModelSettings.feed_forward": Cost(0, 1e3),
    "ModelSettings.heads": Cost(0, 1e3),
    "ModelSettings.kv_heads": Cost(0, 1e3),
    "ModelSettings.vocabulary": Cost(0, 16),
    "ModelSettings.max_positions": Cost(0, 16),
    "ProfileSettings.threads": Cost(0, 2.0**23),
    "ProfileSettings.contexts": Cost(0, 1e3),
    "ProfileSettings.exchange_degrees": Cost(0, 2.0**28),
    "ProfileSettings.degrees": Cost(0, 2.0**20),
    "TenancySettings.m": Cost(0.1, 1e6),
    "TenancySettings.n": Cost(0.1, 1e6),
    "PacketNetworkSettings.buffer_flits": Cost(0, 1e4),
    "PacketNetworkSettings.virtual_channels": Cost(0, 1e6),
    "PacketNetworkSettings.source_cycles": Cost(1e-3, 1e3),
    "PacketNetworkSettings.injection_ports": Cost(0, 1e5),
    "PacketNetworkSettings.ejection_ports": Cost(0, 1e5),
    "CollectiveSettings.most_messages": Cost(1e-3, 1e3),
    "ScaleSettings.chips": Cost(1e-5, 8),
    "ClaimMapSettings.chips": Cost(1e-5, 8),
    "ClaimMapSettings.m": Cost(1, 1e6),
    "ClaimMapSettings.n": Cost(1, 1e6),
    "RailsSettings.gpus": Cost(1e-5, 8),
    "JobSettings.micro_batches": Cost(1e-4, 1e2),
    "TrainingSettings.threads_per_rank": Cost(0, 2.0**23),
    "TrainingSettings.timeout_s": Cost(1),
    "TrainingSettings.most_extra_repeats": Cost(1),
    "TrainingSettings.loss_chunk_tokens": Cost(0, 1e3),
    "RailSettings.timeout_s": Cost(1),
    "RailSettings.heartbeat_s": Cost(1),
    "NetconfSwitchSettings.reply_timeout_s": Cost(1),
    "EmulatedSwitchSettings.switching_ms": Cost(1),
    "EmulatedSwitchSettings.per_port_ms": Cost(1),
    "JournalSettings.limit_mib": Cost(0, 2.0**20),
    # A round takes up to a second, and searches end early.
    "FlexSPSettings.effort": Cost(0.1),
    "PipelineSettings.exact_nodes": Cost(1e-3),
    "AnyDegreeSettings.trials": Cost(0.1),
    "FlexSPMilpSettings.micro_batch_trials": Cost(1),
    "FlexSPMilpSettings.processes": Cost(0, 2.0**26),
    "FlexSPMilpSettings.buckets": Cost(0.1, 1e4),
    "ByteScaleSettings.buckets": Cost(1e-3, 1e3),
    "EmulatedSwitchSettings.ports": Cost(1e-6, 1e2),
    "TrackingSettings.table_rows": Cost(1e-5, 1e3),
    "IterationPartsSettings.columns": Cost(0, 2.0**30),
    "ChannelLoadsSettings.columns": Cost(0, 2.0**30),
    "CollectiveTimeSettings.columns": Cost(0, 2.0**30),
    "StepModel.layers": Cost(0.01, 1e6),
    "StepJob.small_reductions": Cost(0.01, 1e5),
}

#: What every field of a network costs: chips and ports are counted, rates cost nothing.
_PORT = Cost(0, 1e3)

#: A field and what it costs together with its neighbours.
_Estimate = tuple[str, Cost]


def _stream(settings: Any) -> _Estimate:
    combinations = math.prod(
        len(getattr(settings, name))
        for name in ("offered_loads", "systems", "policies", "queues", "scenarios")
    )
    return "arrivals", Cost(
        5e-5 * combinations * settings.arrivals * settings.samples, 200.0 * settings.arrivals
    )


def _failures(field: str) -> Callable[[Any], _Estimate]:
    return lambda settings: (
        "samples",
        Cost(1e-3).times(settings.samples * len(getattr(settings, field))),
    )


def _grid(settings: Any) -> _Estimate:
    nodes = (settings.ocs_radix / 2) ** 2
    return "ocs_radix", Cost(1e-3 * nodes, 2e3 * nodes)


def _batches(settings: Any) -> _Estimate:
    return "batches", Cost(1e-4, 100).times(settings.batches * (settings.batch_size or 1))


def _profile(settings: Any) -> _Estimate:
    model = settings.model
    passes = (settings.warmups + settings.repeats) * settings.layers
    tokens = float(sum(settings.lengths)) * max(1, len(settings.degrees))
    longest = max((*settings.lengths, 1)) + max((*settings.contexts, 0))
    per_token = 12.0 * model.hidden * (model.hidden + model.feed_forward) + model.hidden * longest
    return "lengths", Cost(
        passes * tokens * per_token / (1e13 if settings.device == "cuda" else 1e10),
        40.0 * max((*settings.lengths, 1)) * model.hidden,
    )


def _passes(settings: Any) -> _Estimate:
    passes = (settings.warmups + settings.repeats) * max(1, len(settings.lengths))
    return "repeats", Cost(1e-3).times(passes)


def _training(settings: Any) -> _Estimate:
    latencies = (*settings.on_demand_latencies_ms, *settings.provisioned_latencies_ms)
    # A step switches its circuits a few times.
    longest = 4e-3 * max((*latencies, 0.0))
    if longest > 3600:
        slow = max(settings.on_demand_latencies_ms, default=0.0) == max(latencies)
        field = "on_demand_latencies_ms" if slow else "provisioned_latencies_ms"
        return field, Cost(longest * 48)
    steps = (settings.warmup_iterations + settings.iterations) * settings.repeats
    waited = 4e-3 * sum(latencies)
    return "iterations", Cost(steps * (0.02 * (1 + len(latencies)) + waited), 100.0 * steps)


def _live(settings: Any) -> _Estimate:
    latencies = (*settings.latencies_ms, settings.restart_latency_ms or 0.0)
    longest = max(latencies)
    if longest > 3.6e6:
        field = "latencies_ms" if longest in settings.latencies_ms else "restart_latency_ms"
        return field, Cost(longest * 48e-3)
    steps = settings.warmup_iterations + settings.iterations
    switched = 8e-3 * sum(latencies) * settings.micro_batches
    return "iterations", Cost(
        steps * (0.02 * settings.micro_batches * (1 + 2 * len(latencies)) + switched)
    )


def _live_size(settings: Any) -> _Estimate:
    width, tokens = float(settings.width), float(settings.rows * settings.tokens)
    weights = 16.0 * (settings.layers * 12 * width**2 + settings.vocabulary * width)
    activations = 40.0 * settings.layers * width * tokens + 8.0 * settings.vocabulary * tokens
    return "width", Cost(0, settings.ranks * (2.0**28 + weights + activations))


def _step_programs(settings: Any) -> _Estimate:
    job, sweep = settings.job, settings.sweep
    shapes = {"job.degrees": job.degrees}
    shapes |= {f"variants.{name}": one for name, one in settings.variants.items()}
    ranks = {
        f"{key}.{degree}": getattr(one, degree)
        for key, one in shapes.items()
        for degree in ("data", "pipeline", "expert")
    }
    most = max(float(one.data) * one.pipeline * one.expert for one in shapes.values())
    operations = most * job.micro_batches * job.parts * 8
    runs = len(sweep.latencies_ms) * 2 + len(sweep.bandwidths_gb_s) * len(
        sweep.bandwidth_latencies_ms
    )
    runs *= len(sweep.rules) * sweep.iterations * (1 + len(settings.variants))
    counts = {
        "job.micro_batches": job.micro_batches,
        "job.parts": job.parts,
        "sweep.iterations": sweep.iterations,
        **ranks,
    }
    largest = max(counts, key=lambda key: counts[key])
    return largest, Cost(2e-5 * operations * runs, 100.0 * operations)


#: What the fields of a class cost together, by class.
PRODUCTS: Mapping[str, tuple[Callable[[Any], _Estimate], ...]] = {
    "StreamSettings": (_stream,),
    "FaultStudySettings": (_failures("counts"),),
    "DegradedSettings": (_failures("failures"),),
    "TenancySettings": (_grid,),
    "BatchSettings": (_batches,),
    "ProfileSettings": (_profile, _passes),
    "TrainingSettings": (_training,),
    "LiveSettings": (_live, _live_size),
    "StepSettings": (_step_programs,),
}


def check_effort(settings: Any, key: str = "") -> None:
    """Refuse what could never end or fit.

    ``settings`` are checked settings or containers of them. SettingsError names the
    key below ``key``, the estimate and what is allowed.
    """
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        name = type(settings).__name__
        for field in dataclasses.fields(settings):
            value, own = getattr(settings, field.name), _below(key, field.name)
            cost = COSTS.get(f"{name}.{field.name}", _PORT if hasattr(settings, "family") else None)
            if cost is not None:
                for count in value if isinstance(value, tuple) else (value,):
                    if isinstance(count, int if cost is _PORT else (int, float)):
                        _refuse(own, count, cost.times(count))
            check_effort(value, own)
        for product in PRODUCTS.get(name, ()):
            field_name, cost = product(settings)
            got: Any = settings
            for part in field_name.split("."):
                got = got[part] if isinstance(got, Mapping) else getattr(got, part)
            got = max(got) if isinstance(got, tuple) else got
            _refuse(_below(key, field_name), got, cost)
    elif isinstance(settings, Mapping):
        for inner, value in settings.items():
            check_effort(value, _below(key, str(inner)))
    elif isinstance(settings, (tuple, list)):
        for index, value in enumerate(settings):
            check_effort(value, f"{key}[{index}]")


def check_packets(
    key: str,
    network: PacketNetworkSettings,
    chips: int,
    loads: tuple[float, ...],
    runs: int,
    repeats: int = 1,
) -> None:
    """Refuse packet simulations that would never end.

    ``runs`` is how many are made besides those of ``loads`` in each of ``repeats``.
    SettingsError names the greatest number of them that would do.
    """
    cycles = network.warmup_cycles + network.measured_cycles
    once = Cost(5e-9, 0).times(float(chips) * cycles)
    packets = float(chips) * cycles / network.packet_flits
    # Nobody knows where it saturates; one flit per chip and cycle is of the order.
    total = Cost(once.seconds + 2e-6 * packets).times((runs + len(loads)) * repeats)
    # So many are what makes it long; with a few it is each of them.
    if key and repeats >= _MANY:
        _refuse(f"{key}.repeats", repeats, total)
    _refuse(_below(key, "network.measured_cycles"), network.measured_cycles, total)
    for load in loads:
        # A chip that offers more than it can send keeps its packets, cycle by cycle.
        _refuse(
            f"{key}.loads" if key else "traffic.load", load, Cost(2e-6, 16).times(packets * load)
        )


def check_latencies(key: str, settings: Any, network: PacketNetworkSettings) -> None:
    """Refuse links on which more cycles of packets are under way than memory holds."""
    for field in dataclasses.fields(settings):
        if field.name.endswith("latency_ns"):
            latency_ns = float(getattr(settings, field.name))
            cycles = latency_ns / network.cycle_ns
            _refuse(_below(key, field.name), latency_ns, Cost(bytes=_CYCLE_BYTES * cycles))


def in_words(cost: Cost) -> str:
    """An estimate as a reader takes it in."""
    if cost.bytes / MOST_BYTES >= cost.seconds / MOST_S:
        return f"about {_rough(cost.bytes / 2**30)} GiB of memory"
    days = cost.seconds / 86_400
    length = f"{_rough(days / 365)} years" if days > 730 else f"{_rough(days)} days"
    return f"about {length} on one core"


def _rough(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= value < 1e9 else f"{value:.3g}"


def _refuse(key: str, got: float, cost: Cost) -> None:
    if cost.over <= 1:
        return
    most = got / cost.over
    nearest = f"at most {math.floor(most):,}" if most >= 1 and isinstance(got, int) else ""
    if not nearest and most > 0:
        nearest = f"at most {most:.3g}"
    shown = f"{got:,}" if isinstance(got, int) else f"{got:g}"
    raise SettingsError(
        key, f"got {shown}; allowed: {nearest or 'less'}, as this would take {in_words(cost)}"
    )


def _below(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
