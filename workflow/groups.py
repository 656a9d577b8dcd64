"""The groups of conf/: which settings the files of each folder hold."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Union, get_args, get_origin

from railx.figures import FigureSettings
from railx.mapping.settings import JobSettings
from railx.network import AgreementSettings, SweepSettings
from railx.settings import Registered, field_hints, told_apart
from railx.vocabulary.reconfiguration import TransitionSettings
from workflow.config import Experiment, PlanSettings, RunChoice, StageSettings

__all__ = ["groups", "members"]


def groups() -> dict[str, Any]:
    """The type behind the files of each folder of conf/ and the stage*.yaml beside."""
    stage = {name: hint for name, hint in field_hints(StageSettings).items() if name != "seed"}
    return {
        **stage,
        "agreement": AgreementSettings,
        "figure": FigureSettings,
        "job": JobSettings,
        "plan": PlanSettings,
        "run": RunChoice,
        "sweep": SweepSettings,
        "transition": TransitionSettings,
        "experiment": Experiment,
        "stage": StageSettings,
    }


def members(hint: Any) -> tuple[str, dict[Any, type]] | None:
    """The field that tells the members of a union of settings apart.

    With it, the class behind each of its values. None where the hint is no such union.
    """
    origin = get_origin(hint)
    if origin is Annotated:
        for constraint in get_args(hint)[1:]:
            if isinstance(constraint, Registered):
                return constraint.key, dict(constraint.members())
        return members(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        options = tuple(option for option in get_args(hint) if option is not type(None))
        if len(options) > 1 and all(dataclasses.is_dataclass(option) for option in options):
            return told_apart(options)
    return None
