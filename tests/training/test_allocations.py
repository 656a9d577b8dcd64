"""What is still there of what operations made."""

from __future__ import annotations

import threading

import torch

from training.allocations import LiveStorages


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
