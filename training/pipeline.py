"""Pipeline stages that run split, packed and hybrid chunks in 1F1B order.

Notable:

* a chunk is a micro-batch of packed slices. At most one slice has context, the earlier
  slices of its sequence (InfiniPipe section III);
* keys and values of a slice are kept for the later slices as detached leaves. A later
  slice's backward pass leaves its dK and dV in the leaves. The slice's own backward
  pass, which runs after (slices go right to left), starts from them as well as from the
  output;
* activations and their gradients travel between neighbours by asynchronous sends, so
  that a stage never waits for its neighbour to take what it sent. Shapes follow from
  the plan (the backend keeps the two directions apart);
* the order of operations is ``railx.planning.schedule``'s, and the most chunks alive at
  once are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from railx.planning.plan import Chunk, Pipeline, PipelineBatch, Slice
from railx.planning.schedule import one_f_one_b
from training.attention import Kernel, Packing, variable_length_attention
from training.data import PackedTokens, Sequences, pack, valid_tokens
from training.model import Decoder
from training.timeline import Timeline

__all__ = ["ChunkAttention", "KeptSlice", "PipelineParallel", "StageLinks"]


@dataclass(eq=False)
class KeptSlice:
    """Keys and values of one slice, layer by layer.

    As computed (in the graph) and as seen by later slices (detached leaves).
    """

    computed: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    leaves: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def keep(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep a layer's keys and values.

        A second call (a recomputed layer) changes nothing.
        """
        if layer not in self.computed:
            self.computed[layer] = (keys, values)
            self.leaves[layer] = (keys.detach().requires_grad_(), values.detach().requires_grad_())

    def gradients(self) -> Iterable[tuple[Tensor, Tensor]]:
        """What the later slices' backward passes add.

        Pairs of a computed tensor and its gradient.
        """
        for layer, computed in self.computed.items():
            for tensor, leaf in zip(computed, self.leaves[layer], strict=True):
                if leaf.grad is not None:
                    yield tensor, leaf.grad


class ChunkAttention:
    """Attention inside the slices of one chunk (an ``Attend``).

    The slice with context also attends to the kept slices before it. ``context`` are
    the earlier slices of the sequence whose slice has context, left to right. ``kept``
    receives the keys and values of a chunk that later slices will read.
    """

    def __init__(
        self,
        slices: tuple[Slice, ...],
        context: list[KeptSlice],
        kept: KeptSlice | None,
        kernel: Kernel,
    ) -> None:
        self.own = [part.tokens for part in slices]
        self.packing = Packing(tuple(self.own), tuple(part.stop for part in slices))
        self.place = next((place for place, part in enumerate(slices) if part.start > 0), None)
        self.context, self.kept, self.kernel = context, kept, kernel

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.kept is not None:
            self.kept.keep(layer, keys, values)
        if self.place is not None:
            keys = self._with_context(keys, [earlier.leaves[layer][0] for earlier in self.context])
            values = self._with_context(
                values, [earlier.leaves[layer][1] for earlier in self.context]
            )
        return variable_length_attention(queries, keys, values, self.packing, self.kernel)

    def _with_context(self, own: Tensor, earlier: list[Tensor]) -> Tensor:
        parts = list(torch.split(own, self.own))
        return torch.cat([*parts[: self.place], *earlier, *parts[self.place :]])


class StageLinks:
    """Messages between neighbouring stages.

    Sent tensors are kept alive until they are gone.
    """

    def __init__(self) -> None:
        self._sent: list[tuple[Any, Tensor]] = []

    def send(self, tensor: Tensor, to: int) -> None:
        """Start to send ``tensor`` to rank ``to``."""
        tensor = tensor.detach().contiguous()
        self._sent.append((dist.isend(tensor, to), tensor))

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Receive into ``like`` from rank ``source``, and return it."""
        work = dist.irecv(like, source)
        assert work is not None
        work.wait()
        return like

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


@dataclass
class _LiveChunk:
    """A chunk between its forward and its backward pass on one stage."""

    inputs: Tensor
    outputs: Tensor
    kept: KeptSlice | None


class PipelineParallel:
    """Runs the batches of a pipeline plan on this rank's stage of the model.

    rank = replica * stages + stage.
    """

    def __init__(
        self,
        decoder: Decoder,
        stages: int,
        links: StageLinks,
        sequences: Sequences,
        kernel: Kernel,
        timeline: Timeline,
    ) -> None:
        self.decoder, self.links, self.sequences = decoder, links, sequences
        self.kernel, self.timeline, self.rank = kernel, timeline, dist.get_rank()
        self.replica, self.stage = divmod(self.rank, stages)
        self.last = self.stage == stages - 1
        self.device = next(decoder.parameters()).device
        self.peak_live_chunks = 0
        self._live: dict[int, _LiveChunk] = {}
        self._kept: dict[int, list[KeptSlice]] = defaultdict(list)

    def run(self, batch: PipelineBatch) -> Tensor:
        """Forward and backward passes of one batch, its pipelines one after another.

        Adds to the gradients of the decoder. Returns this rank's part of the loss (a
        scalar; the sum over the ranks is the mean over the valid tokens of the batch).
        """
        weight = 1.0 / max(valid_tokens(batch), 1)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for pipeline in batch.pipelines:
            if pipeline.replica == self.replica:
                loss += self._run_pipeline(pipeline, weight)
        return loss

    def _run_pipeline(self, pipeline: Pipeline, weight: float) -> Tensor:
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for op in one_f_one_b(pipeline, self.stage):
            chunk = pipeline.chunks[op.chunk]
            if op.kind == "forward":
                self._live[op.chunk] = live = self._forward(chunk, weight)
                self.peak_live_chunks = max(self.peak_live_chunks, len(self._live))
                loss += live.outputs.detach() if self.last else 0.0
            else:
                self._backward(chunk, self._live.pop(op.chunk))
        self.links.finish()
        return loss

    def _forward(self, chunk: Chunk, weight: float) -> _LiveChunk:
        packed = pack(chunk.slices, self.sequences).to(self.device)
        inputs = self._inputs(packed)
        attend, kept = self._attention(chunk)
        checkpoint_layers = chunk.checkpoint_layers[self.stage] if chunk.checkpoint_layers else 0
        with self.timeline.phase("forward"):
            hidden = (
                self.decoder.embed(packed.tokens, packed.positions) if self.stage == 0 else inputs
            )
            outputs = self.decoder.transform(hidden, packed.positions, attend, checkpoint_layers)
            if self.last:
                outputs = self.decoder.loss(outputs, packed.labels) * weight
        if not self.last:
            self.links.send(outputs, self.rank + 1)
        return _LiveChunk(inputs, outputs, kept)

    def _inputs(self, packed: PackedTokens) -> Tensor:
        """What enters the stage: hidden states [T, hidden] of the stage before.

        Nothing on the first stage, which embeds tokens.
        """
        if self.stage == 0:
            return torch.empty(0, device=self.device)
        hidden = torch.empty(
            len(packed.tokens), self.decoder.hidden, dtype=self.decoder.compute, device=self.device
        )
        return self.links.receive(hidden, self.rank - 1).requires_grad_()

    def _attention(self, chunk: Chunk) -> tuple[ChunkAttention, KeptSlice | None]:
        """The attention of a chunk, and the slice that it keeps for later ones.

        A slice before the tail is alone in its chunk.
        """
        with_context = next((part.sequence for part in chunk.slices if part.start > 0), None)
        context = list(self._kept[with_context]) if with_context is not None else []
        first = chunk.slices[0]
        kept = KeptSlice() if first.stop < first.length else None
        if kept is not None:
            self._kept[first.sequence].append(kept)
        return ChunkAttention(chunk.slices, context, kept, self.kernel), kept

    def _backward(self, chunk: Chunk, live: _LiveChunk) -> None:
        outputs: list[Tensor] = [live.outputs]
        gradients: list[Tensor | None] = [None]
        if not self.last:
            gradients[0] = self.links.receive(torch.empty_like(live.outputs), self.rank + 1)
        if live.kept is not None:
            # Slices run right to left, so this is the last kept slice of its sequence,
            # and all that read it have added to it.
            self._kept[chunk.slices[0].sequence].pop()
            for tensor, gradient in live.kept.gradients():
                outputs.append(tensor)
                gradients.append(gradient)
        with self.timeline.phase("backward"):
            torch.autograd.backward(outputs, gradients)
        if self.stage > 0:
            assert live.inputs.grad is not None
            self.links.send(live.inputs.grad, self.rank - 1)
