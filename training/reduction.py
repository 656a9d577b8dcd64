"""Adding up gradients over the ranks that hold the same parameters.

Every rank weighs its loss by the valid tokens of the whole batch, so that the gradients
of the batch are the plain SUM of what the ranks have, whatever plan shared the tokens
out. Gradients travel in one flat message per group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.model import Decoder
from training.timeline import Timeline

__all__ = ["GradientReduction", "pipeline_reduction", "sequence_parallel_reduction"]


@dataclass(frozen=True)
class GradientReduction:
    """Which parameters are added over which process group.

    None: only this rank has them. ``counted`` are the parameters that this rank answers
    for when the norm of all gradients is computed: each parameter of the model is
    counted on exactly one of the ranks.
    """

    sums: tuple[tuple[tuple[nn.Parameter, ...], dist.ProcessGroup | None], ...]
    counted: tuple[nn.Parameter, ...]
    timeline: Timeline

    def run(self) -> None:
        """Replace every gradient by its sum over the group.

        Parameters without a gradient here count as zero.
        """
        for parameters, group in self.sums:
            if group is None:
                continue
            with self.timeline.phase("reduction"):
                flat = torch.cat([_gradient(parameter).flatten() for parameter in parameters])
                with self.timeline.communication():
                    dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=group)
                pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
                for parameter, piece in zip(parameters, pieces, strict=True):
                    parameter.grad = piece.view_as(parameter)

    def squared_norm(self) -> Tensor:
        """The sum of the squared gradients that this rank answers for.

        A float64 scalar; add it over all ranks for the whole.
        """
        squares = [
            _gradient(parameter).to(torch.float64).square().sum() for parameter in self.counted
        ]
        device = self.sums[0][0][0].device
        return (
            torch.stack(squares).sum()
            if squares
            else torch.zeros((), dtype=torch.float64, device=device)
        )


def sequence_parallel_reduction(decoder: Decoder, timeline: Timeline) -> GradientReduction:
    """Every rank holds the whole model: all gradients are added over all ranks."""
    parameters = tuple(decoder.parameters())
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    counted = parameters if dist.get_rank() == 0 else ()
    return GradientReduction(((parameters, group),), counted, timeline)


def pipeline_reduction(
    decoder: Decoder, stages: int, timeline: Timeline, degree: int = 1
) -> GradientReduction:
    """Gradients of a stage are added over its ranks in all replicas.

    Those of a tied head over the first and last stages of all replicas. Makes process
    groups: every rank has to call it at the same point.
    """
    ranks, rank = range(dist.get_world_size()), dist.get_rank()
    stage, first = rank // degree % stages, rank < stages * degree and rank % degree == 0
    stage_groups = [
        _group([other for other in ranks if other // degree % stages == which])
        for which in range(stages)
    ]
    shared_embedding = decoder.tied_head and stages > 1
    ends = [other for other in ranks if other // degree % stages in (0, stages - 1)]
    embedding_group = _group(ends) if shared_embedding else None
    embedding = [decoder.embedding.weight] if shared_embedding and stage in (0, stages - 1) else []
    own = _without(decoder.parameters(), embedding)
    sums: list[tuple[tuple[nn.Parameter, ...], dist.ProcessGroup | None]] = [
        (tuple(own), stage_groups[stage])
    ]
    if embedding:
        sums.append((tuple(embedding), embedding_group))
    counted = (*own, *(embedding if stage == 0 else ())) if first else ()
    return GradientReduction(tuple(sums), tuple(counted), timeline)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    """A new process group of these ranks; None for a single one, which needs none."""
    group: dist.ProcessGroup | None = dist.new_group(list(ranks)) if len(ranks) > 1 else None
    return group


def _without(
    parameters: Iterable[nn.Parameter], excluded: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    left_out = {id(parameter) for parameter in excluded}
    return [parameter for parameter in parameters if id(parameter) not in left_out]
