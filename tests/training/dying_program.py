"""``training.run`` with a rank that is killed in the middle of a step.

Not a test module: ``test_checkpoint.py`` starts it. DIES = "RANK,BLOCK,STEP" in the
environment says which; ranks import this file too.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from training import run
from training.engine import Engine
from training.reduction import GradientReduction

_blocks = -1
_make, _step, _reduce = Engine.__init__, Engine.step, GradientReduction.run
_due = False


def make(self: Engine, *arguments: Any, **options: Any) -> None:
    global _blocks
    _blocks += 1
    _make(self, *arguments, **options)


def step(self: Engine, batch: Any, number: int, *further: Any) -> Any:
    global _due
    dies = [int(part) for part in os.environ["DIES"].split(",")]
    _due = dies == [int(os.environ["RANK"]), _blocks, number]
    return _step(self, batch, number, *further)


def reduce(self: GradientReduction) -> None:
    """Behind the backward pass, while the others wait for this rank."""
    if _due:
        os.kill(os.getpid(), signal.SIGKILL)
    _reduce(self)


Engine.__init__, Engine.step = make, step  # type: ignore[method-assign]
GradientReduction.run = reduce  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(run.main())
