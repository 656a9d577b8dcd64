"""Stage agreement: throughput of flow model and packet simulator, same traffic."""

from __future__ import annotations

from typing import Any

from workflow.outputs import Json, Table, columns
from workflow.stage import Experiment, FromStage, Job, Stage, Summary, Tracked
from workflow.stages import named_files


def run(job: Job) -> Summary:
    """Compare both on the topologies; least and largest ratios by side of the bound."""
    from railx.families import read_topology
    from railx.network.agreement import agreement_rows
    from railx.network.settings import AgreementSettings

    agreement: AgreementSettings = job.load(AgreementSettings, "agreement")
    rows: list[dict[str, Any]] = []
    for name, path in zip(agreement.topologies, job.inputs["topologies"], strict=True):
        rows += agreement_rows(read_topology(path), agreement, job.settings["seed"], name)
    job.write_table("comparison", rows)
    summary: Summary = {"comparisons": len(rows)}
    for side, ratios in (
        ("below_bound", [row["ratio"] for row in rows if row["load_over_bound"] < 1]),
        ("above_bound", [row["ratio"] for row in rows if row["load_over_bound"] >= 1]),
    ):
        if ratios:
            summary |= {
                f"packet_over_flow_{side}_least": min(ratios),
                f"packet_over_flow_{side}_most": max(ratios),
            }
    return summary


_COLUMNS = columns(
    "text topology family traffic routing,"
    " real load_over_bound offered_flits_per_chip_cycle static_bound_flits_per_chip_cycle"
    " flow_flits_per_chip_cycle packet_flits_per_chip_cycle ratio, integer seed,"
    " text flow_fidelity packet_fidelity fidelity"
)


def check(experiment: Experiment) -> None:
    """Refuse topologies without explicit traffic, and studies beyond the limits."""
    from railx.families.sizes import vertex_count
    from railx.network.packets.effort import check_latencies, check_packets
    from railx.network.traffic import MOST_EXPLICIT_CHIPS, check_pattern, is_large
    from railx.settings import SettingsError

    agreement, limits = experiment.agreement, experiment.limits
    loads, repeats = agreement.loads_over_bound, agreement.repeats
    runs = len(agreement.routings) * len(agreement.traffics) * len(loads)
    for name in agreement.topologies:
        topology = experiment.topologies[name]
        if is_large(topology):
            got = f"got {name!r}, which is too large"
            allowed = f"topologies of at most {MOST_EXPLICIT_CHIPS:,} chips"
            raise SettingsError("agreement.topologies", f"{got}; allowed: {allowed}")
        for pattern, traffic in agreement.traffics.items():
            key = f"agreement.traffics.{pattern}"
            check_pattern(topology, name, traffic, experiment.seed, key)
        chips = vertex_count(topology)
        check_packets("agreement", agreement.network, chips, loads, runs, limits, repeats)
        check_latencies(f"topologies.{name}", topology, agreement.network, limits)


STAGE = Stage(
    name="agreement",
    help="the flow model against the packet simulator on the same traffic",
    message="Flows against packets",
    settings=lambda experiment, _: {key: experiment[key] for key in ("agreement", "seed")},
    inputs=lambda experiment, _: {
        "topologies": FromStage("topology.graph", tuple(experiment["agreement"]["topologies"])),
        "traffics": named_files(experiment["agreement"]["traffics"]),
    },
    outputs={"comparison": Table(_COLUMNS), "summary": Json()},
    run=run,
    tracked=Tracked("summary", ("comparison",), name="flow_and_packet"),
    check=check,
)
