"""PyTorch execution traces as graphs (to be written)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from railx.exchange.chakra_graphs import GroupNumbers
from railx.exchange.rank_nodes import RankNodes

__all__ = ["is_torch_trace", "torch_groups", "torch_nodes"]


def is_torch_trace(path: Path) -> bool:
    return False


def torch_groups(files: Sequence[Path]) -> dict[str, list[int]]:
    raise NotImplementedError


def torch_nodes(
    path: Path, rank: int, groups: GroupNumbers, ranks: int
) -> tuple[RankNodes, dict[str, int]]:
    raise NotImplementedError
