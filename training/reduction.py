"""All-reduce of gradients over the ranks that hold the same parameters.

Every rank weights its loss by the valid tokens of the full batch, so that the gradients
of the batch are the SUM over the ranks for any distribution of the tokens. One flat
all-reduce per group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.model import Decoder
from training.timeline import Timeline

#: The parameter that a tied head shares with the embedding.
_TIED = "embedding.weight"


@dataclass(frozen=True)
class GradientReduction:
    """The parameters to reduce over each process group.

    Group None: only this rank has them. ``counted`` are the parameters that this rank
    adds to the norm of all gradients: each parameter of the model counts on one rank.
    """

    sums: tuple[tuple[tuple[nn.Parameter, ...], dist.ProcessGroup | None], ...]
    counted: tuple[nn.Parameter, ...]
    timeline: Timeline

    def run(self) -> None:
        """Replace every gradient, zero where there is none, by its group's sum."""
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
        """The sum of the squared gradients of the ``counted`` parameters.

        A float64 scalar; the sum over all ranks is the squared norm of the model. Norms
        of single gradients are in their precision, as in torch's ``get_total_norm``.
        """
        gradients = [one.grad for one in self.counted if one.grad is not None]
        if gradients:
            return torch.nn.utils.get_total_norm(gradients).to(torch.float64).square()
        device = self.sums[0][0][0].device if self.sums else None
        return torch.zeros((), dtype=torch.float64, device=device)


def sequence_parallel_reduction(
    decoder: Decoder, timeline: Timeline, masters: Mapping[str, nn.Parameter] | None = None
) -> GradientReduction:
    """Every rank holds the full model: all gradients are summed over all ranks.

    ``masters`` replace the decoder's parameters where the optimizer steps others.
    """
    parameters = tuple((masters or dict(decoder.named_parameters())).values())
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    counted = parameters if dist.get_rank() == 0 else ()
    return GradientReduction(((parameters, group),), counted, timeline)


def pipeline_reduction(
    decoder: Decoder,
    stages: int,
    timeline: Timeline,
    degree: int = 1,
    masters: Mapping[str, nn.Parameter] | None = None,
) -> GradientReduction:
    """Gradients of a stage are summed over its replicas and its sequence ranks.

    Gradients of a tied head are summed over the first and last stages of all replicas.
    Rank = (replica * stages + stage) * degree + sequence rank. Creates process groups:
    every rank has to call it at the same point. ``masters`` as in
    :func:`sequence_parallel_reduction`.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    stage = rank // degree % stages
    members = [stage_ranks(other, stages, ranks, degree) for other in range(stages)]
    stage_groups = [_group(group) for group in members]
    named = dict(masters or decoder.named_parameters())
    shared_embedding = decoder.tied_head and stages > 1
    embedding_group = _group(sorted(members[0] + members[-1])) if shared_embedding else None
    ends = shared_embedding and stage in (0, stages - 1)
    embedding = [named.pop(_TIED)] if ends else []
    stage_parameters = list(named.values())
    sums: list[tuple[tuple[nn.Parameter, ...], dist.ProcessGroup | None]] = [
        (tuple(stage_parameters), stage_groups[stage])
    ]
    if embedding:
        sums.append((tuple(embedding), embedding_group))
    first = rank == members[stage][0]
    counted = (*stage_parameters, *(embedding if stage == 0 else ())) if first else ()
    return GradientReduction(tuple(sums), tuple(counted), timeline)


def sharded_reduction(
    decoder: Decoder,
    stages: int,
    timeline: Timeline,
    degree: int,
    shards: Mapping[str, nn.Parameter],
) -> GradientReduction:
    """The reduction that remains with sharded parameters: rows of a tied head.

    They are summed between the first and the last stage, whose ranks have the same rows
    in the same order. Every rank counts its rows. Creates process groups: every rank
    has to call it at the same point.
    """
    named = dict(shards)
    sums: list[tuple[tuple[nn.Parameter, ...], dist.ProcessGroup | None]] = []
    if decoder.tied_head and stages > 1:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        ends = [stage_ranks(stage, stages, ranks, degree) for stage in (0, stages - 1)]
        for pair in zip(*ends, strict=True):
            group = _group(pair)
            if rank in pair:
                sums.append(((named[_TIED],), group))
        if rank in ends[1]:
            del named[_TIED]
    return GradientReduction(tuple(sums), tuple(named.values()), timeline)


def stage_ranks(stage: int, stages: int, ranks: int, degree: int = 1) -> list[int]:
    """The ranks of all replicas that hold ``stage``, in order."""
    return [rank for rank in range(ranks) if rank // degree % stages == stage]


def _gradient(parameter: nn.Parameter) -> Tensor:
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    group: dist.ProcessGroup | None = dist.new_group(list(ranks)) if len(ranks) > 1 else None
    return group
