"""The page of settings: type, range, unit and meaning of every key of conf/."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from railx.field_docs import class_doc, field_doc
from railx.settings import OneOf, field_hints, members
from workflow.settings import groups

_TYPES = {int: "integer", float: "number", bool: "true or false", str: "text", Any: "anything"}

#: Endings of names and the unit that they stand for; the longest that fits counts.
_UNITS = {
    "_bytes": "byte",
    "_bytes_per_element": "byte per element",
    "_bytes_per_parameter": "byte per parameter",
    "_cycles": "cycle",
    "_flits": "flit",
    "_flits_per_chip_cycle": "flit per chip and cycle",
    "_gb_s": "10^9 byte/s",
    "_gb_s_per_chip": "10^9 byte/s per chip",
    "_gbps": "10^9 bit/s",
    "_gib": "2^30 byte",
    "_hours": "hour",
    "_hours_between_failures": "hour",
    "_inches": "inch",
    "_mb": "10^6 byte",
    "_mib_per_token": "2^20 byte per token",
    "_ms": "ms",
    "_ms_per_token": "ms per token",
    "_ms_per_token2": "ms per token squared",
    "_ns": "ns",
    "_s": "s",
    "_tflop_s": "10^12 operations/s",
    "_tflops": "10^12 operations/s",
    "_tokens": "token",
    "_usd": "USD",
    "_watts": "W",
}
#: How the name of a price begins that ends in what is paid for.
_PRICE = "usd_per_"


@dataclasses.dataclass(frozen=True)
class Row:
    """One key: its dotted place in a file, what it may be, its unit and its meaning."""

    key: str
    allowed: str
    unit: str
    meaning: str


def reference() -> str:
    """The whole page, one section per group."""
    lines = [
        "<!-- Generated from the settings classes; edit their docstrings. -->",
        "# Every key of conf/",
        "",
        "A file of `conf/GROUP/` holds these keys, or leaves them to the files that its",
        "`defaults` mount. `name.*` stands for any name in a mapping, `name[]` for each item of a",
        "list, and a key without a default must be there. An experiment names files of the groups",
        "in the place of what they hold: `traffic: uniform`, `plans: [flexsp_stdlib]`.",
        "",
    ]
    for group, hint in groups().items():
        lines += _section(group, hint)
    return "\n".join(lines)


def keys_of(cls: type, prefix: str = "") -> Iterator[Row]:
    """The keys of a settings class, nested ones below; those of a group refer to it."""
    hints = field_hints(cls)
    for field in dataclasses.fields(cls):
        key = f"{prefix}{field.name}"
        meaning = field_doc(cls, field.name).replace("\n\n", " ")
        allowed, below = _allowed(hints[field.name])
        if field.default is not dataclasses.MISSING:
            allowed += f"; default {_word(field.default)}"
        yield Row(key, allowed, unit_of(field.name), meaning)
        if below is not None:
            suffix, classes = below
            for nested in classes:
                yield from keys_of(nested, f"{key}{suffix}.")


def unit_of(name: str) -> str:
    """The unit that the ending of a name stands for; empty where it has none."""
    if name.startswith(_PRICE):
        return f"USD per {unit_of(name.removeprefix(_PRICE)) or 'one'}"
    endings = [ending for ending in _UNITS if f"_{name}".endswith(ending)]
    return _UNITS[max(endings, key=len)] if endings else ""


def _section(group: str, hint: Any) -> list[str]:
    title = "conf/stage*.yaml" if group == "stage" else f"conf/{group}/"
    lines = [f'<a id="{group}"></a>', "", f"## {title}", ""]
    union = members(hint)
    if union is None:
        return [*lines, *_class(hint)]
    key, classes = union
    lines += [f"`{key}` says which of these a file is.", ""]
    for value, cls in classes.items():
        lines += [f"### {key}: {value}", "", *_class(cls)]
    return lines


def _class(cls: type) -> list[str]:
    cells = [("key", "allowed", "unit", "meaning"), ("---",) * 4]
    cells += [(f"`{row.key}`", row.allowed, row.unit, row.meaning) for row in keys_of(cls)]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return [class_doc(cls), "", *table, ""]


def _allowed(hint: Any) -> tuple[str, tuple[str, list[type]] | None]:
    """What a key may be in words, and the classes below it with their place."""
    group = next((name for name, behind in groups().items() if behind == hint), None)
    if group is not None:
        return f"as in [{group}](#{group})", None
    union = members(hint)
    if union is not None:
        null = " or null" if type(None) in get_args(hint) else ""
        key, classes = union
        return f"a mapping told apart by `{key}`{null}", ("", list(classes.values()))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        chosen = next(
            (constraint for constraint in arguments[1:] if isinstance(constraint, OneOf)), None
        )
        if chosen is not None:
            return ", ".join(map(_word, chosen.choices)), None
        words, below = _allowed(arguments[0])
        rules = ", ".join(["", *(constraint.allowed for constraint in arguments[1:])])
        kind, separator, items = words.partition(", each:")
        return kind + rules + separator + items, below
    if origin is Literal:
        return ", ".join(map(_word, arguments)), None
    if origin in (Union, types.UnionType):
        options = [_allowed(option) for option in arguments]
        below = next((nested for _, nested in options if nested is not None), None)
        return " or ".join(words for words, _ in options), below
    if origin in (tuple, list):
        return _list(origin, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        words, below = _allowed(arguments[1])
        return f"mapping of names, each: {words}", _further(".*", below)
    if dataclasses.is_dataclass(hint):
        return "a mapping", ("", [typing.cast("type", hint)])
    return ("null" if hint is type(None) else _TYPES[hint]), None


def _list(origin: Any, arguments: tuple[Any, ...]) -> tuple[str, tuple[str, list[type]] | None]:
    if origin is tuple and arguments[-1] is not Ellipsis:
        return "list of " + ", ".join(_allowed(argument)[0] for argument in arguments), None
    words, below = _allowed(arguments[0])
    return f"list, each: {words}", _further("[]", below)


def _further(suffix: str, below: tuple[str, list[type]] | None) -> tuple[str, list[type]] | None:
    return None if below is None else (suffix + below[0], below[1])


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"`{value}`"
