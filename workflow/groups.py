"""The groups of conf/: which settings the files of each folder hold."""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Union, get_args, get_origin

from railx.mapping.settings import JobSettings
from railx.settings import Registered, field_hints, told_apart
from workflow.config import CHOSEN, Experiment, StageSettings
from workflow.mounts import LISTED

__all__ = ["groups", "members"]


def groups() -> dict[str, Any]:
    """The type behind the files of each folder of conf/ and the stage*.yaml beside."""
    stage = {name: hint for name, hint in field_hints(StageSettings).items() if name != "seed"}
    hints = field_hints(Experiment)
    further = {"job": JobSettings, **{key: hints[key] for key in CHOSEN}}
    further |= {group: get_args(hints[key])[1] for key, group in LISTED.items()}
    return {
        **stage,
        **{name: further[name] for name in sorted(further) if name not in stage},
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
