"""What only a CUDA device can show; skipped where there is none.

Needs torch, numpy, pyarrow and pytest alone: scripts/gpu takes this file to machines
that have no more (`pytest tests/training -m gpu`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from railx.performance.decoder import ModelSettings
from railx.performance.layer_profile import ProfileSettings
from railx_torch import backend
from railx_torch.trace import Recorder
from training.allocations import allocations
from training.attention import Packing, choose_kernel, variable_length_attention
from training.profile import measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

_cuda: Any = torch.cuda
#: Cycles that take some tens of milliseconds at less than 2 GHz.
_LONG = 60_000_000


def drawn(packing: Packing, heads: int, kv_heads: int, head_size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(tokens, count, head_size, dtype=torch.float64, generator=generator)
        for tokens, count in (
            (sum(packing.queries), heads),
            (sum(packing.keys), kv_heads),
            (sum(packing.keys), kv_heads),
        )
    ]


def textbook(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing) -> Tensor:
    mixed, at, behind = [], 0, 0
    for asked, seen in zip(packing.queries, packing.keys, strict=True):
        query = queries[at : at + asked]
        key, value = (
            part[behind : behind + seen].repeat_interleave(queries.shape[1] // keys.shape[1], 1)
            for part in (keys, values)
        )
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        hidden = torch.ones(asked, seen, dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(hidden.triu(seen - asked + 1), float("-inf"))
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
        at, behind = at + asked, behind + seen
    return torch.cat(mixed)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("head_size", [16, 64, 128])
def test_kernels_on_the_device_equal_the_textbook(precision: torch.dtype, head_size: int) -> None:
    packing = Packing((130, 64, 1, 7), (390, 64, 1, 300))
    low = [
        tensor.to("cuda", precision).requires_grad_() for tensor in drawn(packing, 8, 4, head_size)
    ]
    # Both sides begin with numbers that the kernel's precision can hold.
    exact = [tensor.detach().double().requires_grad_() for tensor in low]
    auto = choose_kernel("auto", torch.device("cuda"), precision, head_size)
    theirs = textbook(*exact, packing)
    expected = [theirs, *torch.autograd.grad(theirs.square().sum(), exact)]
    error = {torch.bfloat16: 5e-2, torch.float32: 1e-4, torch.float64: 1e-10}[precision]
    for kernel in {auto, "blocks"}:
        mixed = variable_length_attention(*low, packing, kernel)  # type: ignore[arg-type]
        outcome = [mixed, *torch.autograd.grad(mixed.to(torch.float64).square().sum(), low)]
        for ours, reference in zip(outcome, expected, strict=True):
            torch.testing.assert_close(ours.double(), reference, rtol=error, atol=error)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32, torch.float64])
def test_memory_on_the_device_grows_with_the_tokens(precision: torch.dtype) -> None:
    peaks = []
    for tokens in (4096, 8192):
        packing = Packing((tokens, tokens), (2 * tokens, tokens))
        tensors = [
            tensor.to("cuda", precision).requires_grad_() for tensor in drawn(packing, 4, 2, 64)
        ]
        kernel = choose_kernel("auto", torch.device("cuda"), precision, 64)
        with allocations(torch.device("cuda")) as counted:
            variable_length_attention(*tensors, packing, kernel).sum().backward()
        peaks.append(counted.peak_bytes)
    assert peaks[1] < 2.5 * peaks[0]


def test_what_was_allocated_is_counted_to_the_block() -> None:
    with allocations(torch.device("cuda")) as counted:
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        del kept
        kept = torch.empty(1 << 21, dtype=torch.uint8, device="cuda")
    assert counted.left_bytes == kept.nbytes == 1 << 21
    assert counted.peak_bytes == 1 << 21


@pytest.fixture(params=["nccl", "gloo"])
def inner(request: pytest.FixtureRequest) -> Iterator[str]:
    """One rank over railx without switching, on either inner backend."""
    name: Any = request.param
    backend.configure(
        backend.BackendOptions(name, None, "electrical", 1), Recorder(0, device="cuda")
    )
    dist.init_process_group("railx", store=dist.HashStore(), rank=0, world_size=1)
    yield name
    dist.destroy_process_group()


def test_an_operation_stands_behind_what_the_stream_does(inner: str) -> None:
    tensor = torch.zeros(1 << 20, device="cuda")
    _cuda._sleep(_LONG)
    tensor.fill_(1)
    given = torch.empty(1 << 20, device="cuda")
    dist.all_gather_into_tensor(given, tensor, async_op=True).wait()
    # The host is ahead: nothing has run yet, and the next line waits on the device.
    assert int(given.sum()) == 1 << 20


def test_an_input_that_nobody_keeps_stays_until_it_is_sent(inner: str) -> None:
    size = 1 << 20
    for number in range(50):
        given = torch.full((size,), float(number), device="cuda")
        gathered = torch.empty(size, device="cuda")
        _cuda._sleep(100_000)
        handle = dist.all_gather_into_tensor(gathered, given, async_op=True)
        del given
        torch.full((size,), -5.0, device="cuda")
        handle.wait()
        assert gathered[-1].item() == number


def test_waiting_leaves_the_host_ahead_over_nccl() -> None:
    options: Any = backend.BackendOptions
    backend.configure(options("nccl", None, "electrical", 1), Recorder(0, device="cuda"))
    dist.init_process_group("railx", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = torch.ones(1 << 10, device="cuda")
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        _cuda._sleep(_LONG)
        dist.all_reduce(tensor, async_op=True).wait()
        behind = _cuda.Event()
        behind.record()
        assert not behind.query()
        torch.cuda.synchronize()
        assert behind.query()
    finally:
        dist.destroy_process_group()


def test_a_barrier_over_nccl_blocks_the_host() -> None:
    options: Any = backend.BackendOptions
    backend.configure(options("nccl", None, "electrical", 1), Recorder(0, device="cuda"))
    dist.init_process_group("railx", store=dist.HashStore(), rank=0, world_size=1)
    try:
        _cuda._sleep(_LONG)
        behind = _cuda.Event()
        behind.record()
        dist.barrier(device_ids=[0])
        assert behind.query()
    finally:
        dist.destroy_process_group()


def test_spans_on_the_device_take_its_time() -> None:
    recorder = Recorder(0, device="cuda")
    recorder.begin_iteration(0)
    with recorder.span("forward"):
        _cuda._sleep(_LONG)
    begin_ns = time.monotonic_ns()
    recorder.end_iteration()
    (span,) = (row for row in recorder.table().to_pylist() if row["kind"] == "forward")
    # The host had gone on long before.
    assert span["end_ns"] - span["start_ns"] > 10e6
    assert span["end_ns"] > begin_ns


def test_a_profile_of_a_layer_takes_the_devices_time_and_memory(tmp_path: Path) -> None:
    model = ModelSettings("small", 2, 256, 4, 2, 512, 300)
    rows = measure(
        ProfileSettings(
            model, "cuda", "bfloat16", "auto", False, 1, 1, (512, 1024, 2048), (1, 2), (0, 512),
            (False, True), 1, 2,
        )
    )  # fmt: skip
    assert {row["fidelity"] for row in rows} == {"measured_gpu"}
    assert {row["clock"] for row in rows} == {"cuda_events"}
    assert all(row["forward_ms"] > 0 and row["peak_bytes"] > 0 for row in rows)
    layers = [row for row in rows if row["part"] == "layer" and row["degree"] == 1]
    for row in (one for one in layers if one["checkpointed"]):
        (plain,) = (
            one
            for one in layers
            if not one["checkpointed"]
            and (one["tokens"], one["context"]) == (row["tokens"], row["context"])
        )
        assert row["kept_bytes"] < plain["kept_bytes"]
