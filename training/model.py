"""A decoder over packed tokens: LLaMA-style and GPT-style.

Notable:

* a norm before each sub-layer; LLaMA-style: RMSNorm, rotary position embedding from
  explicit position ids, SwiGLU, grouped-query attention; GPT-style: LayerNorm, learned
  positions, GELU, biases. A separate or a tied head, no dropout;
* tokens are packed: one axis of T tokens, no batch axis and no padding. The attention
  function of the caller (``Attend``) handles sequence boundaries and parallelism;
* a decoder may have a range of the layers only (a pipeline stage). Parameters have the
  names of the full model, and each is drawn by its name and the seed, so that any split
  of the model starts from the same weights;
* ``units`` are the modules that sharding gathers and frees one after another. Every use
  of a unit's parameters is a call of the unit, so that hooks run;
* parameters have the master precision, products the precision of the activations;
* a layer is two functions of tensors around attention (``Layer.enter``,
  ``Layer.leave``); ``compile_layers`` compiles these two, not attention with its
  communication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from railx.performance.decoder import ModelSettings
from railx.planning.format.schedule import stage_layers
from railx.settings import SettingsError
from training.loss import IGNORED_LABEL, chunked_token_loss, token_loss_sum

__all__ = ["IGNORED_LABEL", "Attend", "Decoder", "draw_parameter", "stage_layers", "token_loss_sum"]

#: The precision of activations by its name in the settings.
PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

#: (layer, queries [T, heads, head size], keys [T, kv_heads, head size], values like
#: keys) -> mixed values [T, heads, head size]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

#: Cosines and sines of the positions, [T, 1, head size / 2] each, in the precision of
#: the activations; None where positions are learned.
Rotation = tuple[Tensor, Tensor] | None

#: Rows of a matrix per random generator, so that a rank can draw its rows only.
_ROWS_DRAWN = 64


def device_type(choice: str, key: str) -> Literal["cpu", "cuda"]:
    """The device of ``choice`` (auto, cpu, cuda); SettingsError: there is none."""
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise SettingsError(key, "got cuda, but no CUDA device is there; allowed here: auto, cpu")
    return "cuda"


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


class Linear(nn.Linear):
    """A product, in the precision of its input, with a bias if the model has some."""

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

    Each has a norm before it and a residual. The functions before and after attention
    are the same for all layers of a model and may be compiled.
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
        """Before attention: hidden states to queries, keys and values."""
        return self.attention.enter(self.attention_norm(hidden), rotation)

    def leave(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """After attention: its result and the layer's input to the layer's output."""
        hidden = hidden + self.attention.leave(mixed)
        output: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return output

    def forward(self, layer: int, hidden: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        mixed = attend(layer, *self.before(self, hidden, rotation))
        # Compiled code is specialised on the base of a view, which depends on the
        # packing; this reshapes without a view.
        shape = len(hidden), mixed.shape[1] * mixed.shape[2]
        flat = torch.ops.aten._unsafe_view(mixed.contiguous(), shape)
        return self.after(self, hidden, flat)


class Ends(nn.Module):
    """The embedding, the head with the final norm, or both with tied weights.

    Maps token ids to hidden states, and hidden states to next-token scores or, with
    ``labels``, to the sum of the tokens' losses.
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

    ``layers`` is the range of this part; the part with layer 0 also has the embedding,
    the part with the last layer the final norm and the head. With tied embeddings the
    head is the embedding: a part with the head but without layer 0 then has a copy of
    the embedding of the same name, whose gradients the runtime has to sum. ``compute``
    is the precision of the activations; parameters have the same precision, or single
    precision where activations are half. On the device ``meta`` parameters have no
    values: ``draw_parameter`` returns them by rows. Scores exist for at most
    ``loss_chunk_tokens`` tokens at once. ``check_model`` in ``training.settings``
    refuses other models.
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
        self.layer_range = layers if layers is not None else range(model.layers)
        self.first, self.last = self.layer_range.start == 0, self.layer_range.stop == model.layers
        self.model_layers, self.hidden = model.layers, model.hidden
        self.head_size = model.head_width
        self.tied_head, self.rotary = model.tied_embeddings, model.positions == "rotary"
        self.compute, self.rotary_base = compute, model.rotary_base
        self.loss_chunk_tokens = loss_chunk_tokens
        self.master = torch.promote_types(compute, torch.float32)
        with torch.device("meta"):
            if self.first or (self.last and self.tied_head):
                self.embedding = Ends(
                    model, compute, embeds=self.first, scores=self.last and self.tied_head
                )
            self.layers = nn.ModuleDict({str(layer): Layer(model) for layer in self.layer_range})
            if self.last and not self.tied_head:
                self.head = Ends(model, compute, embeds=False, scores=True)
        self.to(self.master)
        if torch.device(device).type != "meta":
            self.to_empty(device=device)
            self.draw(seed)

    def draw(self, seed: int) -> None:
        """Initialise every parameter from ``seed``."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                step = _ROWS_DRAWN if parameter.dim() > 1 else len(parameter)
                for start in range(0, len(parameter), step):
                    stop = min(start + step, len(parameter))
                    parameter[start:stop] = draw_parameter(
                        name, parameter.shape, seed, self.model_layers, range(start, stop)
                    )

    def units(self) -> list[tuple[str, nn.Module]]:
        """The modules with parameters, by name, in the order of their use.

        The embedding, each layer, the final norm with the head; with tied embeddings
        the first once more. Names are prefixes of the parameters' names.
        """
        units: list[tuple[str, nn.Module]] = [("embedding", self.embedding)] if self.first else []
        units += [(f"layers.{layer}", self.layers[str(layer)]) for layer in self.layer_range]
        if self.last:
            units.append(("embedding" if self.tied_head else "head", self._top()))
        return units

    def compile_layers(self, **options: Any) -> None:
        """Compile the functions around attention, with options of ``torch.compile``.

        All layers share the compiled code, for any number of tokens.
        """
        options = {"dynamic": True, "fullgraph": True, **options}
        before: Any = torch.compile(Layer.enter, **options)
        after: Any = torch.compile(Layer.leave, **options)
        for layer in self.layers.values():
            assert isinstance(layer, Layer)
            layer.before, layer.after = before, after

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids and positions [T] to the states [T, hidden] before layer 0."""
        hidden: Tensor = self.embedding(tokens, positions=positions)
        return hidden

    def transform(
        self, hidden: Tensor, positions: Tensor, attend: Attend, checkpoint_layers: int = 0
    ) -> Tensor:
        """Hidden states [T, hidden] through the layers of this part.

        ``positions`` [T] count from 0 in each sequence. The first ``checkpoint_layers``
        layers save their input only and are recomputed in the backward pass (InfiniPipe
        section III-A, whole-layer checkpointing), including ``attend``.
        """
        rotation = (
            _rotation(positions, self.head_size, self.rotary_base, self.compute)
            if self.rotary
            else None
        )
        for index, layer in enumerate(self.layer_range):
            module = self.layers[str(layer)]
            if index < checkpoint_layers:
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
        """Ids and positions [T] to scores [T, vocabulary], through all layers."""
        hidden = self.embed(tokens, positions)
        return self.logits(self.transform(hidden, positions, attend, checkpoint_layers))

    def _top(self) -> nn.Module:
        return self.embedding if self.tied_head else self.head


class _RMSNorm(torch.autograd.Function):
    """``rms_norm`` that saves its input alone; on a CPU torch saves three."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.epsilon = epsilon
        return functional.rms_norm(hidden, hidden.shape[-1:], weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [saved.detach().requires_grad_() for saved in ctx.saved_tensors]
        with torch.enable_grad():
            normed = functional.rms_norm(inputs[0], inputs[0].shape[-1:], inputs[1], ctx.epsilon)
        return *torch.autograd.grad(normed, inputs, gradients[0]), None


_rms_norm: Callable[..., Tensor] = _RMSNorm.apply


class _Gated(torch.autograd.Function):
    """silu(gate) * up that saves its two inputs, not silu(gate)."""

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
    """The initial values of a parameter, by its name in the full model.

    Always in single precision. ``layers`` is the number of layers of the full model,
    ``rows`` selects rows of the first axis. Matrices are normal with deviation 0.02, as
    in GPT-2, divided by sqrt(2 layers) before a residual; scales of norms are one,
    biases zero.
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
    """Cosines and sines [T, 1, head size / 2], with angles in double precision."""
    pairs = torch.arange(0, head_size, 2, dtype=torch.float64, device=positions.device)
    angles = positions.to(torch.float64)[:, None, None] * base ** (-pairs / head_size)
    return angles.cos().to(precision), angles.sin().to(precision)


class _Rotated(torch.autograd.Function):
    """The pairs (i, i + half) of each head, turned by the angle of its position.

    It saves nothing but the angles; its gradient is the rotation back.
    """

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(heads, cosine, sine, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(gradients[0], cosine, sine, -1), None, None


def _turned(heads: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    left, right = heads.chunk(2, dim=-1)
    turned = torch.empty_like(heads, memory_format=torch.contiguous_format)
    turned_left, turned_right = turned.chunk(2, dim=-1)
    torch.mul(left, cosine, out=turned_left).addcmul_(right, sine, value=-sign)
    torch.mul(right, cosine, out=turned_right).addcmul_(left, sine, value=sign)
    return turned


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    if torch.compiler.is_compiling():
        left, right = heads.chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
    turned: Tensor = _Rotated.apply(heads, cosine, sine)  # type: ignore[no-untyped-call]
    return turned
