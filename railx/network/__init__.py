"""Traffic on a topology: exact static channel loads, throughput bounds, collectives."""

from railx.network.collectives import ring_all_reduce, simulate_collectives
from railx.network.settings import (
    AgreementSettings,
    CollectiveSettings,
    NetworkSettings,
    PacketNetworkSettings,
    StaticNetworkSettings,
    SweepSettings,
    TrafficSettings,
)
from railx.network.shortest_paths import shortest_path_lane_loads
from railx.network.static_loads import static_routings, uniform_lane_loads
from railx.network.throughput import simulate_static

__all__ = [
    "AgreementSettings",
    "CollectiveSettings",
    "NetworkSettings",
    "PacketNetworkSettings",
    "StaticNetworkSettings",
    "SweepSettings",
    "TrafficSettings",
    "ring_all_reduce",
    "shortest_path_lane_loads",
    "simulate_collectives",
    "simulate_static",
    "static_routings",
    "uniform_lane_loads",
]
