"""Routing tables to the last number: pools, sets and entries of every small network."""

import hashlib
from typing import Any

import numpy as np
import pytest

from railx.families import FAMILIES, build_routing, build_topology, family_of
from railx.vocabulary.routing.table import RoutingTable

#: The first digits of a digest of all tables of a family at its default settings, to
#: all chips and to some; ub_mesh stands for the graphs of routers. Who changes a table
#: on purpose writes the new one here.
DIGESTS = {
    "railx_hyperx": "d0df3bdac46d",
    "railx_torus": "41bb246c5661",
    "railx_twisted_torus": "b713744e2077",
    "railx_split": "3b99515616e8",
    "railx_dragonfly": "01a770046618",
    "railx_mixed": "fd9ae6397ba9",
    "torus_2d": "029611c0fa30",
    "torus_3d": "ba5235e1aa31",
    "mesh_2d": "b897c0a7ee53",
    "hammingmesh": "10095f71958d",
    "hyperx": "e972f6f879b9",
    "dragonfly": "71573283b0fe",
    "fat_tree": "f039bfe94e1d",
    "rail_optimised": "74c6bd77f83f",
    "rail_only": "f9c88b2a9e56",
    "opus_rails": "2de9b5b47c2f",
    "tpu_v4": "72d3826d30f0",
    "mixnet": "5d0863581fe2",
    "ub_mesh": "ce9d0557af49",
    "hpn": "77247af886b0",
    "khop_ring": "9984f7c1a396",
    "imported": "440b3bbd8d91",
}


def digest(table: RoutingTable) -> bytes:
    """All numbers of a table; weights are rounded, as sums may be on other machines."""
    columns = [table.entry, table.set_start, table.choice_pool, table.choice_state]
    columns += [table.choice_probe, table.pool_start, table.pool_link, table.pool_class]
    columns += [table.pool_lane, *np.round([table.choice_weight, table.choice_delay_ns], 9)]
    whole = hashlib.sha256()
    for column in columns:
        whole.update(np.ascontiguousarray(column).tobytes())
    return whole.digest()


@pytest.mark.parametrize("name", DIGESTS)
def test_tables_are_as_they_were(name: str) -> None:
    family: Any = next(family for family in FAMILIES if family.name == name)
    topology = build_topology(family.settings(family=name))
    some = np.arange(0, topology.chips, 3, dtype=np.int32)
    whole = hashlib.sha256()
    for routing in family_of(topology).routings:
        for destinations in (None, some):
            whole.update(digest(build_routing(topology, routing, destinations, grouped=True)))
    assert whole.hexdigest()[:12] == DIGESTS[name]
