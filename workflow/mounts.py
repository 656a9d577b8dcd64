"""What an experiment chooses, as one primary config.

``conf/experiment/NAME.yaml`` is a list of choices. :func:`primary_config` reads it,
with the experiments that it inherits and the choices of the command line, and writes
out the mounts (``/topology@topologies.NAME: CHOICE``) and values that
:mod:`workflow.composer` composes. A later layer wins: conf/config.yaml, inherited
experiments, the experiment, the command line.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from railx.errors import allowed_names
from railx.places import WORK
from railx.settings import SettingsError
from workflow.choices import choices as choices_below
from workflow.choices import conf_file, is_choice
from workflow.overrides import EXPERIMENT, parse_overrides
from workflow.plan_names import CROSS, PlanNames, crossed
from workflow.renamed import new_name, refusal
from workflow.settings import LISTED, NAME
from workflow.yaml_files import read_yaml_mapping

CONF = WORK / "conf"

#: Groups that an experiment chooses for every entry of a list at once.
EVERY = {"training": "runs"}

_PLAIN = ("name", "seed")


def choices(group: str) -> list[str]:
    """The names of a group that can be chosen, with a file or without."""
    return choices_below(CONF, group)


def primary_config(
    overrides: Iterable[str], single: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """The primary config of the experiment that ``overrides`` choose.

    With it, those of them that set values or choose below an entry.

    ``single`` are the keys of an experiment that hold one choice of the group of the
    same name. Where no layer chooses one, it is ``default``, if there is one.

    Raises :class:`railx.settings.SettingsError` for what a file or the command line
    mounts but cannot.
    """
    layers, rest, chosen = _command_line(list(overrides), single)
    shared = _read("config.yaml")
    default = shared.pop("experiment", None)
    experiment = str(default if chosen is None else chosen)
    mounts = _Mounts(single)
    mounts.add(shared, "conf/config.yaml")
    mounts.add_experiment(experiment)
    for layer in layers:
        mounts.add(layer, "the command line")
    return mounts.written_out(experiment), rest


class _Mounts:
    """What the layers so far have chosen.

    ``single``: the keys that hold one choice of the group of the same name. ``plans``:
    the names that plans can have. ``files``: per list, the choice behind each name,
    None where the entry is written out. ``chosen``: the choice of each single group, of
    those in ``EVERY`` too. ``values``: what the layers set on top of the choices.
    """

    def __init__(self, single: tuple[str, ...]) -> None:
        self._single = single
        self._plans = PlanNames(CONF)
        self._files: dict[str, dict[str, str | None]] = {key: {} for key in LISTED}
        self._chosen = {key: "default" for key in single if is_choice(CONF, key, "default")}
        self._values: dict[str, Any] = {key: {} for key in LISTED}

    def add_experiment(self, name: str, heirs: Sequence[str] = ()) -> None:
        """Put an experiment's file on top, after those that it inherits."""
        if not is_choice(CONF, "experiment", name):
            raise refusal("experiment", name, choices("experiment"), "experiment")
        if name in heirs:
            got = f"conf/experiment/{name}.yaml inherits itself: {', '.join(heirs)}"
            raise SettingsError("defaults", got)
        content = _read(f"experiment/{name}.yaml")
        if not content:
            allowed = "choices, or defaults: [quick]"
            raise SettingsError(f"conf/experiment/{name}.yaml", f"is empty; allowed: {allowed}")
        inherited = content.pop("defaults", [])
        if not isinstance(inherited, list) or not all(isinstance(item, str) for item in inherited):
            got = f"got {inherited!r} in conf/experiment/{name}.yaml"
            raise SettingsError("defaults", f"{got}; allowed: a list of experiments")
        try:
            for parent in inherited:
                self.add_experiment(parent, (*heirs, name))
            self.add(content, f"conf/experiment/{name}.yaml")
        except SettingsError as error:
            raise error.within(f"conf/experiment/{name}.yaml") from None

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        for key, content in layer.items():
            if key in LISTED:
                self._add_entries(key, content)
            elif key in EVERY or (key in self._single and not isinstance(content, Mapping)):
                self._chosen[key] = self._choice(key, key, content)
            elif key in (*self._single, *_PLAIN):
                self._values = _merged(self._values, {key: content})
            else:
                allowed = ("defaults", *_PLAIN, *LISTED, *self._single, *EVERY)
                near = allowed_names(key, allowed)
                raise SettingsError(str(key), f"unknown key in {origin}; allowed: {near}")

    def _add_entries(self, key: str, content: Any) -> None:
        """Put the entries of a list or mapping on top.

        A list says which entries there are; a mapping adds, changes and (with null)
        removes entries. Plans are also given as a product (:func:`crossed`), in both.
        """
        files, values = self._files[key], self._values[key]
        if isinstance(content, list):
            content = _items(key, content)
            files = {name: files.get(name, name) for name in content}
            values = {name: value for name, value in values.items() if name in content}
        if _is_cross(key, content):
            rest = {name: entry for name, entry in content.items() if name not in CROSS}
            cross = {name: entry for name, entry in content.items() if name in CROSS}
            names = crossed(cross)
            files |= {name: name for name in names}
            content = {name: cross.get("with", {}) for name in names} | rest
        if not isinstance(content, Mapping):
            allowed = "a list of names, or a mapping of names to files"
            raise SettingsError(key, f"got {content!r}; allowed: {allowed}")
        for name, entry in content.items():
            if not NAME.fullmatch(str(name)):
                allowed = "letters, digits and underscores, a letter first"
                raise SettingsError(f"{key}.{name}", f"not a name; allowed: {allowed}")
            if entry is None and name not in files:
                raise refusal(key, name, files, LISTED[key])
            if entry is None:
                del files[name]
                values.pop(name, None)
            elif isinstance(entry, Mapping):
                files.setdefault(name, None)
                values = _merged(values, {name: entry})
            else:
                files[name] = entry
        self._values[key] = values
        self._files[key] = {
            name: file if file is None else self._choice(key, LISTED[key], file)
            for name, file in files.items()
        }

    def _choice(self, key: str, group: str, name: Any) -> str:
        of_plans = group == "plan"
        if isinstance(name, str) and (
            (of_plans and self._plans.parts(name) is not None) or is_choice(CONF, group, name)
        ):
            return name
        allowed = choices(group)
        if of_plans:
            allowed.append("PLANNER_SETTING_CORPUS, e.g. flexsp_7b_192k_wikipedia")
        raise refusal(key, name, allowed, group, f" (conf/{group})")

    def written_out(self, experiment: str) -> dict[str, Any]:
        """The primary config: the files first, values on top."""
        defaults: list[Any] = [
            {f"/{group}": file} for group, file in self._chosen.items() if group not in EVERY
        ]
        defaults += [
            {f"/{LISTED[key]}@{key}.{name}": file}
            for key, files in self._files.items()
            for name, file in files.items()
            if file is not None
        ]
        defaults += [
            {f"override /{group}@{EVERY[group]}.{name}.{group}": file}
            for group, file in self._chosen.items()
            if group in EVERY
            for name, mounted in self._files[EVERY[group]].items()
            if mounted is not None
        ]
        return {"defaults": [*defaults, "_self_"], "name": experiment, **self._values}


def _items(key: str, items: Sequence[Any]) -> dict[str, Any]:
    """The items of a list by name.

    ``name`` alone is {} (nothing on top of its choice), ``name: choice`` and ``name:
    {values}`` what they say. Plans may be crossed (:func:`crossed`), also more than
    once.
    """
    entries: dict[str, Any] = {}
    for item in items:
        if _is_cross(key, item):
            names = crossed(item)
            entries |= {name: item.get("with", {}) for name in names if name not in entries}
            continue
        pair = {item: {}} if isinstance(item, str) else item
        if not isinstance(pair, Mapping) or len(pair) != 1 or None in pair.values():
            raise SettingsError(key, f"got {item!r}; allowed: a name, or one name with its file")
        (name,) = pair
        if name in entries:
            raise SettingsError(key, f"got {name!r} twice; allowed: each name once")
        entries[name] = pair[name]
    return entries


def _is_cross(key: str, item: Any) -> bool:
    return key == "plans" and isinstance(item, Mapping) and "cross" in item


def _merged(values: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _read(name: str) -> dict[str, Any]:
    return copy.deepcopy(read_yaml_mapping(*conf_file(CONF, name)))


def _command_line(
    overrides: Sequence[str], single: tuple[str, ...]
) -> tuple[list[dict[str, Any]], list[str], str | None]:
    """What the command line mounts as layers, its other overrides, its experiment."""
    layers: list[dict[str, Any]] = []
    rest: list[str] = []
    names = [match[1] for match in map(EXPERIMENT.fullmatch, overrides) if match]
    experiment = names[-1] if names else None
    overrides = [text for text in overrides if not EXPERIMENT.fullmatch(text)]
    for text, override in zip(overrides, parse_overrides(overrides), strict=True):
        key, name = override.key_or_group.partition(".")[::2]
        layer = None
        if override.package is None and not override.is_sweep_override():
            if override.key_or_group == "experiment":
                value = override.value()
                experiment = "" if value is None else str(value)
                continue
            layer = _layer(key, name, override, single)
        if layer is None:
            if key in LISTED and new_name(LISTED[key], name.partition(".")[0]) is not None:
                raise refusal(key, name.partition(".")[0], (), LISTED[key])
            rest.append(text)
        else:
            layers.append(layer)
    return layers, rest, experiment


def _layer(key: str, name: str, override: Any, single: tuple[str, ...]) -> dict[str, Any] | None:
    """What one override mounts, or None where it only changes values."""
    if override.is_delete():
        removes = key in LISTED and name and "." not in name
        return {key: {name: None}} if removes else None
    value = override.value()
    if not name and key in LISTED and isinstance(value, list):
        return {key: value}
    if not name and key in (*single, *EVERY) and isinstance(value, str):
        return {key: value}
    if name and "." not in name and key in LISTED and isinstance(value, (str, type(None))):
        return {key: {name: value}}
    return None
