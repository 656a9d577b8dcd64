"""One rank that shows what torch's tools see of the operations of a group.

Usage: tools_program.py RANK RANKS STORE BACKEND OUT. Writes OUT, JSON: the counts of
``CommDebugMode``, the operators that a dispatch mode sees and the events ``c10d::`` of
the profiler, by case.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Counts the operators ``c10d::`` that reach a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def collectives(rank: int, ranks: int) -> list[float]:
    """Each collective of torch.distributed once, and its results."""
    tensor, parts = torch.ones(2) * rank, [torch.zeros(2) for _ in range(ranks)]
    rows = torch.arange(2.0 * ranks) + rank
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 0)
    dist.all_gather(parts, tensor)
    whole = torch.zeros(2 * ranks)
    dist.all_gather_into_tensor(whole, tensor)
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, rows)
    dist.reduce_scatter(part, list((rows + part.sum()).chunk(ranks)))
    exchanged = torch.zeros(2 * ranks)
    dist.all_to_all_single(exchanged, rows)
    dist.gather(tensor, parts if rank == 0 else None)
    dist.scatter(tensor, parts if rank == 0 else None)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    dist.barrier()
    return [*tensor.tolist(), *whole.tolist(), *part.tolist(), *exchanged.tolist()]


def messages(rank: int, ranks: int) -> list[float]:
    """A number around the ring, both ways at once."""
    sent, received = torch.ones(1) * rank, torch.zeros(1)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
    )
    for work in works:
        work.wait()
    return received.tolist()


def functionals(rank: int, ranks: int) -> list[float]:
    """Functional collectives."""
    group = list(range(ranks))
    tensor = functional.all_reduce(torch.ones(ranks) * rank, "sum", group)
    gathered = functional.all_gather_tensor(tensor, 0, group)
    return functional.reduce_scatter_tensor(gathered, "sum", 0, group).tolist()  # type: ignore[no-any-return]


def tensors(rank: int, ranks: int) -> list[float]:
    """Redistribution of a DTensor."""
    mesh = init_device_mesh("cpu", (ranks,))
    whole = distribute_tensor(torch.arange(4.0 * ranks), mesh, [Shard(0)])
    return whole.redistribute(placements=[Replicate()]).to_local().tolist()  # type: ignore[no-any-return]


def data_parallel(rank: int, ranks: int) -> list[float]:
    """A step of DistributedDataParallel, whose reducer is C++."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2) * rank).sum().backward()
    return [float(parameter.grad.sum()) for parameter in model.parameters()]


CASES: tuple[Callable[[int, int], list[float]], ...] = (
    *(collectives, messages, functionals, tensors, data_parallel),
)


def main() -> None:
    """Run every case under each tool."""
    rank, ranks, store, backend, out = sys.argv[1:]
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=int(rank), world_size=int(ranks)
    )
    seen: dict[str, Any] = {}
    for case in CASES:
        plain = case(int(rank), int(ranks))
        with CommDebugMode() as counts:
            results = [case(int(rank), int(ranks))]
        with Operators() as operators:
            results.append(case(int(rank), int(ranks)))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            results.append(case(int(rank), int(ranks)))
        events = Counter(event.name for event in profile.events() if event.name.startswith("c10d"))
        seen[case.__name__] = {
            "results": [plain, *results],
            "counts": {str(name): count for name, count in counts.get_comm_counts().items()},
            "operators": operators.counts,
            "events": events,
        }
    Path(out).write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
