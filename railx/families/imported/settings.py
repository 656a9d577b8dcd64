"""Settings of the family ``imported``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, NonNegative, NotEmpty, Positive

__all__ = ["ImportedSettings"]


@dataclass(frozen=True)
class ImportedSettings:
    """A network that stands in a file."""

    family: Literal["imported"]
    """Which network family this is."""

    path: Annotated[str, NotEmpty()]
    """The file: GraphML (.graphml), or a list of links (.csv, .txt), as described in
    docs/exchange.md.
    """

    digest: str | None
    """SHA-256 that the file must have; null takes any file. `railx import topology`
    prints it.
    """

    chips_per_node: Annotated[int, AtLeast(1)]
    """Chips of a node: runs of consecutive chips of the file."""

    port_gbps: Annotated[float, Positive()]
    """Rate of a port in one direction, in 10^9 bit/s, and of a lane of those links that
    the file gives none.
    """

    latency_ns: Annotated[float, NonNegative()]
    """Time of flight of the links that the file gives none, in nanoseconds."""
