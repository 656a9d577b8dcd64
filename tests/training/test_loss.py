"""The token loss: plain and in chunks, its gradients, and the memory of its scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.training.test_allocations import LargestTensor
from training.loss import IGNORED_LABEL, chunked_token_loss, token_loss_sum


def test_token_loss_is_the_sum_over_labelled_tokens() -> None:
    logits = torch.randn(
        4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    labels = torch.tensor([2, IGNORED_LABEL, 0, IGNORED_LABEL])
    expected = -(logits.log_softmax(-1)[0, 2] + logits.log_softmax(-1)[2, 0])
    torch.testing.assert_close(token_loss_sum(logits, labels), expected)
    nothing = token_loss_sum(logits, torch.full((4,), IGNORED_LABEL))
    nothing.backward()
    assert nothing.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def drawn(tokens: int, *, width: int = 8, vocabulary: int = 31) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    options: Any = {"dtype": torch.float64, "generator": generator}
    labels = torch.randint(0, vocabulary, (tokens,), generator=generator)
    labels[torch.rand(tokens, generator=generator) < 0.2] = IGNORED_LABEL
    hidden, weight = (
        torch.randn(tokens, width, **options),
        torch.randn(vocabulary, width, **options),
    )
    return hidden.requires_grad_(), weight.requires_grad_(), labels


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(0, 40), chunk_tokens=st.integers(1, 50))
def test_chunks_change_neither_loss_nor_gradients(tokens: int, chunk_tokens: int) -> None:
    hidden, weight, labels = drawn(tokens)
    chunked = chunked_token_loss(hidden, weight, labels, chunk_tokens)
    plain = token_loss_sum(hidden @ weight.T, labels)
    torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(chunked * 0.3, (hidden, weight)),
        torch.autograd.grad(plain * 0.3, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_needs_no_gradient_gets_none(frozen: int) -> None:
    inputs = drawn(9)
    inputs[frozen].requires_grad_(False)
    chunked_token_loss(*inputs, 4).backward()
    assert inputs[frozen].grad is None
    assert inputs[1 - frozen].grad is not None


def test_half_precision_adds_to_single_precision_weights() -> None:
    hidden, weight, labels = drawn(2000)
    exact = token_loss_sum(hidden @ weight.T, labels)
    low = hidden.detach().bfloat16().requires_grad_()
    master = weight.detach().float().requires_grad_()
    loss = chunked_token_loss(low, master, labels, 64)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    (gradient,) = torch.autograd.grad(exact, weight)
    assert low.grad is not None
    assert master.grad is not None
    assert low.grad.dtype == torch.bfloat16
    assert (master.grad - gradient).norm() < 0.01 * gradient.norm()
    # Weights that were cast before are added to in single precision all the same.
    cast = weight.detach().bfloat16().requires_grad_()
    (rounded,) = torch.autograd.grad(chunked_token_loss(low, cast, labels, 1), cast)
    assert (rounded - gradient).norm() < 0.01 * gradient.norm()


def test_a_factor_is_not_rounded_to_half_precision() -> None:
    hidden, weight, labels = drawn(50)
    low, master = hidden.detach().bfloat16().requires_grad_(), weight.detach().float()
    # Half precision would make it 2**-10: every gradient would be too small by 0.4 %.
    factor = 257 * 2.0**-18
    loss = chunked_token_loss(low, master, labels, 16)
    (plain,) = torch.autograd.grad(loss, low, retain_graph=True)
    (scaled,) = torch.autograd.grad(loss * factor, low)
    assert torch.equal(scaled, (plain.float() * factor).bfloat16())


def test_no_more_scores_than_of_one_chunk() -> None:
    hidden, weight, labels = drawn(512, vocabulary=300)
    with LargestTensor() as chunked:
        chunked_token_loss(hidden, weight, labels, 16).backward()
    with LargestTensor() as plain:
        token_loss_sum(hidden @ weight.T, labels).backward()
    assert plain.elements == 512 * 300
    assert chunked.elements == max(16 * 300, hidden.numel(), weight.numel())
