"""Settings of tracking: which trackers write, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from railx.settings import NonNegative, NotEmpty, SettingsError


@dataclass(frozen=True)
class TrackingSettings:
    """Which trackers get the runs."""

    mlflow: bool = True
    """Whether runs go to MLflow."""
    mlflow_store: str | None = None
    """Where MLflow keeps its runs; null: a SQLite file under results/,
    ``postgresql://user@host/database``: a PostgreSQL database (its password in
    ~/.pgpass or PGPASSWORD).
    """
    wandb: Literal["offline", "online", "disabled"] = "offline"
    """W&B's own mode: offline runs reach the server with ``make sync``, online ones at
    once (after ``wandb login``).
    """
    project: Annotated[str, NotEmpty()] = "railx-lab"
    """W&B project."""
    entity: str | None = None
    """W&B user or team; null: the one that is logged in."""
    artifact_limit_mb: Annotated[float, NonNegative()] = 6.0
    """Files up to this size are copied into the trackers, larger ones only named."""
    table_rows: Annotated[int, NonNegative()] = 1000
    """Tables up to this many rows can be read in the trackers, others are files."""

    def __post_init__(self) -> None:
        if self.mlflow_store is None:
            return
        parts = urlsplit(self.mlflow_store)
        if parts.scheme != "postgresql" or not parts.path.strip("/"):
            # What was given may hold a password.
            got, allowed = parts.scheme or "relative", "null, postgresql://user@host/database"
            raise SettingsError("mlflow_store", f"got a {got} address; allowed: {allowed}")
        if parts.password:
            got = "got an address with a password, which reports would show"
            allowed = "one without (put it into ~/.pgpass or PGPASSWORD)"
            raise SettingsError("mlflow_store", f"{got}; allowed: {allowed}")
