"""Models given by the weights of their layers, as simulations and papers state them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from railx.effort import Cost, Costs
from railx.settings import AtLeast, Fraction, NotEmpty, SettingsError


@dataclass(frozen=True)
class WeightedModel:
    """Shape of a decoder as weights and widths of a layer, where no more is published.

    Layers with experts follow ``dense_layers`` dense ones. Weights are those of matrix
    products; what each takes in operations and bytes follows from them.
    """

    name: Annotated[str, NotEmpty()]
    """Name that tables and figures show."""
    layers: Annotated[int, AtLeast(1)]
    """Decoder layers of the whole model."""
    hidden: Annotated[int, AtLeast(1)]
    """Width of the residual stream."""
    attention_weights: Annotated[int, AtLeast(1)]
    """Weights of the projections of a layer's attention."""
    whole_attention_weights: Annotated[int, AtLeast(0)]
    """Attention weights that every tensor rank multiplies in full, as projections to a
    low rank.
    """
    score_width: Annotated[int, AtLeast(0)]
    """Widths of keys and of values, summed over the heads: multiplications for each
    pair of tokens.
    """
    scored_share: Annotated[float, Fraction()]
    """Share of the pairs of tokens that are computed: 0.5 where a causal mask leaves
    out the others, 1 where all are.
    """
    dense_layers: Annotated[int, AtLeast(0)]
    """How many of the first layers have a dense feed-forward layer; all where there are
    no experts.
    """
    dense_weights: Annotated[int, AtLeast(0)]
    """Weights of a dense feed-forward layer."""
    experts_per_token: Annotated[int, AtLeast(0)]
    """Experts that a token visits in a layer that has them; 0 without experts."""
    experts: Annotated[int, AtLeast(0)]
    """Experts of a layer that has them."""
    expert_weights: Annotated[int, AtLeast(0)]
    """Weights of one expert."""
    shared_weights: Annotated[int, AtLeast(0)]
    """Weights of the experts that every token visits, held like a dense layer."""
    norm_weights: Annotated[int, AtLeast(0)]
    """Weights of a layer that every tensor rank holds whole."""
    input_weights: Annotated[int, AtLeast(0)]
    """Weights of the input table, on the first stage."""
    output_weights: Annotated[int, AtLeast(0)]
    """Weights of the output projection, on the last stage."""
    stage_layers: tuple[Annotated[int, AtLeast(1)], ...] = field(default=(), kw_only=True)
    """Layers of each stage; empty: as even as can be."""

    def __post_init__(self) -> None:
        if self.dense_layers > self.layers:
            raise SettingsError(
                "dense_layers", f"got {self.dense_layers}; allowed: at most {self.layers}, layers"
            )
        if self.stage_layers and sum(self.stage_layers) != self.layers:
            raise SettingsError(
                "stage_layers",
                f"got {sum(self.stage_layers)} in all; allowed: {self.layers}, the layers",
            )
        visited = self.experts_per_token
        if (self.dense_layers < self.layers) != (visited > 0) or visited > self.experts:
            raise SettingsError(
                "experts_per_token",
                f"got {visited} of {self.experts}; allowed: 0 where all layers are dense, 1 to all"
                " experts where some have them",
            )

    def costs(self) -> Costs:
        """Estimated work by field."""
        return {
            "layers": Cost(0.01, 1e6) * self.layers,
        }

    def layers_by_stage(self, stages: int) -> tuple[int, ...]:
        """Layers of each of so many stages, those left over on the first ones."""
        return self.stage_layers or tuple(
            self.layers // stages + (n < self.layers % stages) for n in range(stages)
        )

    def rank_parameters(self, layer: int, tensor: int, expert_ranks: float) -> float:
        """Parameters of a layer on one of ``tensor`` ranks, whose experts so many ranks
        share.
        """
        dense = layer < self.dense_layers
        rest = self.dense_weights if dense else self.shared_weights
        parameters = (self.attention_weights + rest) / tensor + self.norm_weights
        experts = 0 if dense else self.experts * self.expert_weights
        return parameters + experts / expert_ranks
