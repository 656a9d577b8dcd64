"""The experiment of a run as plain data, checked once and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workflow.config import compose_experiment, overrides_from

__all__ = ["checked_experiment", "overrides_from"]


def checked_experiment(overrides: Iterable[str] = ()) -> dict[str, Any]:
    from railx.settings import to_dict

    settings: dict[str, Any] = to_dict(compose_experiment(overrides))
    return settings
