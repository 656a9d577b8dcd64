"""The packet simulator: any topology and routing table under one cycle model."""

from railx.network.packets.layout import Trace
from railx.network.packets.simulate import (
    PacketResult,
    simulate_packets,
    simulate_trace,
    speed_of,
    summary_row,
)
from railx.network.packets.sweep import Sweep, merged, shard_of, sweep_loads, swept_seeds
from railx.network.packets.zero_load import zero_load_latency_cycles

__all__ = [
    "PacketResult",
    "Sweep",
    "Trace",
    "merged",
    "shard_of",
    "simulate_packets",
    "simulate_trace",
    "speed_of",
    "summary_row",
    "sweep_loads",
    "swept_seeds",
    "zero_load_latency_cycles",
]
