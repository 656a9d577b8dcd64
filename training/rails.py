"""The context of a rank in a launch, and its process group over one fabric setting."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any, Literal

import pyarrow as pa
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from railx.fabric import Controller, FabricSettings, launch_controller
from railx_torch import backend
from railx_torch.trace import Recorder


@dataclass(frozen=True)
class RankContext:
    """A rank, its launch's ``store``, and the ``inner`` backend below ``railx``."""

    rank: int
    ranks: int
    store: Store
    device: torch.device
    inner: Literal["gloo", "nccl"]


@contextmanager
def on_rails(
    fabric: FabricSettings, number: int, context: RankContext, recorder: Recorder, timeout_s: float
) -> Iterator[tuple[dist.ProcessGroup, Controller | None]]:
    """The process group ``railx`` over ``fabric`` for the length of the block.

    Yields the control group, which the fabric never sees, and on rank 0 the controller.
    """
    with (
        launch_controller(fabric, context.ranks)
        if context.rank == 0
        else nullcontext() as controller
    ):
        key = f"controller/{number}"
        if controller is not None:
            context.store.set(key, json.dumps([controller.address, controller.token]))
        address, token = json.loads(context.store.get(key))
        backend.configure(
            backend.BackendOptions(
                context.inner, address, fabric.mode, fabric.gpus_per_server, token
            ),
            recorder,
        )
        dist.init_process_group(
            "railx",
            store=PrefixStore(f"block/{number}", context.store),
            rank=context.rank,
            world_size=context.ranks,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            control = dist.new_group(backend="gloo")
            assert isinstance(control, dist.ProcessGroup)
            yield control, controller
            # Other ranks may still send to this one or to its controller.
            dist.barrier(control)
        finally:
            dist.destroy_process_group()


def median_ms(rows: Iterable[Mapping[str, Any]]) -> float:
    """The median over iterations of the slowest rank's time."""
    slowest: dict[int, float] = {}
    for row in rows:
        slowest[row["iteration"]] = max(row["iteration_ms"], slowest.get(row["iteration"], 0.0))
    return median(slowest.values())


def labelled(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """A table with further columns, each of one value."""
    for name, value in columns.items():
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table


def gather_all(
    context: RankContext, control: dist.ProcessGroup, item: tuple[Any, ...]
) -> list[tuple[Any, ...]] | None:
    """Every rank's ``item`` in rank order on rank 0, None elsewhere."""
    gathered: list[Any] | None = [None] * context.ranks if context.rank == 0 else None
    dist.gather_object(item, gathered, dst=0, group=control)
    return gathered
