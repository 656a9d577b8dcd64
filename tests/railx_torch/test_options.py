"""The options of a new group reach the inner backend, or are refused."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import railx_torch
from railx.errors import UserError
from railx_torch import backend
from railx_torch.process_group import RailxProcessGroup
from railx_torch.session import BackendOptions, Session
from railx_torch.trace import Recorder

_distributed: Any = dist


def _group(pg_options: Any) -> RailxProcessGroup:
    options = SimpleNamespace(
        store=_distributed.HashStore(),
        group_rank=0,
        group_size=1,
        group_id="alone",
        global_ranks_in_group=[0],
        timeout=timedelta(seconds=60),
    )
    session = Session(BackendOptions("gloo", None, "electrical", 1), Recorder(0, keep=False))
    return RailxProcessGroup(options, session, pg_options)


def test_options_of_the_inner_backend_reach_it() -> None:
    options = _distributed.ProcessGroupGloo._Options()
    options._devices = [_distributed.ProcessGroupGloo.create_default_device()]
    options._threads = 3
    group = _group(options)
    inner = group._inner._get_backend(torch.device("cpu"))
    assert inner.options._threads == 3
    assert inner.options._timeout == timedelta(seconds=60)
    group.shutdown()


@pytest.mark.parametrize("pg_options", [{"threads": 3}, object()])
def test_other_options_are_refused_in_one_line(pg_options: Any) -> None:
    with pytest.raises(UserError) as refused:
        _group(pg_options)
    line = str(refused.value)
    assert line.startswith("pg_options: got builtins.")
    assert "allowed: None, or options of ProcessGroupGloo" in line
    assert "\n" not in line


def test_torch_hands_the_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(backend, "create_group", lambda *arguments: given.append(arguments))
    railx_torch._create_group("group", "options")
    assert given == [("group", "options")]
