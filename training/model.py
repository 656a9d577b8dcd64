"""A decoder over packed tokens: LLaMA-style and GPT-style.

Notable:

* a norm before each sub-layer; LLaMA-style: RMSNorm, rotary position embedding from
  explicit position ids, SwiGLU, grouped-query attention; GPT-style: LayerNorm, learned
  positions, GELU, biases. A head of its own or the embedding's weights, no dropout;
* tokens are packed: one axis of T tokens, no batch axis and no padding. Where sequences
  begin and end is the business of the attention function that the caller passes in
  (``Attend``), so the model knows nothing of parallelism;
* a decoder may hold a range of the layers only (a pipeline stage). Parameters keep the
  names they have in the whole model, and each is drawn by its name and the seed, so
  that any split of the model starts from the same weights;
* ``units`` are the modules that sharding gathers and drops one after another. All that
  uses a unit's parameters is a call of the unit, so that hooks see it;
* parameters stay in the master precision, and products are computed in the precision of
  the activations;
* a layer is two functions of tensors around attention (``Layer.enter``,
  ``Layer.leave``); ``compile_layers`` compiles them, and attention with its messages
  stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from railx.planning.format.schedule import stage_layers
from railx.workload.model import ModelSettings
from training.loss import IGNORED_LABEL, chunked_token_loss, token_loss_sum

__all__ = [
    "IGNORED_LABEL",
    "Attend",
    "Decoder",
    "draw_parameter",
    "stage_layers",
    "token_loss_sum",
]

#: (layer, queries [T, heads, head size], keys [T, kv_heads, head size], values like
#: keys) -> mixed values [T, heads, head size]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

#: Cosines and sines of the positions, [T, 1, head size / 2] each; None where positions
#: are learned.
Rotation = tuple[Tensor, Tensor] | None

#: Rows of a matrix that one generator draws, so that a part of the rows can be drawn
#: without the others.
_ROWS_DRAWN = 64


class Norm(nn.Module):
    """LayerNorm where the model has biases, RMSNorm where it has none."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(model.hidden))
        self.bias = nn.Parameter(torch.empty(model.hidden)) if model.biases else None
        self.epsilon = model.norm_epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        size, weight = hidden.shape[-1:], self.weight.to(hidden.dtype)
        if self.bias is None:
            if hidden.is_cpu and not torch.compiler.is_compiling():
                return _rms_norm(hidden, weight, self.epsilon)
            return functional.rms_norm(hidden, size, weight, self.epsilon)
        return functional.layer_norm(hidden, size, weight, self.bias.to(hidden.dtype), self.epsilon)


class Linear(nn.Module):
    """A product, with a bias where the model has biases.

    Weights are cast to the precision of the activations, which does nothing where the
    sharding has cast them already.
    """

    def __init__(self, inputs: int, outputs: int, biased: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if biased else None

    def forward(self, hidden: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return functional.linear(hidden, self.weight.to(hidden.dtype), bias)


class Attention(nn.Module):
    """The products before and after grouped-query attention."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.head_size = model.head_width
        narrow = model.kv_heads * self.head_size
        self.queries = Linear(model.hidden, model.hidden, model.biases)
        self.keys = Linear(model.hidden, narrow, model.biases)
        self.values = Linear(model.hidden, narrow, model.biases)
        self.output = Linear(model.hidden, model.hidden, model.biases)

    def enter(self, hidden: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states [T, hidden] to queries, keys and values, by heads."""
        queries, keys, values = (
            product(hidden).unflatten(1, (-1, self.head_size))
            for product in (self.queries, self.keys, self.values)
        )
        if rotation is None:
            return queries, keys, values
        return _rotate(queries, rotation), _rotate(keys, rotation), values

    def leave(self, mixed: Tensor) -> Tensor:
        """Mixed values of all heads [T, hidden] to hidden states [T, hidden]."""
        projected: Tensor = self.output(mixed)
        return projected


class SwiGLU(nn.Module):
    """The gated feed-forward layer: down(silu(gate(x)) * up(x))."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.gate = Linear(model.hidden, model.feed_forward, model.biases)
        self.up = Linear(model.hidden, model.feed_forward, model.biases)
        self.down = Linear(model.feed_forward, model.hidden, model.biases)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed: Tensor = self.down(_gated(self.gate(hidden), self.up(hidden)))
        return mixed


class GELU(nn.Module):
    """The plain feed-forward layer: down(gelu(up(x))), gelu by its tanh formula."""

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.up = Linear(model.hidden, model.feed_forward, model.biases)
        self.down = Linear(model.feed_forward, model.hidden, model.biases)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed: Tensor = self.down(functional.gelu(self.up(hidden), approximate="tanh"))
        return mixed


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward.

    Each is behind a norm and beside a residual. What surrounds attention is the same
    for all layers of a model and may be compiled.
    """

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        self.attention_norm = Norm(model)
        self.attention = Attention(model)
        self.feed_forward_norm = Norm(model)
        self.feed_forward = (SwiGLU if model.feed_forward_kind == "swiglu" else GELU)(model)
        self.before: Callable[..., tuple[Tensor, Tensor, Tensor]] = Layer.enter
        self.after: Callable[..., Tensor] = Layer.leave

    def enter(self, hidden: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """What precedes attention: hidden states to queries, keys and values."""
        return self.attention.enter(self.attention_norm(hidden), rotation)

    def leave(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention: its result and the layer's input to its output."""
        hidden = hidden + self.attention.leave(mixed)
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return output

    def forward(self, layer: int, hidden: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        mixed = attend(layer, *self.before(self, hidden, rotation))
        # Compiled code is bound to what a view was taken from, which depends on how the
        # sequences were packed; this reshapes without one.
        flat = torch.ops.aten._unsafe_view(mixed.contiguous(), hidden.shape)
        return self.after(self, hidden, flat)


class Ends(nn.Module):
    """The embedding, the head with the final norm, or with tied weights both.

    Token ids that are passed in come out as hidden states. Hidden states come out as
    next-token scores, or with ``labels`` as the sum of the tokens' losses.
    """

    def __init__(
        self, model: ModelSettings, compute: torch.dtype, *, embeds: bool, scores: bool
    ) -> None:
        super().__init__()
        self.compute = compute
        self.weight = nn.Parameter(torch.empty(model.vocabulary, model.hidden))
        learned = embeds and model.positions == "learned"
        self.positions = (
            nn.Parameter(torch.empty(model.max_positions, model.hidden)) if learned else None
        )
        self.norm = Norm(model) if scores else None

    def forward(
        self,
        entering: Tensor,
        *,
        positions: Tensor | None = None,
        labels: Tensor | None = None,
        chunk_tokens: int = 0,
    ) -> Tensor:
        if not entering.is_floating_point():
            return self._embed(entering, positions)
        assert self.norm is not None
        hidden = self.norm(entering)
        if labels is None:
            return functional.linear(hidden, self.weight.to(hidden.dtype))
        return chunked_token_loss(hidden, self.weight, labels, chunk_tokens)

    def _embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        hidden = functional.embedding(tokens, self.weight).to(self.compute)
        if self.positions is None:
            return hidden
        assert positions is not None
        return hidden + functional.embedding(positions, self.positions).to(self.compute)


class Decoder(nn.Module):
    """The decoder or a consecutive range of its layers.

    ``layers`` is the range held here; the part with layer 0 also holds the embedding
    and the part with the last layer the final norm and the head. With tied embeddings
    the head is the embedding: a part that holds the head but not layer 0 then has a
    copy of the embedding, named alike, whose gradients the runtime has to add.
    ``compute`` is the precision of the activations; parameters have the same one, and
    single precision where activations are half. On the device ``meta`` parameters have
    shapes but no values: ``draw_parameter`` gives them, whole or in parts. At most
    ``loss_chunk_tokens`` tokens have their scores in memory at once. ``check_model`` in
    ``training.settings`` says which models it is for.
    """

    def __init__(
        self,
        model: ModelSettings,
        *,
        seed: int,
        compute: torch.dtype = torch.float32,
        layers: range | None = None,
        device: torch.device | str = "cpu",
        loss_chunk_tokens: int = 2048,
    ) -> None:
        super().__init__()
        self.held = layers if layers is not None else range(model.layers)
        self.first, self.last = self.held.start == 0, self.held.stop == model.layers
        self.model_layers, self.hidden, self.head_size = (
            model.layers,
            model.hidden,
            model.head_width,
        )
        self.tied_head, self.rotary = model.tied_embeddings, model.positions == "rotary"
        self.compute, self.rotary_base = compute, model.rotary_base
        self.loss_chunk_tokens = loss_chunk_tokens
        self.master = torch.float64 if compute == torch.float64 else torch.float32
        with torch.device("meta"):
            if self.first or (self.last and self.tied_head):
                self.embedding = Ends(
                    model, compute, embeds=self.first, scores=self.last and self.tied_head
                )
            self.layers = nn.ModuleDict({str(layer): Layer(model) for layer in self.held})
            if self.last and not self.tied_head:
                self.head = Ends(model, compute, embeds=False, scores=True)
        self.to(self.master)
        if torch.device(device).type != "meta":
            self.to_empty(device=device)
            self.draw(seed)

    def draw(self, seed: int) -> None:
        """Give every parameter the weights of ``seed``."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                step = _ROWS_DRAWN if parameter.dim() > 1 else len(parameter)
                for start in range(0, len(parameter), step):
                    stop = min(start + step, len(parameter))
                    parameter[start:stop] = draw_parameter(
                        name, parameter.shape, seed, self.model_layers, range(start, stop)
                    )

    def units(self) -> list[tuple[str, nn.Module]]:
        """The modules that hold parameters, by name, in the order of their use.

        The embedding, each layer, the final norm with the head. With tied embeddings
        the first and the last are the same one, used twice. Names are prefixes of the
        parameters' names.
        """
        units: list[tuple[str, nn.Module]] = [("embedding", self.embedding)] if self.first else []
        units += [(f"layers.{layer}", self.layers[str(layer)]) for layer in self.held]
        if self.last:
            units.append(("embedding" if self.tied_head else "head", self._top()))
        return units

    def compile_layers(self, **options: Any) -> None:
        """Compile what surrounds attention in each layer; options of ``torch.compile``.

        All layers share what is compiled. The number of tokens may change from call to
        call.
        """
        options = {"dynamic": True, "fullgraph": True, **options}
        before: Any = torch.compile(Layer.enter, **options)
        after: Any = torch.compile(Layer.leave, **options)
        for layer in self.layers.values():
            assert isinstance(layer, Layer)
            layer.before, layer.after = before, after

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids [T] to the hidden states [T, hidden] that enter layer 0.

        ``positions`` [T] count from 0 in each sequence.
        """
        hidden: Tensor = self.embedding(tokens, positions=positions)
        return hidden

    def transform(
        self, hidden: Tensor, positions: Tensor, attend: Attend, checkpoint_layers: int = 0
    ) -> Tensor:
        """Hidden states [T, hidden] through the layers held here.

        ``positions`` [T] count from 0 in each sequence. The first ``checkpoint_layers``
        layers keep their input only and are computed again in the backward pass
        (InfiniPipe section III-A, whole-layer checkpointing); ``attend`` is then called
        again too.
        """
        rotation = (
            _rotation(positions, self.head_size, self.rotary_base, self.master)
            if self.rotary
            else None
        )
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
        """The last layer's hidden states [T, hidden] to next-token scores.

        [T, vocabulary]: the scores of all tokens at once. Training takes :meth:`loss`.
        """
        scores: Tensor = self._top()(hidden)
        return scores

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """The last layer's hidden states [T, hidden] to the sum of the tokens' losses.

        A scalar in at least single precision, ``labels`` [T] as in ``token_loss_sum``.
        """
        loss: Tensor = self._top()(hidden, labels=labels, chunk_tokens=self.loss_chunk_tokens)
        return loss

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: Attend, checkpoint_layers: int = 0
    ) -> Tensor:
        """Token ids and positions [T] to next-token scores [T, vocabulary].

        For a decoder that holds every layer.
        """
        hidden = self.embed(tokens, positions)
        return self.logits(self.transform(hidden, positions, attend, checkpoint_layers))

    def _top(self) -> nn.Module:
        return self.embedding if self.tied_head else self.head


class _RMSNorm(torch.autograd.Function):
    """``rms_norm`` that keeps its input alone, as the fused kernel of CUDA does.

    The plain operations that stand in for it on a CPU keep three tensors of that size.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.epsilon = epsilon
        return functional.rms_norm(hidden, hidden.shape[-1:], weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [kept.detach().requires_grad_() for kept in ctx.saved_tensors]
        with torch.enable_grad():
            normed = functional.rms_norm(inputs[0], inputs[0].shape[-1:], inputs[1], ctx.epsilon)
        return *torch.autograd.grad(normed, inputs, gradients[0]), None


def _rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    normed: Tensor = _RMSNorm.apply(hidden, weight, epsilon)  # type: ignore[no-untyped-call]
    return normed


class _Gated(torch.autograd.Function):
    """silu(gate) * up that keeps its two inputs and not silu(gate) besides."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        (slope,) = gradients
        gate_slope = torch.ops.aten.silu_backward(slope * up, gate)
        return gate_slope, functional.silu(gate).mul_(slope)


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return functional.silu(gate) * up
    mixed: Tensor = _Gated.apply(gate, up)  # type: ignore[no-untyped-call]
    return mixed


def draw_parameter(
    name: str, shape: Sequence[int], seed: int, layers: int, rows: range | None = None
) -> Tensor:
    """The first values of a parameter, by its name in the whole model.

    Single precision, whatever the decoder computes in. ``layers`` is what the whole
    model has, ``rows`` the part of the first axis that is wanted. Matrices are normal
    with deviation 0.02, as in GPT-2, and those that end in a residual smaller by sqrt(2
    layers); scales of norms are one, biases zero.
    """
    rows = rows if rows is not None else range(shape[0])
    if len(shape) == 1:
        return torch.full((len(rows),), 0.0 if name.endswith("bias") else 1.0)
    drawn = np.empty((len(rows), *shape[1:]), dtype=np.float32)
    for block in range(rows.start // _ROWS_DRAWN, -(-rows.stop // _ROWS_DRAWN)):
        first = block * _ROWS_DRAWN
        last = min(first + _ROWS_DRAWN, shape[0])
        digest = hashlib.blake2b(f"{seed} {name} {block}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(digest, "big")))
        values = generator.standard_normal((last - first, *shape[1:]), dtype=np.float32)
        start, stop = max(first, rows.start), min(last, rows.stop)
        drawn[start - rows.start : stop - rows.start] = values[start - first : stop - first]
    residual = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
    return torch.from_numpy(drawn) * (0.02 / (2 * layers) ** 0.5 if residual else 0.02)


def _rotation(
    positions: Tensor, head_size: int, base: float, precision: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, 1, head size / 2].

    Angles are in double precision, for positions go into the hundred thousands.
    """
    pairs = torch.arange(0, head_size, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[:, None, None] * base ** (-pairs / head_size)
    return angles.cos().to(precision), angles.sin().to(precision)


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + half) of each head by the angle of its position."""
    cosine, sine = rotation
    left, right = heads.to(cosine.dtype).chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(
        heads.dtype
    )
