"""What is still there of what operations made, and the largest tensor that any of them
gives.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.allocations import LiveStorages


class LargestTensor(TorchDispatchMode):
    """The elements in the storage of the largest tensor that any operation gives.

    The backward pass counts too where it runs inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor):
                size = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.elements = max(self.elements, size)
        return given


def test_storages_are_counted_once_and_until_they_are_gone() -> None:
    before = torch.ones(100)
    with LiveStorages() as storages:
        made = before + 1
        assert storages.live_bytes() == 400
        views = [made[10:], made.view(10, 10).t(), before[1:], made.add_(1)]
        assert storages.live_bytes() == 400
        del made
        assert storages.live_bytes() == 400
        views.clear()
        assert storages.live_bytes() == 0


def test_what_another_thread_frees_is_gone() -> None:
    with LiveStorages() as storages:
        box = [torch.empty(50)]
        thread = threading.Thread(target=box.clear)
        assert storages.live_bytes() == 200
        thread.start()
        thread.join()
        assert storages.live_bytes() == 0


def test_the_peak_is_that_since_it_was_last_asked() -> None:
    with LiveStorages() as storages:
        kept = torch.empty(10)
        torch.empty(100)
        assert (storages.live_bytes(), storages.peak_bytes()) == (40, 440)
        assert storages.peak_bytes() == 40
        del kept
        torch.empty(5)
        assert storages.peak_bytes() == 40
        assert storages.peak_bytes() == 0


def test_backward_passes_and_resized_storages_count() -> None:
    weight = torch.ones(4, requires_grad=True)
    gathered = torch.empty(25)
    with LiveStorages([gathered]) as storages:
        gathered.untyped_storage().resize_(0)
        (weight * 2).sum().backward()
        assert weight.grad is not None
        assert storages.live_bytes() == 16 - 100
        gathered.untyped_storage().resize_(400)
        assert storages.live_bytes() == 16 + 300
