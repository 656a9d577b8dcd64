"""Traffic on a topology: exact static channel loads, throughput bounds, collectives.

The package itself has the settings alone, so that a stage depends on no more of its
modules than it imports.
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
