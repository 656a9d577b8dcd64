"""Packed causal attention against the textbook formula, and what the fused kernel is
called with.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training import attention
from training.attention import Packing, choose_kernel, variable_length_attention


def textbook(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v of one sequence, the last query seeing the
    last key.
    """
    repeats = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[2] ** 0.5
    count, visible = scores.shape[1:]
    hidden = torch.arange(visible)[None, :] > torch.arange(count)[:, None] + visible - count
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def drawn(packing: Packing, heads: int, kv_heads: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [
        (sum(packing.queries), heads),
        (sum(packing.keys), kv_heads),
        (sum(packing.keys), kv_heads),
    ]
    return [
        torch.randn(*size, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for size in sizes
    ]


def each_alone(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing) -> Tensor:
    parts = (
        queries.split(list(packing.queries)),
        keys.split(list(packing.keys)),
        values.split(list(packing.keys)),
    )
    return torch.cat([textbook(*part) for part in zip(*parts, strict=True)])


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=4),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
)
def test_packed_sequences_equal_each_sequence_alone(
    lengths: list[tuple[int, int]], heads: tuple[int, int]
) -> None:
    packing = Packing(
        tuple(own for own, _ in lengths), tuple(own + context for own, context in lengths)
    )
    tensors = drawn(packing, *heads)
    ours, theirs = variable_length_attention(*tensors, packing), each_alone(*tensors, packing)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    weights = torch.randn(
        ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    for mine, reference in zip(
        torch.autograd.grad((ours * weights).sum(), tensors),
        torch.autograd.grad((theirs * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-12)


def test_no_queries_give_no_rows() -> None:
    packing = Packing((0,), (3,))
    assert variable_length_attention(*drawn(packing, 4, 2), packing).shape == (0, 4, 8)


@pytest.mark.parametrize(("queries", "keys"), [((3,), (2,)), ((1, 2), (3,))])
def test_a_packing_needs_a_key_for_each_query(
    queries: tuple[int, ...], keys: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="allowed: as many keys as queries or more"):
        Packing(queries, keys)


def test_kernel_on_a_processor() -> None:
    assert choose_kernel("auto", torch.device("cpu"), torch.bfloat16, 64) == "sdpa"
    with pytest.raises(ValueError, match="needs a CUDA device"):
        choose_kernel("varlen", torch.device("cpu"), torch.bfloat16, 64)


def with_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: Any,
    enable_gqa: bool = False,
) -> Tensor:
    assert window_size == (-1, 0)
    assert enable_gqa == (q.shape[1] != k.shape[1])
    return from_offsets(q, k, v, cu_q, cu_k, max_q, max_k)


def with_flag(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
) -> Tensor:
    assert is_causal
    assert q.shape[1] == k.shape[1]
    return from_offsets(q, k, v, cu_q, cu_k, max_q, max_k)


def from_offsets(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int
) -> Tensor:
    assert cu_q.dtype == cu_k.dtype == torch.int32
    lengths = Packing(tuple(cu_q.diff().tolist()), tuple(cu_k.diff().tolist()))
    assert (max_q, max_k) == (max(lengths.queries), max(lengths.keys))
    return each_alone(q, k, v, lengths)


@pytest.mark.parametrize("kernel", [with_window, with_flag])
def test_the_fused_kernel_gets_offsets_and_a_causal_mask(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_varlen_attn", lambda: kernel)
    packing = Packing((3, 5), (7, 5))
    tensors = drawn(packing, 4, 2)
    fused, alone = (
        variable_length_attention(*tensors, packing, name) for name in ("varlen", "sdpa")
    )
    torch.testing.assert_close(fused, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_fused_kernel_equals_the_reference_on_the_device() -> None:
    packing = Packing((130, 64, 7), (390, 64, 7))
    generator = torch.Generator().manual_seed(3)
    sizes = [(sum(packing.queries), 8), (sum(packing.keys), 4), (sum(packing.keys), 4)]
    tensors = [
        torch.randn(*size, 64, generator=generator).to("cuda", torch.bfloat16).requires_grad_()
        for size in sizes
    ]
    outcomes = []
    for kernel in ("varlen", "sdpa"):
        mixed = variable_length_attention(*tensors, packing, kernel)  # type: ignore[arg-type]
        outcomes.append([mixed, *torch.autograd.grad(mixed.float().square().sum(), tensors)])
    for fused, alone in zip(*outcomes, strict=True):
        torch.testing.assert_close(fused, alone, rtol=3e-2, atol=3e-2)
