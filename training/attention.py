"""Causal attention over packed sequences of different lengths, without padding.

A packed call holds several sequences one after another. Each has some queries and at
least as many keys: the keys that come before the queries are context (earlier slices of
the same sequence), and the last query sees the last key.

Two kernels: ``sdpa`` computes sequence by sequence with scaled_dot_product_attention,
on every device and in every precision, and is the reference; ``varlen`` is one call of
the fused variable-length kernel for half precision on CUDA.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Kernel", "Packing", "choose_kernel", "variable_length_attention", "varlen_available"]

Kernel = Literal["sdpa", "varlen"]


@dataclass(frozen=True)
class Packing:
    """Where the sequences of a packed call lie.

    Tokens of each among the queries and among the keys, in packed order. Raises
    ValueError where they do not pair up or a sequence has fewer keys than queries.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.queries) != len(self.keys) or any(
            k < q for q, k in zip(self.queries, self.keys, strict=False)
        ):
            raise ValueError(
                f"queries {self.queries} and keys {self.keys}; allowed: as many keys as queries or"
                " more, for each sequence"
            )

    @classmethod
    def whole(cls, lengths: Sequence[int]) -> Packing:
        """Whole sequences of these lengths, without context."""
        return cls(tuple(lengths), tuple(lengths))


def variable_length_attention(
    queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, kernel: Kernel = "sdpa"
) -> Tensor:
    """Causal attention inside each packed sequence.

    ``queries`` [Tq, heads, head size]; ``keys`` and ``values`` [Tk, kv heads, head
    size] with kv heads dividing heads; returns [Tq, heads, head size]. Query i of a
    sequence with q queries and k keys sees its keys 0 .. k - q + i.
    """
    if kernel == "varlen":
        return _fused(queries, keys, values, packing)
    return _one_by_one(queries, keys, values, packing)


def choose_kernel(
    choice: Literal["auto", "sdpa", "varlen"],
    device: torch.device,
    precision: torch.dtype,
    head_size: int,
) -> Kernel:
    """The kernel for ``choice``.

    ``auto`` takes the fused one where it can run: CUDA, half precision, head size a
    multiple of 8. Raises ValueError where ``varlen`` is demanded and cannot run.
    """
    possible = (
        device.type == "cuda"
        and precision in (torch.bfloat16, torch.float16)
        and head_size % 8 == 0
        and head_size <= 256
        and varlen_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
    if choice == "varlen" and not possible:
        raise ValueError(
            "varlen attention cannot run here; it needs a CUDA device of compute capability 8.0 and"
            " bfloat16"
        )
    return "varlen" if possible and choice != "sdpa" else "sdpa"


@cache
def varlen_available() -> bool:
    """Whether this torch has the fused variable-length kernel."""
    return _varlen_attn() is not None


def _one_by_one(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing) -> Tensor:
    """Each sequence alone, as the single element of a batch.

    [1, heads, tokens, head size].
    """
    mixed = [
        _causal(q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])[
            0
        ].transpose(0, 1)
        for q, k, v in zip(
            torch.split(queries, list(packing.queries)),
            torch.split(keys, list(packing.keys)),
            torch.split(values, list(packing.keys)),
            strict=True,
        )
        if len(q)
    ]
    # Without a query there is nothing to mix; the product keeps the result in the
    # graph.
    return torch.cat(mixed) if mixed else queries * 1


def _causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    grouped = queries.shape[1] != keys.shape[1]
    count, visible = queries.shape[2], keys.shape[2]
    if count == visible:
        return functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=grouped
        )
    # is_causal would line up the first query with the first key; with context it is the
    # last with the last.
    mask = torch.ones(count, visible, dtype=torch.bool, device=queries.device).tril(visible - count)
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, enable_gqa=grouped
    )


def _fused(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing) -> Tensor:
    kernel = _varlen_attn()
    if kernel is None:
        raise RuntimeError("this torch has no variable-length attention kernel")
    parameters = _parameters(kernel)
    options: dict[str, Any] = (
        {"window_size": (-1, 0)} if "window_size" in parameters else {"is_causal": True}
    )
    if queries.shape[1] != keys.shape[1]:
        if "enable_gqa" in parameters:
            options["enable_gqa"] = True
        else:
            repeats = queries.shape[1] // keys.shape[1]
            keys, values = (
                keys.repeat_interleave(repeats, dim=1),
                values.repeat_interleave(repeats, dim=1),
            )
    mixed: Tensor = kernel(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        _offsets(packing.queries, queries.device),
        _offsets(packing.keys, queries.device),
        max(packing.queries),
        max(packing.keys),
        **options,
    )
    return mixed


def _offsets(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


@cache
def _varlen_attn() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    function: Callable[..., Any] = varlen_attn
    return function


@cache
def _parameters(kernel: Callable[..., Any]) -> frozenset[str]:
    """The keyword names of the kernel.

    They differ between torch 2.10 and later versions.
    """
    return frozenset(inspect.signature(kernel).parameters)
