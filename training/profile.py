"""Measure a decoder layer on the device at hand: ``python -m training.profile --config
resolved.json --out points.json``.

Notable:

* one process computes what a rank of a Ulysses group computes: its share of the tokens
  outside attention, all tokens and its share of the heads inside. What the group would
  exchange is rearranged as for the exchange, and not sent;
* a slice attends to the keys and values of its context, whose gradients the backward
  pass leaves, as between the chunks of a pipeline;
* times are the device's (CUDA events), CPU time of one thread, or wall time of several;
  memory is counted in passes of their own, beyond what was there before: the layers,
  their gradients and the inputs;
* what the layers keep is per layer; the peak is that of the layers together;
* exchanges are measured by processes of their own, one for each rank of the group:
  what a layer exchanges forward and backward, in wall time, of the slowest rank.

Needs torch and numpy. What cannot be measured ends it with one line and exit code 2.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from railx.errors import UserError
from railx.io import read_json, write_json
from railx.progress import publish
from railx.settings import SettingsError, load, to_dict
from railx.workload.profile import Point, ProfileSettings, layer_points
from training.allocations import allocations
from training.attention import Kernel, Packing, choose_kernel, variable_length_attention
from training.model import Attend, Decoder

__all__ = ["PRECISIONS", "main", "measure"]

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

_UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.profile", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="resolved settings, one object")
    parser.add_argument("--out", type=Path, required=True, help="the rows to write (.json)")
    options = parser.parse_args(arguments)
    try:
        settings: ProfileSettings = load(ProfileSettings, read_json(options.config), "profile")
        rows = measure(settings)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _UNUSABLE
    except torch.OutOfMemoryError as error:
        said = str(error).splitlines()[0]
        print(f"error: profile.lengths: too long for the device: {said}", file=sys.stderr)
        return _UNUSABLE
    write_json(options.out, rows)
    return 0


def measure(settings: ProfileSettings) -> list[dict[str, Any]]:
    """A row for each point of the profile.

    SettingsError where the device or the kernel is not there.
    """
    device = _device(settings)
    _check_exchanges(settings, device)
    compute = PRECISIONS[settings.precision]
    try:
        kernel = choose_kernel(settings.attention, device, compute, settings.model.head_width)
    except UserError as error:
        raise SettingsError("profile.attention", str(error)) from None
    torch.set_num_threads(settings.threads)
    said = {
        "model": settings.model.name,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()} CPU, {settings.threads} thread(s)",
        "dtype": settings.precision,
        "torch": torch.__version__,
        "attention": kernel,
        "compiled": settings.compile,
    }
    found = {
        "clock": _clock_name(settings, device),
        "repeats": settings.repeats,
        "fidelity": "measured_gpu" if device.type == "cuda" else "measured_cpu",
    }
    points, rows = layer_points(settings), []
    for part in ("layer", "ends"):
        decoder = _decoder(settings, part, device, compute)
        own = [point for point in points if point.part == part]
        for point in own:
            rows.append(said | vars(point) | _measured(settings, decoder, point, kernel) | found)
            _tell(len(rows), len(points))
        del decoder
    for point, times in _exchanged(settings, points, device):
        rows.append(said | vars(point) | times | found | {"clock": "wall_time"})
        _tell(len(rows), len(points))
    return rows


def _tell(done: int, points: int) -> None:
    publish("points", done, points)
    print(f"profile: {done} of {points} points", file=sys.stderr, flush=True)


def _device(settings: ProfileSettings) -> torch.device:
    if settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SettingsError(
            "profile.device", "got cuda, but no CUDA device is there; allowed here: auto, cpu"
        )
    return torch.device("cuda", torch.cuda.current_device())


def _decoder(
    settings: ProfileSettings, part: str, device: torch.device, compute: torch.dtype
) -> Decoder:
    """Layers from the middle of the model, or a model without layers.

    Its weights have the precision of the activations.
    """
    count = settings.layers if part == "layer" else 0
    held = range(1, count + 1) if count else range(0)
    model = replace(settings.model, layers=count + 2 if count else 0)
    decoder = Decoder(model, seed=1, compute=compute, layers=held, device=device).to(compute)
    if settings.compile and count:
        decoder.compile_layers()
    return decoder


class _Passes:
    """A forward and a backward pass of a point, again and again on the same inputs."""

    def __init__(
        self, settings: ProfileSettings, decoder: Decoder, point: Point, kernel: Kernel
    ) -> None:
        model, self.decoder, self.point = settings.model, decoder, point
        compute = PRECISIONS[settings.precision]
        device = next(decoder.parameters()).device
        own = point.tokens // point.degree
        self.positions = torch.arange(point.context, point.context + own, device=device)
        options: dict[str, Any] = {"dtype": compute, "device": device}
        generator = torch.Generator(device).manual_seed(1)
        self.checkpointed = settings.layers if point.checkpointed else 0
        self.inputs: list[Tensor] = []
        if point.part == "ends":
            self.tokens = torch.randint(
                model.vocabulary, (own,), generator=generator, device=device
            )
            return
        self.hidden = torch.randn(own, model.hidden, generator=generator, **options)
        self.slopes = torch.randn(own, model.hidden, generator=generator, **options)
        heads = model.kv_heads * _copies(model.kv_heads, point.degree) // point.degree
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
        own, heads, size = queries.shape
        if degree > 1:
            copies = _copies(keys.shape[1], degree)
            keys, values = (part.repeat_interleave(copies, dim=1) for part in (keys, values))
            parts = [part.reshape(own, degree, -1, size) for part in (queries, keys, values)]
            widths = [part.shape[2] for part in parts]
            # What the exchange gives: the rank's own heads of every rank's tokens.
            mine = torch.cat(parts, dim=2).transpose(0, 1).flatten(0, 1)
            queries, keys, values = torch.split(mine, widths, dim=1)
        if context:
            earlier = context[layer - 1]
            keys = torch.cat((earlier[0], keys))
            values = torch.cat((earlier[1], values))
        mixed = variable_length_attention(queries, keys, values, packing, kernel)
        if degree == 1:
            return mixed
        return mixed.view(degree, own, -1, size).transpose(0, 1).reshape(own, heads, size)

    return attend


def _copies(kv_heads: int, degree: int) -> int:
    """Copies of each key-value head, so that every rank has whole ones."""
    return degree // gcd(degree, kv_heads)


def _measured(
    settings: ProfileSettings, decoder: Decoder, point: Point, kernel: Kernel
) -> dict[str, Any]:
    """Medians of times per layer, and memory."""
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
        # Gradients of the input go on to the layer below.
        if passes.inputs:
            passes.inputs[0].grad = None
    kept = forward.left_bytes
    return {
        "forward_ms": median(forward_ms for forward_ms, _ in times) / layers,
        "backward_ms": median(backward_ms for _, backward_ms in times) / layers,
        "kept_bytes": max(kept, 0) // layers,
        "left_bytes": max(kept + backward.left_bytes, 0) // layers,
        "peak_bytes": max(forward.peak_bytes, kept + backward.peak_bytes),
        "exchanged_bytes": 0,
    }


def _check_exchanges(settings: ProfileSettings, device: torch.device) -> None:
    """NCCL wants a GPU for each rank."""
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
    """Times of the exchanges, in the order of their points."""
    for degree in settings.exchange_degrees:
        own = [p for p in points if p.part == "all_to_all" and p.degree == degree]
        with tempfile.TemporaryDirectory(prefix="railx-") as folder:
            arguments = (degree, to_dict(settings), [p.tokens for p in own], device.type, folder)
            processes: Any = mp
            processes.start_processes(_exchange, arguments, nprocs=degree, start_method="spawn")
            times = read_json(Path(folder, "times.json"))
        yield from zip(own, times, strict=True)


def _exchange(
    rank: int, ranks: int, plain: Mapping[str, Any], lengths: list[int], kind: str, folder: str
) -> None:
    """One rank of a group: medians of what a layer exchanges, of the slowest rank."""
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


def _exchange_times(settings: ProfileSettings, own: int, ranks: int, kind: str) -> dict[str, Any]:
    """Queries, keys and values there and the output back; the same again backward."""
    model, compute = settings.model, PRECISIONS[settings.precision]
    narrow = model.kv_heads * model.head_width
    widths = (model.hidden + 2 * narrow, model.hidden)
    sent = [
        torch.zeros(ranks, max(own * width // ranks, 1), dtype=compute, device=kind)
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
    # All queries and outputs, keys and values, forward and backward, as planners count.
    moved = 4 * compute.itemsize * own * (model.hidden + narrow)
    return {
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "kept_bytes": 0,
        "left_bytes": 0,
        "peak_bytes": 0,
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
