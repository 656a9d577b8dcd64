"""Stage network: one topology -> throughput bounds, channel loads, collective times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from railx.settings import SettingsError, load
from workflow.outputs import Json, Table, arrow_schema, columns
from workflow.stage import ByHand, Config, Experiment, FromStage, Item, Job, Stage, Summary, Tracked
from workflow.stages import named_files


def run(job: Job) -> Summary:
    """Compute every network model and the collectives on the topology.

    Returns the rows as one flat summary, by model where there are several. Of several
    models those are left out whose routing the family lacks, or whose exact loads are
    out of reach at its size; a model alone raises SettingsError or ValueError then. The
    channel loads are those of every model, distinguished by ``routing``.
    """
    import numpy as np
    import pyarrow as pa

    from railx.families import read_topology
    from railx.io import as_words, write_table
    from railx.network import CollectiveSettings, StaticNetworkSettings, TrafficSettings
    from railx.network.collectives import simulate_collectives
    from railx.network.throughput import simulate_static, static_routings
    from railx.progress import counted

    graph = read_topology(job.file("topology"))
    name = job.item or graph.family
    traffic: TrafficSettings = job.load(TrafficSettings, "traffic")
    networks: Mapping[str, Any] = job.settings["networks"]
    rows: dict[str, dict[str, Any]] = {}
    channels = [arrow_schema(_CHANNELS).empty_table()]
    for key, settings in counted(networks.items(), "models"):
        path = f"networks.{key}" if job.item else key
        network: StaticNetworkSettings = load(StaticNetworkSettings, settings, path)
        if len(networks) > 1 and network.routing not in static_routings(graph):
            continue
        rows[key], loads = simulate_static(graph, traffic, network, name, seed=job.settings["seed"])
        zeros = np.zeros(len(loads["load"]), np.int8)
        channels.append(
            pa.table(
                {
                    "topology": as_words(zeros, [name]),
                    **loads,
                    "routing": as_words(zeros, [network.routing]),
                }
            )
        )
    collectives = simulate_collectives(graph, job.load(CollectiveSettings, "collective"), name)
    job.write_table("bounds", rows.values())
    job.write("channels", write_table, pa.concat_tables(channels).unify_dictionaries())
    job.write_table("collectives", collectives)
    return _summary(networks, rows, collectives)


def _summary(
    models: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    collectives: list[dict[str, Any]],
) -> Summary:
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


def _by_hand(chosen: Config) -> Config:
    if chosen["network"]["model"] != "static":
        got = f"got {chosen['network']['model']!r}"
        raise SettingsError("network.model", f"{got}; allowed: static (packets: railx packets)")
    shared = {key: chosen[key] for key in ("traffic", "collective", "seed")}
    return shared | {"networks": {"network": chosen["network"]}}


#: A topology on which no model can be computed has no rows.
_BOUNDS = columns(
    "text topology family, integer chips nodes, text traffic routing,"
    " real ideal_flits_per_chip_cycle bound_flits_per_chip_cycle injection_gb_s_per_chip"
    " ideal_gb_s_per_chip bound_gb_s_per_chip bound_over_ideal mean_external_hops"
    " mean_internal_hops internal_width_needed, text busiest_link_kind fidelity"
)
_CHANNELS = columns(
    "category topology, int32 src dst, category kind, int32 rail, real load,"
    " category fidelity routing"
)
#: A family without rings and routing has no rows.
_COLLECTIVES = columns(
    "text topology family collective algorithm scope, integer participants rings payload_bytes,"
    " real time_ms algorithm_gb_s, text fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse positions of a collective that a topology lacks."""
    from railx.families.sizes import small_graph
    from railx.network.sub_grid import sub_grid

    if experiment.collective.rows is None and experiment.collective.columns is None:
        return
    for name, settings in experiment.topologies.items():
        graph = small_graph(settings)
        if graph is None:
            continue
        try:
            sub_grid(graph, experiment.collective)
        except SettingsError as error:
            raise SettingsError(f"collective.{error.key}", f"on {name}: {error.message}") from None


STAGE = Stage(
    name="network",
    help="traffic on a topology: exact channel loads, throughput bounds and collective times",
    message="Network simulation of {item}",
    item=Item("topology", lambda experiment: experiment["topologies"]),
    settings=lambda experiment, _: {
        key: experiment[key] for key in ("traffic", "networks", "collective", "seed")
    },
    inputs=lambda experiment, topology: {
        "topology": FromStage("topology.graph", topology),
        "traffic": named_files(experiment["traffic"]),
    },
    outputs={
        "bounds": Table(_BOUNDS, printed="Uniform all-to-all on {item}"),
        "channels": Table(_CHANNELS),
        "collectives": Table(_COLLECTIVES),
        "summary": Json(),
    },
    run=run,
    by_hand=ByHand(
        groups=("seed", "topology", "traffic", "network", "collective"),
        example="railx network topology=railx_torus traffic=uniform --json",
        out="the table of bounds to write (.parquet)",
        writes={".parquet": "bounds"},
        settings=_by_hand,
        before={"topology": "topology.graph"},
    ),
    tracked=Tracked("summary", ("bounds",)),
    check=check,
)
