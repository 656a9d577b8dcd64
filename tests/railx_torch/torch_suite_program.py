"""Torch's own tests of torch.distributed on this machine, over one backend.

Usage: torch_suite_program.py SETTING OUT [NAME ...]. SETTING is ``gloo`` or a mode of
the backend ``railx``; NAME is a test, none means all. Writes OUT, JSON: the outcome of
each test (``passed``, ``skipped``, ``failed``), the reason and the seconds.

The tests are those of ``torch.testing._internal.distributed.distributed_test``, with
three ranks on the CPU. Torch decides by the name of the backend, when it imports them,
which tests it skips. So they are imported for gloo, and the backend is renamed after
that: over ``railx`` the same tests run as over gloo.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from typing import Any

RANKS = 3
#: Longest time of a test; a test that hangs fails.
_LIMIT_S = 100

FOLDER = Path(tempfile.mkdtemp(prefix="torch_suite"))
os.environ |= {
    "BACKEND": "gloo",
    "WORLD_SIZE": str(RANKS),
    "TEMP_DIR": str(FOLDER),
    "INIT_METHOD": f"file://{FOLDER}/shared_init_file",
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(_LIMIT_S),
    "OMP_NUM_THREADS": "1",
}
# Torch's helpers stand on a package that only tests with recorded texts use.
_expecttest: Any = types.ModuleType("expecttest")
_expecttest.TestCase = unittest.TestCase
sys.modules.setdefault("expecttest", _expecttest)

import torch  # noqa: E402
import torch.testing._internal.distributed.distributed_test as suite  # noqa: E402

from railx.fabric import FabricSettings, launch_controller  # noqa: E402

SETTING = sys.argv[1]
#: Milliseconds from a switch command to light.
_LATENCY_MS = 1


class _Renamed(str):
    """The name ``railx``, which passes for gloo where torch compares it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in ("railx", "gloo")

    __hash__ = str.__hash__


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
    """Torch's tests; each has a controller of its own, and ranks forked from here."""

    def setUp(self) -> None:
        super().setUp()
        if SETTING != "gloo":
            latency_ms = 0 if SETTING == "electrical" else _LATENCY_MS
            mode: Any = SETTING
            fabric = FabricSettings(1, "127.0.0.1", 0, 60, mode, latency_ms)
            controller = self.enterContext(launch_controller(fabric, RANKS))
            os.environ |= {
                "RAILX_FABRIC": SETTING,
                "RAILX_GPUS_PER_SERVER": "1",
                "RAILX_CONTROLLER": controller.address or "",
            }
        # A rank that is forked needs no second to import torch.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class _Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._began_s = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._began_s = time.monotonic()

    def _add(self, test: unittest.TestCase, outcome: str, reason: str = "") -> None:
        name = test.id().rpartition(".")[2]
        seconds = round(time.monotonic() - self._began_s, 1)
        self.outcomes[name] = {"outcome": outcome, "reason": reason, "seconds": seconds}
        print(f"{outcome:<8} {seconds:>6} s  {name}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "failed", str(err[1]))

    addError = addFailure


def main() -> None:
    """Run the tests and write their outcomes."""
    out, names = Path(sys.argv[2]), sys.argv[3:]
    if SETTING != "gloo":
        suite.BACKEND = _Renamed("railx")
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Suite)
    chosen = [test for test in tests if not names or test.id().rpartition(".")[2] in names]  # type: ignore[union-attr]
    result = _Outcomes()
    unittest.TestSuite(chosen).run(result)
    out.write_text(json.dumps(result.outcomes, indent=1))


if __name__ == "__main__":
    main()
