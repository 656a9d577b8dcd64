"""The packet simulator: any topology and routing table under one cycle model; compiled only when something is simulated."""

from railx.network.packets.layout import Trace
from railx.network.packets.simulate import PacketResult, simulate_packets, simulate_trace, summary_row

__all__ = ["PacketResult", "Trace", "simulate_packets", "simulate_trace", "summary_row"]
