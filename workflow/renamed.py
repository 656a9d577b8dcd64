"""Names of conf/ that changed: which name stands in the place of an old one.

resources/renamed.yaml holds, by group, patterns of old names and what takes their
place, as in ``re.sub``; the first that fits a whole name counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from railx import places
from railx.errors import allowed_names
from railx.settings import SettingsError
from workflow.yaml_files import read_yaml_mapping


def new_name(group: str, name: str) -> str | None:
    """The new name of a choice that had an old one; None for any other name."""
    for pattern, replacement in _patterns().get(group, ()):
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return None


def refusal(
    key: str, got: object, allowed: Iterable[str], group: str, where: str = ""
) -> SettingsError:
    """The error for a name that is not among ``allowed``, which ``where`` places.

    It says the new name where ``group`` had the name before.
    """
    renamed = new_name(group, got) if isinstance(got, str) else None
    rest = (
        f"allowed{where}: {allowed_names(got, allowed)}"
        if renamed is None
        else f"renamed: {renamed}"
    )
    return SettingsError(key, f"got {got!r}; {rest}")


@cache
def _patterns() -> dict[str, list[tuple[str, str]]]:
    content = read_yaml_mapping(places.SHIPPED / "resources" / "renamed.yaml", places.SHIPPED)
    return {group: list(patterns.items()) for group, patterns in content.items()}
