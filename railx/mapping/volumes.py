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

__all__ = ["Transfer", "attention_share", "compute_flops", "pass_flops", "step_transfers"]


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


def pass_flops(job: JobSettings) -> dict[str, float]:
    """Operations of a token by pass: forward, backward and ``again``."""
    return job.decoder.pass_flops(job.sequence_tokens, job.recompute)


def compute_flops(job: JobSettings) -> float:
    """Operations of one chip for one micro-batch, all passes.

    They are its share of a stage.
    """
    tokens, degree = job.sequence_tokens * job.micro_batch_sequences, job.layout.degree
    chips = degree("tensor") * degree("sequence") * degree("pipeline")
    return sum(pass_flops(job).values()) * tokens / chips


def attention_share(job: JobSettings) -> float:
    """Share of a layer's operations that are attention; the rest are feed-forward."""
    (kind,) = job.decoder.kinds
    attention, rest = job.decoder.layer_flops_per_token(kind, job.sequence_tokens)
    return attention / (attention + rest)


def step_transfers(job: JobSettings) -> list[Transfer]:
    """Everything that a chip sends in a step; parallelisms of degree 1 send nothing."""
    layout, model = job.layout, job.decoder
    tensor, pipeline = layout.degree("tensor"), layout.degree("pipeline")
    layers = model.layers // pipeline
    tokens = job.sequence_tokens * job.micro_batch_sequences
    activation = tokens // layout.degree("sequence") * model.hidden * job.bytes_per_element
    # A chip keeps at least one head of keys and one of values.
    width = max(model.kv_heads * model.key_width / tensor, model.key_width)
    keys_values = 2 * width * tokens * job.bytes_per_element
    visited, again = model.experts_per_token, job.recompute == "full"
    by_pass: list[tuple[str, Kind, float, int]] = [
        # Attention gathers and scatters the activations once each way; the experts of a
        # chip's share do so with the tokens they get.
        ("tensor", "all_gather", activation, (4 + 2 * again) * layers),
        ("tensor", "all_gather", activation * max(visited, 1), (4 + 2 * again) * layers),
        ("sequence", "all_gather", keys_values, (3 + again) * layers),
        ("pipeline", "send", activation / tensor, 2),
        ("expert", "all_to_all", activation / tensor * visited, (4 + 2 * again) * layers),
    ]
    transfers = [
        Transfer(name, (name,), kind, size, times, per_step=False)
        for name, kind, size, times in by_pass
    ]
    experts = sum(kind.count * model.layer_weights(kind)[1] for kind in model.kinds)
    for parameters, over in (
        ((model.parameters - experts) / (tensor * pipeline), ("sequence", "expert", "data")),
        (experts / (tensor * pipeline * layout.degree("expert")), ("sequence", "data")),
    ):
        transfers += [
            Transfer("data", over, "all_gather", parameters * size, 1, per_step=True)
            for size in (job.gradient_bytes_per_element, job.bytes_per_element)
        ]

    def spans(transfer: Transfer) -> bool:
        return transfer.bytes > 0 and any(layout.degree(name) > 1 for name in transfer.over)

    return [transfer for transfer in transfers if spans(transfer)]
