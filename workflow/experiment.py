"""The experiment of a run as plain data: checked once, then kept.

Checking imports every schema, and with them half of the project. What was checked is
kept (:mod:`railx.file_cache`) until a file of conf/, an override or the code changes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from railx import places
from railx.file_cache import cached
from railx.settings import SettingsError, to_dict
from workflow.cache_keys import cache_key, code_digest
from workflow.choices import conf_files


def checked_experiment(overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The experiment of conf/config.yaml and ``overrides`` as plain data, checked.

    Raises :class:`railx.settings.SettingsError`, which names the key and what is
    allowed.
    """
    overrides = list(overrides)
    # Price sets, devices and models are looked up in their catalogues.
    catalogues = (places.SHIPPED / "resources" / "performance").glob("*.yaml")
    tables = (places.WORK / "resources").rglob("*.csv")
    read = [*conf_files(places.WORK / "conf"), *tables, *catalogues]
    key = cache_key(["checked", code_digest(), *overrides], read)

    return cached(places.cache("checked"), key, partial(_composed, overrides))


def _composed(overrides: list[str]) -> dict[str, Any]:
    from workflow.config import compose_experiment

    return cast("dict[str, Any]", to_dict(compose_experiment(overrides)))


def overrides_from(config: Mapping[str, Any]) -> list[str]:
    """Hydra overrides from ``--config``: choices, and under ``hydra`` dotted ones."""
    overrides = []
    for key, value in config.items():
        if key == "hydra":
            overrides += _words(value)
        else:
            overrides.append(f"{key}={_grammar(value)}")
    return overrides


def _words(value: Any) -> list[str]:
    """The overrides of a text, as a shell takes it apart, or of a list."""
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    try:
        return shlex.split("" if value is None else str(value))
    except ValueError as error:
        raise SettingsError("hydra", f"got {value!r}; allowed: closed quotes ({error})") from None


def _grammar(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_grammar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_grammar(item) for item in value) + "]"
    return str(value)
