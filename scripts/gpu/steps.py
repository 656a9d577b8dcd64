"""The list: every step in the order in which it is taken.

Part 1 is kernels and layers, on which cost models and the step model rest; part 2
streams and ranks that share the GPU; part 3 the whole model, and what costs the rest.
Steps without times run beside each other, where the first of them stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .basics import attention, tests, versions
from .host import SWITCHED_S
from .layers import launch, profile_1b, profile_7b, profile_13b, profile_30b, slices
from .model import compiled, eager, kernels
from .ranks import coverage, equality, flexsp, kill, pipeline, static
from .stages import stages
from .streams import fsdp, order, reuse
from .work import Findings, Work


@dataclass(frozen=True)
class Step:
    """A step, the part that it belongs to, and its time.

    ``expected_s`` is a guess for an H100, by which parts fit a call of eight minutes;
    after ``limit_s`` the step is ended. Steps that are not ``timed`` find errors, order
    or memory, which no other work on the machine changes: they run beside each other.
    """

    take: Callable[[Work], Findings]
    part: int
    expected_s: int
    limit_s: int
    timed: bool = True

    @property
    def name(self) -> str:
        return self.take.__name__


STEPS: tuple[Step, ...] = (
    Step(versions, 1, 15, 60),
    Step(tests, 1, 60, 150, timed=False),
    Step(attention, 1, 30, 90, timed=False),
    Step(launch, 1, 30, 90),
    Step(profile_1b, 1, 25, 90),
    Step(profile_7b, 1, 40, 120),
    Step(profile_13b, 1, 55, 150),
    Step(profile_30b, 1, 80, 240),
    Step(slices, 1, 50, 150),
    Step(order, 2, 15, 60),
    Step(reuse, 2, 30, 90, timed=False),
    Step(fsdp, 2, 30, 90),
    Step(equality, 2, 130, 300, timed=False),
    Step(kill, 2, 45, 120, timed=False),
    Step(static, 2, SWITCHED_S, 300),
    Step(flexsp, 2, SWITCHED_S, 300),
    Step(pipeline, 2, SWITCHED_S // 2, 300),
    Step(eager, 3, 120, 300),
    Step(compiled, 3, 140, 300),
    Step(kernels, 3, 30, 90),
    Step(stages, 3, 90, 240, timed=False),
    Step(coverage, 3, 90, 240, timed=False),
)
