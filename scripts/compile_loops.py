"""Compile the loops of planners and of exact loads ahead (``make setup``), which takes
half a minute.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from railx.families import build_topology
from railx.families.slim_fly import SlimFlySettings
from railx.families.torus_3d import Torus3DSettings
from railx.network.group_bandwidth import member_rates, routed_loads
from railx.performance.pipeline_cost import PassTime, PipelineCost, PipelineShape
from railx.performance.sequence_cost import CostModel
from railx.planning.pipeline.infinipipe import PipelineSettings, plan_pipeline_batch
from railx.planning.sequence.exchanges import shortest
from railx.planning.sequence.flexsp import FlexSPSettings, plan_flexsp_batch
from railx.planning.sequence.search import Problem, search
from railx.workload.batches import SampledBatch


def compile_planners() -> None:
    """Plan small batches, so that Numba stores the loops of the default planners."""
    shape, forward = PipelineShape(2, 1), PassTime(0.02, 1.0, 1.0)
    pipeline = PipelineCost(
        shape, forward, forward, PassTime(0.0, 0.0), (1, 1), (60.0, 60.0),
        layer_bytes=10.0, input_bytes=1.0, key_value_bytes=2.0,
    )  # fmt: skip
    groups = CostModel(1e-6, 0.2, 100.0, {1: 0.0, 2: 0.01, 4: 0.02}, 4000, 1 / 3, 1.0)
    for sequences in (4, 16):
        lengths = np.arange(1000, 1000 + 200 * sequences, 200)
        batch = SampledBatch(np.arange(sequences), lengths)
        plan_flexsp_batch(0, batch, FlexSPSettings("flexsp"), 4, groups)
        problem = Problem.of(lengths[::-1], 4, groups.degrees, groups)
        shortest(problem, search(problem, 1000, 0), 1, 0)
    batch = SampledBatch(np.arange(4), np.array([4, 2, 1, 1]))
    settings = PipelineSettings("pipeline", 2, 1, most_slices=2, alignment_tokens=1)
    for chunking in ("searched", "balanced"):
        plan_pipeline_batch(0, batch, replace(settings, chunking=chunking), pipeline)


def compile_loads() -> None:
    """Loads of small networks, by their table and by hops."""
    for settings in (Torus3DSettings("torus_3d"), SlimFlySettings("slim_fly")):
        topology = build_topology(settings)
        loads = routed_loads(topology, "min")
        for algorithm in ("direct", "ring"):
            member_rates(loads, np.arange(topology.chips)[None, :], algorithm)


if __name__ == "__main__":
    compile_planners()
    compile_loads()
