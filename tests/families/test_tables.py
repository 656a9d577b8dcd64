"""Routing tables to the last number: every choice of a packet on small networks."""

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from railx.families import FAMILIES, build_routing, build_topology, family_of
from railx.vocabulary.routing.table import RoutingTable

#: The first digits of a digest of all tables of a family at its default settings, to
#: all chips and to some; ub_mesh stands for the graphs of routers. Who changes a table
#: on purpose writes the new one here.
DIGESTS = {
    "railx_hyperx": "1a727fb9aebd",
    "railx_torus": "83bcefc4d87a",
    "railx_twisted_torus": "844471c8209e",
    "railx_split": "8eef28335c7f",
    "railx_dragonfly": "9c11beedbe86",
    "railx_mixed": "01cb918aa633",
    "torus_2d": "aa9df0cd2373",
    "torus_3d": "6621b380606a",
    "mesh_2d": "05d7014da543",
    "hammingmesh": "b3beec46a89d",
    "hyperx": "42452993661f",
    "dragonfly": "762e9619c430",
    "fat_tree": "b187374ea4a0",
    "rail_optimised": "7cf746307c72",
    "rail_only": "ead4885a795f",
    "opus_rails": "aef88657bbaf",
    "tpu_v4": "739e1cf2c932",
    "mixnet": "2139fc1b604e",
    "ub_mesh": "8dbff9662fb7",
    "hpn": "60099de7d1d4",
    "khop_ring": "b1fd2b2c4d3f",
    "imported": "3422e5961f2c",
}


def digest(table: RoutingTable) -> bytes:
    """What leads from every vertex to every destination, however sets are numbered.

    Weights are rounded, as sums may be on other machines.
    """
    pools = [
        (table.pool_link[first:end].tolist(), int(channel), int(lane))
        for (first, end), channel, lane in zip(
            pairwise(table.pool_start), table.pool_class, table.pool_lane, strict=True
        )
    ]
    numbers = zip(
        [pools[pool] for pool in table.choice_pool],
        *(column.tolist() for column in (table.choice_state, table.choice_probe)),
        *(np.round(column, 9).tolist() for column in (table.choice_weight, table.choice_delay_ns)),
        strict=True,
    )
    choices = list(map(repr, numbers))
    names = [
        hashlib.sha256("".join(choices[first:end]).encode()).digest()[:8]
        for first, end in pairwise(table.set_start)
    ]
    entry = np.frombuffer(b"".join([*names, bytes(8)]), dtype=np.int64)[table.entry]
    return hashlib.sha256(entry.tobytes()).digest()


@pytest.mark.parametrize("name", DIGESTS)
def test_tables_are_as_they_were(name: str) -> None:
    family: Any = next(family for family in FAMILIES if family.name == name)
    topology = build_topology(family.settings(family=name))
    some = np.arange(0, topology.chips, 3, dtype=np.int32)
    whole = hashlib.sha256()
    for routing in family_of(topology).routings:
        for destinations in (None, some):
            whole.update(digest(build_routing(topology, routing, destinations)))
    assert whole.hexdigest()[:12] == DIGESTS[name]
