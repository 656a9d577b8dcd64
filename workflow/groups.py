"""The groups of conf/: which settings the files of each folder hold."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Annotated, Any, Union, cast, get_args, get_origin

from railx.mapping.settings import JobSettings
from railx.settings import field_hints, members, to_dict
from workflow.settings import CHOSEN, LISTED, Experiment, PlanSetting, StageSettings

__all__ = ["groups", "with_defaults"]


def groups() -> dict[str, Any]:
    """The type behind the files of each folder of conf/ and the stage*.yaml beside."""
    stage = {name: hint for name, hint in field_hints(StageSettings).items() if name != "seed"}
    hints = field_hints(Experiment)
    further = {"job": JobSettings, "setting": PlanSetting, **{key: hints[key] for key in CHOSEN}}
    further |= {group: get_args(hints[key])[1] for key, group in LISTED.items()}
    return {
        **stage,
        **{name: further[name] for name in sorted(further) if name not in stage},
        "experiment": Experiment,
        "stage": StageSettings,
    }


def with_defaults(hint: Any, plain: Any) -> Any:
    """Plain settings with the defaults of keys that they leave out, at any depth."""
    if not isinstance(plain, Mapping):
        return plain
    union = members(hint)
    if union is None and get_origin(hint) is Annotated:
        return with_defaults(get_args(hint)[0], plain)
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: with_defaults(get_args(hint)[1], value) for key, value in plain.items()}
    options = get_args(hint) if origin in (Union, types.UnionType) else (hint,)
    if union is not None:
        options = (union[1].get(plain.get(union[0])),)
    cls = next((option for option in options if dataclasses.is_dataclass(option)), None)
    if cls is None:
        return plain
    hints = field_hints(cast("type", cls))
    defaults = {
        field.name: to_dict(
            field.default if field.default_factory is MISSING else field.default_factory()
        )
        for field in dataclasses.fields(cls)
        if field.default is not MISSING or field.default_factory is not MISSING
    }
    return defaults | {
        key: with_defaults(hints.get(key, Any), value) for key, value in plain.items()
    }
