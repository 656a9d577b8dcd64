"""Random plans of small clusters: every schedule, sharding and recomputation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from railx.performance.closed import step_times
from railx.performance.devices import device_named
from railx.performance.layers import Setting
from railx.performance.models import Model
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import RECOMPUTATIONS, SCHEDULES, SHARDINGS, Plan, Plans
from railx.performance.programs import default_constants, program_named
from railx.progress import counted
from railx.steps.referee import replayed_step_s

_SHOWN = (
    *("schedule", "sharding", "recompute", "devices", "data", "tensor", "pipeline", "context"),
    *("expert", "virtual", "micro_batches"),
)


def draw(seed: int) -> tuple[Setting, Plan]:
    """A model, a program and devices, and a plan of at most 64 ranks."""
    choose = random.Random(seed).choice
    schedule = SCHEDULES[seed % 3]
    pipeline = choose([2, 3, 4, 6, 8] if schedule == "interleaved" else [1, 2, 3, 4, 6, 8, 16])
    virtual = choose([2, 3]) if schedule == "interleaved" else 1
    tensor = choose([n for n in (1, 2, 4, 8) if pipeline * n <= 64])
    context = choose([n for n in (1, 1, 1, 2, 4) if pipeline * tensor * n <= 64])
    data = choose([n for n in (1, 2, 3, 4, 8, 16) if pipeline * tensor * context * n <= 64])
    model = _model(choose, pipeline * virtual, even=virtual > 1)
    experts = [n for n in (1, 2, 4, 8) if model.experts and data * context % n == 0]
    batches = choose([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])
    device = device_named(choose(["a100", "h100"]))
    program = program_named(choose(["megatron", "llm_foundry", "torchtitan"]))
    constants = default_constants(device.name, program.name)
    network = TwoLevelRing.of(
        device, fast_share=0.8, slow_share=0.8, slow_gb_s=choose([25.0, 50.0, 100.0])
    )
    plan = Plan(
        data=data,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        expert=choose(experts or [1]),
        virtual=virtual,
        micro_batch=choose([1, 2, 4]),
        micro_batches=batches * pipeline
        if virtual > 1 and batches < 12
        else batches
        if virtual == 1
        else pipeline,
        sequence_tokens=choose([1024, 2048, 4096, 8192]),
        sharding=SHARDINGS[seed // 3 % 4],  # type: ignore[arg-type]
        recompute=RECOMPUTATIONS[seed // 12 % 3],  # type: ignore[arg-type]
        recompute_layers=choose([0.5, 1.0]),
        schedule=schedule,  # type: ignore[arg-type]
        sequence_parallel=choose([False, True]),
    )
    return Setting(model, device, network, program, constants), plan


def _model(choose: Callable[[Sequence[Any]], Any], least: int, *, even: bool) -> Model:
    layers = least * choose([1, 2, 3, 4]) if even else least + choose(range(24))
    heads = choose([16, 32, 64])
    sparse = choose([False, False, True])
    return Model(
        "drawn",
        layers,
        hidden=heads * 64 * choose([1, 2]),
        heads=heads,
        kv_heads=choose([8, heads]),
        feed_forward=choose([4096, 14336]),
        vocabulary=choose([32000, 128256]),
        experts=8 if sparse else 0,
        experts_per_token=2 if sparse else 0,
        expert_feed_forward=choose([2048, 8192]) if sparse else 0,
        dense_layers=choose([0, 1, 2]) % (layers + 1) if sparse and not even else 0,
        window_tokens=choose([0, 0, 512]),
        window_layers=layers // 2,
    )


def compared_rows(plans: int, seed: int) -> Iterator[dict[str, Any]]:
    """The closed form and the replay of drawn plans.

    Columns: seed, schedule, sharding, recompute, devices and the degrees, virtual,
    micro_batches, closed_s, replayed_s, error (closed over replayed less 1), fidelity.
    """
    for number in counted(range(1000 * (seed - 1), 1000 * (seed - 1) + plans), "plans"):
        setting, plan = draw(number)
        closed_s = float(step_times(setting, Plans.of([plan])).total_s[0])
        replayed_s = replayed_step_s(setting, plan)
        yield {
            "seed": number,
            **{name: getattr(plan, name) for name in _SHOWN},
            "closed_s": closed_s,
            "replayed_s": replayed_s,
            "error": closed_s / replayed_s - 1,
            "fidelity": "replay",
        }
