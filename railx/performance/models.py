"""Models as lists of operators: matrix products, attention, experts, tables.

A :class:`Model` is the shape of a decoder. Its layers are of one or a few kinds (dense
or with experts, with or without a window), and a :class:`LayerKind` lists the matrix
products of a layer, so that operations, bytes and weights are sums over one list. A
multiplication and an addition count as two operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from railx.performance.resources import entry
from railx.settings import AtLeast, NotEmpty, SettingsError

#: How tensor parallelism divides a product: its outputs, its inputs, or not at all.
Split = Literal["column", "row", "none"]


@dataclass(frozen=True)
class Product:
    """A matrix product of a layer: ``inputs`` x ``outputs`` weights for every token.

    ``split``: what tensor parallelism divides. ``expert``: the weights are those of one
    of the layer's experts; a token multiplies with ``experts_per_token`` of them.
    """

    name: str
    inputs: int
    outputs: int
    split: Split
    expert: bool = False

    @property
    def weights(self) -> int:
        """Weights of the matrix (of one expert)."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class LayerKind:
    """Layers that are alike.

    ``count``: how many the model has. ``feed_forward``: width of the activations
    between the products of the feed-forward part, of all experts that a token visits.
    ``window``: tokens that a query sees at most; 0 without a window.
    """

    count: int
    products: tuple[Product, ...]
    feed_forward: int
    window: int
    experts: bool


@dataclass(frozen=True)
class Model:
    """Shape of a decoder-only transformer."""

    name: Annotated[str, NotEmpty()]
    """Name that tables and figures show."""
    layers: Annotated[int, AtLeast(1)]
    """Transformer blocks."""
    hidden: Annotated[int, AtLeast(1)]
    """Width of the residual stream."""
    heads: Annotated[int, AtLeast(1)]
    """Query heads."""
    kv_heads: Annotated[int, AtLeast(1)]
    """Heads of keys and values; a divisor of heads."""
    feed_forward: Annotated[int, AtLeast(1)]
    """Width of the feed-forward part of layers without experts."""
    vocabulary: Annotated[int, AtLeast(2)]
    """Rows of the table of embeddings."""
    head_width: Annotated[int, AtLeast(0)] = 0
    """Width of a query and of a key; 0: hidden / heads."""
    value_width: Annotated[int, AtLeast(0)] = 0
    """Width of a value; 0: that of a key."""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    """``swiglu`` has three matrices in the feed-forward part, ``gelu`` two."""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm or LayerNorm; ``biases`` says which parameters are counted."""
    qk_norms: bool = False
    """Whether queries and keys of a head have norms, whose weights are not counted."""
    qkv_biases: bool = False
    """Whether queries, keys and values alone have biases, which are not counted."""
    biases: bool = False
    """Whether linear layers and norms have biases."""
    tied_embeddings: bool = False
    """Whether input and output share one table."""
    learned_positions: Annotated[int, AtLeast(0)] = 0
    """Rows of the table of positions; 0 for rotary positions."""
    query_rank: Annotated[int, AtLeast(0)] = 0
    """Rank of the queries' compression (latent attention); 0: none."""
    kv_rank: Annotated[int, AtLeast(0)] = 0
    """Rank of the keys' and values' compression (latent attention); 0: none."""
    rope_width: Annotated[int, AtLeast(0)] = 0
    """Part of a latent key's width that has rotary positions, shared by the heads."""
    window_tokens: Annotated[int, AtLeast(0)] = 0
    """Tokens that a query of a layer with a window sees; 0: no layer has one."""
    window_layers: Annotated[int, AtLeast(0)] = 0
    """Layers with a window."""
    experts: Annotated[int, AtLeast(0)] = 0
    """Experts of a layer that has them; 0: all layers are dense."""
    experts_per_token: Annotated[int, AtLeast(0)] = 0
    """Experts that a token visits, shared ones aside."""
    expert_feed_forward: Annotated[int, AtLeast(0)] = 0
    """Width of an expert."""
    shared_feed_forward: Annotated[int, AtLeast(0)] = 0
    """Width of the expert that every token visits; 0: none."""
    dense_layers: Annotated[int, AtLeast(0)] = 0
    """Layers without experts, in a model that has experts."""
    source: str = ""
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise SettingsError(
                "kv_heads", f"got {self.kv_heads}; allowed: a divisor of heads, {self.heads}"
            )
        if not self.head_width and self.hidden % self.heads:
            raise SettingsError(
                "hidden", f"got {self.hidden}; allowed: a multiple of heads, {self.heads}"
            )
        if bool(self.experts) != bool(self.experts_per_token) or bool(self.experts) != bool(
            self.expert_feed_forward
        ):
            raise SettingsError(
                "experts",
                f"got {self.experts} with experts_per_token {self.experts_per_token} and"
                f" expert_feed_forward {self.expert_feed_forward}; allowed: all three or none",
            )
        if self.experts_per_token > self.experts:
            raise SettingsError(
                "experts_per_token",
                f"got {self.experts_per_token}; allowed: at most {self.experts}, the experts",
            )
        for name in ("dense_layers", "window_layers"):
            if getattr(self, name) > self.layers:
                raise SettingsError(
                    name, f"got {getattr(self, name)}; allowed: at most {self.layers}, the layers"
                )

    @property
    def key_width(self) -> int:
        """Width of a query and of a key of one head."""
        return self.head_width or self.hidden // self.heads

    @property
    def values_width(self) -> int:
        """Width of a value of one head."""
        return self.value_width or self.key_width

    @property
    def cached_width(self) -> int:
        """Width of the keys and values of a token, all heads together.

        Latent attention has the compression and the positions' part of the key instead
        (DeepSeek-V2, arXiv 2405.04434, section 2.1).
        """
        if self.kv_rank:
            return self.kv_rank + self.rope_width
        return self.kv_heads * (self.key_width + self.values_width)

    @property
    def feed_forward_matrices(self) -> int:
        """Matrices of the feed-forward part: 3 (SwiGLU) or 2."""
        return 3 if self.activation == "swiglu" else 2

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The layers by kind; those with a window are spread evenly over the others."""
        with_experts = self.layers - self.dense_layers if self.experts else 0
        kinds = []
        for experts, count in ((False, self.layers - with_experts), (True, with_experts)):
            windowed = round(count * self.window_layers / self.layers) if self.window_tokens else 0
            for window, layers in ((0, count - windowed), (self.window_tokens, windowed)):
                if layers:
                    products = self._attention() + self._feed_forward(experts)
                    width = (
                        self.experts_per_token * self.expert_feed_forward + self.shared_feed_forward
                        if experts
                        else self.feed_forward
                    )
                    kinds.append(LayerKind(layers, products, width, window, experts))
        return tuple(kinds)

    @cached_property
    def layer_order(self) -> tuple[int, ...]:
        """The kind of every layer, as its number in ``kinds``: dense layers first."""
        order: list[int] = []
        for experts in (False, True):
            block = [number for number, kind in enumerate(self.kinds) if kind.experts == experts]
            counts = [self.kinds[number].count for number in block]
            for layer in range(sum(counts)):
                full = counts[0] * (layer + 1) // sum(counts) > counts[0] * layer // sum(counts)
                order.append(block[0] if full else block[-1])
        return tuple(order)

    def _attention(self) -> tuple[Product, ...]:
        hidden, heads = self.hidden, self.heads
        output = Product("output", heads * self.values_width, hidden, "row")
        if not self.kv_rank:
            width = heads * self.key_width + self.kv_heads * (self.key_width + self.values_width)
            return Product("query_key_value", hidden, width, "column"), output
        queries = heads * self.key_width
        keys_values = heads * (self.key_width - self.rope_width + self.values_width)
        down = (Product("query_down", hidden, self.query_rank, "none"),) if self.query_rank else ()
        return (
            *down,
            Product("query_up", self.query_rank or hidden, queries, "column"),
            Product("key_value_down", hidden, self.kv_rank + self.rope_width, "none"),
            Product("key_value_up", self.kv_rank, keys_values, "column"),
            output,
        )

    def _feed_forward(self, experts: bool) -> tuple[Product, ...]:
        def pair(name: str, width: int, *, expert: bool = False) -> tuple[Product, ...]:
            up = (self.feed_forward_matrices - 1) * width
            return (
                Product(f"{name}_up", self.hidden, up, "column", expert),
                Product(f"{name}_down", width, self.hidden, "row", expert),
            )

        if not experts:
            return pair("feed_forward", self.feed_forward)
        shared = pair("shared", self.shared_feed_forward) if self.shared_feed_forward else ()
        router = Product("router", self.hidden, self.experts, "none")
        return (router, *shared, *pair("expert", self.expert_feed_forward, expert=True))

    def layer_weights(self, kind: LayerKind) -> tuple[int, int]:
        """Parameters of a layer outside its experts, and of all its experts."""
        shared = sum(product.weights for product in kind.products if not product.expert)
        experts = self.experts * sum(p.weights for p in kind.products if p.expert)
        norms = 2 * self.norm_weights + self.query_rank + self.kv_rank
        if self.biases:
            shared += sum(p.outputs for p in kind.products if not p.expert)
            experts += self.experts * sum(p.outputs for p in kind.products if p.expert)
        return shared + norms, experts

    @property
    def table_weights(self) -> int:
        """Parameters of one table of embeddings."""
        return self.vocabulary * self.hidden

    @property
    def norm_weights(self) -> int:
        """Parameters of a norm."""
        return self.hidden * (2 if self.biases else 1)

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        layers = sum(kind.count * sum(self.layer_weights(kind)) for kind in self.kinds)
        tables = self.table_weights * (1 if self.tied_embeddings else 2)
        return layers + tables + self.hidden * self.learned_positions + self.norm_weights

    @property
    def active_parameters(self) -> int:
        """Parameters that a token is multiplied with; the input table is looked up."""
        layers = sum(kind.count * self._visited_weights(kind.products) for kind in self.kinds)
        return layers + self.table_weights

    def _visited_weights(self, products: tuple[Product, ...]) -> int:
        """Weights that a token is multiplied with in a layer."""
        return sum(p.weights * (self.experts_per_token if p.expert else 1) for p in products)

    def attended_tokens(self, kind: LayerKind, sequence_tokens: float) -> float:
        """Keys that a query of a causal layer sees, on average over a sequence.

        To leading order half the sequence; with a window of w at most w - w² / (2 s).
        """
        if not kind.window or kind.window >= sequence_tokens:
            return sequence_tokens / 2
        return kind.window - kind.window**2 / (2 * sequence_tokens)

    def layer_flops_per_token(self, kind: LayerKind, sequence_tokens: float) -> tuple[float, float]:
        """Forward operations of a token in a layer: causal attention, and the rest."""
        widths = self.heads * (self.key_width + self.values_width)
        attention = self._visited_weights(self._attention())
        every = self._visited_weights(kind.products)
        scores = widths * self.attended_tokens(kind, sequence_tokens)
        return 2 * (attention + scores), 2 * (every - attention)

    def flops_per_token(self, sequence_tokens: int) -> float:
        """Forward operations of a token, scores of a causal mask counted."""
        widths = self.heads * (self.key_width + self.values_width)
        attention = sum(
            2 * kind.count * widths * self.attended_tokens(kind, sequence_tokens)
            for kind in self.kinds
        )
        return 2 * self.active_parameters + attention

    def pass_flops(self, sequence_tokens: int, recompute: str) -> dict[str, float]:
        """Operations of a token by pass: forward, backward (a gradient of each product
        takes two), and what the backward pass computes ``again``.
        """
        forward = self.flops_per_token(sequence_tokens)
        again = {
            "none": 0.0,
            "selective": forward - 2 * self.active_parameters,
            "full": forward - 2 * self.table_weights,
        }
        return {"forward": forward, "backward": 2 * forward, "again": again[recompute]}


def model_named(name: str, *others: str) -> Model:
    """The model of ``resources/performance/models.yaml`` with this name."""
    return entry("model", name, "models.yaml", Model, *others)
