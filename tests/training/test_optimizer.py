"""The optimizer's step, clipping and learning rate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from railx.settings import SettingsError
from training.optimizer import Optimizer, learning_rate
from training.settings import OptimizerSettings

CONSTANT = OptimizerSettings(1e-2, 0.9, 0.95, 1e-8, 0.1, None, "constant", 0, 0, 0.1)
COSINE = replace(CONSTANT, schedule="cosine", warmup_steps=4, decay_steps=12)


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for name, shape in {"matrix": (4, 3), "vector": (5,), "nothing": (0, 3)}.items()
    }


def with_gradients(named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    for parameter in named.values():
        parameter.grad = parameter.detach() * 3
    return named


@pytest.mark.parametrize("clip_norm", [None, 0.5, 1e6])
def test_steps_are_those_of_torch(clip_norm: float | None) -> None:
    own, theirs = parameters(), parameters()
    optimizer = Optimizer(own, replace(CONSTANT, clip_norm=clip_norm))
    torchs = torch.optim.AdamW(theirs.values(), 1e-2, (0.9, 0.95), 1e-8, 0.1)
    for step in range(3):
        with_gradients(own)
        with_gradients(theirs)
        squares = [parameter.grad.square().sum() for parameter in own.values()]
        optimizer.clip(torch.stack(squares).sum())
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), clip_norm)
        optimizer.step(step)
        torchs.step()
    for name, parameter in own.items():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-14, atol=1e-15)


def test_moments_can_be_taken_to_another_optimizer() -> None:
    first = Optimizer(with_gradients(parameters()), CONSTANT)
    first.step(0)
    second = Optimizer(parameters(), CONSTANT)
    fresh = second.moments()
    assert all(float(moments["step"]) == 0 for moments in fresh.values())
    for name, moments in first.moments().items():
        for key, value in moments.items():
            fresh[name][key].copy_(value)
        second.parameters[name].data.copy_(first.parameters[name])
    for optimizer in (first, second):
        with_gradients(optimizer.parameters)
        optimizer.step(1)
    for name, parameter in first.parameters.items():
        assert torch.equal(parameter, second.parameters[name])


def test_asking_for_moments_before_the_first_step_changes_nothing() -> None:
    asked, alone = (Optimizer(with_gradients(parameters()), CONSTANT) for _ in range(2))
    asked.moments()
    for optimizer in (asked, alone):
        optimizer.step(0)
    for name, parameter in asked.parameters.items():
        assert torch.equal(parameter, alone.parameters[name])


def test_the_rate_rises_evenly_and_falls_along_a_cosine() -> None:
    rates = [learning_rate(COSINE, step) for step in range(14)]
    assert rates[:4] == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2])
    assert rates[4] == pytest.approx(1e-2)
    assert rates[8] == pytest.approx(1e-2 * (0.1 + 0.9 / 2))
    assert rates[6] == pytest.approx(1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2))
    assert rates[12] == rates[13] == pytest.approx(1e-3)
    assert learning_rate(CONSTANT, 10**6) == 1e-2


@given(
    st.integers(0, 50), st.integers(1, 50), st.just(0.0) | st.floats(1e-9, 1), st.integers(0, 200)
)
def test_the_rate_stays_in_its_range(warmup: int, decay: int, share: float, step: int) -> None:
    settings = replace(COSINE, warmup_steps=warmup, decay_steps=warmup + decay, final_share=share)
    rate = learning_rate(settings, step)
    assert 0 < rate <= 1e-2 * (1 + 1e-12) or share == 0
    if step >= warmup:
        assert learning_rate(settings, step + 1) <= rate * (1 + 1e-12)
        assert rate >= 1e-2 * share * (1 - 1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schedule": "cosine", "decay_steps": 0},
            "decay_steps: got 0; allowed for a cosine: more than warmup_steps, which is 0",
        ),
    ],
)
def test_impossible_schedules_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        replace(CONSTANT, **change)
    assert str(refused.value) == message
