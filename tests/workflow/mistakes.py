"""A generator of mistakes: every setting of conf/ with values that nobody can mean.

The schema says what a setting is, so it also says what it is not: another type, out of
range, unknown, empty, missing, huge. Each mistake must be refused in one line that
names the key and what is allowed, before anything is computed or written:
``make mistakes``.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from railx.settings import (
    AtLeast,
    Between,
    Fraction,
    NonNegative,
    OneOf,
    Positive,
    PowerOfTwo,
    Registered,
    SettingsError,
    field_hints,
    load,
    to_dict,
)
from workflow.config import Experiment, choices, compose_experiment
from workflow.fit import check_fit

__all__ = ["Checker", "Mistake", "Setting", "experiment_mistakes", "mistakes_of", "settings_of"]

#: A line that says what is allowed can be long, but not a page.
MOST_CHARACTERS = 4000


@dataclass(frozen=True)
class Setting:
    """A place in an experiment that holds a value: its key, its type, its field."""

    key: str
    hint: Any
    value: Any
    field: str


@dataclass(frozen=True)
class Mistake:
    """A value that a setting of an experiment cannot have."""

    kind: str
    field: str
    experiment: str
    key: str
    value: Any

    @property
    def overrides(self) -> tuple[str, str]:
        """The same in Hydra's syntax."""
        return f"experiment={self.experiment}", f"{self.key}={in_grammar(self.value)}"

    def __str__(self) -> str:
        return f"{self.kind}: {' '.join(self.overrides)}"


def in_grammar(value: Any) -> str:
    """A value as Hydra's overrides write it."""
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_grammar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_grammar, value)) + "]"
    return "null" if value is None else str(value).lower()


def settings_of(cls: type, settings: Any, key: str = "") -> Iterator[Setting]:
    """Every setting of checked settings, containers before what they hold."""
    for name, hint in field_hints(cls).items():
        own = f"{key}.{name}" if key else name
        value = getattr(settings, name)
        yield Setting(own, hint, value, f"{cls.__name__}.{name}")
        yield from _below(value, own)


def _below(value: Any, key: str) -> Iterator[Setting]:
    if dataclasses.is_dataclass(value):
        yield from settings_of(type(value), value, key)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            # A key of digits or with a point is no override.
            if str(name).isidentifier():
                yield from _below(inner, f"{key}.{name}")


#: Of every type one value.
_VALUES: Mapping[Any, Any] = {
    str: "no such word",
    int: 7,
    float: 0.125,
    bool: True,
    list: [1],
    dict: {"no_such_key": 1},
}


def mistakes_of(hint: Any) -> Iterator[tuple[str, Any]]:
    """Kinds of mistakes and values of them, for a setting of a type."""
    kinds, carried = _options(hint)
    if type(None) not in kinds:
        yield "null", None
    yield from (("type", value) for value in _of_other_types(kinds))
    for one in carried:
        yield from (("range", value) for value in _outside(one))
    if Literal in kinds:
        yield "choice", "no_such_choice"
        yield "choice", ""
    if str in kinds:
        yield "name", "no_such_name"
        yield "empty", ""
    if int in kinds or float in kinds:
        yield from (("huge", value) for value in (10**12, -(10**12), 10**30, 1e300))
    if float in kinds:
        yield "range", float("nan")
        yield "range", float("inf")
    if list in kinds:
        yield "empty", []
        (item, *_) = get_args(kinds[list])
        yield from ((kind, [value]) for kind, value in mistakes_of(item))
    if dict in kinds:
        yield "empty", {}
        yield "unknown", {"no_such_key": 1}


def _options(hint: Any) -> tuple[dict[Any, Any], list[Any]]:
    """What a type can be, by kind, and the constraints that ``Annotated`` carries."""
    if get_origin(hint) is Annotated:
        inner, *carried = get_args(hint)
        if any(isinstance(one, Registered) for one in carried):
            return {dataclasses: inner}, []
        kinds, own = _options(inner)
        return kinds, [*carried, *own]
    if get_origin(hint) in (Union, types.UnionType):
        kinds, carried = {}, []
        for option in get_args(hint):
            own_kinds, own = _options(option)
            kinds |= own_kinds
            carried += own
        return kinds, carried
    if dataclasses.is_dataclass(hint):
        return {dataclasses: hint}, []
    origin = get_origin(hint) or hint
    kind = {tuple: list, Mapping: dict, typing.Mapping: dict}.get(origin, origin)
    return {kind: hint}, []


def _of_other_types(kinds: Mapping[Any, Any]) -> Iterator[Any]:
    also = {
        str: str in kinds or Literal in kinds,
        int: bool({int, float, Literal} & kinds.keys()),
        float: float in kinds,
        bool: bool in kinds or Literal in kinds,
        list: list in kinds,
        dict: dict in kinds or dataclasses in kinds,
    }
    yield from (value for kind, value in _VALUES.items() if not also[kind])


def _outside(constraint: Any) -> Iterator[Any]:
    """Values that a constraint refuses."""
    if isinstance(constraint, AtLeast):
        yield constraint.minimum - 1
    elif isinstance(constraint, Between):
        yield from (constraint.minimum - 1, constraint.maximum + 1)
    elif isinstance(constraint, Positive):
        yield from (0, -1)
    elif isinstance(constraint, NonNegative):
        yield -1
    elif isinstance(constraint, Fraction):
        yield from (0, 1.5, -1)
    elif isinstance(constraint, PowerOfTwo):
        yield from (3, 0, -2)
    elif isinstance(constraint, OneOf):
        yield "no_such_choice"


def experiment_mistakes(names: Iterable[str]) -> Iterator[Mistake]:
    """Mistakes in every setting of the experiments, each once for a field."""
    seen: set[tuple[str, str]] = set()
    for name in names:
        settings = compose_experiment([f"experiment={name}"])
        for setting in settings_of(Experiment, settings):
            drawn = list(mistakes_of(setting.hint))
            if dataclasses.is_dataclass(setting.value):
                drawn.append(("unknown", {**to_dict(setting.value), "no_such_key": 1}))
            for kind, value in drawn:
                known = (setting.field, "unknown" if kind == "unknown" else repr(value))
                if known not in seen:
                    seen.add(known)
                    yield Mistake(kind, setting.field, name, setting.key, value)


class Checker:
    """Says how mistakes are met, each with the check of its own part first."""

    def __init__(self) -> None:
        self._plain: dict[str, dict[str, Any]] = {}

    def unclear(self, mistake: Mistake) -> str:
        """What is wrong with how a mistake is met; empty where nothing is."""
        name, (top, *below) = mistake.experiment, mistake.key.split(".")
        if name not in self._plain:
            self._plain[name] = to_dict(compose_experiment([f"experiment={name}"]))
        plain = self._plain[name]
        changed = {**plain, top: _with_value(plain[top], below, mistake.value)}
        try:
            # Most mistakes are met here, in a hundredth of the time.
            load(field_hints(Experiment)[top], changed[top], top)
            experiment: Experiment = load(Experiment, changed)
            check_fit(experiment)
        except SettingsError as error:
            return _unclear(str(error), mistake)
        except Exception as error:
            return f"ends in {type(error).__name__}: {error}"
        return "is accepted"


def _with_value(plain: Any, way: list[str], value: Any) -> Any:
    if not way:
        return value
    return {**plain, way[0]: _with_value(plain[way[0]], way[1:], value)}


def _unclear(line: str, mistake: Mistake) -> str:
    if "\n" in line or len(line) > MOST_CHARACTERS:
        return f"takes more than a line: {line!r}"
    # What is too large together is said of one of its parts.
    *above, own = mistake.key.split(".")
    named = ".".join(above) if mistake.kind == "huge" and above else mistake.key
    if named not in line:
        return f"does not name {named}: {line}"
    if "allowed" not in line and "is missing" not in line:
        return f"does not say what is allowed: {line}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw mistakes; see whether all are refused.")
    parser.add_argument("--most", type=int, default=0, help="so many, drawn (0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--experiments", nargs="*", default=choices("experiment"))
    options = parser.parse_args()
    drawn = list(experiment_mistakes(options.experiments))
    if options.most:
        drawn = random.Random(options.seed).sample(drawn, min(options.most, len(drawn)))
    checker = Checker()
    unclear = 0
    for mistake in drawn:
        said = checker.unclear(mistake)
        if said:
            unclear += 1
            print(f"{mistake} ({mistake.field}) {said}", flush=True)
    print(f"{len(drawn)} mistakes, {unclear} not met with one clear line")
    return 1 if unclear else 0


if __name__ == "__main__":
    sys.exit(main())
