"""Stage tenancy: a grid of nodes -> largest job against failures, use by a stream of
jobs, bandwidth of degraded lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.io import write_json, write_table
from railx.settings import load
from railx.tenancy import TenancySettings
from railx.tenancy.study import (
    degraded_table,
    fault_table,
    mix_of_jobs,
    tenancy_summary,
    utilisation_table,
)

__all__ = ["run"]


def run(
    settings: Mapping[str, Any] | TenancySettings,
    seed: int,
    *,
    faults_path: str | Path | None = None,
    utilisation_path: str | Path | None = None,
    degraded_path: str | Path | None = None,
    summary_path: str | Path | None = None,
) -> dict[str, Any]:
    """Run the studies of the settings; write the tables where paths are given; return
    the flat summary.
    """
    tenancy: TenancySettings = load(TenancySettings, settings, "tenancy")
    faults = fault_table(tenancy, seed)
    degraded = degraded_table(tenancy, seed)
    mix = mix_of_jobs(tenancy, seed)
    utilisation = utilisation_table(tenancy, seed)
    summary = tenancy_summary(tenancy, faults, utilisation, degraded, mix["summary"])
    for path, table in (
        (faults_path, faults),
        (utilisation_path, utilisation),
        (degraded_path, degraded),
    ):
        if path is not None:
            write_table(path, table)
    if summary_path is not None:
        write_json(summary_path, summary)
    return summary
