"""The list: every step in the order in which it is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .basics import attention, tests, versions
from .host import SWITCHED_S
from .layers import profile_1b, profile_7b, profile_13b, profile_30b, slices
from .model import compiled, eager, kernels
from .ranks import coverage, equality, flexsp, kill, pipeline, static
from .stages import stages
from .streams import fsdp, order, reuse
from .work import Findings, Work

__all__ = ["STEPS", "Step"]


@dataclass(frozen=True)
class Step:
    """A step, the part that it belongs to, and its time.

    ``expected_s`` is a guess for an H100, by which parts fit a call of eight minutes;
    after ``limit_s`` the step is ended.
    """

    take: Callable[[Work], Findings]
    part: int
    expected_s: int
    limit_s: int

    @property
    def name(self) -> str:
        return self.take.__name__


STEPS: tuple[Step, ...] = (
    Step(versions, 1, 15, 60),
    Step(tests, 1, 60, 150),
    Step(attention, 1, 30, 90),
    Step(order, 1, 15, 60),
    Step(reuse, 1, 30, 90),
    Step(fsdp, 1, 30, 90),
    Step(equality, 1, 130, 300),
    Step(coverage, 1, 90, 240),
    Step(kill, 1, 45, 120),
    Step(static, 2, SWITCHED_S, 300),
    Step(flexsp, 2, SWITCHED_S, 300),
    Step(pipeline, 2, SWITCHED_S, 300),
    Step(profile_1b, 2, 25, 90),
    Step(profile_7b, 2, 40, 120),
    Step(profile_13b, 2, 55, 150),
    Step(profile_30b, 2, 80, 240),
    Step(eager, 3, 120, 300),
    Step(compiled, 3, 140, 300),
    Step(kernels, 3, 30, 90),
    Step(stages, 3, 90, 240),
    Step(slices, 3, 50, 150),
)
