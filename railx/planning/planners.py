"""The planners, and checks that one fits a cluster, a model and a cost model."""

from __future__ import annotations

from typing import Annotated

from railx.performance.cluster import ClusterSettings
from railx.performance.decoder import ModelSettings
from railx.performance.sequence_cost import CostModelSettings
from railx.planning.joint import JOINT
from railx.planning.pipeline.dyna_pipe import DYNA_PIPE
from railx.planning.pipeline.fixed_chunks import CHUNK_FLOW, DAPPLE, SEQ1F1B, SLIM_PIPE
from railx.planning.pipeline.infinipipe import PIPELINE
from railx.planning.planner import Planner, PlannerBase
from railx.planning.rivals.context_parallel import ANY_DEGREE, BYTE_SCALE, WLB
from railx.planning.rivals.dynamic_cp import DYNAMIC_CP
from railx.planning.rivals.megatron import MEGATRON, MEGATRON_PIPELINE
from railx.planning.sequence.flexsp import FLEXSP
from railx.planning.sequence.flexsp_milp import FLEXSP_MILP
from railx.planning.sequence.static import STATIC
from railx.settings import Registered, SettingsError

#: Every planner.
PLANNERS: tuple[Planner, ...] = (
    STATIC, FLEXSP, FLEXSP_MILP, PIPELINE, MEGATRON, DYNAMIC_CP, BYTE_SCALE, WLB, ANY_DEGREE,
    MEGATRON_PIPELINE, DAPPLE, SEQ1F1B, CHUNK_FLOW, SLIM_PIPE, DYNA_PIPE, JOINT,
)  # fmt: skip


def planner_of(settings: PlannerBase) -> Planner:
    """The planner of the settings."""
    return next(planner for planner in PLANNERS if planner.name == settings.planner)


def _members() -> dict[str, type]:
    return {planner.name: planner.settings for planner in PLANNERS}


#: The settings of any planner, selected by ``planner``.
PlannerSettings = Annotated[PlannerBase, Registered("planner", _members)]


def check_plan(
    planner: PlannerBase, cluster: ClusterSettings, model: ModelSettings, key: str = ""
) -> None:
    """Refuse a planner that leaves devices idle, and bandwidths that end too early.

    SettingsError names the key below ``key``.
    """
    prefix = f"{key}." if key else ""

    def refused(name: str, got: object, allowed: str) -> SettingsError:
        return SettingsError(f"{prefix}{name}", f"got {got}; allowed: {allowed}")

    ranks = planner_of(planner).ranks_of(planner, cluster.devices)
    if ranks != cluster.devices:
        names = ("stages", "replicas", "sequence_parallel_degree")
        shape = ", ".join(f"{name} {getattr(planner, name)}" for name in names)
        got = f"{shape}, {ranks} ranks, for {cluster.devices} devices"
        raise refused("planner", got, "as many ranks as cluster.devices")
    stages = getattr(planner, "stages", None)
    if isinstance(stages, int) and stages > model.layers:
        most = f"at most {model.layers}, the layers of {model.name}"
        raise refused("planner.stages", stages, most)
    for name in ("tensor", "context", "stages"):
        degree = getattr(planner, name, None)
        if isinstance(degree, int) and degree and cluster.devices % degree:
            raise refused(f"planner.{name}", degree, f"a divisor of the {cluster.devices} devices")
    if cluster.topology is not None or cluster.devices == 1:
        return
    listed = [int(degree) for degree in cluster.all_to_all_gb_s]
    widest = 1 << (cluster.devices.bit_length() - 1)
    if planner_of(planner).whole_heads:
        # No larger power of two divides the heads, so none is used.
        widest = min(widest, model.heads & -model.heads)
    if max(listed, default=1) < widest:
        got = f"bandwidths of degrees up to {max(listed)}" if listed else "an empty table"
        allowed = f"one for degree {widest} too, or for a larger one"
        raise refused("cluster.all_to_all_gb_s", f"{got} for {cluster.devices} devices", allowed)


def check_cost_model(cost_model: CostModelSettings, model: ModelSettings, prefix: str = "") -> None:
    """Refuse constants that were fitted for another model."""
    fitted = getattr(cost_model, "model", None) or model.name
    if fitted != model.name:
        allowed = f"{model.name}, the model of the plan"
        raise SettingsError(f"{prefix}cost_model.model", f"fitted for {fitted}; allowed: {allowed}")
