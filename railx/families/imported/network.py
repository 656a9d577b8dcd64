"""A network as a file has it: vertices by name and links between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileLink:
    """A full-duplex link: its vertices, and its attributes in the file."""

    ends: tuple[int, int]
    gbps: float | None = None
    latency_ns: float | None = None
    lanes: int = 1
    kind: str | None = None
    rail: int = -1


@dataclass(frozen=True)
class Network:
    """Vertices by name, chips first, and the links between them."""

    chips: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[FileLink, ...]
