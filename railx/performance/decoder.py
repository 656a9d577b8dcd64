"""Transformer arithmetic of a decoder.

Parameters, floating-point operations, activation bytes and all-to-all bytes as closed
forms of the shapes, never measured. A multiplication and an addition count as two
operations. Needs the standard library alone, because the training runtime reads its
model settings from here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.effort import Cost, Costs
from railx.performance.models import Model
from railx.settings import AtLeast, NonNegative, NotEmpty, Positive, SettingsError


@dataclass(frozen=True)
class ModelSettings:
    """Shape of a decoder-only transformer."""

    name: Annotated[str, NotEmpty()]
    """Name that plans and figures show; a fitted cost model names the one that it holds
    for."""
    layers: Annotated[int, AtLeast(1)]
    """Transformer blocks, one above the other."""
    hidden: Annotated[int, AtLeast(1)]
    """Width of the residual stream; the heads share it evenly."""
    heads: Annotated[int, AtLeast(1)]
    """Attention heads; of even width where positions are rotary."""
    kv_heads: Annotated[int, AtLeast(1)]
    """Heads of keys and values, a divisor of heads; fewer are grouped-query
    attention."""
    feed_forward: Annotated[int, AtLeast(1)]
    """Width of the feed-forward layer."""
    vocabulary: Annotated[int, AtLeast(2)]
    """Tokens that there are."""
    feed_forward_kind: Literal["swiglu", "gelu"] = "swiglu"
    """Activation: ``swiglu`` has three matrices, ``gelu`` two."""
    positions: Literal["rotary", "learned"] = "rotary"
    """``learned`` ones are a table with one row per position of the longest context,
    ``rotary`` ones have no parameters."""
    biases: bool = False
    """Whether every linear layer and every norm has a bias (GPT); without, a norm has a
    scale alone (LLaMA)."""
    tied_embeddings: bool = False
    """Whether input and output share one table of embeddings."""
    rotary_base: Annotated[float, Positive()] = 10000.0
    """Base of the rotary positions' wavelengths."""
    norm_epsilon: Annotated[float, NonNegative()] = 1e-5
    """What a norm adds to the variance before it divides."""
    max_positions: Annotated[int, AtLeast(0)] = 0
    """Rows of the table of learned positions in training: the tokens of the longest
    sequence that the model can take. 0 where positions are rotary."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise SettingsError(
                "hidden", f"got {self.hidden}; allowed: a multiple of heads, which is {self.heads}"
            )
        if self.heads % self.kv_heads:
            raise SettingsError(
                "kv_heads",
                f"got {self.kv_heads}; allowed: a divisor of heads, which is {self.heads}",
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise SettingsError(
                "heads",
                f"got {self.heads}, {self.head_width} wide; allowed: an even width for rotary"
                " positions",
            )

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def shape(self, max_length_tokens: int = 0) -> Model:
        """The model as lists of operators; positions for the longest sequence."""
        return Model(
            self.name,
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.feed_forward,
            self.vocabulary,
            activation=self.feed_forward_kind,
            norm="layer" if self.biases else "rms",
            biases=self.biases,
            tied_embeddings=self.tied_embeddings,
            learned_positions=max_length_tokens if self.positions == "learned" else 0,
        )

    def costs(self) -> Costs:
        widths = ("hidden", "feed_forward", "heads", "kv_heads")
        rows = ("vocabulary", "max_positions")
        return {
            "layers": Cost(0.01, 1e6) * self.layers,
            **{name: Cost(bytes=1e3) * getattr(self, name) for name in widths},
            **{name: Cost(bytes=16) * getattr(self, name) for name in rows},
        }


def key_value_width(model: ModelSettings) -> int:
    """D_kv: width of the keys (or values) of all key-value heads together."""
    return model.kv_heads * model.head_width


def parameter_count(model: ModelSettings, max_length_tokens: int) -> int:
    """Parameters of the whole model.

    ``max_length_tokens`` sizes the table of learned positions. With MHA, GELU of width
    4h, biases, learned positions and untied embeddings this is 12 l h² + 13 l h + 2 h
    (V + ½ L) + 2 h, which gives FlexSP's published sizes at 192 000 and 384 000
    positions (public code, cost constants).
    """
    return model.shape(max_length_tokens).parameters


def stage_parameters(model: ModelSettings, max_length_tokens: int, stage: int, stages: int) -> int:
    """Parameters of a pipeline stage, stages counted from 0.

    Layers are spread evenly, the first stages one more; the embedding (and learned
    positions) is on the first stage, the last norm and the head are on the last. A
    table that both share is on both.
    """
    layers = model.layers // stages + (stage < model.layers % stages)
    shape = model.shape(max_length_tokens)
    (kind,) = shape.kinds
    parameters = layers * sum(shape.layer_weights(kind))
    if stage == 0:
        parameters += shape.table_weights + shape.learned_positions * shape.hidden
    if stage == stages - 1:
        shared = model.tied_embeddings and stages == 1
        parameters += shape.norm_weights + (0 if shared else shape.table_weights)
    return parameters


def linear_flops_per_token(model: ModelSettings) -> int:
    """Forward operations per token of all matrix products but attention's, 2 per
    weight.

    The output projection is included.
    """
    return 2 * model.shape().active_parameters


def attention_flops(model: ModelSettings, tokens: int, context: int = 0) -> int:
    """Forward operations of causal attention for ``tokens`` tokens after ``context``
    tokens.

    Scores and weighted values are 2 products of 2 h operations per pair. A query sees
    itself and all earlier tokens, to leading order ((C + s)² - C²) / 2 pairs, hence 2 l
    h ((C + s)² - C²). Slices of a sequence add up exactly to the whole (InfiniPipe eq.
    1).
    """
    return 2 * model.layers * model.hidden * ((context + tokens) ** 2 - context**2)


def forward_flops(model: ModelSettings, tokens: int, context: int = 0) -> int:
    """Forward operations of one slice of a sequence."""
    return linear_flops_per_token(model) * tokens + attention_flops(model, tokens, context)


def all_to_all_bytes_per_token(model: ModelSettings, bytes_per_element: int = 2) -> int:
    """Bytes per token that Ulysses exchanges over all layers, forward and backward.

    Each layer exchanges queries and outputs of width h and keys and values of width
    D_kv, once forward and once backward: 4 e l (h + D_kv) (InfiniPipe eq. 3, both
    directions), which is FlexSP's 16 l h for e = 2 and as many key-value heads as
    heads.
    """
    return 4 * bytes_per_element * model.layers * (model.hidden + key_value_width(model))


def activation_bytes_per_token(model: ModelSettings, bytes_per_element: int = 2) -> int:
    """Bytes per token kept for the backward pass of all layers.

    Without recomputation and with attention scores never stored. Per layer: the inputs
    of both norms and of the products after them, q, k, v and the attention output, and
    what the feed-forward keeps (2 wide tensors for GELU; 3 for SwiGLU: gate, up and
    their product). For MHA with GELU of width 4h at two bytes this is 32 l h. FlexSP's
    published 4.48 MB/token of the 7B model is 34 bytes h l with dropout masks and the
    like.
    """
    wide = 3 if model.feed_forward_kind == "swiglu" else 2
    narrow = 4 + 2  # norm inputs and outputs (two norms), queries and attention output
    per_layer = narrow * model.hidden + 2 * key_value_width(model) + wide * model.feed_forward
    return bytes_per_element * model.layers * per_layer
