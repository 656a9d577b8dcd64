"""Memory of one plan, for callers with numbers of bytes in place of a program."""

from __future__ import annotations

from railx.performance.devices import device_named
from railx.performance.layers import Setting
from railx.performance.memory import step_memory
from railx.performance.models import Model
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import Plan, Plans
from railx.performance.programs import Program, default_constants

__all__ = ["plan_memory_gb"]


def plan_memory_gb(
    model: Model, plan: Plan, parameter_bytes: float, gradient_bytes: float
) -> float:
    """Memory of the fullest device of a plan with fused attention, in 10⁹ bytes.

    ``parameter_bytes`` and ``gradient_bytes``: of one parameter and of its gradient.
    """
    program = Program(
        "fused attention",
        fused_attention=True,
        hidden_traffic=0.0,
        wide_traffic=0.0,
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
    )
    # Bytes depend on neither devices nor networks.
    device = device_named("h100")
    network = TwoLevelRing.of(device, fast_share=1.0, slow_share=1.0)
    constants = default_constants(device.name, program.name)
    setting = Setting(model, device, network, program, constants)
    return float(step_memory(setting, Plans.of([plan])).total_bytes[0]) / 1e9
