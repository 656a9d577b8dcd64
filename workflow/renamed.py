"""Names of conf/ that changed: which name stands in the place of an old one.

resources/renamed.yaml holds, by group, patterns of old names and what takes their
place, as in ``re.sub``; the first that fits a whole name counts.
"""

from __future__ import annotations

import re
from functools import cache

from railx import places
from workflow.yaml_files import read_yaml_mapping

__all__ = ["new_name"]


def new_name(group: str, name: str) -> str | None:
    """The new name of a choice that had an old one; None for any other name."""
    for pattern, replacement in _patterns().get(group, ()):
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return None


@cache
def _patterns() -> dict[str, list[tuple[str, str]]]:
    content = read_yaml_mapping(places.SHIPPED / "resources" / "renamed.yaml", places.SHIPPED)
    return {group: list(patterns.items()) for group, patterns in content.items()}
