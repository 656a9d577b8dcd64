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
from torch.nn.attention import SDPBackend

from tests.training.test_allocations import LargestTensor
from training import attention
from training.attention import Kernel, Packing, choose_kernel, variable_length_attention


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


def drawn(
    packing: Packing, heads: int, kv_heads: int, seed: int = 0, *, head_size: int = 8
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [
        (sum(packing.queries), heads),
        (sum(packing.keys), kv_heads),
        (sum(packing.keys), kv_heads),
    ]
    return [
        torch.randn(*size, head_size, dtype=torch.float64, generator=generator, requires_grad=True)
        for size in sizes
    ]


def each_alone(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing) -> Tensor:
    parts = (
        queries.split(list(packing.queries)),
        keys.split(list(packing.keys)),
        values.split(list(packing.keys)),
    )
    return torch.cat([textbook(*part) for part in zip(*parts, strict=True)])


def compare(packing: Packing, tensors: list[Tensor], kernel: Kernel) -> None:
    """Values and gradients of a kernel against the textbook."""
    ours = variable_length_attention(*tensors, packing, kernel)
    theirs = each_alone(*tensors, packing)
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


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=4),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    tile=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    kernel=st.sampled_from(["sdpa", "blocks"]),
)
def test_packed_sequences_equal_each_sequence_alone(
    lengths: list[tuple[int, int]], heads: tuple[int, int], tile: tuple[int, int], kernel: Kernel
) -> None:
    packing = Packing(
        tuple(own for own, _ in lengths), tuple(own + context for own, context in lengths)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_QUERY_TILE", tile[0])
        patch.setattr(attention, "_KEY_TILE", tile[1])
        compare(packing, drawn(packing, *heads), kernel)


@pytest.mark.parametrize("head_size", [16, 64, 128])
@pytest.mark.parametrize("kernel", ["sdpa", "blocks"])
def test_sequences_of_several_tiles_are_exact(head_size: int, kernel: Kernel) -> None:
    packing = Packing((1, 130, 200, 1), (1, 630, 200, 600))
    compare(packing, drawn(packing, 4, 2, head_size=head_size), kernel)


@pytest.mark.parametrize("kernel", ["sdpa", "blocks"])
def test_single_precision_with_grouped_heads_is_as_exact_as_it_can_be(kernel: Kernel) -> None:
    packing = Packing((200, 40), (500, 40))
    exact = drawn(packing, 4, 2)
    single = [tensor.detach().float().requires_grad_() for tensor in exact]
    outcomes = []
    for tensors in (exact, single):
        mixed = variable_length_attention(*tensors, packing, kernel)
        outcomes.append([mixed, *torch.autograd.grad(mixed.square().sum(), tensors)])
    for theirs, ours in zip(*outcomes, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "tokens", "context"),
    [("sdpa", 1024, 0), ("sdpa", 512, 512), ("blocks", 1024, 0)],
)
def test_no_tensor_has_an_element_for_each_pair_of_tokens(
    precision: torch.dtype, kernel: Kernel, tokens: int, context: int
) -> None:
    """Forward and backward, masks and scores included: what is largest grows with the
    tokens (queries and keys of all heads, or a tile), not with their square.
    """
    packing = Packing((tokens,), (tokens + context,))
    tensors = [tensor.detach().to(precision).requires_grad_() for tensor in drawn(packing, 2, 1)]
    with LargestTensor() as seen:
        variable_length_attention(*tensors, packing, kernel).sum().backward()
    assert seen.elements < 0.3 * tokens * (tokens + context)
    assert seen.elements <= max(2 * 2 * 8 * (tokens + context), 2 * 128 * 512)


def test_where_no_fused_kernel_takes_a_case_none_with_scores_steps_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packing = Packing((6,), (6,))
    narrow = drawn(packing, 2, 1)
    monkeypatch.setattr(attention, "_FUSED", [SDPBackend.CUDNN_ATTENTION])
    attention._sdpa_runs.cache_clear()
    with pytest.raises(RuntimeError, match=r"No (viable backend|available kernel)"):
        variable_length_attention(*narrow, packing)
    cpu = torch.device("cpu")
    assert choose_kernel("auto", cpu, torch.float64, 8) == "blocks"
    with pytest.raises(ValueError) as refused:
        choose_kernel("sdpa", cpu, torch.float64, 8)
    assert str(refused.value) == (
        "got sdpa, which has no memory-efficient kernel for float64 with heads 8 wide; allowed on"
        " cpu: auto, blocks"
    )
    attention._sdpa_runs.cache_clear()


def test_grouped_heads_are_repeated_where_the_kernel_wants_one_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "_sdpa_runs", lambda *_, grouped: not grouped)
    packing = Packing.without_context((7, 3))
    compare(packing, drawn(packing, 4, 2), "sdpa")


def test_offsets_are_made_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *offsets: Any, is_causal: bool) -> Tensor:
        seen.append(offsets[:2])
        return from_offsets(q, k, v, *offsets)

    monkeypatch.setattr(attention, "_varlen_attn", lambda: kernel)
    packing = Packing((3, 5), (7, 5))
    for _ in range(3):
        variable_length_attention(*drawn(packing, 4, 4), packing, "varlen")
    assert [offset.tolist() for offset in seen[0]] == [[0, 3, 8], [0, 7, 12]]
    for layer in seen[1:]:
        assert all(ours is first for ours, first in zip(layer, seen[0], strict=True))
    assert packing == Packing((3, 5), (7, 5))


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
    for precision in (torch.bfloat16, torch.float32, torch.float64):
        for head_size in (16, 48, 64, 104, 128):
            assert choose_kernel("auto", torch.device("cpu"), precision, head_size) == "sdpa"
    assert choose_kernel("blocks", torch.device("cpu"), torch.float32, 64) == "blocks"
    with pytest.raises(ValueError, match="varlen needs a CUDA device"):
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
