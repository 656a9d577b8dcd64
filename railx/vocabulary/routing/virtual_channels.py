"""Assignment of spare virtual channels to the classes of a routing.

The classes of virtual channels keep packets from waiting for each other in a cycle; one
channel per class is enough for that. Spare channels give waiting packets more buffers.
Each goes to the class with the most uniform traffic per channel at that moment (of
equals the lower class), where the queues are longest. On a torus four fifths of the
published routing's traffic is on one of its two classes, and only there a third channel
helps.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from railx.settings import SettingsError
from railx.vocabulary.arrays import FloatArray, Int32Array
from railx.vocabulary.routing.analysis import class_loads
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology


def with_virtual_channels(
    topology: Topology, table: RoutingTable, number: int | None
) -> RoutingTable:
    """The table on links of ``number`` virtual channels, None: unchanged.

    Raises SettingsError where its classes need more.
    """
    if number is None or number == table.virtual_channels:
        return table
    if number < table.classes:
        raise SettingsError(
            "virtual_channels",
            f"got {number}; allowed: null or at least {table.classes}, the classes of routing"
            f" {table.routing} on {topology.family}",
        )
    dealt = _deal(class_loads(topology, table), number)
    return dataclasses.replace(table, channel_class=dealt)


def _deal(loads: FloatArray, number: int) -> Int32Array:
    """The class of each channel: one per class, then spare ones by load (highest
    averages).
    """
    dealt = list(range(len(loads)))
    while len(dealt) < number:
        per_channel = loads / np.bincount(dealt, minlength=len(loads))
        # Equal but for rounding counts as equal.
        dealt.append(int(np.argmax(per_channel > per_channel.max() * (1 - 1e-9))))
    return np.array(dealt, dtype=np.int32)
