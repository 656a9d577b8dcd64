"""Stage simulate: one topology -> throughput bounds, channel loads and collective
times.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from railx.families import TopologySettings, build_topology, read_topology
from railx.io import write_json, write_table
from railx.network import (
    CollectiveSettings,
    NetworkSettings,
    StaticNetworkSettings,
    TrafficSettings,
    simulate_collectives,
    simulate_static,
    static_routings,
)
from railx.settings import load

__all__ = ["run"]

#: The columns of the network table, and of the channels; a topology on which no model
#: can be computed has no rows.
_NETWORK = pa.schema(
    [
        ("topology", pa.string()),
        ("family", pa.string()),
        ("chips", pa.int64()),
        ("nodes", pa.int64()),
    ]
    + [(name, pa.string()) for name in ("traffic", "routing")]
    + [(f"{name}_flits_per_chip_cycle", pa.float64()) for name in ("ideal", "bound")]
    + [(f"{name}_gb_s_per_chip", pa.float64()) for name in ("injection", "ideal", "bound")]
    + [
        (name, pa.float64())
        for name in (
            "bound_over_ideal",
            "mean_external_hops",
            "mean_internal_hops",
            "internal_width_needed",
        )
    ]
    + [(name, pa.string()) for name in ("busiest_link_kind", "fidelity")]
)
_NO_CHANNELS = pa.schema(
    [(name, pa.int32()) for name in ("src", "dst", "rail")]
    + [("load", pa.float64())]
    + [(name, pa.string()) for name in ("kind", "fidelity", "topology", "routing")]
).empty_table()
#: The columns of the collectives table; a family without rings and routing has no rows.
_COLLECTIVES = pa.schema(
    [(name, pa.string()) for name in ("topology", "family", "collective", "algorithm", "scope")]
    + [(name, pa.int64()) for name in ("participants", "rings", "payload_bytes")]
    + [("time_ms", pa.float64()), ("algorithm_gb_s", pa.float64()), ("fidelity", pa.string())]
)


def run(
    traffic: Mapping[str, Any] | TrafficSettings,
    networks: Mapping[str, Mapping[str, Any] | NetworkSettings],
    collective: Mapping[str, Any] | CollectiveSettings,
    *,
    seed: int,
    name: str,
    topology_path: str | Path | None = None,
    topology: TopologySettings | None = None,
    network_path: str | Path | None = None,
    channels_path: str | Path | None = None,
    collectives_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Simulate every network model of ``networks`` on the topology of the file, or on
    the one that ``topology`` describes.

    Of several models those are left out whose routing the family lacks, or whose exact
    loads are out of reach at its size; a model alone raises SettingsError or ValueError
    then. Writes the tables where paths are given (the channel loads are those of every
    model, told apart by ``routing``). Returns the rows as one flat summary; with
    several models their names stand before the keys.
    """
    if (topology_path is None) == (topology is None):
        raise TypeError("one of topology_path and topology is needed")
    graph = (
        read_topology(topology_path)
        if topology_path is not None
        else build_topology(load(TopologySettings, topology, "topology"))
    )
    traffic_settings: TrafficSettings = load(TrafficSettings, traffic, "traffic")
    rows: dict[str, dict[str, Any]] = {}
    channels = []
    for key, settings in networks.items():
        network: StaticNetworkSettings = load(StaticNetworkSettings, settings, f"networks.{key}")
        if len(networks) > 1 and network.routing not in static_routings(graph):
            continue
        rows[key], loads = simulate_static(graph, traffic_settings, network, name, seed=seed)
        rows_of = len(loads["load"])
        channels.append(
            pa.table(
                {
                    **loads,
                    "topology": _repeated(name, rows_of),
                    "routing": _repeated(network.routing, rows_of),
                }
            )
        )
    collectives = simulate_collectives(
        graph, load(CollectiveSettings, collective, "collective"), name
    )
    if network_path is not None:
        write_table(network_path, pa.Table.from_pylist(list(rows.values()), schema=_NETWORK))
    if channels_path is not None:
        write_table(
            channels_path, pa.concat_tables(channels or [_NO_CHANNELS]).unify_dictionaries()
        )
    if collectives_path is not None:
        write_table(collectives_path, pa.Table.from_pylist(collectives, schema=_COLLECTIVES))
    summary = _summary(networks, rows, collectives)
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary


def _repeated(text: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array([text]))


def _summary(
    models: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    collectives: list[dict[str, Any]],
) -> dict[str, Any]:
    if len(models) == 1:
        summary = dict(next(iter(rows.values())))
    else:
        summary = {
            f"{key}.{column}": value for key, row in rows.items() for column, value in row.items()
        }
        summary["models_left_out"] = sum(key not in rows for key in models)
    largest = max((row["payload_bytes"] for row in collectives), default=0)
    for row in collectives:
        if row["payload_bytes"] == largest:
            fidelity = "" if row["fidelity"] == "analytic" else f"_{row['fidelity']}"
            summary[f"{row['collective']}_{row['scope']}{fidelity}_algorithm_gb_s"] = row[
                "algorithm_gb_s"
            ]
    return summary
