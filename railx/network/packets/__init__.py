"""The packet simulator: any topology and routing table under one cycle model.

It is compiled only when something is simulated.
"""

from railx.network.packets.layout import Trace
from railx.network.packets.simulate import (
    PacketResult,
    simulate_packets,
    simulate_trace,
    summary_row,
)
from railx.network.packets.sweep import sweep_loads
from railx.network.packets.zero_load import zero_load_latency_cycles

__all__ = [
    "PacketResult",
    "Trace",
    "simulate_packets",
    "simulate_trace",
    "summary_row",
    "sweep_loads",
    "zero_load_latency_cycles",
]
