"""Small jobs, and those of conf/."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from railx.performance.devices import DeviceSettings
from railx.settings import load
from railx.steps.settings import (
    DegreeSettings,
    StepJob,
    StepSettings,
    WeightedModel,
)
from workflow.config import read_choice

ROOT = Path(__file__).resolve().parents[2]
#: Operations are 1 ns each, sends a byte a ns, memory no limit.
DEVICE = DeviceSettings(1e-3, 1.0, "plain", 1e9, 1.0, 1.0)
MODEL = WeightedModel("small", 4, 2, 10, 0, 0, 1.0, 4, 20, 0, 0, 0, 0, 0, 0, 0)
EXPERTS = replace(
    MODEL, dense_layers=1, experts=8, experts_per_token=2, expert_weights=5, shared_weights=3
)


def degrees(**changes: Any) -> DegreeSettings:
    one: dict[str, Any] = dict.fromkeys(("data", "pipeline", "tensor", "context", "expert"), 1)
    return DegreeSettings(**{**one, "context_in_server": False, "expert_over": "tensor", **changes})


def small(**changes: Any) -> StepJob:
    """A job of four dense layers; degrees by their names."""
    names = ("data", "pipeline", "tensor", "context", "expert", "expert_over", "context_in_server")
    own = {name: changes.pop(name) for name in names if name in changes}
    job: dict[str, Any] = {
        "model": MODEL,
        "degrees": degrees(**own),
        "device": DEVICE,
        "schedule": "1f1b",
        "parts": 1,
        "micro_batches": 2,
        "micro_batch_sequences": 1,
        "sequence_tokens": 4,
        "parameters": "replicated",
        "gradients": "at_end",
        "small_reductions": 0,
        "recomputed": False,
        "sequence_parallel": False,
        "bytes_per_element": 2,
    }
    return StepJob(**{**job, **changes})


def chosen(name: str) -> StepSettings:
    """The settings of conf/step/NAME.yaml."""
    settings: StepSettings = load(StepSettings, read_choice("step", name), name)
    return settings
