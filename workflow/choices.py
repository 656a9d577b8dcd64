"""The choices of a group of conf/: its files, their variants, and classes of defaults.

* ``conf/GROUP/NAME.yaml`` is the choice NAME.
* ``choices: {NAME: {...}}`` in a file: NAME is that file with these keys on top, or
  another choice where the ``defaults`` of NAME inherit one.
* In a group whose settings are told apart by one key (``family``, ``figure``,
  ``planner``), the name of a class whose other keys all have defaults is a choice too.

A name that begins with ``base`` is only there to be inherited. A folder of work, which
``railx init`` made, holds what a study changes: its files come first, then the
package's. Its file of a name replaces the package's, with all its variants.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from railx import places
from railx.errors import allowed_names
from railx.settings import SettingsError, has_default, members
from workflow.yaml_files import read_yaml_mapping

#: Names that begin so are inherited and never chosen.
BASE = "base"
#: The key under which a file lists its variants.
_CHOICES = "choices"


def choices(conf: Path, group: str) -> list[str]:
    """Every name of a group that can be chosen, sorted."""
    names = _listed(conf, group).keys() | _members(group).keys()
    return sorted(name for name in names if not name.startswith(BASE))


def is_choice(conf: Path, group: str, name: str) -> bool:
    """Whether a name of a group can be chosen; classes are imported last."""
    return not name.startswith(BASE) and (name in _listed(conf, group) or name in _members(group))


def choice_content(conf: Path, group: str, name: str) -> dict[str, Any]:
    """What a choice or file to inherit holds, not to be changed; or SettingsError."""
    listed = _listed(conf, group)
    if name in listed:
        file, keys = listed[name]
        if keys is None:
            content = read_yaml_mapping(file, file.parents[2])
            return {key: value for key, value in content.items() if key != _CHOICES}
        defaults = keys.get("defaults", ())
        inherits = any(isinstance(item, str) and item != "_self_" for item in defaults)
        return {**keys, "defaults": defaults if inherits else [file.stem, *defaults]}
    members = _members(group)
    if name in members:
        key, _ = members[name]
        return {key: name}
    allowed = allowed_names(name, choices(conf, group))
    raise SettingsError(group, f"got {name!r}; allowed: {allowed}")


def about(conf: Path, group: str, name: str) -> str:
    """The first sentence on a choice: of the comment above it, or of its class."""
    path = file_of(conf, group, name)
    words: list[str] = []
    lines = [] if path is None else path.read_text(encoding="utf-8").splitlines()
    if path is not None and path.stem == name:
        for line in lines:
            if not line.startswith("#"):
                break
            if not line.startswith("# yaml-language-server"):
                words += line.lstrip("#").split()
    elif path is not None:
        above = next(i for i, line in enumerate(lines) if re.match(rf"  {name}:", line))
        while lines[above - 1].startswith("  #"):
            above -= 1
            words[:0] = lines[above].strip().lstrip("#").split()
        words = words or about(conf, group, path.stem).split()
    else:
        from railx.field_docs import class_doc

        words = class_doc(_members(group)[name][1]).split()
    return " ".join(words).split(". ")[0].removesuffix(".")


def file_of(conf: Path, group: str, name: str) -> Path | None:
    """The file that holds a choice, as its own or as a variant; None without one."""
    return _listed(conf, group).get(name, (None, None))[0]


def _listed(conf: Path, group: str) -> dict[str, tuple[Path, dict[str, Any] | None]]:
    """The file behind each choice, with a variant's keys; an earlier layer wins."""
    listed: dict[str, tuple[Path, dict[str, Any] | None]] = {}
    for files in group_files(conf, group):
        layer: dict[str, tuple[Path, dict[str, Any] | None]] = {
            name: (path, None) for name, path in files.items()
        }
        for path in files.values():
            variants = read_yaml_mapping(path, path.parents[2]).get(_CHOICES) or {}
            shown = f"conf/{group}/{path.name}"
            if not isinstance(variants, dict) or not all(
                isinstance(keys, (dict, type(None))) for keys in variants.values()
            ):
                allowed = "a mapping of names to keys"
                raise SettingsError(_CHOICES, f"got {variants!r} in {shown}; allowed: {allowed}")
            for name, keys in variants.items():
                if name in layer:
                    allowed = "a name that no other choice has"
                    raise SettingsError(_CHOICES, f"got {name!r} in {shown}; allowed: {allowed}")
                layer[name] = path, keys or {}
        listed = layer | listed
    return listed


def _members(group: str) -> dict[str, tuple[str, type]]:
    """Classes that need no file, by name, each with the key that tells it apart."""
    if group == "experiment":
        return {}
    # The settings of a group import its room, those of all groups every room.
    if group == "topology":
        from railx.families import TopologySettings

        union = members(TopologySettings)
    else:
        from workflow.settings import groups

        union = members(groups().get(group))
    if union is None:
        return {}
    key, classes = union
    return {
        name: (key, cls)
        for name, cls in classes.items()
        if isinstance(name, str)
        and all(field.name == key or has_default(field) for field in dataclasses.fields(cls))
    }


def layers(conf: Path) -> tuple[Path, ...]:
    """The folders behind ``conf``: in a folder of work, the package's is second."""
    shipped = places.SHIPPED / "conf"
    return (conf, shipped) if conf == places.WORK / "conf" != shipped else (conf,)


def conf_file(conf: Path, name: str) -> tuple[Path, Path]:
    """The first file conf/``name`` (or its place), and the folder to name it from."""
    folder = next((folder for folder in layers(conf) if (folder / name).is_file()), conf)
    return folder / name, folder.parent


def conf_files(conf: Path) -> list[Path]:
    """Every file of all layers, sorted."""
    return sorted(path for folder in layers(conf) for path in folder.rglob("*.yaml"))


def group_files(conf: Path, group: str) -> list[dict[str, Path]]:
    """A group's files by name, per layer, without those that an earlier replaces."""
    listed: list[dict[str, Path]] = []
    for folder in layers(conf):
        paths = sorted(p for p in (folder / group).glob("*.yaml") if not p.name.startswith("."))
        before = {name for files in listed for name in files}
        listed.append({path.stem: path for path in paths if path.stem not in before})
    return listed


def is_group(conf: Path, group: str) -> bool:
    """Whether a layer has a folder of this name."""
    return any((folder / group).is_dir() for folder in layers(conf))


def groups_of(conf: Path) -> list[str]:
    """The names of all groups, sorted."""
    return sorted(
        {path.name for folder in layers(conf) for path in folder.iterdir() if path.is_dir()}
    )
