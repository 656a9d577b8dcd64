"""Traffic on a topology: exact static channel loads, throughput bounds, collectives.

The package exports only the settings, so that a stage depends on the modules it imports
and no others.
"""

from railx.network.settings import (
    AgreementSettings,
    BandwidthSettings,
    CollectiveSettings,
    NetworkSettings,
    PacketNetworkSettings,
    StaticNetworkSettings,
    SweepSettings,
    TrafficSettings,
)

__all__ = [
    "AgreementSettings",
    "BandwidthSettings",
    "CollectiveSettings",
    "NetworkSettings",
    "PacketNetworkSettings",
    "StaticNetworkSettings",
    "SweepSettings",
    "TrafficSettings",
]
