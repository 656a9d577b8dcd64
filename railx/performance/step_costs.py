"""Costs of sequences from the step model: what no profile has measured yet.

A layer's passes (:class:`railx.performance.layers.Layers`) and the ends of the model
are polynomials of the tokens of one sequence, a1 s² + a2 s + b1, where computation
hides its launch. Three lengths give the three coefficients exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from railx.errors import UserError
from railx.performance.decoder import ModelSettings
from railx.performance.devices import device_named
from railx.performance.layers import Layers, Setting
from railx.performance.networks import TwoLevelRing
from railx.performance.plans import Plan, Plans
from railx.performance.programs import constants_named, default_constants, program_named
from railx.performance.sequence_cost import StepCostSettings
from railx.settings import SettingsError

#: Tokens of the sequences that are timed, long enough for any launch to hide.
_TOKENS = (16_384, 32_768, 65_536)
_PROGRAM = "torchtitan"


def with_step_model(settings: StepCostSettings, model: ModelSettings) -> StepCostSettings:
    """The settings with the step model's coefficients for a model, where it has none.

    Source: docs/performance.md, passes of a layer, head and embedding. The optimizer
    and what a step takes besides are the same for every plan and left out. Raises
    :class:`railx.errors.UserError` for a device or constants without an entry.
    """
    if settings.quadratic_ms_per_token2 is not None:
        return settings
    try:
        device = device_named(settings.device)
    except UserError as error:
        said = str(error).removeprefix("devices: ")
        raise SettingsError("cost_model.device", said) from None
    if settings.constants is not None:
        constants = constants_named(settings.constants)
    else:
        constants = default_constants(device.name, _PROGRAM)
    # One rank sends nothing.
    network = TwoLevelRing.of(device, fast_share=1.0, slow_share=1.0)
    setting = Setting(model.shape(), device, network, program_named(constants.program), constants)
    layers = Layers(setting, Plans.of([Plan(sequence_tokens=tokens) for tokens in _TOKENS]))
    (kind,) = setting.model.kinds
    passes = layers.passes(kind)
    both = model.layers * (passes.forward + passes.backward) + layers.head() + layers.lookup()
    scale = _TOKENS[-1]
    quadratic, linear, constant = np.polyfit(np.array(_TOKENS) / scale, both * 1e3, 2)
    return replace(
        settings,
        model=model.name,
        constants=constants.name,
        quadratic_ms_per_token2=float(quadratic) / scale**2,
        linear_ms_per_token=float(linear) / scale,
        constant_ms=settings.constant_ms + max(float(constant), 0.0),
        backward_over_forward=float(passes.backward[0] / passes.forward[0]),
    )
