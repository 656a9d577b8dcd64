"""Overrides of a command line, parsed; what is wrong with one is said in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from railx.settings import SettingsError

#: The choice of an experiment, which needs no parser.
EXPERIMENT = re.compile(r"experiment=(?!null$)([A-Za-z]\w*)")


def parse_overrides(overrides: Iterable[str], allowed: str = "a value in Hydra's syntax") -> Any:
    """The overrides as Hydra's parser has them, in their order.

    ``allowed``: what a value may be. Raises :class:`railx.settings.SettingsError`,
    which blames the key where that cannot be read, else the value.
    """
    overrides = list(overrides)
    if not overrides:
        return []
    # Takes an eighth of a second.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            key, value = parted(text)
            try:
                parser.parse_overrides([f"{key}=1"])
            except HydraException:
                raise SettingsError(
                    key,
                    "cannot be read as a key; allowed: letters, digits and underscores, dots"
                    " between, e.g. topologies.torus_2d.n",
                ) from error
            reason, quoted = _reason(str(error)), f"{key}='{value}'"
            if "LexerNoViableAlt" in reason and "'" not in value:
                reason, allowed = "with signs that need quotes", f'"{quoted}"'
            raise SettingsError(key, f"got {value!r}, {reason}; allowed: {allowed}") from error
    return parsed


def parted(override: str) -> tuple[str, str]:
    """Key and value of an override as they are written, the key without its sign."""
    key, _, value = override.partition("=")
    return key.strip().lstrip("+~") or override, value


def _reason(said: str) -> str:
    """Hydra's reason; where a function refuses, it stands in the second line."""
    first, *others = [line.strip() for line in said.splitlines() if line.strip()]
    if first.startswith("Error parsing override") and others:
        return others[0].partition("': ")[2] or others[0]
    return first


def check_single(overrides: Sequence[str]) -> None:
    """Refuse several values for a key, which only a sweep can take."""
    overrides = [text for text in overrides if not EXPERIMENT.fullmatch(text)]
    for text, one in zip(overrides, parse_overrides(overrides), strict=True):
        if one.is_sweep_override():
            key, value = parted(text)
            plain = one.is_choice_sweep() and one.value().simple_form
            listed = f", {key}=[{value}] for a list" if plain else ""
            allowed = f"one value{listed}, or `railx sweep` for a run with each"
            raise SettingsError(key, f"got {value!r}, several values; allowed: {allowed}")
