"""One rank's standing with the fabric, without a fabric."""

from __future__ import annotations

import pytest
import torch

from railx.fabric import Configuration
from training.session import BackendOptions, Operation, Session
from training.trace import Recorder

RING = Configuration("ring", (0, 1))


@pytest.mark.parametrize(("keep", "remembered"), [(True, (RING,) * 3), (False, ())])
def test_a_program_that_nobody_records_leaves_no_schedule_behind(
    keep: bool, remembered: tuple[Configuration, ...]
) -> None:
    session = Session(BackendOptions("gloo", None, "electrical", 1), Recorder(0, keep=keep))
    for number in range(3):
        operation = Operation(
            "all_reduce", (0, 1), RING, "group", number, 4, [], [], 60.0, torch.device("cpu")
        )
        session.issue(operation)
        assert session.try_hold(operation)
        session.end(operation)
    assert tuple(session.recorded_schedule().iterations.get(0, ())) == remembered
