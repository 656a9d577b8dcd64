"""The micro-batches of a plan as a batch sampler of torch.

Reads the groups that ``railx plan ... --format groups`` writes and needs torch alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import BatchSampler

from railx.errors import UserError

GROUPS_SCHEMA = "railx.groups/1"


@dataclass(frozen=True)
class Share:
    """What a rank does in a micro-batch.

    ``ranks`` share ``lengths`` tokens each of ``sequences``; all are empty where the
    rank is in no group. ``last``: whether the step of the optimizer follows.
    """

    iteration: int
    ranks: tuple[int, ...]
    sequences: tuple[int, ...]
    lengths: tuple[int, ...]
    last: bool


class PlanBatchSampler(BatchSampler):
    """Yields the sequences of this rank's group, micro-batch by micro-batch.

    For ``DataLoader(batch_sampler=...)`` of a map-style data set whose items are the
    sequences of the plan. All ranks of a group get the same sequences, and each rank
    its turn in every micro-batch: an empty list where it is in no group, so that a
    collate function has to take one. ``shares`` has what belongs to each list.
    """

    def __init__(self, groups: str | Path | Mapping[str, Any], rank: int, ranks: int) -> None:
        """``groups``: the file, or its content. Raises
        :class:`railx.errors.UserError` for a file of another kind and for another
        number of ranks than the plan's.
        """
        name, content = "groups", groups
        if isinstance(content, str | Path):
            name, content = str(content), _read(Path(content))
        if not isinstance(content, Mapping) or content.get("schema") != GROUPS_SCHEMA:
            raise UserError(
                f"{name}: got no groups; allowed: {GROUPS_SCHEMA}, which railx plan ..."
                " --format groups writes"
            )
        if ranks != content["ranks"]:
            raise UserError(f"ranks: got {ranks}; allowed: {content['ranks']}, those of the plan")
        if not 0 <= rank < ranks:
            raise UserError(f"rank: got {rank}; allowed: 0 to {ranks - 1}")
        self.shares: tuple[Share, ...] = tuple(_shares(content, rank))

    def __iter__(self) -> Iterator[list[int]]:
        return (list(share.sequences) for share in self.shares)

    def __len__(self) -> int:
        return len(self.shares)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; allowed: a file of groups") from None


def _shares(content: Mapping[str, Any], rank: int) -> Iterator[Share]:
    for batch in content["batches"]:
        for left, micro_batch in enumerate(batch["micro_batches"], 1 - len(batch["micro_batches"])):
            group: Mapping[str, Any] = next(
                (group for group in micro_batch["groups"] if rank in group["ranks"]), {}
            )
            ranks, sequences, lengths = (
                tuple(group.get(key, ())) for key in ("ranks", "sequences", "lengths")
            )
            yield Share(batch["iteration"], ranks, sequences, lengths, left == 0)
