"""Stage packets: a topology, a routing, a pattern -> latency by load, saturation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from railx.settings import SettingsError, load
from workflow.outputs import Json, Table, columns
from workflow.stage import (
    ByHand,
    Config,
    Experiment,
    FromStage,
    History,
    Inputs,
    Item,
    Job,
    Needs,
    Stage,
    Summary,
    Tracked,
)
from workflow.stages import named_files

if TYPE_CHECKING:
    from railx.network.packets import Sweep


def run(job: Job) -> Summary:
    """Sweep the loads on the topology under every seed; return the summary.

    The rows carry the sweep's name beside the topology's. The speed of the simulator
    depends on the machine and is a separate file, which no claim reads. Seeds with a
    job of their own (stage seeds) are merged.
    """
    from railx.network.packets import merged
    from railx.network.packets.seed_sweeps import read_sweeps, sweep_seeds
    from railx.network.settings import SweepSettings
    from railx.network.traffic import repeat_seeds

    seed = job.settings["seed"]
    sweep: SweepSettings = load(SweepSettings, job.settings["sweep"], f"sweeps.{job.item}")
    sweeps: list[Sweep] = []
    if sweep.shards == 1:
        seeds = repeat_seeds(seed, sweep.repeats)
        sweeps = sweep_seeds(job.file("topology"), sweep, seed, seeds)
    else:
        for rows, summaries in zip(job.inputs["rows"], job.inputs["summaries"], strict=True):
            sweeps += read_sweeps(rows, summaries)
    swept = merged(sweeps)
    job.write_table("points", ({"sweep": job.item, **row} for row in swept.rows))
    summary = {"sweep": job.item, **swept.summary}
    threads = sweep.network.threads
    job.write_json("speed", {"fidelity": "measured_cpu", "threads": threads, "runs": swept.speed})
    return summary


def run_single_load(job: Job) -> Summary:
    """Simulate a window at one load; write its row, return it with the speed."""
    from railx.families import build_routing, read_topology
    from railx.network.packets.simulate import simulate_packets, speed_of, summary_row
    from railx.network.settings import PacketNetworkSettings, TrafficSettings
    from railx.network.traffic import circuits_for

    seed = job.settings["seed"]
    traffic: TrafficSettings = job.load(TrafficSettings, "traffic")
    network: PacketNetworkSettings = job.load(PacketNetworkSettings, "network")
    graph = circuits_for(read_topology(job.file("topology")), traffic, seed)
    table = build_routing(graph, network.routing, grouped=True)
    window = simulate_packets(graph, table, traffic, network, seed)
    row = summary_row(graph, graph.family, traffic, network, window, seed)
    job.write_table("window", [row])
    return {**row, **speed_of(window)}


def simulated(sweep: Config) -> Inputs:
    """What runs of a sweep read: the topology, and the matrix of the traffic."""
    return {
        "topology": FromStage("topology.graph", sweep["topology"]),
        "traffic": named_files(sweep["traffic"]),
    }


def needs(sweep: Config) -> Needs:
    """The threads of each run of a sweep."""
    return Needs(threads_per_rank=sweep["network"]["threads"])


def _inputs(experiment: Config, sweep: str) -> Inputs:
    settings = experiment["sweeps"][sweep]
    if settings["shards"] == 1:
        return simulated(settings)
    shards = tuple(f"{sweep}-{shard + 1}" for shard in range(settings["shards"]))
    seeds = {key: FromStage(f"seeds.{key}", shards) for key in ("rows", "summaries")}
    return {**simulated(settings), **seeds}


def _by_hand(chosen: Config) -> Config:
    if chosen["network"]["model"] != "packet":
        got = f"got {chosen['network']['model']!r}"
        raise SettingsError("network.model", f"{got}; allowed: packet (exact loads: railx network)")
    return {key: chosen[key] for key in ("traffic", "network", "seed")}


#: Columns of a run at one load.
WINDOW = columns(
    "text topology family, integer chips, text traffic routing, integer virtual_channels,"
    " real offered_flits_per_chip_cycle accepted_flits_per_chip_cycle latency_mean_cycles"
    " latency_ci95_cycles latency_p50_cycles latency_p99_cycles latency_max_cycles hops_mean"
    " external_hops_mean, integer packets created_packets in_flight_packets queued_packets,"
    " real largest_channel_load, integer warmup_cycles measured_cycles seed, text fidelity"
)
_POINTS = (
    columns("text sweep")
    | WINDOW
    | columns(
        "flag saturated, real saturation_flits_per_chip_cycle bound_flits_per_chip_cycle"
        " ideal_flits_per_chip_cycle"
    )
)

#: Finest share to which a search for a saturation point can be asked for.
_FINEST_PRECISION = 1e-4


def check(experiment: Experiment) -> None:
    """Refuse sweeps that their topology cannot run, or beyond the limits."""
    from railx.families import family_of
    from railx.families.sizes import vertex_count
    from railx.network.packets.effort import check_latencies, check_packets, check_table
    from railx.network.traffic import MOST_EXPLICIT_CHIPS, check_pattern, is_large

    for name, sweep in experiment.sweeps.items():
        key, network, limits = f"sweeps.{name}", sweep.network, experiment.limits
        topology = experiment.topologies[sweep.topology]
        offered = family_of(topology).routings
        if network.routing not in offered:
            raise SettingsError(
                f"{key}.network.routing",
                f"got {network.routing!r}; allowed on {sweep.topology}: {', '.join(offered)}",
            )
        check_pattern(topology, sweep.topology, sweep.traffic, experiment.seed, f"{key}.traffic")
        if sweep.traffic.pattern != "uniform" and is_large(topology):
            got = f"got {sweep.traffic.pattern!r} on {sweep.topology}"
            allowed = f"uniform, or a topology of at most {MOST_EXPLICIT_CHIPS:,} chips"
            raise SettingsError(f"{key}.traffic.pattern", f"{got}; allowed: {allowed}")
        if sweep.precision < _FINEST_PRECISION:
            allowed = f"at least {_FINEST_PRECISION:g}, as windows are so noisy"
            raise SettingsError(f"{key}.precision", f"got {sweep.precision:g}; allowed: {allowed}")
        check_table(f"{key}.topology", sweep.topology, topology, network.routing, limits)
        # The search halves what is left: about so many runs beside the loads.
        runs = 8 + math.ceil(math.log2(1 / sweep.precision))
        chips = vertex_count(topology)
        check_packets(key, network, chips, sweep.loads, runs, limits, sweep.repeats)
        check_latencies(f"topologies.{sweep.topology}", topology, network, limits)


def check_choices(chosen: Mapping[str, Any]) -> None:
    """Refuse a load on the chosen topology beyond the limits."""
    from railx.families import check_topology
    from railx.families.sizes import vertex_count
    from railx.network.packets.effort import check_latencies, check_packets, check_table

    if not {"topology", "network", "traffic"} <= chosen.keys():
        return
    topology, network, limits = chosen["topology"], chosen["network"], chosen["limits"]
    if network.model != "packet":
        return
    check_topology(topology)
    check_table("topology", topology.family, topology, network.routing, limits)
    check_packets("", network, vertex_count(topology), (chosen["traffic"].load,), 1, limits)
    check_latencies("topology", topology, network, limits)


STAGE = Stage(
    name="packets",
    help="traffic on a topology packet by packet: latency, throughput and hops at one load",
    message="Packets of {item}",
    item=Item("sweep", lambda experiment: experiment["sweeps"]),
    settings=lambda experiment, sweep: {
        "sweep": experiment["sweeps"][sweep],
        "seed": experiment["seed"],
    },
    needs=lambda experiment, sweep: needs(experiment["sweeps"][sweep]),
    inputs=_inputs,
    outputs={
        "points": Table(_POINTS),
        "summary": Json(),
        # what this machine took; no claim may read it
        "speed": Json(claims=False),
    },
    run=run,
    by_hand=ByHand(
        groups=("seed", "topology", "traffic", "network"),
        example="railx packets topology=railx_hyperx network.routing=min traffic.load=0.5 --json",
        out="the table of one row to write (.parquet)",
        writes={".parquet": "window"},
        settings=_by_hand,
        before={"topology": "topology.graph"},
        primary="stage_packets",
        run=run_single_load,
        outputs={"window": Table(WINDOW, claims=False)},
    ),
    tracked=Tracked(
        "summary",
        ("points",),
        history=(
            History(
                "points",
                step="offered_flits_per_chip_cycle",
                curve="sweep",
                values={
                    "accepted_flits_per_chip_cycle": "mean",
                    "latency_mean_cycles": "mean",
                    "latency_p99_cycles": "mean",
                },
                repeat="seed",
                settings=True,
            ),
        ),
    ),
    check=check,
    check_choices=check_choices,
)
