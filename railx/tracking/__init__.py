"""Tracked runs in MLflow and W&B, and the comparison of two invocations.

One caller writes them, from the files of all stages.
"""

from railx.tracking.compare import compare_invocations, list_invocations
from railx.tracking.results import (
    Curve,
    StageResult,
    TrackedRun,
    file_digest,
    numbers,
    result_digest,
)
from railx.tracking.runs import log_runs
from railx.tracking.settings import TrackingSettings
from railx.tracking.stage_results import read_curves

__all__ = [
    "Curve",
    "StageResult",
    "TrackedRun",
    "TrackingSettings",
    "compare_invocations",
    "file_digest",
    "list_invocations",
    "log_runs",
    "numbers",
    "read_curves",
    "result_digest",
]
