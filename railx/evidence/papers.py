"""The papers by key: what claims, published tables and figures name them by."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from railx.evidence.errors import ClaimError
from railx.settings import NotEmpty, SettingsError, load

#: The loader in C, seven times as fast, where PyYAML was built with it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Paper:
    """A paper that claims are taken from."""

    name: Annotated[str, NotEmpty()]
    """The short name that a reader knows it by."""
    arxiv: tuple[str, ...]
    """Its numbers at arXiv, the one that is cited first; none where it is not there."""
    idea: Annotated[str, NotEmpty()]
    """What it proposes, in a line."""
    depends: str = ""
    """What its verdicts *depends* turn on, in a sentence; empty where it has none."""
    topics: dict[str, Annotated[str, NotEmpty()]] = field(default_factory=dict)
    """Topics of its claims, by a text in a claim's id or place; the first counts."""

    def topic(self, claim: str, place: str) -> str:
        """What a claim is about; without a topic the beginning of its place."""
        for text, words in self.topics.items():
            if text in claim or text in place:
                return words
        return re.split("[,;]", place)[0]


def read_papers(path: str | Path) -> dict[str, Paper]:
    """The papers by key, in the order of the file.

    Raises :class:`ClaimError`, one line naming file and key.
    """
    papers: dict[str, Paper] = read_settings(Annotated[dict[str, Paper], NotEmpty()], Path(path))
    return papers


def read_settings(hint: Any, path: Path) -> Any:
    """The checked content of a YAML file.

    Raises :class:`ClaimError`, one line naming file and key.
    """
    try:
        return load(hint, read_yaml(path))
    except SettingsError as error:
        raise ClaimError(f"{path.name}: {error}") from None


def read_yaml(path: Path) -> Any:
    """The plain content of a YAML file.

    Raises :class:`ClaimError`, one line naming file and line.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ClaimError(f"{path.name}{line}: not valid YAML ({problem})") from None
