"""Tracked runs in MLflow and W&B, and the comparison of two invocations.

One caller writes them, from the files of all stages.
"""

from railx.tracking.compare import compare_runs, list_invocations
from railx.tracking.results import StageResult, TrackedRun, result_digest
from railx.tracking.runs import log_runs
from railx.tracking.settings import TrackingSettings

__all__ = [
    "StageResult",
    "TrackedRun",
    "TrackingSettings",
    "compare_runs",
    "list_invocations",
    "log_runs",
    "result_digest",
]
