"""Ulysses sequence parallelism whose groups change from micro-batch to micro-batch.

Notable:

* the packed tokens of a group's micro-batch are cut into parts in order, one per rank,
  as even as can be and without padding;
* around attention, one all-to-all exchanges a part of the tokens of all heads for all
  tokens of some heads, and one reverses it (DeepSpeed Ulysses; FlexSP section 2).
  Queries, keys and values share one message: two all-to-alls per layer and direction;
* with fewer key-value heads than ranks each of these heads is sent to several ranks,
  and its gradients are added on the way back;
* process groups are created once, by every rank in the same order, and looked up
  afterwards (FlexSP section 5); their number and creation time are reported;
* by choice keys and values go round the ranks (``training.ring_attention``), or ranks
  split the layers and all of them have all tokens (``training.tensor_parallel``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import gcd
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from railx.planning.format.parts import Group
from railx.planning.format.plan import Plan, SequenceParallelBatch
from training.attention import Kernel, Packing, variable_length_attention
from training.data import PackedTokens, Sequences, pack, uncut_slices, valid_tokens
from training.model import Attend, Decoder
from training.settings import Parallelism
from training.timeline import Timeline


def token_cut(tokens: int, degree: int) -> list[int]:
    """The packed tokens of each rank of a group; the first ones may have one more."""
    share, rest = divmod(tokens, degree)
    return [share + (rank < rest) for rank in range(degree)]


def head_copies(kv_heads: int, degree: int) -> int:
    """Copies of each key-value head, so that every rank has an integer number."""
    return degree // gcd(degree, kv_heads)


def group_ranks(plan: Plan) -> list[tuple[int, ...]]:
    """A plan's groups of more than one rank, in the same order on every rank."""
    return sorted({ranks for batch in plan.sequence_parallel_batches() for ranks in _ranks(batch)})


def _ranks(batch: SequenceParallelBatch) -> set[tuple[int, ...]]:
    return {
        group.ranks
        for micro_batch in batch.micro_batches
        for group in micro_batch.groups
        if group.degree > 1
    }


class ProcessGroups:
    """The process groups of rank tuples, created once.

    Every rank must create the same groups in the same order, including those that it is
    not a member of. ``creation_ms`` is the time on this rank, including the wait for
    the other ranks at the end of each.
    """

    def __init__(self, ranks: Iterable[tuple[int, ...]] = ()) -> None:
        self._groups: dict[tuple[int, ...], Any] = {}
        self.creation_ms = 0.0
        self.make(ranks)

    def make(self, ranks: Iterable[tuple[int, ...]]) -> None:
        """Create the groups that do not exist yet."""
        begin = time.perf_counter()
        for members in ranks:
            if members not in self._groups:
                self._groups[members] = dist.new_group(list(members))
        self.creation_ms += (time.perf_counter() - begin) * 1e3

    def prepare(self, batch: SequenceParallelBatch) -> None:
        """Create the groups that a batch needs, unless they exist."""
        self.make(sorted(_ranks(batch)))

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        return cast("dist.ProcessGroup", self._groups[ranks])


class UlyssesAttention:
    """Attention over the tokens of all ranks of a group (an ``Attend``).

    Takes and returns the tokens of this rank. ``cut`` has the number of tokens of each
    rank; ``inner`` is the attention over all tokens, for the heads of this rank.
    """

    def __init__(
        self, group: dist.ProcessGroup, cut: Sequence[int], inner: Attend, timeline: Timeline
    ) -> None:
        self.group, self.cut, self.inner, self.timeline = group, list(cut), inner, timeline

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        degree, heads = len(self.cut), queries.shape[1]
        copies = head_copies(keys.shape[1], degree)
        keys, values = (heads_.repeat_interleave(copies, dim=1) for heads_ in (keys, values))
        shares = [
            tensor.view(len(tensor), degree, tensor.shape[1] // degree, tensor.shape[2])
            for tensor in (queries, keys, values)
        ]
        gathered = self._to_heads(torch.cat(shares, dim=2))
        head_counts = [share.shape[2] for share in shares]
        queries, keys, values = torch.split(gathered, head_counts, dim=1)
        return self._to_tokens(self.inner(layer, queries, keys, values), heads)

    def _to_heads(self, shares: Tensor) -> Tensor:
        """[local tokens, degree, h, head size] to [all tokens, h, head size]."""
        local, degree, heads, size = shares.shape
        sent = shares.transpose(0, 1).reshape(degree * local, heads * size)
        received = _exchange(sent, [local] * degree, self.cut, self.group, self.timeline)
        return received.view(-1, heads, size)

    def _to_tokens(self, mixed: Tensor, heads: int) -> Tensor:
        """[all tokens, h, head size] to [local tokens, heads, head size]."""
        degree, size = len(self.cut), mixed.shape[2]
        local = self.cut[dist.get_rank(self.group)]
        received = _exchange(
            mixed.flatten(1), self.cut, [local] * degree, self.group, self.timeline
        )
        return (
            received.view(degree, local, heads // degree, size)
            .transpose(0, 1)
            .reshape(local, heads, size)
        )


class SequenceParallel:
    """Runs sequence-parallel batches on this rank; ``idle`` where it is in no group."""

    def __init__(
        self,
        decoder: Decoder,
        groups: ProcessGroups,
        sequences: Sequences,
        kernel: Kernel,
        timeline: Timeline,
        idle: Callable[[], None] | None = None,
        parallelism: Parallelism = "ulysses",
    ) -> None:
        self.idle, self.parallelism = idle, parallelism
        self.decoder, self.groups, self.sequences = decoder, groups, sequences
        self.kernel, self.timeline = kernel, timeline
        self.rank = dist.get_rank()
        self.device = next(decoder.parameters()).device

    def run(self, batch: SequenceParallelBatch) -> Tensor:
        """Forward and backward passes of one batch.

        Adds to the gradients of the decoder. Returns this rank's part of the loss (a
        scalar; the sum over the ranks is the mean over the valid tokens of the batch).
        """
        weight = 1.0 / max(valid_tokens(batch), 1)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro_batch in batch.micro_batches:
            member_group = next(
                (group for group in micro_batch.groups if self.rank in group.ranks), None
            )
            if member_group is not None:
                loss += self._run_group(member_group, weight)
            elif self.idle is not None:
                self.idle()
        return loss

    def _run_group(self, group: Group, weight: float) -> Tensor:
        index = group.ranks.index(self.rank)
        packed = pack(uncut_slices(group.sequences, group.lengths), self.sequences)
        part, attend = self._share(group, packed, index)
        part = part.to(self.device)
        with self.timeline.phase("forward"):
            hidden = self.decoder.embed(part.tokens, part.positions)
            hidden = self.decoder.transform(hidden, part.positions, attend)
            loss = self.decoder.loss(hidden, part.labels) * weight
        with self.timeline.phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        # Ranks that split the layers all have the loss of all tokens.
        counts = self.parallelism != "tensor" or index == 0
        return loss.detach().to(torch.float64) * counts

    def _share(self, group: Group, packed: PackedTokens, index: int) -> tuple[PackedTokens, Attend]:
        """The tokens of rank ``index`` of a group, and attention over all of them."""
        packing = Packing.without_context(group.lengths)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return variable_length_attention(queries, keys, values, packing, self.kernel)

        if group.degree == 1 or self.parallelism == "tensor":
            return packed, attend
        members = self.groups[group.ranks]
        if self.parallelism == "ring":
            # Only runs that choose it import torch's context parallelism.
            from training.ring_attention import RingAttention

            ring = RingAttention(members, group.lengths)
            return ring.part(packed), ring
        cut = token_cut(group.tokens, group.degree)
        start = sum(cut[:index])
        part = packed.part(start, start + cut[index])
        return part, UlyssesAttention(members, cut, attend, self.timeline)


class _Exchange(torch.autograd.Function):
    """All-to-all of rows with uneven splits; its gradient is the all-to-all back."""

    @staticmethod
    def forward(
        ctx: Any,
        sent: Tensor,
        sends: list[int],
        receives: list[int],
        group: dist.ProcessGroup,
        timeline: Timeline,
    ) -> Tensor:
        ctx.sends, ctx.receives, ctx.group, ctx.timeline = sends, receives, group, timeline
        return _all_to_all(sent, sends, receives, group, timeline)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        returned = _all_to_all(gradients[0], ctx.receives, ctx.sends, ctx.group, ctx.timeline)
        return returned, None, None, None, None


_exchange: Callable[..., Tensor] = _Exchange.apply


def _all_to_all(
    sent: Tensor,
    sends: list[int],
    receives: list[int],
    group: dist.ProcessGroup,
    timeline: Timeline,
) -> Tensor:
    received = sent.new_empty((sum(receives), *sent.shape[1:]))
    with timeline.communication():
        dist.all_to_all_single(received, sent.contiguous(), receives, sends, group=group)
    return received
