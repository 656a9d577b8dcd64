"""Pipeline stages that run split, packed and hybrid chunks in 1F1B order.

Notable:

* a chunk is a micro-batch of packed slices. At most one slice has context, the earlier
  slices of its sequence (InfiniPipe section III);
* a stage may be a Ulysses group: its ranks share the tokens of every chunk, and around
  attention each has all tokens of some heads (``training.sequence_parallel``). Messages
  between stages connect equal sequence ranks;
* keys and values of a slice are cached for the later slices as detached leaves, in the
  layout of attention: all tokens of this rank's heads. The backward pass of a later
  slice accumulates dK and dV in the leaves. The backward pass of the slice itself runs
  after (slices run right to left) and starts from these gradients and the output's;
* communication overlaps with computation: every receive is posted one operation before
  its use, and sends complete at the end of the batch. Shapes follow from the plan (the
  backend separates the two directions);
* memory is freed as early as possible. Backward passes start from edges of the graph,
  not from tensors, so that an output is freed when it is sent and keys and values when
  the backward pass of their layer ends. Attention with context saves the slices of its
  keys and values, not their concatenation;
* the head runs backward right after its loss. The gradient of its weights is as large
  as the weights: so it exists once, not once per chunk that awaits its backward pass;
* the plan gives the order of operations (``railx.planning.format.schedule``): 1F1B,
  GPipe or an explicit one. Receives are posted in the order in which the neighbour
  sends, which may differ from the order of their use;
* the maximum of chunks alive at once is counted, and a log may record every operation
  (``training.pipeline_memory``).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import Op, operations
from training.attention import Kernel, Packing, variable_length_attention
from training.data import Sequences, pack, valid_tokens
from training.model import Attend, Decoder
from training.sequence_parallel import ProcessGroups, UlyssesAttention, token_cut
from training.timeline import Timeline


@dataclass(eq=False)
class CachedSlice:
    """Keys and values of one slice by layer, for the attention of later slices.

    ``edges``: their places in the autograd graph; ``leaves``, detached, are read.
    """

    edges: dict[int, tuple[GradientEdge, GradientEdge]] = field(default_factory=dict)
    leaves: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    through: bool = False

    def add(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Cache a layer's keys and values, once: a recomputed layer adds none."""
        if layer not in self.edges and not self.through:
            self.edges[layer] = (get_gradient_edge(keys), get_gradient_edge(values))
            self.leaves[layer] = (_leaf(keys), _leaf(values))

    def released(self) -> tuple[list[GradientEdge], list[Tensor]]:
        """Edges and gathered gradients of all layers, whose leaves are dropped."""
        edges, gradients = [], []
        for layer, pair in self.leaves.items():
            for edge, leaf in zip(self.edges[layer], pair, strict=True):
                if leaf.grad is not None:
                    edges.append(edge)
                    gradients.append(leaf.grad)
        self.edges.clear()
        self.leaves.clear()
        self.through = True
        return edges, gradients


def _leaf(tensor: Tensor) -> Tensor:
    """A detached leaf; its gradient, a view of a concatenation's, is copied out."""
    leaf = tensor.detach().requires_grad_()
    leaf.register_hook(_alone)  # type: ignore[no-untyped-call]
    return leaf


def _alone(gradient: Tensor) -> Tensor:
    dense = gradient.untyped_storage().nbytes() == gradient.nbytes
    return gradient if dense else gradient.clone()


class ChunkAttention:
    """Attention inside the slices of one chunk (an ``Attend``).

    The slice with context also attends to the cached slices before it. ``context`` has
    the earlier slices of its sequence, left to right. ``cache`` receives the keys and
    values of a chunk that later slices will read. Layers below ``saving_from`` are
    recomputed and save nothing.
    """

    def __init__(
        self,
        slices: tuple[Slice, ...],
        context: list[CachedSlice],
        cache: CachedSlice | None,
        kernel: Kernel,
        saving_from: int,
    ) -> None:
        self.slice_tokens = [part.tokens for part in slices]
        self.packing = Packing(tuple(self.slice_tokens), tuple(part.stop for part in slices))
        self.context_index = next(
            (index for index, part in enumerate(slices) if part.start > 0), None
        )
        self.context, self.cache, self.kernel = context, cache, kernel
        self.saving_from = saving_from

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.cache is not None:
            # They are views of one message, which a cached view would keep alive.
            queries, keys, values = (part.contiguous() for part in (queries, keys, values))
            self.cache.add(layer, keys, values)
        saving: AbstractContextManager[Any] = nullcontext()
        if self.context_index is not None:
            parts = [
                self._with_context(
                    tensor, [earlier.leaves[layer][which] for earlier in self.context]
                )
                for which, tensor in enumerate((keys, values))
            ]
            keys, values = (torch.cat(some) for some in parts)
            if layer >= self.saving_from:
                saving = _saved_in_parts([(keys, parts[0]), (values, parts[1])])
        with saving:
            return variable_length_attention(queries, keys, values, self.packing, self.kernel)

    def _with_context(self, tensor: Tensor, earlier: list[Tensor]) -> list[Tensor]:
        parts = list(torch.split(tensor, self.slice_tokens))
        return [*parts[: self.context_index], *earlier, *parts[self.context_index :]]


@dataclass(frozen=True)
class _InParts:
    """A saved view of a concatenation: its parts, and the layout of the view."""

    parts: tuple[Tensor, ...]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, view: Tensor, parts: Sequence[Tensor]) -> _InParts:
        """A view of the concatenation of ``parts``, with the parts that it overlaps."""
        first = int(view.storage_offset())
        last = first + sum((n - 1) * d for n, d in zip(view.size(), view.stride(), strict=True))
        touched: list[Tensor] = []
        offset, begin = first, 0
        for part in parts:
            end = begin + part.numel()
            if begin <= last and first < end:
                offset = offset if touched else first - begin
                touched.append(part)
            begin = end
        return cls(tuple(touched), view.size(), view.stride(), offset)

    def joined(self) -> Tensor:
        """The view, rebuilt from a new concatenation or from its only part."""
        join = self.parts[0].contiguous() if len(self.parts) == 1 else torch.cat(self.parts)
        return join.as_strided(self.size, self.stride, join.storage_offset() + self.offset)


def _saved_in_parts(joins: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> saved_tensors_hooks:
    """Hooks that save the parts of a concatenation, which live anyway, not the copy.

    ``joins``: contiguous tensors and the parts that they concatenate.
    """
    parts_of = {
        join.untyped_storage().data_ptr(): tuple(part.detach() for part in parts)
        for join, parts in joins
    }

    def save(tensor: Tensor) -> Tensor | _InParts:
        parts = parts_of.get(tensor.untyped_storage().data_ptr())
        return tensor if parts is None or not tensor.numel() else _InParts.of(tensor, parts)

    def restore(saved: Tensor | _InParts) -> Tensor:
        return saved.joined() if isinstance(saved, _InParts) else saved

    return saved_tensors_hooks(save, restore)


@dataclass(frozen=True)
class Receipt:
    """A posted receive and the tensor that it fills."""

    tensor: Tensor
    work: Any

    def wait(self) -> Tensor:
        """Wait for the message and return the tensor."""
        if self.work is not None:
            self.work.wait()
        return self.tensor


class StageLinks:
    """Messages between stages; tensors live until sent, empty ones are not."""

    def __init__(self) -> None:
        self._sent: list[tuple[Any, Tensor]] = []

    def send(self, tensor: Tensor, to: int) -> None:
        """Start to send ``tensor`` to rank ``to``."""
        self.release()
        tensor = tensor.detach().contiguous()
        if tensor.numel():
            self._sent.append((dist.isend(tensor, to), tensor))

    def post(self, like: Tensor, source: int) -> Receipt:
        """Start to receive into ``like`` from rank ``source``."""
        return Receipt(like, dist.irecv(like, source) if like.numel() else None)

    def release(self) -> None:
        """Drop the tensors whose send is complete."""
        self._sent = [(work, tensor) for work, tensor in self._sent if not work.is_completed()]

    def finish(self) -> None:
        """Wait for all sends."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


#: A receive: the number of the pipeline, forward or backward, the chunk.
_Awaited = tuple[int, str, int]


@dataclass
class _LiveChunk:
    """A chunk between its forward and its backward pass on one stage.

    ``outputs`` is the graph edge at which the backward pass starts, ``gradient`` its
    gradient on the last stage.
    """

    inputs: Tensor | None
    outputs: GradientEdge
    gradient: Tensor | None
    cache: CachedSlice | None


@dataclass(frozen=True)
class Step:
    """An operation of a stage, in one of the batch's pipelines."""

    number: int
    pipeline: Pipeline
    op: Op

    @property
    def chunk(self) -> Chunk:
        return self.pipeline.chunks[self.op.chunk]

    @property
    def live(self) -> tuple[int, int]:
        """The key of its live chunk."""
        return self.number, self.op.chunk

    @property
    def awaited(self) -> _Awaited:
        """The key of its receive."""
        return self.number, self.op.kind, self.op.chunk

    @property
    def forward(self) -> bool:
        """Whether it is a forward pass."""
        return self.op.kind == "forward"


def stage_steps(batch: PipelineBatch, replica: int, stage: int) -> list[Step]:
    """The operations of a stage of a replica, in order."""
    return [
        Step(number, pipeline, op)
        for number, pipeline in enumerate(batch.pipelines)
        if pipeline.replica == replica
        for op in operations(pipeline, stage)
    ]


def coming_steps(
    batch: PipelineBatch, replica: int, stage: int, stages: int
) -> dict[bool, deque[Step]]:
    """The steps whose messages a stage receives, in the order of sending.

    True: those of the stage before, forward; False: of the stage after, backward.
    """
    return {
        forward: deque(
            step
            for step in (stage_steps(batch, replica, sender) if 0 <= sender < stages else ())
            if step.forward == forward
        )
        for forward, sender in ((True, stage - 1), (False, stage + 1))
    }


class Log(Protocol):
    """An observer of the operations of a batch."""

    def operation(self, number: int, op: Op) -> AbstractContextManager[object]:
        """The context in which ``op`` of pipeline ``number`` runs."""
        ...


class PipelineParallel:
    """Runs the batches of a pipeline plan on this rank's stage of the model.

    rank = (replica * stages + stage) * degree + sequence rank. Creates groups of stages
    with several ranks: every rank has to construct it at the same point.
    """

    def __init__(
        self,
        decoder: Decoder,
        stages: int,
        links: StageLinks,
        sequences: Sequences,
        kernel: Kernel,
        timeline: Timeline,
        degree: int = 1,
    ) -> None:
        self.decoder, self.links, self.sequences = decoder, links, sequences
        self.kernel, self.timeline, self.rank = kernel, timeline, dist.get_rank()
        self.stages, self.degree = stages, degree
        group, self.sequence_rank = divmod(self.rank, degree)
        self.replica, self.stage = divmod(group, stages)
        self.last = self.stage == stages - 1
        self.group = self._stage_group()
        self.device = next(decoder.parameters()).device
        self.peak_live_chunks = 0
        #: Observer of the operations of a batch.
        self.log: Log | None = None
        self._live: dict[tuple[int, int], _LiveChunk] = {}
        self._cached_slices: dict[tuple[int, int], list[CachedSlice]] = defaultdict(list)
        #: Messages of the neighbouring stages without a posted receive, in the order
        #: of sending.
        self._coming: dict[bool, deque[Step]] = {}
        self._posted: dict[_Awaited, Receipt] = {}

    def run(self, batch: PipelineBatch) -> Tensor:
        """Forward and backward passes of one batch, its pipelines one after another.

        Adds to the gradients of the decoder. Returns this rank's part of the loss (a
        scalar; the sum over the ranks is the mean over the valid tokens of the batch).
        """
        weight = 1.0 / max(valid_tokens(batch), 1)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self._check_shapes(batch)
        steps = stage_steps(batch, self.replica, self.stage)
        self._coming = coming_steps(batch, self.replica, self.stage, self.stages)
        for number, step in enumerate(steps):
            with nullcontext() if self.log is None else self.log.operation(step.number, step.op):
                # The receives of this step and of the next one, whose message may then
                # arrive while this one computes.
                for ahead in steps[number : number + 2]:
                    self._post(ahead)
                if step.forward:
                    part = self._forward(step, weight)
                    loss += part if part is not None else 0.0
                    self.peak_live_chunks = max(self.peak_live_chunks, self.live_chunks)
                else:
                    self._backward(step)
                self.links.release()
        self.links.finish()
        return loss

    @property
    def live_chunks(self) -> int:
        """Chunks whose forward pass has run here and whose backward pass has not."""
        return len(self._live)

    def _stage_group(self) -> dist.ProcessGroup | None:
        """The group of this rank's stage; None for a single rank."""
        if self.degree == 1:
            return None
        firsts = range(0, dist.get_world_size(), self.degree)
        groups = [tuple(range(first, first + self.degree)) for first in firsts]
        return ProcessGroups(groups)[groups[self.rank // self.degree]]

    def _check_shapes(self, batch: PipelineBatch) -> None:
        for number, pipeline in enumerate(batch.pipelines):
            if (pipeline.stages, pipeline.degree) != (self.stages, self.degree):
                raise PlanError(
                    f"batch {batch.iteration}, pipeline {number}: {pipeline.stages} stages of"
                    f" {pipeline.degree} ranks; allowed: {self.stages} stages of {self.degree}"
                )

    def _post(self, step: Step) -> None:
        """Post the receive of a step's input, unless it is posted.

        Hidden states from the stage before, or their gradients from the stage after.
        Messages arrive in the order of sending, so earlier ones are posted too.
        """
        if self.stage == 0 if step.forward else self.last:
            return
        coming = self._coming[step.forward]
        source = self.rank - self.degree if step.forward else self.rank + self.degree
        while step.awaited not in self._posted:
            ahead = coming.popleft()
            like = torch.empty(
                token_cut(ahead.chunk.tokens, self.degree)[self.sequence_rank],
                self.decoder.hidden,
                dtype=self.decoder.compute,
                device=self.device,
            )
            self._posted[ahead.awaited] = self.links.post(like, source)

    def _forward(self, step: Step, weight: float) -> Tensor | None:
        """The forward pass of a chunk; its part of the loss on the last stage."""
        chunk = step.chunk
        cut = token_cut(chunk.tokens, self.degree)
        start = sum(cut[: self.sequence_rank])
        packed = pack(chunk.slices, self.sequences)
        packed = packed.part(start, start + cut[self.sequence_rank]).to(self.device)
        recomputed = chunk.recomputed_layers(self.stage)
        attend, cache = self._attention(step, cut, recomputed)
        inputs = self._posted.pop(step.awaited).wait().requires_grad_() if self.stage else None
        with self.timeline.phase("forward"):
            hidden = (
                self.decoder.embed(packed.tokens, packed.positions) if inputs is None else inputs
            )
            outputs = self.decoder.transform(hidden, packed.positions, attend, recomputed)
            edge, loss, gradient = get_gradient_edge(outputs), None, None
            if self.last:
                loss, gradient = self._loss(outputs, packed.labels, weight)
        self._live[step.live] = _LiveChunk(inputs, edge, gradient, cache)
        if not self.last:
            self.links.send(outputs, self.rank + self.degree)
        return loss

    def _loss(self, outputs: Tensor, labels: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The weighted loss of a chunk and its gradient by the last layer's outputs."""
        leaf = outputs.detach().requires_grad_()
        loss = self.decoder.loss(leaf, labels) * weight
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return loss.detach(), leaf.grad

    def _attention(
        self, step: Step, cut: Sequence[int], recomputed: int
    ) -> tuple[Attend, CachedSlice | None]:
        """The attention of a chunk, and the cache that it fills, if it goes on."""
        slices = step.chunk.slices
        with_context = next((part.sequence for part in slices if part.start > 0), None)
        context = (
            list(self._cached_slices[step.number, with_context]) if with_context is not None else []
        )
        cache = CachedSlice() if slices[0].stop < slices[0].length else None
        if cache is not None:
            self._cached_slices[step.number, slices[0].sequence].append(cache)
        saving_from = self.decoder.layer_range.start + recomputed
        attend: Attend = ChunkAttention(slices, context, cache, self.kernel, saving_from)
        if self.group is not None:
            attend = UlyssesAttention(self.group, cut, attend, self.timeline)
        return attend, cache

    def _backward(self, step: Step) -> None:
        live = self._live.pop(step.live)
        edges: list[GradientEdge] = [live.outputs]
        gradient = live.gradient
        gradients = [self._posted.pop(step.awaited).wait() if gradient is None else gradient]
        if live.cache is not None:
            # Slices run right to left, so this is the last cached slice of its
            # sequence, and all its readers have run backward.
            sequence = step.number, step.chunk.slices[0].sequence
            self._cached_slices[sequence].pop()
            if not self._cached_slices[sequence]:
                del self._cached_slices[sequence]
            further, added = live.cache.released()
            edges += further
            gradients += added
        with self.timeline.phase("backward"):
            torch.autograd.backward(edges, gradients)
        if live.inputs is not None:
            assert live.inputs.grad is not None
            self.links.send(live.inputs.grad, self.rank - self.degree)
