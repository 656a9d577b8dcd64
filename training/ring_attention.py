"""Ring attention by torch's context parallelism: keys and values go round the ranks.

``scaled_dot_product_attention`` under torch's ``context_parallel`` has rings for CUDA
kernels only, so that torch's ring is called with a kernel here, that for CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn import functional

from training.data import PackedTokens
from training.model import IGNORED_LABEL

_torch_ring: Any = _attention
_aten: Any = torch.ops.aten


class RingAttention:
    """Attention over the tokens of all ranks of a group (an ``Attend``).

    A sequence is padded to 2 x degree equal parts; rank ``r`` has parts ``r`` and ``2 x
    degree - 1 - r``, so that causal attention is the same work on every rank. Padding
    comes last and has no label: no token sees it. ``lengths`` are the tokens of the
    sequences.
    """

    def __init__(self, group: dist.ProcessGroup, lengths: Sequence[int]) -> None:
        self.group = group
        degree = dist.get_world_size(group)
        self.lengths, self.widths = list(lengths), [-(-one // (2 * degree)) for one in lengths]

    def part(self, packed: PackedTokens) -> PackedTokens:
        """The tokens of this rank, sequence by sequence."""
        rank, degree = dist.get_rank(self.group), dist.get_world_size(self.group)

        def mine(column: Tensor, padding: int) -> Tensor:
            parts = [
                functional.pad(sequence, (0, 2 * degree * width - len(sequence)), value=padding)
                .view(2 * degree, width)[[rank, -1 - rank]]
                .flatten()
                for sequence, width in zip(
                    torch.split(column, self.lengths), self.widths, strict=True
                )
            ]
            return torch.cat(parts)

        return PackedTokens(
            mine(packed.tokens, 0), mine(packed.positions, 0), mine(packed.labels, IGNORED_LABEL)
        )

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        copies = queries.shape[1] // keys.shape[1]
        keys, values = (one.repeat_interleave(copies, dim=1) for one in (keys, values))
        counts = [2 * width for width in self.widths]
        mixed = []
        for parts in zip(
            *(torch.split(one, counts) for one in (queries, keys, values)), strict=True
        ):
            by_head = (one.transpose(0, 1)[None].contiguous() for one in parts)
            ring: Tensor = _Ring.apply(*by_head, self.group)  # type: ignore[no-untyped-call]
            mixed.append(ring[0].transpose(0, 1))
        return torch.cat(mixed)


class _Ring(torch.autograd.Function):
    """Causal attention of one sequence: tensors [1, heads, local tokens, head size]."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *heads, ctx.group = inputs
        _torch_ring._cp_options.convert_to_f32 = heads[0].dtype != torch.float64
        kernel = _aten._scaled_dot_product_flash_attention_for_cpu
        mixed, sums = _torch_ring._templated_ring_attention(
            ctx.group, 2, kernel, *heads, is_causal=True
        )
        ctx.save_for_backward(*heads, mixed, sums)
        attended: Tensor = mixed
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _torch_ring._templated_ring_attention_backward(
            ctx.group, 2, _aten._scaled_dot_product_flash_attention_for_cpu_backward,
            gradients[0].contiguous(), "grad_out", *ctx.saved_tensors,
            is_causal=True, dropout_p=0.0,
        )  # fmt: skip
        return (*slopes, None)
