"""What a computation has allocated, on a CPU by torch's profiler and on a GPU by its
allocator; and what of it is still there at any moment, whichever thread lets go of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Allocated", "HeldStorages", "allocations"]

# Torch's own hints leave it untyped.
_Reference: Any = StorageWeakRef


@dataclass
class Allocated:
    """Bytes beyond those that were there before, once the computation has ended.

    ``peak_bytes`` is the most that was alive at once, ``left_bytes`` what still is;
    below zero where more was freed.
    """

    peak_bytes: int = 0
    left_bytes: int = 0


@contextmanager
def allocations(device: torch.device) -> Iterator[Allocated]:
    """Count what is allocated inside; only one such block at a time."""
    counted = Allocated()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield counted
        torch.cuda.synchronize(device)
        counted.peak_bytes = torch.cuda.max_memory_allocated(device) - before
        counted.left_bytes = torch.cuda.memory_allocated(device) - before
        return
    recording: Any = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording:
        yield counted
    events = [
        (event.start_ns(), event.nbytes())
        for event in recording.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    for _, size in sorted(events, key=lambda event: event[0]):
        counted.left_bytes += size
        counted.peak_bytes = max(counted.peak_bytes, counted.left_bytes)


class HeldStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that operations inside have made and that are still there.

    The profiler does not see what another thread frees, as those of a network do; this
    asks each storage. ``resized`` are tensors from before whose storage comes and goes.
    """

    def __init__(self, resized: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._resized = [tensor.untyped_storage() for tensor in resized]
        self._before = self._resized_bytes()
        self._made: dict[int, tuple[Any, int]] = {}
        #: At least what is there: some may be gone.
        self._most = self._before
        self._peak = 0

    def held_bytes(self) -> int:
        """What is there now."""
        self._made = {key: one for key, one in self._made.items() if not one[0].expired()}
        self._most = sum(size for _, size in self._made.values()) + self._resized_bytes()
        return self._most - self._before

    def peak_bytes(self) -> int:
        """The most that was there since the last call."""
        held = self.held_bytes()
        peak, self._peak = max(self._peak, held), held
        return peak

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        known: set[int] | None = None
        for leaf in tree_leaves(given):
            if not isinstance(leaf, Tensor) or leaf.device.type == "meta":
                continue
            reference = _Reference(leaf.untyped_storage())
            key = reference.cdata
            if key in self._made and not self._made[key][0].expired():
                continue
            if known is None:
                # Whatever stands on a storage of its arguments makes none.
                known = {
                    one.untyped_storage()._cdata
                    for one in tree_leaves((args, kwargs))
                    if isinstance(one, Tensor)
                }
            if key not in known:
                size = leaf.untyped_storage().nbytes()
                self._made[key] = reference, size
                self._most += size
        if self._most - self._before > self._peak:
            self._peak = max(self._peak, self.held_bytes())
        return given

    def _resized_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._resized)
