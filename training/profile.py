"""Measure a decoder layer on the device at hand: ``python -m training.profile --config
resolved.json --out points.json``.

Notable:

* one process computes the work of a rank of a Ulysses group: its share of the tokens
  outside attention, all tokens and its share of the heads inside. Tensors are
  rearranged as for the exchange, but not sent;
* a slice attends to the keys and values of its context, whose gradients the backward
  pass computes, as between the chunks of a pipeline;
* times are the device's (CUDA events), CPU time of one thread, or wall time of several;
  memory is counted in separate passes, beyond the layers, their gradients and the
  inputs;
* saved bytes are per layer; the peak is that of all layers together;
* exchanges of a layer, forward and backward, are measured by separate processes, one
  per rank of the group, in wall time of the slowest rank.

Needs torch and numpy. Invalid settings end it with one line and exit code 2.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from railx.errors import UserError, unwound_by_sigterm
from railx.io import read_json, write_json
from railx.performance.layer_profile import Point, ProfileSettings, layer_points
from railx.places import check_writable
from railx.progress import publish
from railx.settings import SettingsError, load, to_dict
from training.allocations import allocations
from training.attention import Kernel, Packing, choose_kernel, variable_length_attention
from training.model import PRECISIONS, Attend, Decoder, device_type
from training.ranks import UNUSABLE
from training.sequence_parallel import head_copies


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.profile", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="resolved settings, one object")
    parser.add_argument("--out", type=Path, required=True, help="the rows to write (.json)")
    options = parser.parse_args(arguments)
    try:
        check_writable(options.out, options.out.parent)
        settings: ProfileSettings = load(ProfileSettings, read_json(options.config), "profile")
        with unwound_by_sigterm():
            rows = measure(settings)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    except torch.OutOfMemoryError as error:
        said = str(error).splitlines()[0]
        print(f"error: profile.lengths: too long for the device: {said}", file=sys.stderr)
        return UNUSABLE
    write_json(options.out, rows)
    return 0


def measure(settings: ProfileSettings) -> list[dict[str, Any]]:
    """A row for each point; SettingsError: the device or the kernel is missing."""
    device = _device(settings)
    _check_exchanges(settings, device)
    compute = PRECISIONS[settings.precision]
    head_size = settings.model.head_width
    kernel = choose_kernel(settings.attention, device, compute, head_size, "profile.attention")
    torch.set_num_threads(settings.threads)
    setup = {
        "model": settings.model.name,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {settings.threads} thread(s)",
        "dtype": settings.precision,
        "torch": torch.__version__,
        "attention": kernel,
        "compiled": settings.compile,
    }
    measurement = {
        "clock": _clock_name(settings, device),
        "repeats": settings.repeats,
        "fidelity": "measured_gpu" if device.type == "cuda" else "measured_cpu",
    }
    points, rows = layer_points(settings), []
    for part in ("layer", "ends"):
        decoder = _decoder(settings, part, device, compute)
        selected = [point for point in points if point.part == part]
        for point in selected:
            rows.append(
                setup | vars(point) | _measured(settings, decoder, point, kernel) | measurement
            )
            _tell(len(rows), len(points))
        del decoder
    for point, times in _exchanged(settings, points, device):
        rows.append(setup | vars(point) | times | measurement | {"clock": "wall_time"})
        _tell(len(rows), len(points))
    return rows


def _tell(done: int, points: int) -> None:
    publish("points", done, points)
    print(f"profile: {done} of {points} points", file=sys.stderr, flush=True)


def _device(settings: ProfileSettings) -> torch.device:
    if device_type(settings.device, "profile.device") == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _decoder(
    settings: ProfileSettings, part: str, device: torch.device, compute: torch.dtype
) -> Decoder:
    """Middle layers of the model, or none, in the precision of the activations."""
    count = settings.layers if part == "layer" else 0
    layer_range = range(1, count + 1) if count else range(0)
    model = replace(settings.model, layers=count + 2 if count else 0)
    decoder = Decoder(model, seed=1, compute=compute, layers=layer_range, device=device).to(compute)
    if settings.compile and count:
        decoder.compile_layers()
    return decoder


class _Passes:
    """Repeated forward and backward passes of a point on the same inputs."""

    def __init__(
        self, settings: ProfileSettings, decoder: Decoder, point: Point, kernel: Kernel
    ) -> None:
        model, self.decoder, self.point = settings.model, decoder, point
        compute = PRECISIONS[settings.precision]
        device = next(decoder.parameters()).device
        rank_tokens = point.tokens // point.degree
        self.positions = torch.arange(point.context, point.context + rank_tokens, device=device)
        options: dict[str, Any] = {"dtype": compute, "device": device}
        generator = torch.Generator(device).manual_seed(1)
        self.checkpointed = settings.layers if point.checkpointed else 0
        self.inputs: list[Tensor] = []
        if point.part == "ends":
            self.tokens = torch.randint(
                model.vocabulary, (rank_tokens,), generator=generator, device=device
            )
            return
        self.hidden = torch.randn(rank_tokens, model.hidden, generator=generator, **options)
        self.slopes = torch.randn(rank_tokens, model.hidden, generator=generator, **options)
        heads = model.kv_heads * head_copies(model.kv_heads, point.degree) // point.degree
        shape = (point.context, heads, model.head_width)
        self.context = [
            tuple(torch.randn(shape, generator=generator, **options) for _ in range(2))
            for _ in range(settings.layers if point.context else 0)
        ]
        self.inputs = [self.hidden, *(tensor for pair in self.context for tensor in pair)]
        for tensor in self.inputs:
            tensor.requires_grad_()
        packing = Packing((point.tokens,), (point.context + point.tokens,))
        self.attend = _group_attention(point.degree, self.context, packing, kernel)

    def forget(self) -> None:
        """Drop the gradients of the inputs; those of the weights stay."""
        for tensor in self.inputs:
            tensor.grad = None

    def forward(self) -> Tensor:
        if self.point.part == "ends":
            return self.decoder.loss(
                self.decoder.embed(self.tokens, self.positions - self.point.context), self.tokens
            )
        return self.decoder.transform(self.hidden, self.positions, self.attend, self.checkpointed)

    def backward(self, output: Tensor) -> None:
        output.backward(None if self.point.part == "ends" else self.slopes)  # type: ignore[no-untyped-call]


def _group_attention(
    degree: int, context: Sequence[tuple[Tensor, ...]], packing: Packing, kernel: Kernel
) -> Attend:
    """Attention of one rank of a group: its share of the heads of all tokens."""

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rank_tokens, heads, size = queries.shape
        if degree > 1:
            copies = head_copies(keys.shape[1], degree)
            keys, values = (part.repeat_interleave(copies, dim=1) for part in (keys, values))
            parts = [
                part.reshape(rank_tokens, degree, -1, size) for part in (queries, keys, values)
            ]
            widths = [part.shape[2] for part in parts]
            # The result of the exchange: this rank's heads of all tokens.
            gathered = torch.cat(parts, dim=2).transpose(0, 1).flatten(0, 1)
            queries, keys, values = torch.split(gathered, widths, dim=1)
        if context:
            earlier = context[layer - 1]
            keys = torch.cat((earlier[0], keys))
            values = torch.cat((earlier[1], values))
        mixed = variable_length_attention(queries, keys, values, packing, kernel)
        if degree == 1:
            return mixed
        return (
            mixed.view(degree, rank_tokens, -1, size)
            .transpose(0, 1)
            .reshape(rank_tokens, heads, size)
        )

    return attend


def _measured(
    settings: ProfileSettings, decoder: Decoder, point: Point, kernel: Kernel
) -> dict[str, Any]:
    passes = _Passes(settings, decoder, point, kernel)
    device = next(decoder.parameters()).device
    layers = settings.layers if point.part == "layer" else 1
    for _ in range(settings.warmups):
        passes.forget()
        passes.backward(passes.forward())
    clock = _clock(settings, device)
    times = []
    for _ in range(settings.repeats):
        passes.forget()
        times.append(clock(passes))
    passes.forget()
    with allocations(device) as forward:
        output = passes.forward()
    with allocations(device) as backward:
        passes.backward(output)
        del output
        # The gradient of the input belongs to the layer below.
        if passes.inputs:
            passes.inputs[0].grad = None
    saved_bytes = forward.left_bytes
    return {
        "forward_ms": median(forward_ms for forward_ms, _ in times) / layers,
        "backward_ms": median(backward_ms for _, backward_ms in times) / layers,
        "kept_bytes": max(saved_bytes, 0) // layers,
        "left_bytes": max(saved_bytes + backward.left_bytes, 0) // layers,
        "peak_bytes": max(forward.peak_bytes, saved_bytes + backward.peak_bytes),
        "exchanged_bytes": 0,
    }


def _check_exchanges(settings: ProfileSettings, device: torch.device) -> None:
    """Refuse more ranks than GPUs with NCCL."""
    if device.type == "cuda" and settings.exchange_degrees:
        most, there = max(settings.exchange_degrees), torch.cuda.device_count()
        if most > there:
            raise SettingsError(
                "profile.exchange_degrees",
                f"got {most}; allowed: at most {there}, the GPUs of this machine",
            )


def _exchanged(
    settings: ProfileSettings, points: Sequence[Point], device: torch.device
) -> Iterator[tuple[Point, dict[str, Any]]]:
    for degree in settings.exchange_degrees:
        selected = [p for p in points if p.part == "all_to_all" and p.degree == degree]
        with tempfile.TemporaryDirectory(prefix="railx-") as folder:
            lengths = [point.tokens for point in selected]
            arguments = (degree, to_dict(settings), lengths, device.type, folder)
            processes: Any = mp
            processes.start_processes(
                _exchange, arguments, nprocs=degree, start_method="spawn", daemon=True
            )
            times = read_json(Path(folder, "times.json"))
        yield from zip(selected, times, strict=True)


def _exchange(
    rank: int, ranks: int, plain: Mapping[str, Any], lengths: list[int], kind: str, folder: str
) -> None:
    """Run one rank of a group; rank 0 writes the exchange times of a layer."""
    settings: ProfileSettings = load(ProfileSettings, plain, "profile")
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    distributed: Any = dist
    store = distributed.FileStore(str(Path(folder, "store")), ranks)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=ranks
    )
    try:
        rows = [_exchange_times(settings, tokens // ranks, ranks, kind) for tokens in lengths]
        if rank == 0:
            write_json(Path(folder, "times.json"), rows)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _exchange_times(
    settings: ProfileSettings, rank_tokens: int, ranks: int, kind: str
) -> dict[str, Any]:
    """Exchange times of queries, keys and values and of the output, in both passes."""
    model, compute = settings.model, PRECISIONS[settings.precision]
    narrow = model.kv_heads * model.head_width
    widths = (model.hidden + 2 * narrow, model.hidden)
    sent = [
        torch.zeros(ranks, max(rank_tokens * width // ranks, 1), dtype=compute, device=kind)
        for width in widths
    ]
    received = [torch.empty_like(part) for part in sent]

    def timed() -> float:
        dist.barrier()
        start = time.perf_counter_ns()
        for out, part in zip(received, sent, strict=True):
            dist.all_to_all_single(out, part)
        if kind == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / 1e6

    for _ in range(settings.warmups):
        timed()
    passes = torch.tensor(
        [[timed() for _ in range(settings.repeats)] for _ in range(2)], device=kind
    )
    dist.all_reduce(passes, dist.ReduceOp.MAX)
    forward_ms, backward_ms = passes.median(dim=1).values.tolist()
    # Queries, outputs, keys and values, forward and backward, as planners count.
    moved = 4 * compute.itemsize * rank_tokens * (model.hidden + narrow)
    return {
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        **dict.fromkeys(("kept_bytes", "left_bytes", "peak_bytes"), 0),
        "exchanged_bytes": moved,
    }


def _clock_name(settings: ProfileSettings, device: torch.device) -> str:
    if device.type == "cuda":
        return "cuda_events"
    return "cpu_time" if settings.threads == 1 else "wall_time"


def _clock(
    settings: ProfileSettings, device: torch.device
) -> Callable[[_Passes], tuple[float, float]]:
    """Times a forward and a backward pass, in ms."""
    if device.type == "cuda":
        return _by_events
    now = time.process_time_ns if settings.threads == 1 else time.perf_counter_ns

    def timed(passes: _Passes) -> tuple[float, float]:
        start = now()
        output = passes.forward()
        between = now()
        passes.backward(output)
        return (between - start) / 1e6, (now() - between) / 1e6

    return timed


def _by_events(passes: _Passes) -> tuple[float, float]:
    cuda: Any = torch.cuda
    start, between, end = (cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    output = passes.forward()
    between.record()
    passes.backward(output)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(between)), float(between.elapsed_time(end))


if __name__ == "__main__":
    sys.exit(main())
