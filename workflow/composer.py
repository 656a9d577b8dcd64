"""Composition of conf/: choices, what they inherit and mount, values on top.

Files are written in Hydra's syntax and overrides are read by Hydra's grammar. A
``defaults`` list holds

* ``NAME``: inherit a choice of the same group,
* ``/GROUP@KEY: NAME``: mount a choice of a group below a key (``_here_``: beside the
  keys of the file itself),
* ``override /GROUP@KEY: NAME``: another choice where an inherited file mounts one,
* ``_self_``: where the keys of the file itself come, last where it is left out.

Mappings merge, lists are replaced, ``???`` leaves a key open, ``${...}`` is resolved at
the end. Each choice is composed once, however often it is mounted. Hydra's time grows
with the square of the mounted choices (153 took 10.6 s, this composer 0.1 s for all of
``paper``), so that Hydra is only the reference of tests/workflow/test_composer.py.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railx.settings import SettingsError
from workflow.choices import choice_content, conf_file, is_group
from workflow.overrides import parse_overrides
from workflow.plan_names import TABLES, PlanNames
from workflow.yaml_files import read_yaml_mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9][A-Za-z0-9_]*)*")
_MISSING = "???"
#: The key of a choice that is mounted beside the keys of the file that mounts it.
_HERE = "_here_"
#: More files on the way from an heir to what it inherits are a circle.
_MAX_DEPTH = 30
_SYNTAX = "a list of NAME, /GROUP@KEY: NAME, override /GROUP@KEY: NAME and _self_"

#: The chosen name (None: nothing is mounted) by group and key, seen from a file.
_Choices = Mapping[tuple[str, str], str | None]


@dataclass(frozen=True)
class _Node:
    """A choice with all that it mounts, and the overridden choices that it has."""

    content: Mapping[str, Any]
    taken: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _Entry:
    """An item of a ``defaults`` list."""

    kind: str
    """self, inherit, mount or override."""
    group: str
    key: str
    name: str


def compose(
    conf: Path, primary: str | Mapping[str, Any], overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The config of conf/``primary``.yaml, or of a mapping with ``defaults``.

    ``overrides`` are in Hydra's syntax. Raises :class:`railx.settings.SettingsError`
    for a file that is no YAML, a choice that is not there and an override that has no
    place.
    """
    if isinstance(primary, str):
        primary = read_yaml_mapping(*conf_file(conf, f"{primary}.yaml"))
    entries = [_entry("", item) for item in _listed(primary.get("defaults", []), "")]
    chosen: dict[tuple[str, str], str | None] = {}
    values = []
    for override in parse_overrides(overrides):
        group, key = override.key_or_group, override.package or override.key_or_group
        is_value = not override.is_delete() and isinstance(override.value(), dict)
        if is_value or not is_group(conf, group):
            values.append(override)
            continue
        name = None if override.is_delete() else override.value()
        if not override.is_delete() and not isinstance(name, str):
            raise SettingsError(key, f"got {name!r}; allowed: a choice of conf/{group}")
        if override.is_add():
            at = entries.index(_SELF) if _SELF in entries else len(entries)
            entries.insert(at, _Entry("mount", group, key, str(name)))
        else:
            chosen[group, key] = name
    content = {key: value for key, value in primary.items() if key != "defaults"}
    node = _Composer(conf).assembled(entries, content, chosen, 0)
    for group, key in chosen.keys() - node.taken:
        raise SettingsError(
            f"{group}@{key}" if group != key else key,
            "is not chosen here; allowed: with + in front, to choose it besides",
        )
    config: dict[str, Any] = copy.deepcopy(dict(node.content))
    for override in values:
        _set(config, override)
    return _resolved(config) if _interpolates(config) else config


def compose_choice(conf: Path, group: str, name: str) -> dict[str, Any]:
    """A choice with what it inherits and mounts, unchecked; open keys are ``???``."""
    content: dict[str, Any] = compose(conf, {"defaults": [{f"/{group}": name}]})[group]
    return content


class _Composer:
    """The choices of a conf/ with what they mount, each composed once."""

    def __init__(self, conf: Path) -> None:
        self._conf = conf
        self._plans = PlanNames(conf)
        self._nodes: dict[tuple[str, str, tuple[Any, ...]], _Node] = {}

    def node(self, group: str, name: str, choices: _Choices, depth: int = 0) -> _Node:
        """A choice of a group; ``choices`` are those below its own key."""
        key = (group, name, tuple(sorted(choices.items())))
        if key not in self._nodes:
            if depth > _MAX_DEPTH:
                raise SettingsError("defaults", f"conf/{group}/{name}.yaml inherits itself")
            content = dict(self._content(group, name))
            listed = _listed(content.pop("defaults", []), f" in conf/{group}/{name}.yaml")
            try:
                entries = [_entry(group, item) for item in listed]
                self._nodes[key] = self.assembled(entries, content, choices, depth)
            except SettingsError as error:
                # A choice from above, as of the command line, is not of this file.
                if choices or not group:
                    raise
                raise error.within(f"conf/{group}/{name}.yaml") from None
        return self._nodes[key]

    def assembled(
        self, entries: Sequence[_Entry], content: Mapping[str, Any], choices: _Choices, depth: int
    ) -> _Node:
        """What ``entries`` mount in their order, the content at ``_self_``."""
        # What an heir overrides, those who inherit it override again.
        chosen = {
            (entry.group, entry.key): entry.name for entry in entries if entry.kind == "override"
        } | dict(choices)
        merged: dict[str, Any] = {}
        taken: set[tuple[str, str]] = set()
        for entry in entries if _SELF in entries else [*entries, _SELF]:
            if entry.kind == "self":
                _merge(merged, content)
            elif entry.kind == "inherit" or entry.key == _HERE:
                node = self.node(entry.group, entry.name, chosen, depth + 1)
                taken |= node.taken
                tables = () if entry.kind == "inherit" else TABLES
                _merge(merged, {k: v for k, v in node.content.items() if k not in tables})
            elif entry.kind == "mount":
                name: str | None = entry.name
                if (entry.group, entry.key) in chosen:
                    name = chosen[entry.group, entry.key]
                    taken.add((entry.group, entry.key))
                if name is None:
                    continue
                prefix = f"{entry.key}."
                below = {
                    (group, key.removeprefix(prefix)): choice
                    for (group, key), choice in chosen.items()
                    if key.startswith(prefix)
                }
                node = self.node(entry.group, name, below, depth + 1)
                taken |= {(group, prefix + key) for group, key in node.taken}
                _merge(merged, _nested(entry.key.split("."), node.content))
        for group, key in chosen.keys() - choices.keys() - taken:
            raise SettingsError("defaults", f"override /{group}@{key}: nothing is mounted there")
        return _Node(merged, frozenset(taken))

    def _content(self, group: str, name: str) -> Mapping[str, Any]:
        parts = self._plans.parts(name) if group == "plan" else None
        if parts is None:
            return choice_content(self._conf, group, name)
        return parts.content(self.node("setting", parts.setting, {}).content)


def _listed(defaults: Any, where: str) -> Sequence[Any]:
    if isinstance(defaults, Sequence) and not isinstance(defaults, str):
        return defaults
    raise SettingsError("defaults", f"got {defaults!r}{where}; allowed: {_SYNTAX}")


_SELF = _Entry("self", "", "", "")


def _entry(group: str, item: Any) -> _Entry:
    """An item of the ``defaults`` of a choice of ``group`` (empty: of no group)."""
    if item == "_self_":
        return _SELF
    if isinstance(item, str) and _NAME.fullmatch(item):
        return _Entry("inherit", group, "", item)
    if isinstance(item, Mapping) and len(item) == 1:
        ((target, name),) = item.items()
        kind = "mount"
        if str(target).startswith("override "):
            kind, target = "override", target.removeprefix("override ").strip()
        own, _, key = str(target).partition("@")
        # Without a key it is the group's name, as long as nothing stands above it.
        if not key and not group:
            key = own.removeprefix("/")
        if own.startswith("/") or not group:
            own = own.removeprefix("/")
            if _NAME.fullmatch(own) and _KEY.fullmatch(key) and _NAME.fullmatch(str(name)):
                return _Entry(kind, own, key, str(name))
    raise SettingsError("defaults", f"got {item!r}; allowed: {_SYNTAX}")


def _interpolates(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(_interpolates(item) for item in value.values())
    return isinstance(value, list) and any(map(_interpolates, value))


def _resolved(config: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "config"
        got = str(error).splitlines()[0]
        raise SettingsError(str(key), f"{got}; allowed: ${{KEY}} that is there") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _nested(keys: Sequence[str], content: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in reversed(keys):
        content = {key: content}
    return content


def _merge(below: dict[str, Any], top: Mapping[str, Any]) -> None:
    """Lay ``top`` on ``below``, mapping by mapping; what it leaves open stays."""
    for key, value in top.items():
        if {_kind(value), _kind(below.get(key))} == {dict, list}:
            raise SettingsError(str(key), "got a list and a mapping; allowed: two of a kind")
        if isinstance(value, Mapping):
            if not isinstance(below.get(key), dict):
                below[key] = {}
            _merge(below[key], value)
        elif key not in below or value != _MISSING:
            below[key] = value


def _kind(value: Any) -> type:
    return dict if isinstance(value, Mapping) else type(value)


def _set(config: dict[str, Any], override: Any) -> None:
    """Set, or with ``~`` remove, a value on top of all files."""
    *way, last = override.key_or_group.split(".")
    at: Any = config
    for key in way:
        below = at.get(key)
        if override.is_delete() and not isinstance(below, dict):
            break
        if not isinstance(below, dict):
            below = at[key] = {}
        at = below
    else:
        if not override.is_delete():
            value = override.value()
            if value == {} and isinstance(at.get(last), dict) and at[last]:
                raise SettingsError(
                    override.key_or_group,
                    "got {}, which changes none of its values; allowed: values, or ~KEY to remove"
                    f" one, e.g. ~{override.key_or_group}.{next(iter(at[last]))}",
                )
            if isinstance(value, Mapping) and isinstance(at.get(last), dict):
                _merge(at[last], value)
            else:
                at[last] = copy.deepcopy(value)
            return
        if last in at and override.value() in (None, at[last]):
            del at[last]
            return
    raise SettingsError(override.key_or_group, "cannot be removed: there is no such value")
