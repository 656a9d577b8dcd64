"""conf/ composed without Hydra, where files and values are all that is asked.

Hydra composes whatever its language can say, in time that grows with the square of
the files: 20 s for an experiment of 170 plans. What conf/ itself uses is small:
``defaults`` of names, ``/group@key: name`` and ``override``, and values on top. That is
composed here, each file once however often it is mounted. Everything else
(interpolations, ``@package``, sweeps, packages with an underscore, deleted and added
groups) ends in :class:`Unplain`, and Hydra composes. A test holds both equal.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railx.settings import SettingsError
from workflow.choices import choice_content

__all__ = ["Unplain", "composed_plainly"]

_GROUP = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PACKAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9][A-Za-z0-9_]*)*")
_MISSING = "???"
#: More files on the way from an heir to what it inherits are a circle.
_DEEPEST = 30


class Unplain(Exception):
    """What only Hydra composes."""


@dataclass(frozen=True)
class _Node:
    """A file with all that it mounts, below its own key; which choices it took."""

    content: Mapping[str, Any]
    taken: frozenset[tuple[str, str]]


#: A choice by its group and its key, seen from the file that mounts it.
_Choices = Mapping[tuple[str, str], str]


def composed_plainly(
    conf: Path, primary: str | Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """The config of conf/``primary``.yaml, or of a mapping with ``defaults``.

    ``overrides`` are in Hydra's syntax. Raises :class:`Unplain` where Hydra is needed,
    and :class:`railx.settings.SettingsError` for a file that is no YAML or a choice
    that is not there.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides)) if overrides else []
    choices: dict[tuple[str, str], str] = {}
    values = []
    for override in parsed:
        group = override.key_or_group
        if override.is_sweep_override() or (conf / group).is_dir():
            if override.is_sweep_override() or override.is_add() or override.is_delete():
                raise Unplain(group)
            value = override.value()
            if value is None or isinstance(value, (bool, int, float)):
                raise SettingsError(
                    override.package or group, f"got {value!r}; allowed: a file of conf/{group}"
                )
            if not isinstance(value, str):
                raise Unplain(group)
            choices[group, override.package or group] = value
        elif override.package is not None or not _PACKAGE.fullmatch(group):
            raise Unplain(group)
        else:
            values.append(override)
    trees = _Trees(conf)
    if isinstance(primary, str):
        node = trees.node("", primary, choices)
    else:
        content = {key: value for key, value in primary.items() if key != "defaults"}
        node = trees.assembled("", primary.get("defaults", []), content, choices, 0)
    if set(choices) - node.taken:
        raise Unplain(", ".join("@".join(key) for key in choices))
    config: dict[str, Any] = copy.deepcopy(dict(node.content))
    for override in values:
        _set(config, override)
    return config


class _Trees:
    """The files of a conf/ with what they mount, each composed once."""

    def __init__(self, conf: Path) -> None:
        self._conf = conf
        self._nodes: dict[tuple[str, str, tuple[Any, ...]], _Node] = {}

    def node(self, group: str, name: str, choices: _Choices, depth: int = 0) -> _Node:
        """A file of a group; ``choices`` are those below its own key."""
        key = (group, name, tuple(sorted(choices.items())))
        if key not in self._nodes:
            if depth > _DEEPEST:
                raise SettingsError("defaults", f"conf/{group}/{name}.yaml inherits itself")
            content = dict(self._content(group, name))
            defaults = content.pop("defaults", [])
            self._nodes[key] = self.assembled(group, defaults, content, choices, depth)
        return self._nodes[key]

    def assembled(
        self,
        group: str,
        defaults: Any,
        content: Mapping[str, Any],
        choices: _Choices,
        depth: int,
    ) -> _Node:
        """What ``defaults`` mount in their order, the content at ``_self_``."""
        if not isinstance(defaults, Sequence) or isinstance(defaults, str):
            raise Unplain(group)
        entries = [_entry(group, item) for item in defaults]
        if ("_self_", "", "") not in entries:
            entries.append(("_self_", "", ""))
        # What an heir overrides, those who inherit it override again.
        wanted = {
            (own, key): name
            for kind, own, key, name in (
                (kind, *target.split("@"), name) for kind, target, name in entries if target
            )
            if kind == "override"
        } | dict(choices)
        merged: dict[str, Any] = {}
        taken: set[tuple[str, str]] = set()
        for kind, target, name in entries:
            if kind == "_self_":
                _merge(merged, content)
            elif kind == "inherit":
                node = self.node(group, name, wanted, depth + 1)
                taken |= node.taken
                _merge(merged, node.content)
            elif kind == "mount":
                own, key = target.split("@")
                if (own, key) in wanted:
                    name = wanted[own, key]
                    taken.add((own, key))
                below = {
                    (one, inner.removeprefix(f"{key}.")): choice
                    for (one, inner), choice in wanted.items()
                    if inner.startswith(f"{key}.")
                }
                node = self.node(own, name, below, depth + 1)
                taken |= {(one, f"{key}.{inner}") for one, inner in node.taken}
                _merge(merged, _nested(key.split("."), node.content))
        if set(wanted) - set(choices) - taken:
            raise Unplain(group)
        return _Node(merged, frozenset(taken))

    def _content(self, group: str, name: str) -> Mapping[str, Any]:
        path = self._conf / group / f"{name}.yaml"
        if not path.is_file():
            if not group:
                raise Unplain(name)
            return choice_content(self._conf, group, name)
        content = choice_content(self._conf, group, name)
        if _of_hydra(path, content):
            raise Unplain(str(path))
        return content


def _entry(group: str, item: Any) -> tuple[str, str, str]:
    """An entry of a defaults list: what it does, ``GROUP@KEY`` and the file's name."""
    if isinstance(item, str):
        if item == "_self_":
            return "_self_", "", ""
        if _GROUP.fullmatch(item):
            return "inherit", "", item
        raise Unplain(item)
    if not isinstance(item, Mapping) or len(item) != 1:
        raise Unplain(str(item))
    ((target, name),) = item.items()
    if not isinstance(target, str) or not isinstance(name, str) or not _GROUP.fullmatch(name):
        raise Unplain(str(item))
    kind = "mount"
    if target.startswith("override "):
        kind, target = "override", target.removeprefix("override ").strip()
    own, _, key = target.partition("@")
    # Without a key it is the group's name, as long as nothing stands above it.
    if not key and not group:
        key = own.removeprefix("/")
    if (group and not own.startswith("/")) or not _PACKAGE.fullmatch(key):
        raise Unplain(target)
    if not _GROUP.fullmatch(own.removeprefix("/")):
        raise Unplain(target)
    return kind, f"{own.removeprefix('/')}@{key}", name


def _of_hydra(path: Path, content: Any) -> bool:
    """Whether a file says something that only Hydra understands."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                break
            if "@package" in line:
                return True
    return _interpolates(content)


def _interpolates(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(_interpolates(key) or _interpolates(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_interpolates, value))


def _nested(keys: Sequence[str], content: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in reversed(keys):
        content = {key: content}
    return content


def _kind(value: Any) -> type:
    return dict if isinstance(value, Mapping) else type(value)


def _merge(below: dict[str, Any], top: Mapping[str, Any]) -> None:
    """Lay ``top`` on ``below``, mapping by mapping; what it leaves open stays."""
    for key, value in top.items():
        under = below.get(key)
        if {_kind(value), _kind(under)} == {dict, list}:
            raise Unplain(str(key))
        if isinstance(value, Mapping):
            if not isinstance(under, dict):
                under = below[key] = {}
            _merge(under, value)
        elif key not in below or value != _MISSING:
            below[key] = value


def _set(config: dict[str, Any], override: Any) -> None:
    """Set, or with ``~`` remove, a value on top of all files."""
    *way, last = override.key_or_group.split(".")
    value = None if override.is_delete() else override.value()
    if _interpolates(value) or value == _MISSING:
        raise Unplain(override.key_or_group)
    at: Any = config
    for key in way:
        below = at.get(key)
        if isinstance(below, list) or (override.is_delete() and not isinstance(below, dict)):
            raise Unplain(override.key_or_group)
        if not isinstance(below, dict):
            below = at[key] = {}
        at = below
    if override.is_delete():
        if last not in at or override.value() is not None:
            raise Unplain(override.key_or_group)
        del at[last]
    elif isinstance(value, Mapping) and isinstance(at.get(last), dict):
        _merge(at[last], value)
    elif not way and (last not in at) != override.is_add():
        raise Unplain(last)
    else:
        at[last] = copy.deepcopy(value)
