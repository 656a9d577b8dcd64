"""Blocks of a run without ranks: what they ask for, and what they leave behind."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from training import loop

_NOTHING: Any = None


def test_a_block_with_all_its_steps_in_a_checkpoint_asks_for_no_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(loop, "on_rails", begin)
    asked: list[int] = []
    launch: Any = SimpleNamespace(
        settings=SimpleNamespace(training=SimpleNamespace(timeout_s=1.0)),
        plan=None,
        context=SimpleNamespace(rank=0, device=SimpleNamespace(type="cpu")),
        planning=SimpleNamespace(ask=asked.append),
        begun=1,
        end=4,
    )
    for goes_on in (0, 3, 4):
        with pytest.raises(InterruptedError):
            loop._trained(launch, _NOTHING, 0, 0, None, goes_on)
    assert asked == [1, 3]


def test_a_block_leaves_nothing_that_is_never_freed() -> None:
    training = SimpleNamespace(warmup_iterations=1, checkpoint_every=0)
    launch: Any = SimpleNamespace(
        settings=SimpleNamespace(training=training),
        plan=None,
        planning=None,
        context=None,
        begun=0,
        end=3,
    )
    frozen = gc.get_freeze_count()
    rows, _ = loop._iterations(launch, _NOTHING, _NOTHING, _NOTHING, None, 3, lambda *_: None, {})
    assert rows == []
    assert gc.get_freeze_count() <= frozen
