"""Checked settings: from a plain mapping to frozen dataclasses.

The mapping is a resolved Hydra config or a JSON file. Every room declares its settings
as frozen dataclasses; the type hints are the schema:

* ``Annotated[int, AtLeast(1)]`` carries a range, ``Literal["a", "b"]`` a choice;
* a union of dataclasses has a discriminator: the field that is a ``Literal`` in all of
  them (e.g. ``family``);
* a rule over several fields goes into ``__post_init__`` and raises
  :class:`SettingsError` with the name of the field.

A string literal below a field describes it; ``workflow/schemas.py`` makes the JSON
Schemas of ``conf/`` and a page of every key from these and from the type hints.

``load`` checks every key, type and range; errors name the full path of the key. It
needs the standard library only, so that Snakemake and a bare GPU node run the same
check. Pydantic would double the import time of every job (48 to 90 ms), which its
faster checks do not regain.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from railx.errors import UserError, allowed_names

T = TypeVar("T")

#: Largest integer that tables, JSON files and doubles represent exactly.
MAX_INTEGER = 2**53
#: Largest magnitude of any other number; products of larger ones overflow.
MAX_NUMBER = 1e18
#: Longest wait that every timer takes: sockets, threads, torch.
MAX_TIMEOUT_S = 10**9

_SCALARS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


class SettingsError(UserError):
    """An invalid setting; the message has the key and the allowed values."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key
        self.message = message

    def under(self, prefix: str) -> SettingsError:
        """The same error with a prefix before its key."""
        return SettingsError(_join(prefix, self.key), self.message)

    def within(self, file: str) -> SettingsError:
        """The same error with the file that holds the value, unless it names one."""
        if ".yaml" in self.message:
            return self
        return SettingsError(self.key, f"{self.message} (in {file})")


# What ``Annotated`` hints carry: which values a key takes, in words (``allowed``), in
# JSON Schema (``keywords``) and as a test (``accepts``).


@dataclass(frozen=True)
class AtLeast:
    """A number from ``minimum`` up."""

    minimum: float

    @property
    def allowed(self) -> str:
        return f"at least {self.minimum}"

    @property
    def keywords(self) -> dict[str, Any]:
        return {"minimum": self.minimum}

    def accepts(self, value: Any) -> bool:
        return bool(value >= self.minimum)


@dataclass(frozen=True)
class Between:
    """A number from ``minimum`` to ``maximum``, both allowed."""

    minimum: float
    maximum: float

    @property
    def allowed(self) -> str:
        return f"from {self.minimum} to {self.maximum}"

    @property
    def keywords(self) -> dict[str, Any]:
        return {"minimum": self.minimum, "maximum": self.maximum}

    def accepts(self, value: Any) -> bool:
        return bool(self.minimum <= value <= self.maximum)


@dataclass(frozen=True)
class Positive:
    """A number above 0."""

    allowed: ClassVar[str] = "greater than 0"
    keywords: ClassVar[dict[str, Any]] = {"exclusiveMinimum": 0}

    def accepts(self, value: Any) -> bool:
        return bool(value > 0)


@dataclass(frozen=True)
class NonNegative:
    """A number from 0 up."""

    allowed: ClassVar[str] = "0 or greater"
    keywords: ClassVar[dict[str, Any]] = {"minimum": 0}

    def accepts(self, value: Any) -> bool:
        return bool(value >= 0)


@dataclass(frozen=True)
class Fraction:
    """A share: above 0, at most 1."""

    allowed: ClassVar[str] = "greater than 0 and at most 1"
    keywords: ClassVar[dict[str, Any]] = {"exclusiveMinimum": 0, "maximum": 1}

    def accepts(self, value: Any) -> bool:
        return bool(0 < value <= 1)


@dataclass(frozen=True)
class PowerOfTwo:
    """1, 2, 4, ..."""

    allowed: ClassVar[str] = "a power of two (1, 2, 4, ...)"
    keywords: ClassVar[dict[str, Any]] = {"enum": [1 << exponent for exponent in range(32)]}

    def accepts(self, value: Any) -> bool:
        return bool(value >= 1 and value & (value - 1) == 0)


@dataclass(frozen=True)
class NotEmpty:
    """Text, a list or a mapping that is not empty."""

    allowed: ClassVar[str] = "not empty"
    keywords: ClassVar[dict[str, Any]] = {"minLength": 1, "minItems": 1, "minProperties": 1}

    def accepts(self, value: Any) -> bool:
        return len(value) > 0


@dataclass(frozen=True, init=False)
class OneOf:
    """A choice among values that are computed at import.

    A function computes them when settings are read. Prefer ``Literal`` for constants.
    """

    given: tuple[Any, ...] | Callable[[], tuple[Any, ...]]

    def __init__(self, *choices: Any) -> None:
        listed = len(choices) == 1 and callable(choices[0])
        object.__setattr__(self, "given", choices[0] if listed else choices)

    @property
    def choices(self) -> tuple[Any, ...]:
        return self.given() if callable(self.given) else self.given

    @property
    def allowed(self) -> str:
        return ", ".join(map(str, self.choices))

    @property
    def keywords(self) -> dict[str, Any]:
        return {"enum": list(self.choices)}

    def accepts(self, value: Any) -> bool:
        return value in self.choices


@dataclass(frozen=True)
class Registered:
    """A union whose members are registered elsewhere.

    It is looked up when settings are read. ``key`` is the discriminator, ``members``
    returns the settings class of each of its values. ``most`` is the largest integer
    allowed in a member's settings, because computations must end.
    """

    key: str
    members: Callable[[], Mapping[str, type]]
    most: int = MAX_INTEGER


def load(hint: type[T] | Any, value: Any, path: str = "") -> T:
    """Build ``hint`` from plain data; instances are returned unchanged.

    ``hint`` is a dataclass, a union of dataclasses or a container of them. Raises
    :class:`SettingsError` that names the key below ``path`` and what is allowed.
    """
    return typing.cast("T", _load(hint, value, path))


@functools.cache
def field_hints(cls: type) -> dict[str, Any]:
    """The type hints of a settings class by field, with what ``Annotated`` carries."""
    return typing.get_type_hints(cls, include_extras=True)


@functools.cache
def told_apart(options: tuple[Any, ...]) -> tuple[str, dict[Any, type]]:
    """The discriminator, a Literal in every option, and the option by its value."""
    for name in field_hints(options[0]):
        literals = [field_hints(option).get(name) for option in options]
        if all(get_origin(literal) is Literal for literal in literals):
            return name, {
                choice: option
                for option, literal in zip(options, literals, strict=True)
                for choice in get_args(literal)
            }
    raise TypeError(f"no Literal field tells {[option.__name__ for option in options]} apart")


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


def mapping(**items: Any) -> Any:
    """A field of settings whose default is a mapping."""
    return dataclasses.field(default_factory=items.copy)


def has_default(field: dataclasses.Field[Any]) -> bool:
    """Whether settings may leave a field out."""
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def to_dict(settings: Any) -> Any:
    """The plain data that ``load`` takes back: dicts, lists and scalars."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        return {
            field.name: to_dict(getattr(settings, field.name))
            for field in dataclasses.fields(settings)
        }
    if isinstance(settings, Mapping):
        return {str(key): to_dict(item) for key, item in settings.items()}
    if isinstance(settings, (tuple, list)):
        return [to_dict(item) for item in settings]
    return settings


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
    hints = field_hints(typing.cast("type", cls))
    defaults = {
        field.name: to_dict(
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )
        for field in dataclasses.fields(cls)
        if has_default(field)
    }
    return defaults | {
        key: with_defaults(hints.get(key, Any), value) for key, value in plain.items()
    }


def check_names(key: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse names that are not among the allowed ones; SettingsError names ``key``."""
    allowed = tuple(allowed)
    for name in names:
        if name not in allowed:
            raise SettingsError(key, f"got {name!r}; allowed: {allowed_names(name, allowed)}")


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix and key else prefix or key


def _load(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        base, *metadata = get_args(hint)
        for registered in metadata:
            if isinstance(registered, Registered):
                members = registered.members()
                if isinstance(value, Mapping) and isinstance(value.get(registered.key), str):
                    _check_most(registered.most, members.get(value[registered.key]), value, path)
                return _load_member(registered.key, members, value, path)
        loaded = _load(base, value, path)
        for constraint in metadata:
            if loaded is not None and not constraint.accepts(loaded):
                raise SettingsError(path, f"got {loaded!r}; allowed: {constraint.allowed}")
        return loaded
    if origin is Literal:
        for choice in get_args(hint):
            # True equals 1 and is refused; 2.0 is accepted as 2.
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
        raise SettingsError(path, f"got {value!r}; allowed: {allowed_names(value, get_args(hint))}")
    if origin in (Union, types.UnionType):
        return _load_union(hint, value, path)
    if origin in (tuple, list):
        return _load_sequence(hint, value, path)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(value, Mapping):
            raise SettingsError(path, f"got {value!r}; allowed: {_in_words(hint)}")
        _, item_hint = get_args(hint)
        return {
            str(key): _load(item_hint, item, _join(path, str(key))) for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return _load_dataclass(typing.cast("type", hint), value, path)
    return _load_scalar(hint, value, path)


def _load_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(path, f"got {value!r}; allowed: a finite number")
        if abs(value) > MAX_NUMBER:
            raise SettingsError(path, f"got {_digits(value)}; allowed: at most {MAX_NUMBER:g}")
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if hint is int and isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise SettingsError(path, f"got {_digits(value)}; allowed: at most {MAX_INTEGER} (2^53)")
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise SettingsError(path, f"got {value!r}; allowed: {_in_words(hint)}")


def _digits(value: float) -> str:
    """A number, or its number of digits if it is long."""
    shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if len(shown) <= 40:
        return shown
    return f"a number of {math.floor(math.log10(abs(value))) + 1} digits"


def _load_sequence(hint: Any, value: Any, path: str) -> Any:
    arguments = get_args(hint)
    if not isinstance(value, (list, tuple)):
        raise SettingsError(path, f"got {value!r}; allowed: {_in_words(hint)}")
    if get_origin(hint) is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(value) != len(arguments):
            raise SettingsError(path, f"got {len(value)} items; allowed: exactly {len(arguments)}")
        return tuple(
            _load(item_hint, item, f"{path}[{i}]")
            for i, (item_hint, item) in enumerate(zip(arguments, value, strict=True))
        )
    items = [_load(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value)]
    return tuple(items) if get_origin(hint) is tuple else items


def _load_union(hint: Any, value: Any, path: str) -> Any:
    options = get_args(hint)
    if value is None:
        if type(None) in options:
            return None
        raise SettingsError(path, f"is missing; allowed: {_in_words(hint)}")
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return _load(options[0], value, path)
    if all(dataclasses.is_dataclass(option) for option in options):
        if isinstance(value, options):
            return value
        return _load_member(*told_apart(options), value, path)
    for option in options:
        try:
            return _load(option, value, path)
        except SettingsError:
            continue
    raise SettingsError(path, f"got {value!r}; allowed: {_in_words(hint)}")


def _joined_literals(options: tuple[Any, ...]) -> list[Any]:
    """The options of a union, with all literals joined into one."""
    choices = [
        choice for option in options if get_origin(option) is Literal for choice in get_args(option)
    ]
    rest = [option for option in options if get_origin(option) is not Literal]
    return [*([Literal[tuple(choices)]] if choices else []), *rest]


def _in_words(hint: Any) -> str:
    """What a type hint allows, as errors say it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if union := members(hint):
        key, by_name = union
        return f"a mapping with the key {key}: {allowed_names('', by_name)}"
    if origin is Annotated:
        base, *constraints = arguments
        if isinstance(constraints[0], OneOf):
            return constraints[0].allowed
        return ", ".join([_in_words(base), *(item.allowed for item in constraints)])
    if origin is Literal:
        return allowed_names("", arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, _joined_literals(arguments)))
    if origin in (tuple, list):
        return "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping of names to settings"
    if dataclasses.is_dataclass(hint):
        return f"a mapping with the keys {', '.join(_field_names(typing.cast('type', hint)))}"
    return _SCALARS.get(hint, getattr(hint, "__name__", str(hint)))


def _load_member(key: str, members: Mapping[Any, type], value: Any, path: str) -> Any:
    if isinstance(value, tuple(members.values())):
        return value
    if not isinstance(value, Mapping):
        raise SettingsError(path, f"got {value!r}; allowed: a mapping with the key {key}")
    chosen = value.get(key)
    # Lists and mappings cannot be keys.
    if not isinstance(chosen, (str, int)) or chosen not in members:
        raise SettingsError(
            _join(path, key), f"got {chosen!r}; allowed: {allowed_names(chosen, members)}"
        )
    return _load(members[chosen], value, path)


def _check_most(most: int, member: type | None, value: Mapping[str, Any], path: str) -> None:
    """Refuse whole numbers above ``most`` in a member's settings."""
    hints = {} if member is None else field_hints(member)
    for key, item in value.items():
        if get_args(hints.get(key))[:1] == (float,):
            continue
        for number in item if isinstance(item, (list, tuple)) else (item,):
            if isinstance(number, (int, float)) and abs(number) > most:
                raise SettingsError(
                    _join(path, str(key)), f"got {_digits(number)}; allowed: at most {most:,}"
                )


def _load_dataclass(cls: type, value: Any, path: str) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise SettingsError(path, f"got {value!r}; allowed: {_in_words(cls)}")
    hints = field_hints(cls)
    for key in value:
        if key not in hints:
            raise SettingsError(
                _join(path, str(key)),
                f"unknown key; allowed: {allowed_names(key, _field_names(cls))}",
            )
    arguments = {}
    for field in dataclasses.fields(cls):
        if field.name in value:
            arguments[field.name] = _load(
                hints[field.name], value[field.name], _join(path, field.name)
            )
        elif not has_default(field):
            allowed = _in_words(hints[field.name])
            raise SettingsError(_join(path, field.name), f"is missing; allowed: {allowed}")
    try:
        return cls(**arguments)
    except SettingsError as error:
        raise error.under(path) from None


def _field_names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
