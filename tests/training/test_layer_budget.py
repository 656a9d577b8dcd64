"""A decoder layer launches the kernels of its budget and moves the bytes of it, forward
and backward (docs/gpu.md), attention and norms aside: these are fused kernels on a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from railx.performance.decoder import ModelSettings
from training import attention, model
from training.model import Layer

TOKENS, HEADS = 24, 6
LLAMA = ModelSettings("budget", 2, 48, HEADS, 3, 160, 100)
HALF = torch.bfloat16


class Kernels(TorchDispatchMode):
    """Counts the operations that read or write memory, and their bytes by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        view = operation.is_view or name in ("_unsafe_view", "detach")
        if not view and not name.startswith(("empty", "new_empty")):
            kind = "product" if name == "mm" else "elementwise"
            self.launches[kind] += 1
            self.moved[kind] += sum(nbytes(part) for part in (*args, result))
        return result


def nbytes(part: Any) -> int:
    return part.numel() * part.element_size() if isinstance(part, Tensor) else 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """A pass of a layer forward and backward, without norms and attention."""
    monkeypatch.setattr(model, "Norm", lambda settings: nn.Identity())
    with torch.device("meta"):
        layer = Layer(LLAMA).to(HALF)
        hidden = torch.empty(TOKENS, LLAMA.hidden, dtype=HALF, requires_grad=True)
        rotation = (torch.empty(TOKENS, 1, LLAMA.head_width // 2, dtype=HALF),) * 2

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        # Without a kernel of its own, with a gradient for each.
        mixed: Tensor = Mixed.apply(queries, keys, values)  # type: ignore[no-untyped-call]
        return mixed

    with Kernels() as kernels:
        output = layer(0, hidden, rotation, attend)
        output.backward(torch.empty_like(output))
    return kernels


class Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        ctx.like = [torch.empty_like(part) for part in (queries, keys, values)]
        return torch.empty_like(queries)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(ctx.like)


def test_kernels_of_a_layer(counted: Kernels) -> None:
    # Each of seven products has two more backward. Elementwise, forward: four for each
    # rotation (queries, keys), two of the gate, two residuals. Backward: the rotations,
    # four of the gate, and five sums: of the gradients by the inputs of both norms
    # (queries, keys, values; gate, up), and of both residuals.
    assert counted.launches == {"product": 7 * 3, "elementwise": 8 + 2 + 2 + 8 + 4 + 5}


def test_bytes_of_a_layer(counted: Kernels) -> None:
    hidden, narrow, wide = LLAMA.hidden, LLAMA.kv_heads * LLAMA.head_width, LLAMA.feed_forward
    shapes = [(hidden, hidden)] * 2 + [(hidden, narrow)] * 2 + [(hidden, wide)] * 3
    # The operands of a product are the same three tensors forward and twice backward.
    product = sum(3 * (TOKENS * (a + b) + a * b) for a, b in shapes)
    assert counted.moved["product"] == product * HALF.itemsize
    # A rotation reads each half twice, writes it twice and reads it once to add to it,
    # and reads the angles; forward and backward, of queries and keys.
    rotation = sum(2 * (TOKENS * (2 + 2 + 1) * width) for width in (hidden, narrow))
    angles = 2 * 2 * 4 * TOKENS * LLAMA.head_width // 2
    # silu, its product; backward: product, gradient of silu, silu, product in place.
    gate = TOKENS * wide * ((2 + 3) + (3 + 3 + 2 + 3))
    sums = (2 + 5) * 3 * TOKENS * hidden
    elementwise = rotation + angles + gate + sums
    assert counted.moved["elementwise"] == elementwise * HALF.itemsize


def test_a_rotation_turns_pairs_and_its_gradient_turns_back() -> None:
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn(7, 3, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    angles = torch.randn(7, 1, 4, dtype=torch.float64, generator=generator)
    turned = model._rotate(heads, (angles.cos(), angles.sin()))
    pairs = torch.complex(*heads.detach().chunk(2, dim=-1)) * torch.polar(
        torch.ones_like(angles), angles
    )
    torch.testing.assert_close(turned, torch.cat((pairs.real, pairs.imag), dim=-1))
    (gradient,) = torch.autograd.grad(turned, heads, turned.detach())
    torch.testing.assert_close(gradient, heads.detach())


@pytest.mark.parametrize("part", [Layer.enter, Layer.leave])
def test_a_compiled_block_has_no_graph_break(part: Callable[..., Any]) -> None:
    layer = Layer(LLAMA).to(HALF)
    hidden = torch.zeros(TOKENS, LLAMA.hidden, dtype=HALF)
    rotation = (torch.ones(TOKENS, 1, LLAMA.head_width // 2, dtype=HALF),) * 2
    arguments = (hidden, rotation if part is Layer.enter else hidden)
    explained = torch._dynamo.explain(part)(layer, *arguments)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


@pytest.mark.parametrize(
    ("capability", "installed", "active"),
    [((9, 0), True, ["FA3"]), ((9, 0), False, []), ((8, 0), True, [])],
)
def test_flash_attention_3_is_used_on_hopper_where_it_is_installed(
    capability: tuple[int, int],
    installed: bool,
    active: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activated: list[str] = []
    monkeypatch.setattr(
        torch.nn.attention, "activate_flash_attention_impl", activated.append, raising=False
    )
    monkeypatch.setattr(attention, "find_spec", lambda name: object() if installed else None)
    attention._activate_flash_attention_3.__wrapped__(capability)
    assert activated == active
