"""What a training step computes and sends: operations and bytes, before any price.

Per micro-batch and stage:

* tensor parallelism with sequence-parallel norms gathers and scatters the activations
  twice per layer in each direction (Korthikanti 2022);
* context parallelism passes the keys and values round a ring (Liu 2023);
* experts exchange tokens by all-to-all before and after (Lepikhin 2020);
* stages hand on activations and their gradients.

Per step gradients are reduce-scattered and parameters all-gathered over the replicas
(Rajbhandari 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

from railx.performance.models import Model
from railx.performance.networks import Kind, Number
from railx.performance.plans import Plan


@dataclass(frozen=True)
class Transfer:
    """One kind of communication of a chip.

    * ``name``: the parallelism that causes it.
    * ``over``: the parallelisms that span its groups.
    * ``kind``: ``all_gather`` (or reduce-scatter), ``all_to_all`` or ``send`` (to the
      next member).
    * ``bytes``: the gathered (or scattered) tensor, what a chip exchanges in an
      all-to-all, or what it hands on.
    * ``times``: how often, per micro-batch or (``per_step``) per step.
    """

    name: str
    over: tuple[str, ...]
    kind: Kind
    bytes: float
    times: int
    per_step: bool


def product_flops(tokens: float, weights: float, passes: float = 1) -> float:
    """Operations of tokens times weights, of which a backward pass has two."""
    return 2 * tokens * weights * passes


def activation_bytes(tokens: Number, width: Number | float, element_bytes: float) -> Number:
    """Bytes of tensors of some width: activations between layers, keys and values."""
    size: Number = tokens * width * element_bytes
    return size


def rank_flops(model: Model, plan: Plan) -> float:
    """Operations of one rank for one micro-batch, all passes: its share of a stage."""
    tokens = plan.sequence_tokens * plan.micro_batch
    flops = model.pass_flops(plan.sequence_tokens, plan.recompute)
    return sum(flops.values()) * tokens / (plan.tensor * plan.context * plan.pipeline)


def rank_transfers(
    model: Model, plan: Plan, element_bytes: float, gradient_bytes: float
) -> list[Transfer]:
    """Everything that a rank sends in a step; parallelisms of degree 1 send nothing.

    Names are those of layouts, where context is ``sequence`` and ``data`` are the
    replicas that have the same experts.
    """
    layers = model.layers // plan.pipeline
    tokens = plan.sequence_tokens * plan.micro_batch
    activation = activation_bytes(tokens // plan.context, model.hidden, element_bytes)
    # A rank keeps at least one head of keys and one of values.
    width = max(model.cached_width / plan.tensor, model.key_width + model.values_width)
    keys_values = activation_bytes(tokens, width, element_bytes)
    visited, again = model.experts_per_token, plan.recompute == "full"
    by_pass: list[tuple[str, Kind, float, int]] = [
        # Attention gathers and scatters the activations once each way; the experts of a
        # rank's share do so with the tokens they get.
        ("tensor", "all_gather", activation, (4 + 2 * again) * layers),
        ("tensor", "all_gather", activation * max(visited, 1), (4 + 2 * again) * layers),
        ("sequence", "all_gather", keys_values, (3 + again) * layers),
        ("pipeline", "send", activation / plan.tensor, 2),
        ("expert", "all_to_all", activation / plan.tensor * visited, (4 + 2 * again) * layers),
    ]
    transfers = [
        Transfer(name, (name,), kind, size, times, per_step=False)
        for name, kind, size, times in by_pass
    ]
    shards = plan.tensor * plan.pipeline
    experts = sum(kind.count * model.layer_weights(kind)[1] for kind in model.kinds)
    for parameters, over in (
        ((model.parameters - experts) / shards, ("sequence", "expert", "data")),
        (experts / (shards * plan.expert), ("sequence", "data")),
    ):
        transfers += [
            Transfer("data", over, "all_gather", parameters * size, 1, per_step=True)
            for size in (gradient_bytes, element_bytes)
        ]
    degrees = {
        "tensor": plan.tensor,
        "sequence": plan.context,
        "expert": plan.expert,
        "data": plan.data // plan.expert,
        "pipeline": plan.pipeline,
    }
    return [
        transfer
        for transfer in transfers
        if transfer.bytes > 0 and any(degrees[name] > 1 for name in transfer.over)
    ]
