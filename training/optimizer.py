"""AdamW over the parameters of this rank, with clipping and a learning-rate schedule.

Notable:

* the fused kernel steps all parameters of a rank in one call;
* clipping scales all gradients by one factor, from the norm over all ranks. The factor
  stays on the device, without synchronisation;
* the learning rate is a function of the step, so that a resumed run has the rates of an
  uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.settings import OptimizerSettings

#: Added to the norm before dividing the limit by it, as in torch.
_CLIP_EPSILON = 1e-6


class Optimizer:
    """AdamW, clipped and scheduled, over named parameters."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self.settings = settings
        self.parameters = dict(parameters)
        self._adamw = torch.optim.AdamW(
            self.parameters.values(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, step: int) -> None:
        """Step number ``step``, counted from 0, with the current gradients."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate(self.settings, step)
        self._adamw.step()

    def clip(self, squared_norm: Tensor) -> None:
        """Scale gradients down to the largest norm, by the model's squared one."""
        limit = self.settings.clip_norm
        if limit is None:
            return
        factor = (limit / (squared_norm.sqrt() + _CLIP_EPSILON)).clamp(max=1.0)
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))

    def forget(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Each parameter's state, as torch names it, not copied; made if missing."""
        return {name: self._state(parameter) for name, parameter in self.parameters.items()}

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self._adamw.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """The learning rate of step ``step``, counted from 0.

    It rises linearly over the warm-up steps. Then it is constant (``constant``), or
    falls along half a cosine to ``final_share`` at ``decay_steps`` and stays there.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    done = min((step - settings.warmup_steps) / (settings.decay_steps - settings.warmup_steps), 1.0)
    share = settings.final_share
    return settings.learning_rate * (share + (1 - share) * (1 + math.cos(math.pi * done)) / 2)
