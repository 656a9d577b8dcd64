"""The kinds of the planners' plans, for declarations: no job's code depends on them."""

from __future__ import annotations

from typing import Any

from workflow.cache_keys import remembered


@remembered
def plan_kinds() -> dict[str, Any]:
    """The kind by planner; None where a planner chooses the kind when it plans."""
    from railx.planning.planners import PLANNERS

    return {planner.name: planner.kind for planner in PLANNERS}
