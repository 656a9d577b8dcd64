"""The decoder: same weights however it is split, rotary positions, grouped heads,
precision, and the token loss.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from railx.performance.decoder import ModelSettings, activation_bytes_per_token, parameter_count
from training.attention import Packing, variable_length_attention
from training.model import Decoder, _gated, _rms_norm, draw_parameter, stage_layers, token_loss_sum

MODEL = ModelSettings(
    "test", layers=3, hidden=32, heads=4, kv_heads=2, feed_forward=48, vocabulary=50
)
GPT = replace(
    MODEL, kv_heads=4, feed_forward_kind="gelu", positions="learned", biases=True, max_positions=9
)
TOKENS = torch.arange(14) * 3 % 50
POSITIONS = torch.cat((torch.arange(9), torch.arange(5)))
LENGTHS = Packing.without_context((9, 5))


def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return variable_length_attention(queries, keys, values, LENGTHS)


def decoder(model: ModelSettings = MODEL, **options: object) -> Decoder:
    return Decoder(model, **{"seed": 1, "compute": torch.float64, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_as_many_as_the_arithmetic_says(tied: bool) -> None:
    for model in (MODEL, GPT, replace(MODEL, biases=True), replace(GPT, biases=False)):
        model = replace(model, tied_embeddings=tied)
        assert sum(
            parameter.numel() for parameter in decoder(model).parameters()
        ) == parameter_count(model, model.max_positions)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", [MODEL, GPT])
def test_stages_in_a_row_are_the_whole_model(shape: ModelSettings, tied: bool) -> None:
    model = replace(shape, tied_embeddings=tied)
    whole = decoder(model)
    stages = [decoder(model, layers=held) for held in stage_layers(model.layers, 2)]
    assert [list(stage.layer_range) for stage in stages] == [[0, 1], [2]]
    for stage in stages:
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter, whole.get_parameter(name)), name
    middle = stages[0].transform(stages[0].embed(TOKENS, POSITIONS), POSITIONS, attend)
    split = stages[1].logits(stages[1].transform(middle, POSITIONS, attend))
    assert torch.equal(split, whole(TOKENS, POSITIONS, attend))


def gpt_by_hand(model: Decoder, tokens: Tensor, positions: Tensor) -> Tensor:
    """The published GPT block of one sequence, written with torch's own layers."""

    def normed(hidden: Tensor, norm: str) -> Tensor:
        weight, bias = (model.get_parameter(f"{norm}.{part}") for part in ("weight", "bias"))
        return functional.layer_norm(hidden, (model.hidden,), weight, bias, 1e-5)

    def product(hidden: Tensor, linear: str) -> Tensor:
        weight, bias = (model.get_parameter(f"{linear}.{part}") for part in ("weight", "bias"))
        return hidden @ weight.T + bias

    hidden = model.get_parameter("embedding.weight")[tokens]
    hidden = hidden + model.get_parameter("embedding.positions")[positions]
    for layer in range(len(model.layers)):
        name = f"layers.{layer}"
        entering = normed(hidden, f"{name}.attention_norm")
        queries, keys, values = (
            product(entering, f"{name}.attention.{part}").view(len(tokens), 4, 8).transpose(0, 1)
            for part in ("queries", "keys", "values")
        )
        scores = queries @ keys.mT / 8**0.5
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ values
        hidden = hidden + product(mixed.transpose(0, 1).flatten(1), f"{name}.attention.output")
        wide = product(normed(hidden, f"{name}.feed_forward_norm"), f"{name}.feed_forward.up")
        wide = 0.5 * wide * (1 + torch.tanh((2 / math.pi) ** 0.5 * (wide + 0.044715 * wide**3)))
        hidden = hidden + product(wide, f"{name}.feed_forward.down")
    return normed(hidden, "head.norm") @ model.get_parameter("head.weight").T


def test_a_gpt_shape_is_the_published_block() -> None:
    model = decoder(GPT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    parts = [
        gpt_by_hand(model, TOKENS[part], POSITIONS[part]) for part in (slice(0, 9), slice(9, 14))
    ]
    torch.testing.assert_close(
        model(TOKENS, POSITIONS, attend), torch.cat(parts), rtol=1e-10, atol=1e-12
    )


def test_units_hold_every_parameter_in_the_order_of_use() -> None:
    whole = decoder()
    assert [name for name, _ in whole.units()] == [
        "embedding",
        "layers.0",
        "layers.1",
        "layers.2",
        "head",
    ]
    named = [
        f"{unit}.{name}" for unit, module in whole.units() for name, _ in module.named_parameters()
    ]
    assert named == [name for name, _ in whole.named_parameters()]
    tied = decoder(replace(MODEL, tied_embeddings=True)).units()
    assert tied[0] == tied[-1]
    middle = decoder(layers=range(1, 2))
    assert [name for name, _ in middle.units()] == ["layers.1"]


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_only_used_by_calls_of_their_unit(tied: bool) -> None:
    """What a hook before a unit's call puts in place is what the unit computes with."""
    shape = replace(MODEL, tied_embeddings=tied)
    kept, hidden = decoder(shape), decoder(shape)
    weights = {name: parameter.detach().clone() for name, parameter in hidden.named_parameters()}
    calls: list[str] = []

    def gather(unit: str, module: nn.Module, parameters: bool) -> None:
        for name, parameter in module.named_parameters():
            parameter.data.copy_(weights[f"{unit}.{name}"] if parameters else torch.nan)

    for unit, module in dict(hidden.units()).items():
        gather(unit, module, False)
        module.register_forward_pre_hook(
            lambda module, _, unit=unit: (
                (calls.append(unit), gather(unit, module, True))[:0] or None
            )
        )
        module.register_forward_hook(lambda module, *_, unit=unit: gather(unit, module, False))
    losses = [
        model.loss(model.transform(model.embed(TOKENS, POSITIONS), POSITIONS, attend), TOKENS)
        for model in (kept, hidden)
    ]
    assert torch.equal(*losses)
    assert calls == [name for name, _ in hidden.units()]


def test_a_decoder_on_the_meta_device_gets_its_weights_part_by_part() -> None:
    model, whole = decoder(GPT, device="meta"), decoder(GPT)
    assert all(parameter.is_meta for parameter in model.parameters())
    for name, parameter in model.named_parameters():
        parts = [
            draw_parameter(name, parameter.shape, 1, GPT.layers, range(start, start + 1))
            for start in range(len(parameter))
        ]
        assert torch.equal(torch.cat(parts).to(torch.float64), whole.get_parameter(name)), name


@given(start=st.integers(0, 200), rows=st.integers(0, 200))
def test_rows_are_drawn_alike_in_any_parts(start: int, rows: int) -> None:
    shape = (200, 3)
    part = range(start, min(start + rows, 200))
    whole = draw_parameter("layers.1.attention.output.weight", shape, 7, 4)
    drawn = draw_parameter("layers.1.attention.output.weight", shape, 7, 4, part)
    assert torch.equal(drawn, whole[part.start : part.stop])


def test_weights_have_their_deviation_and_no_pattern() -> None:
    plain = draw_parameter("layers.0.feed_forward.up.weight", (512, 100), 1, 8)
    residual = draw_parameter("layers.0.feed_forward.down.weight", (512, 100), 1, 8)
    assert plain.std().item() == pytest.approx(0.02, rel=0.02)
    assert residual.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert plain.mean().item() == pytest.approx(0, abs=5e-4)
    assert len(plain.unique()) > 0.99 * plain.numel()
    assert draw_parameter("head.norm.weight", (4,), 1, 8).tolist() == [1.0] * 4
    assert draw_parameter("head.norm.bias", (4,), 1, 8).tolist() == [0.0] * 4


def test_seeds_decide_the_weights() -> None:
    first, again, other = decoder(), decoder(), decoder(seed=2)
    assert torch.equal(first.embedding.weight, again.embedding.weight)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
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


@pytest.mark.parametrize("shape", [MODEL, pytest.param(GPT, marks=pytest.mark.slow)])
def test_compiled_layers_compute_the_same_and_share_what_is_compiled(shape: ModelSettings) -> None:
    """Lengths and recomputation change from step to step; nothing breaks the graph."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    plain, compiled = decoder(shape), decoder(shape)
    compiled.compile_layers(backend=counter)
    for lengths, checkpoint_layers in (((9, 5), 0), ((7,), 2)):
        packing = Packing.without_context(lengths)
        tokens = torch.arange(sum(lengths)) * 3 % 50
        positions = torch.cat([torch.arange(length) for length in lengths])
        losses = []
        for model in (plain, compiled):
            hidden = model.transform(
                model.embed(tokens, positions),
                positions,
                lambda _, *heads, packing=packing: variable_length_attention(*heads, packing),
                checkpoint_layers,
            )
            losses.append(model.loss(hidden, tokens))
            losses[-1].backward()
        torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    graphs = [graph for graph in counter.graphs if any(graph.graph.find_nodes(op="placeholder"))]
    assert len(graphs) == 2, "before and after attention, whatever the layer"


@pytest.mark.parametrize("shape", [MODEL, GPT])
def test_layers_keep_what_the_arithmetic_says(shape: ModelSettings) -> None:
    """Bytes kept for the backward pass, logarithms of attention's sums and rotations
    aside.
    """
    model, tokens = decoder(shape), 9
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    positions = torch.arange(tokens)
    hidden = model.embed(positions, positions)
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights and tensor.shape[-1] > 4:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.transform(
            hidden,
            positions,
            lambda _, *heads: variable_length_attention(*heads, Packing.without_context((tokens,))),
        )
    # Attention's sums have as many elements as tokens in the last axis.
    sums = shape.layers * shape.heads * tokens * 8
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) - sums
    assert measured == tokens * activation_bytes_per_token(shape, 8)


def test_the_lean_norm_and_gate_have_the_gradients_of_the_plain_ones() -> None:
    generator = torch.Generator().manual_seed(4)
    one, two, weight = (
        torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in ((5, 8), (5, 8), (8,))
    )
    assert torch.autograd.gradcheck(lambda x, w: _rms_norm(x, w, 1e-5), (one, weight))
    assert torch.autograd.gradcheck(_gated, (one, two))
    torch.testing.assert_close(
        _rms_norm(one, weight, 1e-5), one / (one.square().mean(-1, True) + 1e-5).sqrt() * weight
    )


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


@given(layers=st.integers(1, 40), stages=st.integers(1, 40))
def test_stage_layers_cover_all_layers_evenly(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ValueError, match="at most one stage per layer"):
            stage_layers(layers, stages)
        return
    ranges = stage_layers(layers, stages)
    assert [layer for held in ranges for layer in held] == list(range(layers))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
