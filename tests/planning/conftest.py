"""Clusters, models and cost models from conf/ for the planners' tests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railx.planning import PlannerSettings
from railx.settings import load
from railx.workload import (
    ClusterSettings,
    CostModel,
    CostModelSettings,
    ModelSettings,
    build_cost_model,
)
from workflow.config import read_choice

ROOT = Path(__file__).resolve().parents[2]
HINTS: dict[str, Any] = {
    "cluster": ClusterSettings,
    "model": ModelSettings,
    "cost_model": CostModelSettings,
    "planner": PlannerSettings,
}


@pytest.fixture(scope="session")
def conf() -> Callable[..., Any]:
    """``conf("planner", "flexsp", buckets=8)``: checked settings from conf/ with
    changes.
    """

    def read(group: str, name: str, **changes: Any) -> Any:
        return load(
            HINTS[group],
            read_choice(ROOT / "conf" / group / f"{name}.yaml") | changes,
            group,
        )

    return read


@pytest.fixture(scope="session")
def large(conf: Callable[..., Any]) -> CostModel:
    """GPT-7B on 64 A100, contexts up to 192K."""
    return build_cost_model(
        conf("cost_model", "flexsp_7b"),
        conf("cluster", "a100_64"),
        conf("model", "gpt_7b"),
        192_000,
    )


@pytest.fixture(scope="session")
def small() -> CostModel:
    """Four devices of 100 tokens each with simple coefficients: all-to-all weighs as
    much as half of the linear compute.
    """
    return CostModel(
        quadratic_ms=1e-3,
        linear_ms=0.1,
        constant_ms=3.0,
        all_to_all_ms={1: 0.0, 2: 0.05, 4: 0.04},
        tokens_per_device=100,
        forward_share=1 / 3,
        split_memory=1.2,
    )


@pytest.fixture(scope="session")
def tight(small: CostModel) -> Callable[[int], CostModel]:
    """The small cost model with another token cap."""
    return lambda tokens: replace(small, tokens_per_device=tokens)
