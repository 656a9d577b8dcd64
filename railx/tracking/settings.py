"""Settings of tracking: which trackers write, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import NonNegative, NotEmpty

__all__ = ["TrackingSettings"]


@dataclass(frozen=True)
class TrackingSettings:
    """Which trackers get the runs.

    ``wandb`` is W&B's own mode: offline runs reach the server with ``wandb sync``,
    online ones at once (after ``wandb login``). ``entity`` is the W&B user or team,
    null for the one that is logged in. Files up to ``artifact_limit_mb`` (10^6 bytes)
    are copied into MLflow, larger ones are named only.
    """

    mlflow: bool
    wandb: Literal["offline", "online", "disabled"]
    project: Annotated[str, NotEmpty()]
    entity: str | None
    artifact_limit_mb: Annotated[float, NonNegative()]
