"""JSON Schemas of the config groups, generated from the settings classes.

Editors check conf/ against them. ``python -m workflow.schemas`` (``make schemas``, part
of ``make setup``) writes them and a page of every key, ``reference.md``, to
resources/schemas/conf, which is not in git, and adds to every file of conf/ the comment
that names its schema for editors.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from railx.field_docs import class_doc, field_doc
from railx.io import write_text
from railx.settings import field_hints, has_default, members, to_dict
from workflow.choices import BASE, conf_files, layers
from workflow.mounts import CONF, EVERY, choices
from workflow.plan_names import PlanNames
from workflow.reference import reference
from workflow.settings import CHOSEN, LISTED, NAME, SEEDED, Experiment, groups

#: The folder of the schemas, relative to the one of conf/.
SCHEMAS = Path("resources/schemas/conf")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_MARK = "# yaml-language-server: $schema="
_SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
#: How a class is written:
#:
#: * ``whole``: every key without a default is required;
#: * ``partial``: none is, for other files supply the rest;
#: * ``file``: partial, with Hydra's list of the mounted files and with variants;
#: * ``choice``: whole, with variants;
#: * ``heir``: a file that supplies each key without a default, or mounts it;
#: * ``base``: a file that does so, or each of whose variants does.
Form: TypeAlias = Literal["whole", "partial", "file", "choice", "heir", "base"]

#: What each size keyword of JSON Schema speaks of; the others speak of numbers.
_SIZES = {"minLength": "string", "minItems": "array", "minProperties": "object"}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of the files that :func:`schema_name` gives this name.

    A file that mounts others (``defaults``) may leave any key to them, at any depth,
    and so may the variants of a file (``choices``). A file that others mount
    (``GROUP.base``) may leave any key to its variants. Any other holds every key that
    has no default. An experiment and conf/config.yaml name files of the groups.
    """
    group, _, base = name.partition(".")
    # The experiment supplies these seeds.
    seeded = group in [LISTED[key] for key in SEEDED]
    writer = _Writer(supplied={"seed"} if seeded else set())
    hint = groups()["experiment" if group == "config" else group]
    if group in ("experiment", "config"):
        written = _choices_of(writer, config=group == "config")
    elif group == "stage" or base:
        written = writer.of(hint, "base" if base else "file")
    else:
        written = {
            "if": {"type": "object", "required": ["defaults"]},
            "then": writer.of(hint, "heir"),
            "else": writer.of(hint, "choice"),
        }
    return {
        "$schema": _DIALECT,
        "$id": f"{name}.schema.json",
        "title": f"conf/{name}",
        **written,
        "$defs": {**_defaults_list(), **dict(sorted(writer.definitions.items()))},
    }


def schema_name(path: Path) -> str:
    """The schema of a file below conf/: its group, ``GROUP.base`` if only mounted."""
    if path.parent in layers(CONF):
        return "config" if path.stem == "config" else "stage"
    return path.parent.name + (".base" if path.stem.startswith("base") else "")


@functools.cache
def generated_files() -> Mapping[Path, str]:
    """Text of each schema and of the page of every key, by path beside conf/."""
    names = sorted({schema_name(path) for path in conf_files(CONF)})
    files = {
        f"{name}.schema.json": json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"
        for name in names
    }
    return {SCHEMAS / name: text for name, text in {**files, "reference.md": reference()}.items()}


def marked(path: Path) -> str:
    """The text of a file below conf/ with the comment that names its schema.

    In the first line, or in the first below those that speak to Hydra (``# @package``).
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [line for line in lines if not line.startswith(_MARK)]
    above = next((i for i, line in enumerate(lines) if not line.startswith("# @")), len(lines))
    up = "../" * len(path.relative_to(CONF.parent).parent.parts)
    mark = f"{_MARK}{up}{SCHEMAS}/{schema_name(path)}.schema.json\n"
    return "".join([*lines[:above], mark, *lines[above:]])


def _choices_of(writer: _Writer, *, config: bool) -> dict[str, Any]:
    """An experiment's file: names of the groups' files, and values on top of them.

    Where it inherits other experiments, a name in a list may be one of theirs.
    """
    hints, properties, inherited = field_hints(Experiment), {}, {}
    for key in ("name", "seed"):
        properties[key] = writer.of(hints[key], "partial")
    for key, group in LISTED.items():
        values = writer.of(get_args(hints[key])[1], "partial")
        properties[key] = _listing(group, values, _names_of(group))
        new_name = {"type": "string", "pattern": f"^{NAME.pattern}$"}
        inherited[key] = _listing(group, values, new_name)
    for key in CHOSEN:
        properties[key] = {"anyOf": [{"enum": choices(key)}, writer.of(hints[key], "partial")]}
    for key in EVERY:
        properties[key] = {"enum": choices(key)}
    for key, written in properties.items():
        described = field_doc(Experiment, key) or f"File of conf/{key} for all {EVERY.get(key)}."
        properties[key] = {"description": described, **written}
        if key in inherited:
            inherited[key] = {"description": described, **inherited[key]}
    if config:
        experiment = {"description": "The experiment that runs.", "enum": choices("experiment")}
        return _closed({"experiment": experiment, **properties})
    parents = {"type": "array", "items": {"enum": choices("experiment")}}
    parents = {"description": "Experiments that this one inherits.", **parents}
    return {
        "if": {"type": "object", "required": ["defaults"]},
        "then": _closed({"defaults": parents, **properties, **inherited}),
        "else": _closed(properties),
    }


def _listing(group: str, values: dict[str, Any], name: dict[str, Any]) -> dict[str, Any]:
    """A list of names, or names to files, values or null; plans also as a product."""
    entry = [_names_of(group), values]
    single = {"type": "object", "minProperties": 1, "maxProperties": 1}
    items = [name, {**single, "additionalProperties": {"anyOf": entry}}]
    mapping = {"type": "object", "additionalProperties": {"anyOf": [*entry, {"type": "null"}]}}
    if group == "plan":
        cross = _cross() | {"with": {"description": "Keys of all these plans.", **values}}
        items.append({**_closed(cross), "required": ["cross"]})
        mapping |= {
            "properties": cross,
            "dependentRequired": {"except": ["cross"], "with": ["cross"]},
        }
    return {"anyOf": [{"type": "array", "items": {"anyOf": items}}, mapping]}


def _names_of(group: str) -> dict[str, Any]:
    """The choices of a group, and the names of plans that are a product."""
    names = {"enum": choices(group)}
    if group != "plan":
        return names
    parts = "_".join(f"({'|'.join(options)})" for options in _plan_parts().values())
    return {"anyOf": [names, {"type": "string", "pattern": f"^{parts}$"}]}


def _plan_parts() -> dict[str, list[str]]:
    names = PlanNames(CONF)
    return {
        "planner": sorted(names.planners),
        "setting": sorted(names.settings),
        "corpus": sorted(names.corpora),
    }


def _cross() -> dict[str, Any]:
    parts = {
        part: {"anyOf": [{"enum": names}, {"type": "array", "items": {"enum": names}}]}
        for part, names in _plan_parts().items()
    }
    return {
        "cross": {
            "description": "One plan for each combination; the last key changes fastest.",
            **_closed(parts),
            "required": list(parts),
        },
        "except": {
            "description": "Names or patterns of plans that are left out.",
            "type": "array",
            "items": {"type": "string"},
        },
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


class _Writer:
    """Writes type hints as JSON Schema.

    Classes go into ``definitions``, once in each form that is used. The keys
    ``supplied`` need not be in a file though they have no default.
    """

    def __init__(self, supplied: Collection[str] = ()) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._supplied = supplied

    def of(self, hint: Any, form: Form) -> dict[str, Any]:
        union = members(hint)
        if union is not None:
            return self._union(hint, *union, form)
        origin = get_origin(hint)
        if hint is Any:
            return {}
        if origin is Annotated:
            base, *constraints = get_args(hint)
            return _constrained(self.of(base, form), constraints)
        if origin is Literal:
            choices = list(get_args(hint))
            return {"const": choices[0]} if len(choices) == 1 else {"enum": choices}
        if origin in (Union, types.UnionType):
            return _any_of([self.of(option, form) for option in get_args(hint)])
        if origin in (tuple, list):
            return self._sequence(hint)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            item = self.of(get_args(hint)[1], form)
            return {"type": "object", "additionalProperties": item}
        if dataclasses.is_dataclass(hint):
            return self._reference(typing.cast("type", hint), form)
        return {"type": _SCALARS[hint]}

    def _union(
        self, hint: Any, key: str, classes: Mapping[Any, type], form: Form
    ) -> dict[str, Any]:
        """One schema per member.

        Whole settings name theirs, so that exactly one fits. A base without a member's
        name lists variants of any.
        """
        options = [self._reference(cls, form) for cls in dict.fromkeys(classes.values())]
        if form == "base":
            forms: list[Form] = ["heir", "whole"]
            variant = {"anyOf": [self._union(hint, key, classes, inner) for inner in forms]}
            variants = {"type": "object", "additionalProperties": variant}
            options.append(_closed({"choices": variants}))
        if type(None) in get_args(hint):
            options.append({"type": "null"})
        if form not in ("whole", "choice"):
            return {"anyOf": options}
        return {"discriminator": {"propertyName": key}, "oneOf": options}

    def _sequence(self, hint: Any) -> dict[str, Any]:
        """A list is written in one piece, so that its items are whole in any file."""
        arguments = get_args(hint)
        if get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
            items = [self.of(argument, "whole") for argument in arguments]
            size = len(items)
            return {"type": "array", "prefixItems": items, "minItems": size, "maxItems": size}
        return {"type": "array", "items": self.of(arguments[0], "whole")}

    def _reference(self, cls: type, form: Form) -> dict[str, Any]:
        name = f"{cls.__module__}.{cls.__qualname__}" + ("" if form == "whole" else f".{form}")
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self._class(cls, form)
        return {"$ref": f"#/$defs/{name}"}

    def _class(self, cls: type, form: Form) -> dict[str, Any]:
        fields = [field for field in dataclasses.fields(cls) if field.init]
        required = [field.name for field in fields if not has_default(field)]
        if form in ("heir", "base"):
            needed = [key for key in required if key not in self._supplied]
            supplies = _heir_supplies if form == "heir" else _base_supplies
            conditions = {"allOf": [supplies(key) for key in needed]} if needed else {}
            return {**self._reference(cls, "file"), **conditions}
        hints = field_hints(cls)
        whole = form in ("whole", "choice")
        inner: Form = "whole" if whole else "partial"
        properties = {field.name: self._field(cls, field, hints, inner) for field in fields}
        if form == "file":
            properties = {name: _left_open(field) for name, field in properties.items()}
            properties["defaults"] = {"$ref": "#/$defs/defaults"}
        if form in ("file", "choice"):
            variant = {"anyOf": [self._reference(cls, "file"), {"type": "null"}]}
            properties["choices"] = {
                "description": "Further choices by name: this file with these keys on top.",
                "type": "object",
                "additionalProperties": variant,
            }
        written: dict[str, Any] = {"title": cls.__name__, "description": class_doc(cls)}
        written |= {"type": "object", "additionalProperties": False, "properties": properties}
        if whole:
            written["required"] = [key for key in required if key not in self._supplied]
        return written

    def _field(
        self, cls: type, field: dataclasses.Field[Any], hints: Mapping[str, Any], form: Form
    ) -> dict[str, Any]:
        written = self.of(hints[field.name], form)
        description = field_doc(cls, field.name)
        if description:
            written = {"description": description, **written}
        if field.default is not dataclasses.MISSING:
            written["default"] = to_dict(field.default)
        return written


def _left_open(written: dict[str, Any]) -> dict[str, Any]:
    """With ``???``, by which a file leaves a key to those that mount it."""
    described: dict[str, Any] = {
        key: written[key] for key in ("description", "default") if key in written
    }
    rest = {key: value for key, value in written.items() if key not in described}
    return {**described, "anyOf": [rest, {"const": "???"}]}


def _heir_supplies(key: str) -> dict[str, Any]:
    """A file that holds a key, mounts it, or inherits a file that may hold it."""
    holds = {"required": [key], "properties": {key: {"not": {"const": "???"}}}}
    inherits = {"type": "string", "not": {"const": "_self_"}}
    mounts = {"type": "object", "propertyNames": {"pattern": rf"^/\w+@({key}(\.|$)|_here_$)"}}
    contains = {"type": "array", "contains": {"anyOf": [inherits, mounts]}}
    mounted = {"required": ["defaults"], "properties": {"defaults": contains}}
    return {"type": "object", "anyOf": [holds, mounted]}


def _base_supplies(key: str) -> dict[str, Any]:
    """A file that supplies a key, or each of whose variants for choice does."""
    supplies = _heir_supplies(key)
    variants = {"patternProperties": {f"^{BASE}": {}}, "additionalProperties": supplies}
    return {"anyOf": [supplies, {"properties": {"choices": variants}}]}


def _any_of(options: list[dict[str, Any]]) -> dict[str, Any]:
    """Alternatives, in one piece where they are one type or null."""
    some = [option for option in options if option != {"type": "null"}]
    if len(some) == len(options) - 1 == 1 and isinstance(some[0].get("type"), str):
        written = {**some[0], "type": [some[0]["type"], "null"]}
        return {**written, "enum": [*written["enum"], None]} if "enum" in written else written
    return {"anyOf": options}


def _constrained(written: dict[str, Any], constraints: list[Any]) -> dict[str, Any]:
    """With the keywords of the constraints that speak of what the schema allows."""
    kinds = written["type"] if isinstance(written["type"], list) else [written["type"]]
    allowed = dict(written)
    for constraint in constraints:
        keywords = constraint.keywords.items()
        allowed |= {key: value for key, value in keywords if _SIZES.get(key) in (None, *kinds)}
    if "null" in kinds and "enum" in allowed:
        allowed["enum"] = [*allowed["enum"], None]
    return allowed


def _defaults_list() -> dict[str, Any]:
    choice = {"type": ["string", "null"]}
    entry = {"type": "object", "minProperties": 1, "maxProperties": 1}
    return {
        "defaults": {
            "description": "The files that this one mounts, in Hydra's syntax.",
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {**entry, "additionalProperties": choice}]},
        }
    }


def main() -> int:
    """Write the generated files and the comments in conf/."""
    root = CONF.parent
    files = {root / path: text for path, text in generated_files().items()}
    files |= {path: marked(path) for path in sorted(CONF.rglob("*.yaml"))}
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            print(path.relative_to(root))
    for path in set((root / SCHEMAS).iterdir()) - set(files):
        path.unlink()
        print(f"{path.relative_to(root)} removed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
