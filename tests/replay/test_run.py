"""The compiled engine and the plain one, which holds the controller's own core."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.fabric.circuits import Layout
from railx.fabric.settings import Mode
from railx.replay.engine import Logged, Step, replay
from railx.replay.programs import COLUMNS, Programs, read_programs, write_programs
from railx.replay.run import prepare, replay_programs
from railx.replay.wiring import CircuitModel
from tests.replay.programs import programs, rails

MODES: tuple[Mode, ...] = ("electrical", "on_demand", "provisioned")


@settings(max_examples=300, deadline=None)
@given(
    steps=programs(),
    model=rails(),
    mode=st.sampled_from(MODES),
    latency_ns=st.integers(0, 9),
    message_ns=st.sampled_from((0, 0, 1, 2, 7)),
    held=st.booleans(),
)
def test_the_compiled_engine_decides_as_the_core_does(
    steps: dict[int, list[Step]],
    model: CircuitModel,
    mode: Mode,
    latency_ns: int,
    message_ns: int,
    held: bool,
) -> None:
    prepared = prepare(Programs.from_steps(steps), model)
    log: list[Logged] = []
    rows = replay(steps, model, mode, latency_ns, log=log, held=held, message_ns=message_ns)
    ours = replay_programs(
        prepared, None, mode, latency_ns, held=held, message_ns=message_ns, keep_log=True
    )
    assert list(ours.log) == log
    assert ours.rows() == rows


@settings(max_examples=25, deadline=None)
@given(steps=programs())
def test_programs_are_the_same_as_arrays_and_in_a_file(
    steps: dict[int, list[Step]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = Programs.from_steps(steps)
    path = tmp_path_factory.mktemp("programs") / "job.parquet"
    write_programs(path, made, notes={"job": "drawn"})
    back = read_programs(path)
    for name in COLUMNS:
        assert np.array_equal(back.columns[name], made.columns[name]), name
    assert (back.channels, back.configurations) == (made.channels, made.configurations)
    for mode in MODES:
        again = replay(back.to_steps(), Layout(1), mode, 3)
        assert again == replay(steps, Layout(1), mode, 3)
