"""The loss of next-token prediction: sums of cross entropies over the tokens.

The scores of all tokens over the vocabulary would be the largest tensor of a step.
``chunked_token_loss`` computes scores, loss and gradients for a few tokens at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

#: The label of a token that has no next token: it adds nothing to the loss.
IGNORED_LABEL = -100


def token_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the cross entropies of the tokens.

    A scalar in at least single precision. ``logits`` [T, vocabulary], ``labels`` [T]
    with :data:`IGNORED_LABEL` where a token has no next one. Zero (with a gradient of
    zero) where no token has a label. Divide by the valid tokens of the whole batch to
    weight every token alike, whatever the plan.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(exact, labels, ignore_index=IGNORED_LABEL, reduction="sum")


def chunked_token_loss(hidden: Tensor, weight: Tensor, labels: Tensor, chunk_tokens: int) -> Tensor:
    """``token_loss_sum(hidden @ weight.T, labels)``, ``chunk_tokens`` tokens at a time.

    ``hidden`` [T, width] in the precision of the product, ``weight`` [vocabulary,
    width] in that or a finer one. The forward pass computes the gradients of both from
    a chunk's scores and saves them for the backward pass instead of the scores.
    """
    loss: Tensor = _ChunkedTokenLoss.apply(hidden, weight, labels, chunk_tokens)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk_tokens: int
    ) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        exact = torch.promote_types(hidden.dtype, torch.float32)
        cast = weight.to(hidden.dtype)
        loss = torch.zeros((), dtype=exact, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=exact) if wants_weight else None
        for start in range(0, len(hidden), chunk_tokens):
            part, chunk_labels = (
                tensor[start : start + chunk_tokens] for tensor in (hidden, labels)
            )
            ignored = (chunk_labels == IGNORED_LABEL)[:, None]
            logarithms = torch.log_softmax(part @ cast.T, -1, dtype=exact)
            index = chunk_labels.clamp_min(0)[:, None]
            negative_ones = logarithms.new_full(index.shape, -1)
            loss -= logarithms.gather(1, index).masked_fill_(ignored, 0).sum()
            # The derivative by the scores: the probabilities, less one at the label.
            # Ignored tokens are masked in the narrower tensors below.
            slope = logarithms.exp_().scatter_add_(1, index, negative_ones)
            slope = slope.to(hidden.dtype)
            if hidden_gradient is not None:
                hidden_gradient[start : start + chunk_tokens] = (slope @ cast).masked_fill_(
                    ignored, 0
                )
            if weight_gradient is not None:
                met = part.masked_fill(ignored, 0)
                if exact == hidden.dtype:
                    weight_gradient.addmm_(slope.T, met)
                else:
                    weight_gradient += slope.T @ met
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(weight.dtype)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        # With an axis the factor keeps its precision; a scalar would be rounded.
        factor = gradients[0].reshape(1)
        hidden, weight = (
            None if saved is None else torch.mul(saved, factor, out=torch.empty_like(saved))
            for saved in ctx.saved_tensors
        )
        return hidden, weight, None, None
