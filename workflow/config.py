"""Compose conf/ and check every key, type and range before anything runs.

``workflow.composer`` composes; the frozen dataclasses of the rooms are the schema
(``railx.settings.load``). An experiment is a list of choices: ``workflow.mounts`` says
which files ``conf/experiment/NAME.yaml`` mounts under which names. What was composed
once is kept (:mod:`railx.file_cache`) until a file of conf/ or an override changes.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from railx import places
from railx.effort import LimitSettings, check_costs
from railx.errors import allowed_names
from railx.file_cache import cached
from railx.settings import SettingsError, load, with_defaults
from workflow.cache_keys import cache_key
from workflow.choices import conf_files
from workflow.composer import compose, compose_choice
from workflow.mounts import CONF, primary_config
from workflow.mounts import choices as choices
from workflow.overrides import check_single
from workflow.settings import CHOSEN, LISTED, SEEDED, Experiment, StageSettings, groups
from workflow.stages import STAGES

#: What composes: with these files, or those of conf/, what is kept goes out of date.
_COMPOSERS = tuple(Path(__file__).resolve().parent.glob("*.py"))
#: Where composed configs are kept.
KEPT = places.cache("composed")


def compose_experiment(overrides: Iterable[str] = ()) -> Experiment:
    """The experiment that conf/config.yaml and ``overrides`` describe, checked.

    ``overrides`` are in Hydra's syntax. Raises :class:`railx.settings.SettingsError`:
    one line that names the key and what is allowed.
    """
    plain = _seeded(_drop_missing(_compose(None, list(overrides))))
    experiment: Experiment = load(Experiment, plain)
    check_experiment(experiment)
    return experiment


def check_experiment(experiment: Experiment) -> None:
    """Refuse work beyond the limits and settings that do not fit together."""
    check_costs(experiment, experiment.limits)
    for stage in STAGES.values():
        for group, check in stage.check_settings.items():
            for key, settings in _settings_of(experiment, group):
                check(settings, key, experiment.limits)
        stage.check(experiment)


def _settings_of(experiment: Experiment, group: str) -> Iterator[tuple[str, Any]]:
    for key, listed in LISTED.items():
        if listed == group:
            entries = getattr(experiment, key).items()
            yield from ((f"{key}.{name}", settings) for name, settings in entries)
    if group in CHOSEN:
        yield group, getattr(experiment, group)


def compose_stage(
    overrides: Iterable[str] = (), groups: Iterable[str] | None = None, primary: str = "stage"
) -> dict[str, Any]:
    """The settings of a single stage, checked, by group.

    They are conf/``primary``.yaml with ``overrides``. ``groups`` limits the result (and
    the check) to those of :class:`StageSettings` that the stage uses.
    """
    hints = typing.get_type_hints(StageSettings, include_extras=True)
    wanted = list(groups) if groups is not None else list(hints)
    overrides = list(overrides)
    composed = _drop_missing(_compose(primary, overrides))
    unknown = set(composed) - set(hints)
    if unknown:
        key = min(unknown)
        raise SettingsError(key, f"unknown key; allowed: {allowed_names(key, hints)}")
    _check_used(overrides, hints, [*wanted, "limits"])
    loaded = {group: load(hints[group], composed.get(group), group) for group in wanted}
    limits = loaded.get("limits") or load(LimitSettings, composed.get("limits", {}), "limits")
    check_costs(loaded, limits)
    for stage in STAGES.values():
        for group in stage.check_settings.keys() & loaded.keys():
            stage.check_settings[group](loaded[group], group, limits)
        stage.check_choices({**loaded, "limits": limits})
    return loaded


def _check_used(overrides: Iterable[str], known: Iterable[str], wanted: Iterable[str]) -> None:
    """Refuse overrides of groups that a stage does not read: they would do nothing."""
    unused = set(known) - set(wanted)
    for override in overrides:
        key = override.split("=", 1)[0].lstrip("+~")
        if re.split(r"[.@]", key)[0] in unused:
            allowed = f"settings of {', '.join(sorted(wanted))}"
            raise SettingsError(key, f"is not used here; allowed: {allowed}")


def read_choice(group: str, name: str) -> dict[str, Any]:
    """A choice of conf/ as plain data, with what it inherits and the classes' defaults.

    Not checked; keys that are open are ``???`` or missing.
    """
    return cast("dict[str, Any]", with_defaults(groups()[group], compose_choice(CONF, group, name)))


def _compose(primary: str | None, overrides: list[str]) -> dict[str, Any]:
    """The plain config of conf/``primary``.yaml (None: of an experiment), cached."""
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            allowed = "key=value, in Hydra's syntax, in quotes where there are spaces"
            raise SettingsError(override, f"not an override; allowed: {allowed}")
    _check_twice(overrides)
    key = cache_key([primary, *overrides], [*conf_files(CONF), *_COMPOSERS])
    return cached(KEPT, key, partial(_anew, primary, overrides))


def _check_twice(overrides: Iterable[str]) -> None:
    """Refuse two values for one key: which of them was meant is not to be guessed."""
    given: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.strip()
        if given.setdefault(key, value) != value:
            raise SettingsError(key, f"got {given[key]!r} and {value!r}; allowed: one of them")


def _anew(primary: str | None, overrides: list[str]) -> dict[str, Any]:
    check_single(overrides)
    if primary is not None:
        return compose(CONF, primary, overrides)
    return compose(CONF, *primary_config(overrides, CHOSEN))


def _seeded(plain: dict[str, Any]) -> dict[str, Any]:
    """With the experiment's seed in every entry that has none of its own, and in the
    points of a design and of the arena.
    """
    seed = {"seed": plain["seed"]} if "seed" in plain else {}
    if isinstance(design := plain.get("design"), dict):
        plain = plain | {"design": seed | design}
    if isinstance(arena := plain.get("arena"), dict):
        plain = plain | {"arena": arena | {"point": seed | (arena.get("point") or {})}}
    entries = {key: plain[key] for key in SEEDED if isinstance(plain.get(key), dict)}
    return plain | {
        key: {
            name: {**seed, **entry} if isinstance(entry, dict) else entry
            for name, entry in own.items()
        }
        for key, own in entries.items()
    }


def _drop_missing(node: Any) -> Any:
    """Without the keys that a file leaves open (``???``), for the schema to report."""
    if isinstance(node, dict):
        return {key: _drop_missing(item) for key, item in node.items() if item != "???"}
    return [_drop_missing(item) for item in node] if isinstance(node, list) else node
