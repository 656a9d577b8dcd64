"""A small LLaMA-style decoder over packed tokens.

Notable:

* RMSNorm before each sub-layer, rotary position embedding from explicit position ids,
  SwiGLU, grouped-query attention, untied or tied head, no biases and no dropout;
* tokens are packed: one axis of T tokens, no batch axis and no padding. Where sequences
  begin and end is the business of the attention function that the caller passes in
  (``Attend``), so the model knows nothing of parallelism;
* a decoder may hold a range of the layers only (a pipeline stage). Parameters keep the
  names they have in the whole model, and each is drawn from its own seeded generator,
  so that any split of the model starts from the same weights;
* parameters stay in the master precision, and products are computed in the precision of
  the activations.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from railx.workload.model import ModelSettings

__all__ = ["IGNORED_LABEL", "Attend", "Decoder", "stage_layers", "token_loss_sum"]

#: (layer, queries [T, heads, head size], keys [T, kv_heads, head size], values like
#: keys) -> mixed values [T, heads, head size]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

#: The label of a token that has no next token: it adds nothing to the loss.
IGNORED_LABEL = -100


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, in at least single precision."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.float64))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        exact = hidden.to(self.weight.dtype)
        scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return (exact * scale * self.weight).to(hidden.dtype)


class Linear(nn.Module):
    """A product without bias.

    The master weight is cast to the precision of the activations.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=torch.float64))

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.weight.to(hidden.dtype))


class Attention(nn.Module):
    """Grouped-query attention around the caller's attention function."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.heads, self.kv_heads = model.heads, model.kv_heads
        self.head_size = model.head_width
        self.queries = Linear(model.hidden, self.heads * self.head_size)
        self.keys = Linear(model.hidden, self.kv_heads * self.head_size)
        self.values = Linear(model.hidden, self.kv_heads * self.head_size)
        self.output = Linear(self.heads * self.head_size, model.hidden)

    def forward(
        self, layer: int, hidden: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        queries = self.queries(hidden).view(-1, self.heads, self.head_size)
        keys = self.keys(hidden).view(-1, self.kv_heads, self.head_size)
        values = self.values(hidden).view(-1, self.kv_heads, self.head_size)
        mixed = attend(layer, _rotate(queries, rotation), _rotate(keys, rotation), values)
        projected: Tensor = self.output(mixed.reshape(-1, self.heads * self.head_size))
        return projected


class SwiGLU(nn.Module):
    """The gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.gate = Linear(model.hidden, model.feed_forward)
        self.up = Linear(model.hidden, model.feed_forward)
        self.down = Linear(model.feed_forward, model.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return mixed


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward.

    Each is behind a norm and beside a residual.
    """

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden, model.norm_epsilon)
        self.attention = Attention(model)
        self.feed_forward_norm = RMSNorm(model.hidden, model.norm_epsilon)
        self.feed_forward = SwiGLU(model)

    def forward(
        self, layer: int, hidden: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        hidden = hidden + self.attention(layer, self.attention_norm(hidden), rotation, attend)
        mixed: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return mixed


class Decoder(nn.Module):
    """The decoder or a consecutive range of its layers.

    ``layers`` is the range held here; the part with layer 0 also holds the embedding
    and the part with the last layer the final norm and the head. With tied embeddings
    the head reuses the embedding: a part that holds the head but not layer 0 then has a
    copy of the embedding, named alike, whose gradients the runtime has to add.
    ``compute`` is the precision of the activations; parameters have the same one, and
    single precision where activations are bfloat16. ``check_model`` in
    ``training.settings`` says which models it is for.
    """

    def __init__(
        self,
        model: ModelSettings,
        *,
        seed: int,
        compute: torch.dtype = torch.float32,
        layers: range | None = None,
    ) -> None:
        super().__init__()
        self.held = layers if layers is not None else range(model.layers)
        self.first, self.last = self.held.start == 0, self.held.stop == model.layers
        self.hidden, self.head_size = model.hidden, model.head_width
        self.tied_head = model.tied_embeddings
        self.compute, self.rotary_base = compute, model.rotary_base
        if self.first or (self.last and self.tied_head):
            self.embedding = nn.Parameter(
                torch.empty(model.vocabulary, model.hidden, dtype=torch.float64)
            )
        self.layers = nn.ModuleDict({str(layer): Layer(model) for layer in self.held})
        if self.last:
            self.final_norm = RMSNorm(model.hidden, model.norm_epsilon)
            if not self.tied_head:
                self.head = Linear(model.hidden, model.vocabulary)
        _draw_weights(self, model.layers, seed)
        self.to(torch.float32 if compute == torch.bfloat16 else compute)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids [T] to the hidden states [T, hidden] that enter layer 0."""
        return functional.embedding(tokens, self.embedding).to(self.compute)

    def transform(
        self, hidden: Tensor, positions: Tensor, attend: Attend, checkpoint_layers: int = 0
    ) -> Tensor:
        """Hidden states [T, hidden] through the layers held here.

        ``positions`` [T] count from 0 in each sequence. The first ``checkpoint_layers``
        layers keep their input only and are computed again in the backward pass
        (InfiniPipe section III-A, whole-layer checkpointing); ``attend`` is then called
        again too.
        """
        rotation = _rotation(positions, self.head_size, self.rotary_base)
        for place, layer in enumerate(self.held):
            module = self.layers[str(layer)]
            if place < checkpoint_layers:
                hidden = checkpoint(
                    module,
                    layer,
                    hidden,
                    rotation,
                    attend,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                hidden = module(layer, hidden, rotation, attend)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The last layer's hidden states to next-token scores [T, vocabulary].

        The hidden states are [T, hidden].
        """
        normed = self.final_norm(hidden)
        scores: Tensor = (
            functional.linear(normed, self.embedding.to(normed.dtype))
            if self.tied_head
            else self.head(normed)
        )
        return scores

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, checkpoint_layers: int = 0
    ) -> Tensor:
        """Token ids and positions [T] to next-token scores [T, vocabulary].

        For a decoder that holds every layer.
        """
        return self.logits(self.transform(self.embed(tokens), positions, attend, checkpoint_layers))


def token_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the cross entropies of the tokens.

    A scalar in at least single precision. ``logits`` [T, vocabulary], ``labels`` [T]
    with :data:`IGNORED_LABEL` where a token has no next one. Zero (with a gradient of
    zero) where no token has a label. Divide by the valid tokens of the whole batch to
    weight every token alike, whatever the plan.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(exact, labels, ignore_index=IGNORED_LABEL, reduction="sum")


def stage_layers(layers: int, stages: int) -> Sequence[range]:
    """Consecutive layers for each pipeline stage, as even as can be.

    The first stages get one more where it does not divide. Raises ValueError where a
    stage would stay empty.
    """
    if stages > layers:
        raise ValueError(
            f"{stages} pipeline stages for {layers} layers; allowed: at most one stage per layer"
        )
    share, rest = divmod(layers, stages)
    starts = [stage * share + min(stage, rest) for stage in range(stages + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def _rotation(positions: Tensor, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, 1, head size / 2].

    Angles are in double precision, for positions go into the hundred thousands.
    """
    pairs = torch.arange(0, head_size, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[:, None, None] * base ** (-pairs / head_size)
    return angles.cos(), angles.sin()


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + half) of each head by the angle of its position."""
    exact = heads if heads.dtype == torch.float64 else heads.float()
    cosine, sine = (part.to(exact.dtype) for part in rotation)
    left, right = exact.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(
        heads.dtype
    )


def _draw_weights(decoder: Decoder, layers: int, seed: int) -> None:
    """Normal weights of deviation 0.02, as in GPT-2.

    The two that end in a residual are smaller by sqrt(2 layers).
    """
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 1:
            continue
        # The generator takes 32 bits of seed: the run's seed and the parameter's name
        # go into them together.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        deviation = 0.02 / (2 * layers) ** 0.5 if residual else 0.02
        with torch.no_grad():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * deviation
            )
