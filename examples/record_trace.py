"""One training step of data-parallel replicas, recorded by torch's own profiler.

Plain PyTorch, nothing of this project:

    torchrun --nproc-per-node 2 examples/record_trace.py --out traces/job
    railx replay traces/job --network two_level --server 1 \
      --scale-up-gb-s 450 --scale-out-gb-s 50

Each rank writes PREFIX.RANK.json, the execution trace (operators and tensors), and
PREFIX.RANK.kineto.json, the profile (times). Add the two marked parts to your training
loop to record your job.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

WIDTH = 256
ROWS = 64
#: Steps before the recorded one, without and with the profiler at work.
SKIPPED, WARM = 1, 1


def main() -> None:
    """Train a few steps and record the last one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("traces/job"), help="PREFIX of the files")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [
        module for _ in range(options.layers) for module in (nn.Linear(WIDTH, WIDTH), nn.GELU())
    ]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    # Recording, part one: an observer of operators beside a profiler of times.
    options.out.parent.mkdir(parents=True, exist_ok=True)
    observer = ExecutionTraceObserver().register_callback(f"{options.out}.{rank}.json")
    profiler = profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
        schedule=schedule(wait=SKIPPED, warmup=WARM, active=1),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{options.out}.{rank}.kineto.json"),
        execution_trace_observer=observer,
    )
    with profiler:
        for _ in range(SKIPPED + WARM + 1):
            rows = torch.randn(ROWS, WIDTH, device=device)
            optimizer.zero_grad()
            loss = model(rows).square().mean()
            loss.backward()
            optimizer.step()
            total = loss.detach()
            dist.all_reduce(total)
            # Recording, part two: the profiler counts steps.
            profiler.step()
    if rank == 0:
        print(f"loss {float(total) / dist.get_world_size():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
