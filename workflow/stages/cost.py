"""Stage cost: price catalogue -> bill of materials, cost per bandwidth and over scale,
for which prices the cost claims hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railx.economics import (
    EconomicsSettings,
    bill_of_materials,
    claim_map,
    cost_by_scale,
    cost_summary,
    price_sensitivity,
)
from railx.io import write_table
from railx.settings import load

__all__ = ["run"]


def run(
    settings: Mapping[str, Any] | EconomicsSettings,
    *,
    bill_path: str | Path | None = None,
    summary_path: str | Path | None = None,
    sensitivity_path: str | Path | None = None,
    scale_path: str | Path | None = None,
    claim_map_path: str | Path | None = None,
) -> dict[str, Any]:
    """Price every network of the settings; write the tables where paths are given;
    return the summary by network.
    """
    economics: EconomicsSettings = load(EconomicsSettings, settings, "economics")
    summary = cost_summary(economics)
    if bill_path is not None:
        write_table(bill_path, bill_of_materials(economics))
    if sensitivity_path is not None:
        write_table(sensitivity_path, price_sensitivity(economics))
    if scale_path is not None:
        write_table(scale_path, cost_by_scale(economics))
    if claim_map_path is not None:
        write_table(claim_map_path, claim_map(economics))
    if summary_path is not None:
        write_table(summary_path, summary)
    return {
        f"{row['topology']}.{key}": value
        for row in summary
        for key, value in row.items()
        if key not in ("topology", "fidelity")
    }
