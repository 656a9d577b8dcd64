"""What nodes on the same switches can be joined to while a job runs.

A line is the nodes that share switches: a row or a column of a grid, or all servers of
a rail. A group of a job lies on a line; alone on it, its nodes are wired as one of the
``wirings``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from railx.vocabulary.topology import FamilySettings

__all__ = ["Lines"]

S = TypeVar("S")


@dataclass(frozen=True)
class Lines(Generic[S]):
    """The lines of a network, and the network that a group sees on one."""

    axes: tuple[tuple[str, ...], ...]
    """Axes of a job's layout that each kind of line holds; kinds have ports of their
    own, so that their circuits never stand in each other's way.
    """

    wirings: Callable[[S, int], tuple[str, ...]]
    """Ways to wire so many nodes; empty where the line has no room for them."""

    alone: Callable[[S, int, str], FamilySettings]
    """The network of so many nodes with all circuits of a line wired in that way."""

    shares: Callable[[S], int]
    """Rails of a line that can be wired apart; 1: packet switches, nothing to share
    out.
    """

    nodes: Callable[[S], int]
    """Nodes of the whole network."""

    fewest: Callable[[str, int], int] = lambda wiring, nodes: 1
    """Rails that a wiring takes at least."""
