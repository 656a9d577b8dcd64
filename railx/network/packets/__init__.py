"""The packet simulator: any topology and routing table under one cycle model.

It is compiled only when something is simulated.
"""

from railx.network.packets.layout import Trace
from railx.network.packets.simulate import (
    PacketResult,
    simulate_packets,
    simulate_trace,
    speed_of,
    summary_row,
)
from railx.network.packets.sweep import Sweep, repeated_sweep, sweep_loads
from railx.network.packets.zero_load import zero_load_latency_cycles

__all__ = [
    "PacketResult",
    "Sweep",
    "Trace",
    "repeated_sweep",
    "simulate_packets",
    "simulate_trace",
    "speed_of",
    "summary_row",
    "sweep_loads",
    "zero_load_latency_cycles",
]
