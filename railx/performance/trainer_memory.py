"""Peak memory of one rank in training.

Notable:

* counts follow the saved tensors of the trainer, so that they can be compared with the
  bytes that an allocator reports (tests/training/test_memory.py: within 5 %);
* a rank has some layers, and possibly the embedding and the head (a pipeline stage).
  Their state between steps is sharded over the ``ranks`` that share them;
* gathered parameters live while their unit computes (``unit``), with the next unit's
  gather under way, or for the batch (``batch``): then all parameters of the stage in
  the precision of the activations, and all its gradients in that of the master weights,
  are alive at once. Pipelines need this, because their replicas do not gather in step;
* a pass is a micro-batch or chunk whose activations are alive. The last pass of a list
  is the one that computes;
* the peak is at one of three moments: during the loss, when its gradients are summed,
  or while a layer runs backward. All are counted, and the largest is the peak.

Needs the standard library only, as ``railx.performance.decoder`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Literal

from railx.performance.decoder import ModelSettings, key_value_width


@dataclass(frozen=True)
class ModelShard:
    """The part of the model on a rank, and its storage.

    ``ranks`` share the rows of its parameters. ``cast``: the master differs from the
    parameters that the model computes with; ``hold`` is the lifetime of the latter.
    Without both the parameters themselves are the master.
    """

    layers: int
    embeds: bool = True
    scores: bool = True
    ranks: int = 1
    cast: bool = False
    hold: Literal["unit", "batch"] = "batch"
    compute_bytes: int = 4
    master_bytes: int = 4

    @property
    def apart(self) -> bool:
        """Whether the model computes with other tensors than the master weights."""
        return self.cast or self.ranks > 1


@dataclass(frozen=True)
class Pass:
    """A micro-batch or chunk on one rank.

    ``tokens`` are those of this rank in a group of ``degree`` ranks. ``context`` is
    this rank's share of the earlier tokens of a sequence that it attends to, whose
    passes are alive too and keep their keys and values, recomputed layers as well.
    ``checkpoint_layers`` keep only their input. ``packed``: of several sequences.
    """

    tokens: int
    degree: int = 1
    context: int = 0
    checkpoint_layers: int = 0
    packed: bool = True


@dataclass(frozen=True)
class Memory:
    """Bytes alive at the peak, by kind."""

    master_bytes: int
    moments_bytes: int
    gradients_bytes: int
    gathered_bytes: int
    messages_bytes: int
    activations_bytes: int
    scores_bytes: int
    working_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, field.name) for field in fields(self))


def rank_memory(
    model: ModelSettings,
    shard: ModelShard,
    passes: Sequence[Pass],
    *,
    loss_chunk_tokens: int,
    fused_attention: bool = False,
) -> Memory:
    """The peak of a step after the first, on one rank.

    The first step has no moments before its end. Message buffers of libraries do not
    count. ``fused_attention``: one call takes all sequences of a pass and writes one
    output.
    """
    layer, bottom, top = unit_sizes(model, shard)
    units = [*([bottom] if shard.embeds else []), *[layer] * shard.layers]
    units += [top] if shard.scores and not (shard.embeds and model.tied_embeddings) else []
    parameters = sum(units) // shard.ranks
    compute, master = shard.compute_bytes, shard.master_bytes
    all_gradients = master * sum(units) if shard.hold == "batch" and shard.ranks > 1 else 0
    steady = {
        "master_bytes": master * parameters,
        "moments_bytes": 2 * master * parameters,
        "gradients_bytes": all_gradients or master * parameters,
    }
    by_unit = shard.apart and shard.hold == "unit"
    everything = compute * sum(units) if shard.apart and not by_unit else 0
    computing = passes[-1]
    waiting = sum(pass_bytes(model, shard, other, fused_attention) for other in passes[:-1])
    full = waiting + pass_bytes(model, shard, computing, fused_attention)
    tokens, hidden = computing.tokens, model.hidden
    moments: list[Memory] = []

    def moment(gathered: int, messages: int, activations: int, scores: int, working: int) -> None:
        moments.append(
            Memory(
                **steady,
                gathered_bytes=gathered if by_unit else everything,
                messages_bytes=messages if by_unit else 0,
                activations_bytes=activations,
                scores_bytes=scores,
                working_bytes=working,
            )
        )

    head = top if shard.scores else 0
    if shard.scores:
        table = model.vocabulary * hidden
        chunk = min(loss_chunk_tokens, tokens) * model.vocabulary
        exact = max(4, compute)
        # Gradients of hidden states and of the table are computed with the loss. Beside
        # a chunk's scores and their exact logarithms the slope of the previous chunk is
        # alive, and where scores are less exact, their exact copy.
        loss_gradients = compute * (tokens * hidden + table)
        scores = chunk * (2 * compute + exact + (exact if compute < exact else 0))
        normed = _norm(model, shard, tokens)
        moment(compute * head, 0, full + normed, scores, loss_gradients)
        # Both gradients once more, scaled, while the layer below is on its way.
        moment(compute * (head + layer), 0, full + normed, 0, 2 * loss_gradients)
        moment(compute * (head + layer), master * head, full, 0, loss_gradients)
    # A layer runs backward: its gathered copy and the one on its way, the sum of the
    # unit above and its own gradients; in the feed-forward three wide gradients, less
    # the product that is not needed any more, and the residual's beside the last
    # output. In attention with context, its joined keys and values and their gradients.
    wide = 2 if model.feed_forward_kind == "swiglu" else 1
    joined = 4 * _narrow(model, computing) * (computing.context + tokens)
    working = compute * max(
        tokens * (wide * model.feed_forward + 2 * hidden),
        (joined if computing.context else 0) + 2 * tokens * hidden,
    )
    again = 0
    if computing.checkpoint_layers >= shard.layers:
        again = _layer(model, shard, computing, fused_attention)
    moment(
        2 * compute * layer,
        master * (layer + max(head, 0 if shard.scores else layer)),
        full + again,
        0,
        working,
    )
    if 0 < computing.checkpoint_layers < shard.layers:
        below = Pass(tokens, computing.degree, computing.context, shard.layers)
        lower = replace(shard, layers=computing.checkpoint_layers)
        under = pass_bytes(model, lower, below, fused_attention)
        again = _layer(model, shard, computing, fused_attention)
        moment(2 * compute * layer, 2 * master * layer, waiting + under + again, 0, working)
    return max(moments, key=lambda memory: memory.peak_bytes)


def unit_sizes(model: ModelSettings, shard: ModelShard) -> tuple[int, int, int]:
    """Parameters of a layer, of the embedding and of the head, with padded rows."""
    hidden, narrow, wide = model.hidden, key_value_width(model), model.feed_forward
    norm = [(hidden, 1)] * (2 if model.biases else 1)
    rows = [(hidden, hidden), (narrow, hidden), (narrow, hidden), (hidden, hidden)]
    rows += [(wide, hidden)] * (2 if model.feed_forward_kind == "swiglu" else 1)
    rows.append((hidden, wide))
    biases = [(count, 1) for count, _ in rows] if model.biases else []
    table = [(model.vocabulary, hidden)]
    positions = [(model.max_positions, hidden)] if model.positions == "learned" else []
    tied = model.tied_embeddings
    bottom = table + positions + (norm if tied and shard.scores else [])
    return tuple(  # type: ignore[return-value]
        sum(-(-count // shard.ranks) * shard.ranks * width for count, width in unit)
        for unit in (rows + biases + 2 * norm, bottom, table + norm)
    )


def pass_bytes(model: ModelSettings, shard: ModelShard, item: Pass, fused_attention: bool) -> int:
    """Bytes of a pass between forward and backward."""
    stored = shard.compute_bytes * item.tokens * model.hidden
    recomputed = min(item.checkpoint_layers, shard.layers)
    rotary = model.positions == "rotary"
    rotation = shard.compute_bytes * item.tokens * model.head_width if rotary else 0
    layers = (shard.layers - recomputed) * _layer(model, shard, item, fused_attention)
    read = recomputed * 2 * _narrow(model, item) * shard.compute_bytes * item.context
    return layers + recomputed * stored + rotation + read


def _layer(model: ModelSettings, shard: ModelShard, item: Pass, fused_attention: bool) -> int:
    """Stored tensors of a layer: two norms, attention, the feed-forward."""
    element, tokens = shard.compute_bytes, item.tokens
    wide = 3 if model.feed_forward_kind == "swiglu" else 2
    joined = 1 if item.degree == 1 and (fused_attention or not item.packed) else 2
    narrow = _narrow(model, item)
    row = (1 + joined) * model.hidden + 2 * narrow + wide * model.feed_forward
    logarithms = model.heads * max(4, element)
    return 2 * _norm(model, shard, tokens) + tokens * (element * row + logarithms)


def _narrow(model: ModelSettings, item: Pass) -> int:
    """The width of keys or values, with copies until each rank has whole ones."""
    return key_value_width(model) * (item.degree // gcd(item.degree, model.kv_heads))


def _norm(model: ModelSettings, shard: ModelShard, tokens: int) -> int:
    """Stored values of a norm: input, output, and a number or two for each token."""
    numbers = 2 if model.biases else 1
    return tokens * (2 * shard.compute_bytes * model.hidden + numbers * max(4, shard.compute_bytes))
