"""The planners: one module and one entry here for each."""

from __future__ import annotations

from typing import Annotated

from railx.planning.joint import JOINT
from railx.planning.pipeline.infinipipe import PIPELINE
from railx.planning.planner import Planner, PlannerBase
from railx.planning.rivals.any_degree import ANY_DEGREE
from railx.planning.rivals.byte_scale import BYTE_SCALE
from railx.planning.rivals.dynamic_cp import DYNAMIC_CP
from railx.planning.rivals.fixed_chunks import (
    CHUNK_FLOW,
    DAPPLE,
    DYNA_PIPE,
    SEQ1F1B,
    SLIM_PIPE,
)
from railx.planning.rivals.megatron import MEGATRON
from railx.planning.rivals.megatron_pipeline import MEGATRON_PIPELINE
from railx.planning.rivals.wlb import WLB
from railx.planning.sequence.flexsp import FLEXSP
from railx.planning.sequence.flexsp_milp import FLEXSP_MILP
from railx.planning.sequence.static import STATIC
from railx.settings import Registered

__all__ = ["PLANNERS", "PlannerSettings", "planner_of"]

#: Every planner.
PLANNERS: tuple[Planner, ...] = (
    STATIC,
    FLEXSP,
    FLEXSP_MILP,
    PIPELINE,
    MEGATRON,
    DYNAMIC_CP,
    BYTE_SCALE,
    WLB,
    ANY_DEGREE,
    MEGATRON_PIPELINE,
    DAPPLE,
    SEQ1F1B,
    CHUNK_FLOW,
    SLIM_PIPE,
    DYNA_PIPE,
    JOINT,
)


def planner_of(settings: PlannerBase) -> Planner:
    """The planner of the settings."""
    return next(planner for planner in PLANNERS if planner.name == settings.planner)


def _members() -> dict[str, type]:
    return {planner.name: planner.settings for planner in PLANNERS}


#: The settings of any planner, selected by ``planner``.
PlannerSettings = Annotated[PlannerBase, Registered("planner", _members)]
