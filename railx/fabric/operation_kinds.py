"""The kinds of trace events that use the network; every other kind is computation."""

from __future__ import annotations

__all__ = ["COMMUNICATION"]

COMMUNICATION = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"),
    *("reduce_scatter", "all_to_all", "barrier", "send", "recv"),
)
