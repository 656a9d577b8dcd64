"""Latency of an empty network, exactly, from the routing table."""

from __future__ import annotations

import dataclasses

import numpy as np

from railx.network.packets.kernels import latency_sum
from railx.network.packets.layout import channels_of
from railx.network.settings import PacketNetworkSettings
from railx.vocabulary.arrays import FloatArray
from railx.vocabulary.routing.table import RoutingTable
from railx.vocabulary.topology import Topology


def zero_load_latency_cycles(
    topology: Topology, table: RoutingTable, network: PacketNetworkSettings
) -> float:
    """Mean latency in cycles over all ordered pairs of chips, without contention.

    It is source_cycles + sum over the links of (1 + latency) + max(0, ceil(flits /
    width of the last) - 1 - its latency). An adaptive routing takes the choice with the
    least delay, ties in equal shares; of a pool, the first channel. ValueError where
    the table leaves a packet without a path.
    """
    channels = channels_of(topology, network)
    first_row = table.pool_link[table.pool_start[table.choice_pool]]
    lane = channels.first[first_row]
    step = channels.latency[lane] + 1
    choices = (
        table.set_start,
        _shares(table, network),
        table.choice_state,
        topology.links.dst[first_row],
        step.astype(np.float64),
        np.maximum(step, channels.serial[lane]).astype(np.float64),
    )
    total, chips = 0.0, topology.chips
    for block, entry in _in_order(topology, table).blocks():
        total = latency_sum(entry, block.start, chips, total, *choices)
    if np.isnan(total):
        raise ValueError(
            f"{table.routing}: some packet never arrives; allowed: a table that leads every chip to"
            " every other"
        )
    return network.source_cycles + float(total / (chips * (chips - 1)))


def _shares(table: RoutingTable, network: PacketNetworkSettings) -> FloatArray:
    if table.selection == "weighted":
        return table.choice_weight
    set_of = np.repeat(np.arange(len(table.set_start) - 1), np.diff(table.set_start))
    delay = table.choice_delay_ns / network.cycle_ns
    shortest = np.minimum.reduceat(delay, table.set_start[:-1])
    best = (delay <= shortest[set_of] + 1e-9).astype(np.float64)
    shares: FloatArray = best / np.bincount(set_of, weights=best)[set_of]
    return shares


def _in_order(topology: Topology, table: RoutingTable) -> RoutingTable:
    """The table with its destinations in the order of the chips."""
    chips = np.arange(topology.chips)
    if np.array_equal(table.destinations, chips):
        return table
    column = np.full(topology.chips, -1)
    column[table.destinations] = np.arange(len(table.destinations))
    if (column < 0).any():
        raise ValueError(
            f"destinations: the table leads to {len(table.destinations)} chips; allowed: all"
            f" {topology.chips}"
        )
    table = table.over_pairs()
    entry = np.ascontiguousarray(table.entry[:, :, column])
    return dataclasses.replace(table, entry=entry, destinations=chips.astype(np.int32))
