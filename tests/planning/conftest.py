"""Cost models for the planners' tests."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from railx.performance.sequence_cost import CostModel, build_cost_model
from tests.builders import checked


@pytest.fixture(scope="session")
def large() -> CostModel:
    """GPT-7B on 64 A100, contexts up to 192K."""
    return build_cost_model(
        checked("cost_model", "flexsp_7b"),
        checked("cluster", "a100_64"),
        checked("model", "gpt_7b"),
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
