"""What a training step computes and sends, in closed form.

Per micro-batch and stage:

* tensor parallelism with sequence-parallel norms gathers and scatters the activations
  twice per layer in each direction (Korthikanti 2022);
* sequence parallelism passes the keys and values round a ring (Liu 2023);
* experts exchange tokens by all-to-all before and after (Lepikhin 2020);
* stages hand on activations and their gradients.

Per step gradients are reduce-scattered and parameters all-gathered over the replicas
(Rajbhandari 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

from railx.mapping.settings import JobSettings
from railx.performance.networks import Kind
from railx.workload.model import attention_flops, key_value_width, parameter_count

__all__ = ["Transfer", "attention_share", "compute_flops", "step_transfers"]

#: Forward and backward together over forward.
_TRAINING_OVER_FORWARD = 3


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


def compute_flops(job: JobSettings) -> float:
    """Operations of one chip for one micro-batch, forward and backward.

    They are its share of a stage.
    """
    layout, model = job.layout, job.model
    tokens = job.sequence_tokens
    per_token = (
        2
        * (_attention_weights(job) + _active_experts(job) * _feed_forward_weights(job))
        * model.layers
    )
    head = 2 * model.vocabulary * model.hidden
    forward = (per_token + head) * tokens + attention_flops(model, tokens)
    return (
        _TRAINING_OVER_FORWARD
        * forward
        / (layout.degree("tensor") * layout.degree("sequence") * layout.degree("pipeline"))
    )


def attention_share(job: JobSettings) -> float:
    """Share of a layer's operations that are attention; the rest are feed-forward."""
    tokens, layers = job.sequence_tokens, job.model.layers
    attention = 2 * _attention_weights(job) * tokens + attention_flops(job.model, tokens) / layers
    feed_forward = 2 * _active_experts(job) * _feed_forward_weights(job) * tokens
    return attention / (attention + feed_forward)


def step_transfers(job: JobSettings) -> list[Transfer]:
    """Everything that a chip sends in a step; parallelisms of degree 1 send nothing."""
    layout, model = job.layout, job.model
    tensor, sequence, pipeline = (
        layout.degree(name) for name in ("tensor", "sequence", "pipeline")
    )
    layers = model.layers // pipeline
    tokens = job.sequence_tokens // sequence
    activation = tokens * model.hidden * job.bytes_per_element
    # Attention gathers and scatters the activations once each way; the experts of a
    # chip's share do so with the tokens they get.
    transfers = [
        Transfer("tensor", ("tensor",), "all_gather", activation, 4 * layers, per_step=False),
        Transfer(
            "tensor",
            ("tensor",),
            "all_gather",
            activation * _active_experts(job),
            4 * layers,
            per_step=False,
        ),
        Transfer(
            "sequence",
            ("sequence",),
            "all_gather",
            _keys_and_values_bytes(job),
            3 * layers,
            per_step=False,
        ),
        Transfer("pipeline", ("pipeline",), "send", activation / tensor, 2, per_step=False),
    ]
    if job.experts is not None:
        exchanged = activation / tensor * job.experts.experts_per_token
        transfers.append(
            Transfer("expert", ("expert",), "all_to_all", exchanged, 4 * layers, per_step=False)
        )
    dense, expert = _parameters_per_chip(job)
    for parameters, over in (
        (dense, ("sequence", "expert", "data")),
        (expert, ("sequence", "data")),
    ):
        transfers += [
            Transfer("data", over, "all_gather", parameters * width, 1, per_step=True)
            for width in (job.gradient_bytes_per_element, job.bytes_per_element)
        ]

    def spans(transfer: Transfer) -> bool:
        return transfer.bytes > 0 and any(layout.degree(name) > 1 for name in transfer.over)

    return [transfer for transfer in transfers if spans(transfer)]


def _keys_and_values_bytes(job: JobSettings) -> float:
    """Keys and values of a whole sequence that a chip's heads attend to.

    A chip keeps at least one head of each.
    """
    width = max(key_value_width(job.model) / job.layout.degree("tensor"), job.model.head_width)
    return 2 * width * job.sequence_tokens * job.bytes_per_element


def _parameters_per_chip(job: JobSettings) -> tuple[float, float]:
    """Parameters of one chip: those outside the experts and those of its experts."""
    model, layout = job.model, job.layout
    shared = layout.degree("tensor") * layout.degree("pipeline")
    everything = parameter_count(model, job.sequence_tokens)
    if job.experts is None:
        return everything / shared, 0.0
    feed_forward = model.layers * _feed_forward_weights(job)
    expert = feed_forward * job.experts.experts / (shared * layout.degree("expert"))
    router = model.layers * model.hidden * job.experts.experts
    return (everything - feed_forward + router) / shared, expert


def _active_experts(job: JobSettings) -> int:
    return 1 if job.experts is None else job.experts.experts_per_token


def _attention_weights(job: JobSettings) -> int:
    model = job.model
    return 2 * model.hidden**2 + 2 * model.hidden * key_value_width(model)


def _feed_forward_weights(job: JobSettings) -> int:
    matrices = 3 if job.model.feed_forward_kind == "swiglu" else 2
    return matrices * job.model.hidden * job.model.feed_forward
