"""Stage agreement: what the flow model and the packet simulator deliver of the same
traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.families import read_topology
from railx.io import write_json, write_table
from railx.network.agreement import agreement_rows
from railx.network.settings import AgreementSettings
from railx.settings import load

__all__ = ["run"]


def run(
    settings: Mapping[str, Any] | AgreementSettings,
    *,
    seed: int,
    topology_paths: Mapping[str, str | Path],
    agreement_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Compare both on the topologies of the files, by name; write table and summary
    where paths are given.

    The summary holds the least and the largest ratio of packets to flows, below and
    above the load that fills the busiest link.
    """
    agreement: AgreementSettings = load(AgreementSettings, settings, "agreement")
    rows: list[dict[str, Any]] = []
    for name in agreement.topologies:
        rows += agreement_rows(read_topology(topology_paths[name]), agreement, seed, name)
    if agreement_path is not None:
        write_table(agreement_path, rows)
    summary: dict[str, Any] = {"comparisons": len(rows)}
    for side, own in (
        ("below_bound", [row["ratio"] for row in rows if row["load_over_bound"] < 1]),
        ("above_bound", [row["ratio"] for row in rows if row["load_over_bound"] >= 1]),
    ):
        if own:
            summary |= {
                f"packet_over_flow_{side}_least": min(own),
                f"packet_over_flow_{side}_most": max(own),
            }
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary
