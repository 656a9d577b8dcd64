"""Loops that ``make setup`` compiles are those that plans run."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numba import njit
from numba.core import event

from railx.network.group_bandwidth import member_rates, routed_loads
from railx.planning.pipeline.infinipipe import plan_pipeline_batch
from railx.planning.sequence.flexsp import FlexSPSettings, plan_flexsp_batch
from railx.workload.batches import SampledBatch
from scripts.compile_loops import compile_loads, compile_planners
from tests.builders import build
from tests.commands import python
from tests.planning import pipeline_optima, sequence_optima


@contextmanager
def _compiled() -> Iterator[list[str]]:
    """The functions that Numba compiles inside the block."""
    names: list[str] = []

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: event.Event) -> None:
            names.append(event.data["dispatcher"].py_func.__qualname__)

        def on_end(self, event: event.Event) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield names


def compiled_after_setup() -> list[str]:
    """What plans and loads compile after the loops of setup."""
    compile_planners()
    compile_loads()
    with _compiled() as names:
        for groups in list(sequence_optima.instances())[:2]:
            for count in (len(groups.lengths), 6):
                batch = SampledBatch(np.arange(count), np.array(groups.lengths[:count]))
                settings = FlexSPSettings("flexsp")
                plan_flexsp_batch(0, batch, settings, groups.devices, groups.cost)
        for pipeline in list(pipeline_optima.instances())[:3]:
            lengths = np.array(pipeline.lengths)
            batch = SampledBatch(np.arange(len(lengths)), lengths)
            settings_of = pipeline_optima.settings_of(pipeline)
            plan_pipeline_batch(0, batch, settings_of, pipeline.cost)
        for name in ("railx_hyperx", "torus_2d", "dragonfly"):
            topology = build(name)
            loads = routed_loads(topology, "min")
            for algorithm in ("direct", "ring"):
                member_rates(loads, np.arange(topology.chips)[None, :], algorithm)
    return names


def test_plans_and_loads_compile_nothing_after_setup() -> None:
    # In a process of its own: other tests call compiled functions with other types.
    module = "tests.planning.test_compiling"
    done = python("-c", f"from {module} import *; print(compiled_after_setup())")
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["[]"]), done.stderr


def test_compilation_is_noticed() -> None:
    """The test above can fail."""
    with _compiled() as names:
        njit(lambda x: x + 1)(1)
    assert names
