"""Plans: which ranks process which tokens, and when.

``plan`` and ``schedule`` need the standard library, numpy and pyarrow alone, because
the training runtime reads them on bare GPU nodes. Importing this package loads no
solver either: ``make_plan`` loads the planner that it is asked for.
"""

from railx.planning.make import make_plan, plan_rows, plan_summary, schedule_rows
from railx.planning.plan import Plan, PlanError, read_plan, validate_plan, write_plan
from railx.planning.settings import (
    FlexSPSettings,
    PipelineSettings,
    PlannerSettings,
    StaticSettings,
)
from railx.workload.batches import BatchSettings

__all__ = [
    "BatchSettings",
    "FlexSPSettings",
    "PipelineSettings",
    "Plan",
    "PlanError",
    "PlannerSettings",
    "StaticSettings",
    "make_plan",
    "plan_rows",
    "plan_summary",
    "read_plan",
    "schedule_rows",
    "validate_plan",
    "write_plan",
]
