"""The catalogues of this room: YAML files in ``resources/performance``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, cast

from railx.errors import UserError, allowed_names
from railx.places import SHIPPED
from railx.settings import load

T = TypeVar("T")


@cache
def catalogue(file: str, cls: type[T]) -> Mapping[str, T]:
    """The entries of a file of ``resources/performance`` by name, checked."""
    # A bare node that trains reads shapes of models without a catalogue.
    import yaml

    text = (SHIPPED / "resources" / "performance" / file).read_text(encoding="utf-8")
    # The loader in C, ten times as fast, where PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: Mapping[str, Mapping[str, Any]] = yaml.load(text, Loader=loader)
    return {name: load(cls, {"name": name, **values}, name) for name, values in entries.items()}


def entry(key: str, name: str, file: str, cls: type[T], *others: str) -> T:
    """One entry; :class:`UserError` names ``key`` and the names that there are.

    ``others``: names that mean something besides the entries.
    """
    entries: Mapping[str, Any] = catalogue(file, cast("Any", cls))
    if name not in entries:
        raise UserError(f"{key}: got {name}; allowed: {allowed_names(name, (*entries, *others))}")
    value: T = entries[name]
    return value
