"""Plans: which ranks process which tokens, and when.

``plan`` and ``schedule`` need the standard library, numpy and pyarrow alone, because
the training runtime reads them on bare GPU nodes. Importing this package loads no
solver either: the planner that needs one loads it when it plans.
"""

from railx.planning.make import make_plan, plan_rows, plan_summary, schedule_rows
from railx.planning.plan import Plan, PlanError, read_plan, validate_plan, write_plan
from railx.planning.planners import PLANNERS, PlannerSettings, planner_of
from railx.workload.batches import BatchSettings

__all__ = [
    "PLANNERS",
    "BatchSettings",
    "Plan",
    "PlanError",
    "PlannerSettings",
    "make_plan",
    "plan_rows",
    "plan_summary",
    "planner_of",
    "read_plan",
    "schedule_rows",
    "validate_plan",
    "write_plan",
]
