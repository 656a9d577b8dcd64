"""Tensor and context parallelism of a group, under the constants of sequence costs.

The times of Megatron-LM's groups are not published, so all of this is derived, from the
cost model of sequences, its table of all-to-all bandwidths v(d) and the bytes of the
model:

* **Tensor parallelism** gathers or reduces the activations of a context-parallel rank
  eight times a layer, four forward and four backward, T / cp · h · e bytes each. The
  gather that the backward pass repeats for the gradients of weights is taken to hide
  behind computation. A gather moves as many bytes in and out of a device as an
  all-to-all with a buffer of that size, so inside a node it goes at v(tp). Beyond a
  node each node takes in what it lacks once, at the rate of its uplink, and nothing
  goes faster than v inside the node.
* **A node's uplink** follows from the table: in an all-to-all of d ranks on nodes of n,
  n devices send the share 1 - n/d out, so that it carries n · v(d) · (1 - n/d).
  FlexSP's table gives 41, 36 and 34 GB/s for 16, 32 and 64 ranks.
* **Context parallelism** as a ring passes keys and values on cp - 1 times a layer, and
  backward these and their gradients: 3 (cp - 1) · 2 · d_kv / tp · e · T / cp bytes a
  rank. Where the ring leaves the node, min(tp, n) ranks share the uplink. The exchange
  hides behind the attention of the blocks that it brings in, the share (cp - 1) / cp of
  attention. As an all-to-all (Megatron has both; which one FlexSP ran is
  not published) it moves Ulysses' bytes over cp ranks
  and hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from railx.performance.decoder import ModelSettings, all_to_all_bytes_per_token, key_value_width
from railx.performance.sequence_cost import CostModel

#: Gathers and reductions of activations that tensor parallelism makes in a layer,
#: forward and backward.
_GATHERS = 8
#: Key and value exchanges of forward and backward: both, then both and their gradients.
_EXCHANGES = 3

#: How ranks of context parallelism exchange keys and values.
Exchange = Literal["ring", "all_to_all"]


@dataclass(frozen=True)
class ShapeTime:
    """Predicted time of a group in ms, by term."""

    compute_ms: float
    tensor_ms: float
    context_ms: float

    @property
    def total_ms(self) -> float:
        return self.compute_ms + self.tensor_ms + self.context_ms


@dataclass(frozen=True)
class Shape:
    """A shape of groups and its costs.

    ``gather_ms`` is tensor parallelism per token of a group, ``exchange_ms`` context
    parallelism per token before ``hidden_share`` of attention hides it.
    """

    tensor: int
    context: int
    exchange: Exchange
    cost: CostModel
    gather_ms: float
    exchange_ms: float
    hidden_share: float

    @property
    def degree(self) -> int:
        """Ranks of a group."""
        return self.tensor * self.context

    @property
    def tokens(self) -> int:
        """Most tokens of a group."""
        return self.cost.tokens_per_device * self.degree

    def group_time_ms(self, lengths: NDArray[np.int64]) -> ShapeTime:
        """Time of a group that runs sequences of these lengths [n]."""
        tokens = float(lengths.sum())
        compute = float(self.cost.sequence_ms(lengths).sum()) / self.degree
        attention = self.cost.quadratic_ms * float((lengths.astype(float) ** 2).sum()) / self.degree
        exchange = tokens * self.exchange_ms - self.hidden_share * attention
        return ShapeTime(
            compute + self.cost.constant_ms, tokens * self.gather_ms, max(0.0, exchange)
        )


def timed_shape(
    cost: CostModel,
    model: ModelSettings,
    tensor: int,
    context: int,
    kind: Exchange,
    *,
    node_devices: int,
    tokens_per_device: int,
    element_bytes: int,
    checkpoint_layers: int,
) -> Shape:
    """A shape with its costs and ``tokens_per_device`` tokens a device.

    Where groups recompute layers (``checkpoint_layers``), the cost model's all-to-alls
    count those of the forward pass again, as do the rates derived from them: right for
    gathers, half of which are forward, and corrected for a ring, a third of which is.
    """
    degree, node = tensor * context, node_devices
    exchange_bytes = all_to_all_bytes_per_token(model, element_bytes)

    def rate(ranks: int) -> float:
        """Bytes a ms of one device's buffer in an all-to-all."""
        return exchange_bytes / ranks / cost.all_to_all_for(ranks)

    def uplink(ranks: int) -> float:
        """Bytes a ms out of a node in an all-to-all of more ranks than its own."""
        return node * rate(ranks) * (1 - node / ranks)

    gather = 0.0
    if tensor > 1:
        slowest = 1 / rate(min(tensor, node))
        if tensor > node:
            slowest = max(slowest, (1 - node / tensor) / uplink(tensor))
        gather = _GATHERS * model.layers * model.hidden * element_bytes / context * slowest
    exchange, hidden = 0.0, 0.0
    if context > 1 and kind == "ring":
        width = max(key_value_width(model) // tensor, model.head_width)
        passed = _EXCHANGES * (context - 1) * 2 * width * element_bytes * model.layers / context
        per_device = (
            uplink(degree) / min(tensor, node) if degree > node else rate(degree) * (1 - 1 / degree)
        )
        again = checkpoint_layers / model.layers
        passed *= (1 + again / 3) / (1 + again / 2)
        exchange, hidden = passed / per_device, (context - 1) / context
    elif context > 1:
        rank_bytes = exchange_bytes / tensor / context
        inside = max(1, node // tensor)
        exchange = (
            rank_bytes * node * (1 - inside / context) / uplink(degree)
            if degree > node
            else rank_bytes / rate(degree)
        )
    # ZeRO-1 has no traffic of ZeRO-3, where the cost model prices that.
    constant = cost.constant_ms - cost.sharding_ms
    shape_cost = replace(
        cost, tokens_per_device=tokens_per_device, constant_ms=constant, sharding_ms=0.0
    )
    return Shape(tensor, context, kind, shape_cost, gather, exchange, hidden)
