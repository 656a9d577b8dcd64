"""Settings of tracking: which trackers write, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import NonNegative, NotEmpty

__all__ = ["TrackingSettings"]


@dataclass(frozen=True)
class TrackingSettings:
    """Which trackers get the runs."""

    mlflow: bool
    """Whether runs go to MLflow, in a SQLite file under results/."""
    wandb: Literal["offline", "online", "disabled"]
    """W&B's own mode: offline runs reach the server with ``wandb sync``, online ones at
    once (after ``wandb login``).
    """
    project: Annotated[str, NotEmpty()]
    """W&B project."""
    entity: str | None
    """W&B user or team; null: the one that is logged in."""
    artifact_limit_mb: Annotated[float, NonNegative()]
    """Files up to this size are copied into MLflow, larger ones are named only."""
