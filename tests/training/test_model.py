"""The decoder: same weights however it is split, rotary positions, grouped heads,
precision, and the token loss.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from railx.workload.model import ModelSettings, parameter_count
from training.attention import Packing, variable_length_attention
from training.model import IGNORED_LABEL, Decoder, stage_layers, token_loss_sum

MODEL = ModelSettings(
    "test", layers=3, hidden=32, heads=4, kv_heads=2, feed_forward=48, vocabulary=50
)
TOKENS = torch.arange(14) * 3 % 50
POSITIONS = torch.cat((torch.arange(9), torch.arange(5)))
LENGTHS = Packing.whole((9, 5))


def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return variable_length_attention(queries, keys, values, LENGTHS)


def decoder(model: ModelSettings = MODEL, **options: object) -> Decoder:
    return Decoder(model, **{"seed": 1, "compute": torch.float64, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_as_many_as_the_arithmetic_says(tied: bool) -> None:
    model = replace(MODEL, tied_embeddings=tied)
    assert sum(parameter.numel() for parameter in decoder(model).parameters()) == parameter_count(
        model, 1
    )


@pytest.mark.parametrize("tied", [False, True])
def test_stages_in_a_row_are_the_whole_model(tied: bool) -> None:
    model = replace(MODEL, tied_embeddings=tied)
    whole = decoder(model)
    stages = [decoder(model, layers=held) for held in stage_layers(model.layers, 2)]
    assert [list(stage.held) for stage in stages] == [[0, 1], [2]]
    for stage in stages:
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, whole.get_parameter(name)), name
    middle = stages[0].transform(stages[0].embed(TOKENS), POSITIONS, attend)
    split = stages[1].logits(stages[1].transform(middle, POSITIONS, attend))
    assert torch.equal(split, whole(TOKENS, POSITIONS, attend))


def test_seeds_decide_the_weights() -> None:
    first, again, other = decoder(), decoder(), decoder(seed=2)
    assert torch.equal(first.embedding, again.embedding)
    assert not torch.equal(first.embedding, other.embedding)
    assert first.layers["0"].attention.queries.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_rotary_positions_are_relative() -> None:
    model = decoder()
    torch.testing.assert_close(
        model(TOKENS, POSITIONS, attend),
        model(TOKENS, POSITIONS + 1000, attend),
        rtol=1e-9,
        atol=1e-12,
    )
    assert not torch.allclose(
        model(TOKENS, POSITIONS, attend), model(TOKENS, POSITIONS * 2, attend)
    )


def test_a_token_does_not_see_later_tokens_nor_other_sequences() -> None:
    model = decoder()
    changed = TOKENS.clone()
    changed[4] = 49
    before, after = model(TOKENS, POSITIONS, attend), model(changed, POSITIONS, attend)
    differs = (before != after).any(dim=1)
    assert differs.tolist() == [False] * 4 + [True] * 5 + [False] * 5


def test_recomputed_layers_change_nothing() -> None:
    gradients = []
    for layers in (0, 2):
        model = decoder()
        model(TOKENS, POSITIONS, attend, layers).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, recomputed in zip(*gradients, strict=True):
        assert torch.equal(kept, recomputed)


def test_half_precision_computes_against_single_precision_parameters() -> None:
    model = decoder(compute=torch.bfloat16)
    logits = model(TOKENS, POSITIONS, attend)
    loss = token_loss_sum(logits, TOKENS)
    loss.backward()
    assert (logits.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )
    exact = token_loss_sum(decoder()(TOKENS, POSITIONS, attend), TOKENS)
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)


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


@given(layers=st.integers(1, 40), stages=st.integers(1, 40))
def test_stage_layers_cover_all_layers_evenly(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ValueError, match="at most one stage per layer"):
            stage_layers(layers, stages)
        return
    ranges = stage_layers(layers, stages)
    assert [layer for held in ranges for layer in held] == list(range(layers))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
