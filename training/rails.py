"""A rank's place in a launch, and the process group over one setting of the rails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from railx.fabric import Controller, FabricSettings, launch_controller
from training import backend
from training.trace import Recorder

__all__ = ["Place", "gather_all", "on_rails"]


@dataclass(frozen=True)
class Place:
    """Where this process stands.

    Its rank of ``ranks``, the store that all share, its device and the backend below
    ``railx``.
    """

    rank: int
    ranks: int
    store: Store
    device: torch.device
    inner: Literal["gloo", "nccl"]


@contextmanager
def on_rails(
    fabric: FabricSettings, number: int, place: Place, recorder: Recorder, timeout_s: float
) -> Iterator[tuple[dist.ProcessGroup, Controller | None]]:
    """The process group ``railx`` over ``fabric`` for the length of the block.

    Yields the control group, which the fabric never sees, and on rank 0 the controller.
    """
    with launch_controller(fabric, place.ranks) if place.rank == 0 else nullcontext() as controller:
        key = f"controller/{number}"
        if controller is not None:
            place.store.set(key, json.dumps([controller.address, controller.token]))
        address, token = json.loads(place.store.get(key))
        backend.configure(
            backend.BackendOptions(
                place.inner, address, fabric.mode, fabric.gpus_per_server, token
            ),
            recorder,
        )
        dist.init_process_group(
            "railx",
            store=PrefixStore(f"block/{number}", place.store),
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            control = dist.new_group(backend="gloo")
            assert isinstance(control, dist.ProcessGroup)
            yield control, controller
            # Nobody leaves while others still talk to it or to its controller.
            dist.barrier(control)
        finally:
            dist.destroy_process_group()


def gather_all(
    place: Place, control: dist.ProcessGroup, item: tuple[Any, ...]
) -> list[tuple[Any, ...]] | None:
    """Every rank's ``item`` in rank order on rank 0, None elsewhere."""
    gathered: list[Any] | None = [None] * place.ranks if place.rank == 0 else None
    dist.gather_object(item, gathered, dst=0, group=control)
    return gathered
