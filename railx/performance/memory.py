"""Memory of a device in a training step, by part.

Activations of a layer follow Korthikanti 2022 (arXiv 2205.05198, equations 1 to 5):
what tensor ranks repeat, what they divide, and the scores where attention is not fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from railx.performance.models import LayerKind, Model
from railx.performance.plans import RECOMPUTATIONS, SCHEDULES, SHARDINGS, Array, Plan, Plans
from railx.performance.programs import Program

if TYPE_CHECKING:
    from railx.performance.layers import Setting

#: Kinds of bytes, in order.
MEMORY_PARTS = (
    *("parameters", "gradients", "optimizer", "activations", "working", "gathered", "logits"),
)
_FULL, _SELECTIVE = RECOMPUTATIONS.index("full"), RECOMPUTATIONS.index("selective")
_GPIPE = SCHEDULES.index("gpipe")
#: Share of a layer's products whose outputs selective recomputation of products stores.
_STORED_PRODUCTS = 0.5


@dataclass(frozen=True, eq=False)
class StepMemory:
    """Bytes of the fullest device by part, float[plans] by ``MEMORY_PARTS``."""

    parts: Mapping[str, Array]

    @cached_property
    def total_bytes(self) -> Array:
        """Bytes of all parts."""
        return np.asarray(np.sum([self.parts[name] for name in MEMORY_PARTS], axis=0))


class _Trained(NamedTuple):
    """A model and the program that trains it: all that is read of a setting."""

    model: Model
    program: Program


def layer_activation_bytes(setting: Setting | _Trained, plans: Plans, kind: LayerKind) -> Array:
    """Bytes that a layer stores for its backward pass, one micro-batch, float[plans].

    Without recomputation: 2 bytes for each value of the residual stream before and
    after two norms (and 1 for each of two dropout masks), for queries, keys, values and
    attention's output, for the feed-forward part's activations (2 a value, twice for
    GELU, three times for SwiGLU), and 5 for each score that is not fused.
    """
    model, program = setting.model, setting.program
    tensor = plans["tensor"].astype(float)
    tokens = plans["micro_batch"] * plans["sequence_tokens"] / plans["context"]
    spread = np.where(plans["sequence_parallel"], tensor, 1.0)
    hidden = (8 + 2 * program.dropout) * model.hidden / spread
    heads = 2 * (model.heads + model.kv_heads) * (model.key_width + model.values_width)
    wide = 2 * model.feed_forward_matrices * kind.feed_forward
    scores = 0.0 if program.fused_attention else 5 * plans["sequence_tokens"] * model.heads
    everything = hidden + (heads + wide + scores) / tensor
    if program.selective == "scores":
        selective = hidden + (heads + wide) / tensor
    else:
        outputs = sum(
            product.outputs * (model.experts_per_token if product.expert else 1)
            for product in kind.products
        )
        attention = model.heads * model.values_width
        selective = 2 * (model.hidden / spread + (attention + _STORED_PRODUCTS * outputs) / tensor)
    full = 2 * model.hidden / spread
    again = np.select(
        [plans["recompute"] == _FULL, plans["recompute"] == _SELECTIVE],
        [full, selective],
        everything,
    )
    share = plans["recompute_layers"]
    return np.asarray(tokens * (share * again + (1 - share) * everything))


def step_memory(setting: Setting | _Trained, plans: Plans) -> StepMemory:
    """Bytes of the fullest device (of the first or the last stage), by part."""
    first, last = (_stage_memory(setting, plans, last=last) for last in (False, True))
    fuller = last.total_bytes > first.total_bytes
    return StepMemory(
        {name: np.where(fuller, last.parts[name], first.parts[name]) for name in MEMORY_PARTS}
    )


def _stage_memory(setting: Setting | _Trained, plans: Plans, *, last: bool) -> StepMemory:
    """Bytes of a device of the first or the last stage.

    The first stage of p keeps p micro-batches under 1F1B, all under GPipe, and
    p + (p - 1) / v interleaved (Korthikanti 2022, section 4.2.3); the last one keeps
    2 (p - 1) / v fewer there, p - 1 fewer under 1F1B. None keeps more than there are.
    """
    model, program = setting.model, setting.program
    tensor, stages = plans["tensor"].astype(float), plans["pipeline"].astype(float)
    virtual, batches = plans["virtual"].astype(float), plans["micro_batches"].astype(float)
    members = plans["data"] * plans["context"]
    most = np.select(
        [plans["schedule"] == _GPIPE, virtual > 1],
        [batches, stages + (1 - 2 * last) * (stages - 1) / virtual],
        1 if last else stages,
    )
    in_flight = np.minimum(batches, most)
    # Layers left over go to the first stages.
    rounded = np.floor if last else np.ceil
    layers_of_stage = rounded(model.layers / (stages * virtual)) * virtual
    dense, sparse, activations, largest, working = np.zeros((5, len(plans)))
    stored_whole = Plans({**plans.columns, "recompute": np.zeros(len(plans), int)})
    for kind in model.kinds:
        count = kind.count * layers_of_stage / model.layers
        shared, experts = model.layer_weights(kind)
        of_experts = experts / (tensor * plans["expert"])
        dense, sparse = dense + count * shared / tensor, sparse + count * of_experts
        largest = np.maximum(largest, shared / tensor + of_experts)
        stored = layer_activation_bytes(setting, plans, kind)
        activations = activations + count * stored * in_flight
        # A layer that is computed again stores for a moment what it would have stored.
        working = np.maximum(working, layer_activation_bytes(setting, stored_whole, kind) - stored)
    tables = model.table_weights / tensor * np.where(stages == 1, 2 - model.tied_embeddings, 1)
    # Whole on every tensor rank: the first stage's positions, the last one's norm.
    positions, norm = model.hidden * model.learned_positions, model.norm_weights
    undivided = np.where(stages == 1, positions + norm, norm if last else positions)
    dense = dense + tables + undivided
    parameters = dense + sparse

    def shard(level: int) -> Array:
        """Parameters of a rank where the sharding divides them from a level on."""
        divided = plans["sharding"] >= level
        # Experts are divided among the ranks that have the same ones.
        same = np.maximum(members / plans["expert"], 1)
        return np.where(divided, dense / members + sparse / same, parameters)

    sharded = plans["sharding"] == SHARDINGS.index("parameters")
    tokens = plans["micro_batch"] * plans["sequence_tokens"] / plans["context"]
    # Shards: parameters of the layer that computes and of the one on its way, and the
    # gradients of a layer; or those of the stage, where it keeps them.
    gathered = np.where(
        (stages > 1) & program.gathers_once,
        (program.parameter_bytes + program.gradient_bytes) * parameters,
        (2 * program.parameter_bytes + program.gradient_bytes) * largest,
    )
    logits = program.logit_bytes * tokens * model.vocabulary / tensor
    return StepMemory(
        {
            # Shards of the parameters are the optimizer's exact copy.
            "parameters": np.where(sharded, 0.0, program.parameter_bytes * parameters),
            "gradients": program.gradient_bytes * shard(2),
            "optimizer": program.optimizer_bytes * shard(1),
            "activations": activations,
            "working": working,
            "gathered": np.where(sharded, gathered, 0.0),
            "logits": np.where(last | (stages == 1), logits, 0.0),
        }
    )


def plan_memory_gb(
    model: Model, plan: Plan, parameter_bytes: float, gradient_bytes: float
) -> float:
    """Memory of the fullest device of a plan with fused attention, in 10⁹ bytes.

    ``parameter_bytes`` and ``gradient_bytes``: of one parameter and of its gradient.
    """
    program = Program(
        "fused attention",
        fused_attention=True,
        hidden_traffic=0.0,
        wide_traffic=0.0,
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
    )
    memory = step_memory(_Trained(model, program), Plans.of([plan]))
    return float(memory.total_bytes[0]) / 1e9
