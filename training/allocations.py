"""Memory that a computation allocates, and the part of it that is alive at any moment.

Torch's profiler counts allocations on a CPU, the caching allocator on a GPU.
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

# Torch's own hints leave it untyped.
_Reference: Any = StorageWeakRef


@dataclass
class Allocated:
    """Bytes that a computation allocated, beyond those allocated before.

    ``peak_bytes`` is the maximum alive at once, ``left_bytes`` the bytes alive at the
    end; negative where the computation freed more than it allocated.
    """

    peak_bytes: int = 0
    left_bytes: int = 0


@contextmanager
def allocations(device: torch.device) -> Iterator[Allocated]:
    """Count the allocations of the block; such blocks do not nest."""
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


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that operations of the block created and that are alive.

    The profiler misses storages that another thread frees, as the threads of a network
    backend do; this mode checks a weak reference to each storage. ``resized`` are
    tensors from before the block whose storage is resized inside.
    """

    def __init__(self, resized: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._resized = [tensor.untyped_storage() for tensor in resized]
        self._before = self._resized_bytes()
        self._created: dict[int, tuple[Any, int]] = {}
        #: An upper bound of the live bytes: some storages may be freed.
        self._upper_bound = self._before
        self._peak = 0

    def live_bytes(self) -> int:
        """Live bytes now."""
        self._created = {
            key: entry for key, entry in self._created.items() if not entry[0].expired()
        }
        self._upper_bound = sum(size for _, size in self._created.values()) + self._resized_bytes()
        return self._upper_bound - self._before

    def peak_bytes(self) -> int:
        """The maximum of the live bytes since the last call."""
        current = self.live_bytes()
        peak, self._peak = max(self._peak, current), current
        return peak

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        argument_storages: set[int] | None = None
        for leaf in tree_leaves(results):
            if not isinstance(leaf, Tensor) or leaf.device.type == "meta":
                continue
            reference = _Reference(leaf.untyped_storage())
            key = reference.cdata
            if key in self._created and not self._created[key][0].expired():
                continue
            if argument_storages is None:
                # A result that is a view of an argument has no storage of its own.
                argument_storages = {
                    argument.untyped_storage()._cdata
                    for argument in tree_leaves((args, kwargs))
                    if isinstance(argument, Tensor)
                }
            if key not in argument_storages:
                size = leaf.untyped_storage().nbytes()
                self._created[key] = reference, size
                self._upper_bound += size
        if self._upper_bound - self._before > self._peak:
            self._peak = max(self._peak, self.live_bytes())
        return results

    def _resized_bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._resized)
