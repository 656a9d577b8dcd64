"""Networks in files of ASTRA-sim and InfraGraph: exported ones come back, published
ones mean what they say, and broken ones are refused in one line.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.astra_network import analytical, dimensions
from railx.exchange.formats import infragraph
from railx.exchange.wires import join
from railx.families import TopologySettings, build_topology
from railx.families.imported.files import read_network
from railx.settings import load
from railx.vocabulary.topology import Topology
from tests.exchange.networks import NETWORKS, chosen

GIGABYTE_GBPS = 8 * 2**30 / 1e9


def imported(path: Path) -> Topology:
    return build_topology(load(TopologySettings, {"family": "imported", "path": str(path)}))


def same_links(one: Topology, other: Topology) -> bool:
    first, second = join(one), join(other)
    return all(
        np.allclose(getattr(first, name), getattr(second, name), rtol=1e-12)
        for name in ("low", "high", "capacity_gbps", "latency_ns")
    )


@pytest.mark.parametrize("name", ["torus", "cube", "hyperx", "photonic"])
def test_networks_for_astra_sim_come_back(name: str, tmp_path: Path) -> None:
    topology = chosen(*NETWORKS[name])
    path = tmp_path / "network.yml"
    path.write_text(analytical(topology, name).text)
    assert same_links(imported(path), topology)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_for_infragraph_come_back(name: str, tmp_path: Path) -> None:
    topology = chosen(*NETWORKS[name])
    path = tmp_path / "network.yaml"
    path.write_text(infragraph(topology, name).text)
    back = imported(path)
    assert (back.chips, back.switches) == (topology.chips, topology.switches)
    assert same_links(back, topology)


@settings(max_examples=60, deadline=None)
@given(
    product=st.lists(
        st.tuples(
            st.sampled_from(["Ring", "FullyConnected", "Switch"]),
            st.integers(2, 5),
            st.floats(0.5, 500),
            st.floats(0, 2000),
        ),
        min_size=1,
        max_size=3,
    ),
    ending=st.sampled_from(["yml", "json"]),
)
def test_products_have_the_links_of_their_dimensions(
    product: list[tuple[str, int, float, float]],
    ending: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A ring of n links a line, a full mesh of n (n - 1) / 2, a switch of n."""
    keys = ("topology", "npus_count", "bandwidth", "latency")
    path = tmp_path_factory.mktemp("net") / f"network.{ending}"
    path.write_text(json.dumps(dict(zip(keys, map(list, zip(*product, strict=True)), strict=True))))
    network = read_network(path)
    chips = prod(size for _, size, _, _ in product)
    assert len(network.chips) == chips
    expected = sorted(
        (rate * GIGABYTE_GBPS, flight)
        for block, size, rate, flight in product
        for _ in range(
            chips
            // size
            * {"Ring": size if size > 2 else 1, "FullyConnected": size * (size - 1) // 2}.get(
                block, size
            )
        )
    )
    links = sorted((link.gbps or 0.0, link.latency_ns or 0.0) for link in network.links)
    assert np.allclose(links, expected)
    # Chips of a line of the first dimension are consecutive.
    first = product[0][1]
    if product[0][0] != "Switch":
        assert network.links[0].ends == (0, 1)
        assert all(link.ends[1] < first for link in network.links[:1])


def test_a_published_switch_of_rings(tmp_path: Path) -> None:
    """inputs/network/hgx_h100_32gpu.json of astra-sim/astra-sim."""
    path = tmp_path / "network.json"
    path.write_text(
        '{"topology": ["Switch", "Ring"], "npus_count": [8, 4], "bandwidth": [400, 50],'
        ' "latency": [936.25, 1000]}'
    )
    product = dimensions(imported(path))
    assert product is not None
    assert [(d.block, d.length) for d in product] == [("Switch", 8), ("Ring", 4)]
    assert [d.gbps for d in product] == pytest.approx([400 * GIGABYTE_GBPS, 50 * GIGABYTE_GBPS])
    assert [d.latency_ns for d in product] == [936.25, 1000]


def test_the_older_form_of_astra_sim(tmp_path: Path) -> None:
    """inputs/network/analytical/sample_Torus2D.json and
    sample_Ring_FullyConnected_Switch.json, without what is of memory and NICs.
    """
    path = tmp_path / "network.json"
    path.write_text(
        '{"topology-name": "Torus2D", "dimensions-count": 2, "units-count": [8, 6],'
        ' "link-latency": [500, 500], "link-bandwidth": [25, 25]}'
    )
    product = dimensions(imported(path)) or []
    assert [(d.block, d.length) for d in product] == [("Ring", 8), ("Ring", 6)]
    path.write_text(
        '{"topology-name": "Hierarchical", "units-count": [2, 8, 2], "links-count": [4, 7, 1],'
        ' "topologies-per-dim": ["Ring", "FullyConnected", "Switch"],'
        ' "link-latency": [500, 500, 500], "link-bandwidth": [250, 25, 12.5]}'
    )
    network = read_network(path)
    assert {(link.gbps, link.lanes) for link in network.links} == {
        (250 * GIGABYTE_GBPS, 2),
        (25 * GIGABYTE_GBPS, 1),
        (12.5 * GIGABYTE_GBPS, 1),
    }


INFRAGRAPH: dict[str, Any] = {
    "name": "two servers",
    "devices": [
        {
            "name": "nic",
            "components": [
                {"name": "port", "count": 1, "choice": "port"},
                {"name": "bus", "count": 1, "choice": "custom", "custom": {"type": "pcie"}},
            ],
            "links": [{"name": "board"}],
            "edges": [
                {
                    "ep1": {"component": "port"},
                    "ep2": {"component": "bus[0]"},
                    "scheme": "one2one",
                    "link": "board",
                }
            ],
        },
        {
            "name": "server",
            "components": [
                {"name": "gpu", "count": 2, "choice": "xpu"},
                {"name": "nic", "count": 2, "choice": "device"},
                {"name": "cpu", "count": 1, "choice": "cpu"},
            ],
            "links": [
                {
                    "name": "pcie",
                    "physical": {
                        "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": 64},
                        "latency": {"choice": "us", "us": 0.5},
                    },
                }
            ],
            "edges": [
                {
                    "ep1": {"component": "gpu[0:2]"},
                    "ep2": {"device": "nic[:]", "component": "bus"},
                    "scheme": "one2one",
                    "link": "pcie",
                },
                {
                    "ep1": {"component": "gpu"},
                    "ep2": {"component": "cpu"},
                    "scheme": "many2many",
                    "link": "pcie",
                },
            ],
        },
    ],
    "links": [
        {
            "name": "cable",
            "physical": {
                "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": 400.0}
            },
        }
    ],
    "instances": [{"name": "host", "device": "server", "count": 2}],
    "edges": [
        {
            "ep1": {"instance": "host[0]", "component": "nic[:].port"},
            "ep2": {"instance": "host[-1]", "component": "nic[:].port"},
            "scheme": "one2one",
            "link": "cable",
        }
    ],
}


def test_infragraph_of_others(tmp_path: Path) -> None:
    """Accelerators behind adapters, which are switches, and a processor between."""
    path = tmp_path / "network.yaml"
    path.write_text(json.dumps(INFRAGRAPH))
    network = read_network(path)
    assert network.chips == ("host.0.gpu.0", "host.0.gpu.1", "host.1.gpu.0", "host.1.gpu.1")
    assert len(network.switches) == 4 + 2
    rates = sorted((link.gbps, link.latency_ns) for link in network.links)
    # The settings give the cables their time of flight.
    assert rates == [(400.0, None)] * 2 + [(512.0, 500.0)] * 8


ASTRA = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ASTRA.items() if name != key}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "no YAML or JSON; allowed: a whole file"),
        # libyaml's own composer would end the process.
        ("[" * 100_000, "no YAML or JSON; allowed: a whole file"),
        ("- " * 100_000, "no YAML or JSON; allowed: a whole file"),
        ("[1]", "without npus_count (ASTRA-sim) or devices and instances (InfraGraph)"),
        (without("bandwidth"), "without bandwidth; allowed: a network of ASTRA-sim"),
        (ASTRA | {"topology": ["Mesh"]}, "with topology Mesh; allowed: Ring, FullyConnected, Swi"),
        (ASTRA | {"npus_count": [4, 2]}, "2 npus_count"),
        (ASTRA | {"npus_count": [0]}, "npus_count [0]; allowed: whole numbers above 0"),
        (ASTRA | {"npus_count": [True]}, "npus_count [True]; allowed"),
        (ASTRA | {"bandwidth": [0]}, "bandwidth 0; allowed: numbers, bandwidths above 0"),
        (ASTRA | {"latency": ["fast"]}, "latency 'fast'; allowed: numbers"),
        (ASTRA | {"links-count": [3]}, "links-count 3 for Ring; allowed: a multiple of 2"),
        ({"devices": [], "instances": [{"name": "a"}]}, "no InfraGraph (KeyError('count'))"),
        (
            INFRAGRAPH | {"edges": [INFRAGRAPH["edges"][0] | {"scheme": "ring"}]},
            "scheme 'ring'; allowed: one2one, many2many",
        ),
        (
            INFRAGRAPH
            | {
                "links": [
                    {
                        "name": "cable",
                        "physical": {"bandwidth": {"choice": "baud", "baud": 300}},
                    }
                ]
            },
            "a link in baud; allowed: gigabits_per_second",
        ),
        (INFRAGRAPH | {"edges": []}, "no path leads from"),
    ],
)
def test_broken_networks_are_refused_in_one_line(
    content: Any, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "network.yml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError) as refused:
        read_network(path)
    assert expected in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_accelerators_joined_without_a_rate_are_refused(tmp_path: Path) -> None:
    content = json.loads(json.dumps(INFRAGRAPH))
    content["devices"][1]["links"] = [{"name": "pcie"}]
    path = tmp_path / "network.yml"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"host\.0\.gpu\.0 and host\.0\.gpu\.1 joined by a link"):
        read_network(path)


def test_a_field_of_any_length_is_no_csv(tmp_path: Path) -> None:
    path = tmp_path / "network.csv"
    for text in ("x" * 200_000, "src,dst\n" + "x" * 200_000):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"network\.csv, which is no CSV \(field larger"):
            read_network(path)
