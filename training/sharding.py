"""ZeRO-3: every rank stores rows of the parameters and gathers them to compute.

Notable:

* a parameter is sharded along dim 0 as by DTensor's ``Shard(0)``: the last ranks have
  fewer rows or none. The rows are the master weights, in single precision below
  bfloat16 activations. The optimizer and checkpoints use these rows only;
* communication is per unit (embedding, each layer, head): one all-gather of a unit's
  parameters in the precision of the activations, and one reduce-scatter of its
  gradients in the precision of the master weights;
* the all-gather of the next unit is issued before a unit computes, forward and
  backward, and the reduce-scatter of a unit's gradients before the backward pass of the
  unit below. A unit waits for its all-gather, a reduce-scatter for the one before, the
  optimizer for all of them;
* a parameter is one tensor whose storage is allocated and freed. Autograd saves that
  tensor, so that one cast copy of a weight exists, while its unit computes;
* every rank issues the same collectives in the same order. With sequence parallelism
  that is one forward and one backward pass per micro-batch; a rank without tokens
  issues the same collectives without computing (``idle``). A layer that is recomputed
  in the backward pass finds its parameters gathered;
* replicas of a pipeline run different numbers of chunks in different orders, so their
  passes cannot issue matching collectives. A stage is gathered once per batch, its
  gradients are reduced once, during the backward pass of its last chunk, and it is
  freed at the end of the batch. A stage's parameters and gradients are alive during the
  batch; master weights and moments stay sharded
  (``railx.performance.trainer_memory`` models both ways);
* not ``fully_shard``: on a CPU torch 2.13 waits for a reduce-scatter where it is issued
  (``foreach_reduce``), so that no sum would overlap with computation in the runs with
  emulated switching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.timeline import Timeline

#: Lifetime of gathered parameters: while their unit computes, or the batch.
Hold = Literal["unit", "batch"]

# Torch leaves these without types. Versions before 2.13 have the longer names only,
# which are deprecated.
_distributed: Any = dist
_all_gather = getattr(dist, "all_gather_single", None) or _distributed.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or _distributed.reduce_scatter_tensor


@dataclass(frozen=True)
class Use:
    """A module's call in a forward pass of the model.

    ``parameters`` names the parameters that it reads; ``read_backward`` says whether
    its backward pass reads them again (that of an embedding does not).
    """

    module: nn.Module
    parameters: tuple[str, ...]
    read_backward: bool = True


@dataclass(eq=False)
class _Part:
    """One parameter of a unit.

    ``unsharded`` is the parameter that the model computes with, ``base`` its storage
    with the padding of uneven rows, ``shard`` this rank's rows of the master weights.
    They begin at ``offset`` in the flat tensors of the unit.
    """

    name: str
    unsharded: nn.Parameter
    base: Tensor
    shard: nn.Parameter
    offset: int
    width: int
    filled: bool = False


class _Unit:
    """Parameters that are gathered and reduced together."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        rank: int,
        ranks: int,
        group: dist.ProcessGroup | None,
        compute: torch.dtype,
        master: torch.dtype,
        device: torch.device,
        rows_of: Callable[[str, Tensor, int, int], Tensor],
        timeline: Timeline,
    ) -> None:
        self.ranks, self.group, self.timeline = ranks, group, timeline
        self.compute, self.master, self.device = compute, master, device
        self.parts: list[_Part] = []
        # Rows per rank in DTensor's Shard(0); the last ranks may have fewer.
        cuts = [(name, old, -(-old.shape[0] // ranks)) for name, old in named]
        self.width = sum(rows * old[:1].numel() for _, old, rows in cuts)
        self.flat = torch.zeros(self.width, dtype=master, device=device)
        self.even = all(old.shape[0] == rows * ranks for _, old, rows in cuts)
        offset = 0
        for name, old, rows in cuts:
            row = old[:1].numel()
            start = min(rank * rows, old.shape[0])
            stop = min(start + rows, old.shape[0])
            shard_rows = self.flat[offset : offset + (stop - start) * row].view(
                stop - start, *old.shape[1:]
            )
            shard_rows.copy_(rows_of(name, old, start, stop))
            base = torch.empty(rows * row * ranks, dtype=compute, device=device)
            unsharded = nn.Parameter(base[: old.numel()].view(old.shape))
            base.untyped_storage().resize_(0)
            self.parts.append(
                _Part(name, unsharded, base, nn.Parameter(shard_rows), offset, rows * row)
            )
            offset += rows * row
        self.present = False
        self.summed = False
        self._gather: tuple[Any, Tensor] | None = None
        self._collected: Tensor | None = None
        self._sum: tuple[Any, Tensor, Tensor] | None = None
        self._gradient: Tensor | None = None

    # ---- parameters

    def issue_gather(self) -> None:
        """Start the all-gather, unless it is done or under way."""
        if self.present or self._gather is not None or self.ranks == 1:
            return
        if len(self.parts) == 1:
            # A single parameter is gathered in place.
            self._fill()
            message = self.parts[0].base.data
        else:
            message = torch.empty(self.ranks * self.width, dtype=self.compute, device=self.device)
        work = _all_gather(message, self.flat.to(self.compute), group=self.group, async_op=True)
        self._gather = work, message

    def land(self) -> None:
        if self.present:
            return
        self.issue_gather()
        self.present = True
        if self._gather is None:
            self._fill()
            for part in self.parts:
                part.base.data.copy_(self.flat[part.offset : part.offset + part.width])
            return
        work, message = self._gather
        self._gather = None
        with self.timeline.communication():
            work.wait()
        if len(self.parts) > 1:
            self._fill()
            by_rank = message.view(self.ranks, self.width)
            for part in self.parts:
                part.base.data.view(self.ranks, part.width).copy_(
                    by_rank[:, part.offset : part.offset + part.width]
                )

    def release(self) -> None:
        if self.present:
            self.present = False
            for part in self.parts:
                part.base.untyped_storage().resize_(0)

    def _fill(self) -> None:
        # Resized through .data, hidden from autograd.
        for part in self.parts:
            part.base.untyped_storage().resize_(part.base.numel() * part.base.element_size())

    # ---- gradients

    def collect(self, part: _Part, _: Tensor) -> None:
        """Move a parameter's gradient into the send buffer: its hook."""
        gradient = part.unsharded.grad
        part.unsharded.grad = None
        if gradient is None:
            return
        if self.summed:
            raise RuntimeError(f"{part.name}: a gradient came after those of its unit were summed")
        collected = self._message()
        region = collected.view(self.ranks, self.width)[:, part.offset : part.offset + part.width]
        source = gradient.reshape(-1)
        full, rest = divmod(source.numel(), part.width) if part.width else (0, 0)
        pairs = [(region[:full], source[: full * part.width].view(full, part.width))]
        if rest:
            pairs.append((region[full, :rest], source[full * part.width :]))
        for target, piece in pairs:
            if part.filled:
                target.add_(piece)
            else:
                target.copy_(piece)
        part.filled = True

    def issue_sum(self) -> None:
        """Start the reduce-scatter of the collected gradients."""
        collected = self._message()
        for part in self.parts:
            if not part.filled:
                collected.view(self.ranks, self.width)[
                    :, part.offset : part.offset + part.width
                ].zero_()
            part.filled = False
        self._collected = None
        self.summed = True
        if self.ranks == 1:
            self._add(collected)
            return
        shard_gradient = torch.empty(self.width, dtype=self.master, device=self.device)
        work = _reduce_scatter(shard_gradient, collected, group=self.group, async_op=True)
        self._sum = work, shard_gradient, collected

    def finish_sum(self) -> None:
        """Wait for the reduce-scatter and add its result to the shard's gradient."""
        if self._sum is None:
            return
        work, shard_gradient, _ = self._sum
        self._sum = None
        with self.timeline.communication():
            work.wait()
        self._add(shard_gradient)

    def _message(self) -> Tensor:
        if self._collected is None:
            # Padding rows are sent too, but never written.
            make = torch.empty if self.even else torch.zeros
            self._collected = make(self.ranks * self.width, dtype=self.master, device=self.device)
        return self._collected

    def _add(self, shard_gradient: Tensor) -> None:
        if self._gradient is not None:
            self._gradient += shard_gradient
            return
        self._gradient = shard_gradient
        for part in self.parts:
            part.shard.grad = shard_gradient[
                part.offset : part.offset + part.shard.numel()
            ].view_as(part.shard)

    def forget(self) -> None:
        self._gradient = None
        for part in self.parts:
            part.shard.grad = None


class Sharding:
    """The parameters of a model, sharded over the ranks of ``group``.

    ``uses`` lists the modules in the order in which a forward pass calls them. A
    parameter belongs to the unit of its first use. With ``group`` None this rank has
    all rows of the master weights, and the model computes with a cast copy. ``rows_of``
    returns rows ``start`` to ``stop`` of a parameter (name, tensor, start, stop). Every
    rank of the group constructs it at the same point.
    """

    def __init__(
        self,
        model: nn.Module,
        uses: Sequence[Use],
        *,
        group: dist.ProcessGroup | None,
        compute: torch.dtype,
        master: torch.dtype,
        device: torch.device,
        hold: Hold,
        timeline: Timeline,
        rows_of: Callable[[str, Tensor, int, int], Tensor] | None = None,
    ) -> None:
        self.group, self.hold, self.timeline = group, hold, timeline
        self.ranks = dist.get_world_size(group) if group is not None else 1
        rank = dist.get_rank(group) if group is not None else 0
        parameters = dict(model.named_parameters())
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._mesh: Any = None
        self._units: list[_Unit] = []
        of: dict[str, _Unit] = {}
        self._uses: list[tuple[list[_Unit], bool]] = []
        # By use, the units that it uses first: their gradients are complete after its
        # backward pass.
        self._begins: list[list[_Unit]] = []
        for use in uses:
            new = [name for name in use.parameters if name not in of]
            begins = []
            if new:
                unit = _Unit(
                    [(name, parameters[name]) for name in new],
                    rank=rank,
                    ranks=self.ranks,
                    group=group,
                    compute=compute,
                    master=master,
                    device=device,
                    rows_of=rows_of or (lambda _, old, start, stop: old.detach()[start:stop]),
                    timeline=timeline,
                )
                for name, part in zip(new, unit.parts, strict=True):
                    path, _, attribute = name.rpartition(".")
                    setattr(model.get_submodule(path), attribute, part.unsharded)
                    of[name] = unit
                    parameter: Any = part.unsharded
                    parameter.register_post_accumulate_grad_hook(partial(unit.collect, part))
                    del parameters[name]
                begins.append(unit)
                self._units.append(unit)
            self._begins.append(begins)
            needed = list(dict.fromkeys(of[name] for name in use.parameters))
            self._uses.append((needed, use.read_backward))
        if parameters:
            raise ValueError(f"{next(iter(parameters))}: a parameter that no unit uses")
        if hold == "unit" and uses[0].read_backward:
            raise ValueError("units are held one by one only where the first use is a look-up")
        self._hook(uses)
        self._top = len(uses) - 1
        self._passes = self._begun = 0
        self._backward = False
        self._open = False
        self._summing: list[_Unit] = []

    @property
    def shards(self) -> dict[str, nn.Parameter]:
        """This rank's rows of every parameter, by parameter name."""
        return {part.name: part.shard for unit in self._units for part in unit.parts}

    def distributed(self, name: str, local: Tensor) -> Tensor:
        """``local`` as a DTensor like parameter ``name``; itself without a group."""
        if self.group is None:
            return local
        # Slow to import, and only checkpoints need it.
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(self.group, local.device.type)
        shape = self._shapes[name]
        return DTensor.from_local(
            local,
            self._mesh,
            [Shard(0)],
            run_check=False,
            shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )

    # ---- a batch

    def forget(self) -> None:
        """Drop the gradients of the last batch."""
        for unit in self._units:
            unit.forget()

    def begin(self, passes: int) -> None:
        """Begin a batch of ``passes`` here; with units held, as many on all ranks."""
        self.forget()
        for unit in self._units:
            unit.summed = False
        self._passes, self._begun, self._backward, self._open = passes, 0, False, False
        self._issue(0)

    def idle(self) -> None:
        """Issue the collectives of a pass without computing."""
        for index in range(self._top + 1):
            self._before_forward(index)
            self._after_forward(index)
        for index in range(self._top, -1, -1):
            self._before_backward(index)

    def finish(self) -> None:
        """End the batch: reduce all gradients, free all gathered parameters."""
        if self.hold == "batch":
            # A replica without a chunk takes part in the collectives.
            for index in range(self._top + 1):
                self._land(index)
        self._end_pass()
        self._finish_sums()
        for unit in self._units:
            unit.release()

    # ---- a pass

    def _before_forward(self, index: int) -> None:
        if self.hold == "unit":
            if self._backward and index > 0:
                return  # a recomputed layer
            if index == 0:
                self._end_pass()
                self._open = True
        self._land(index)
        self._issue(index + 1)
        if index > 1:
            # The sums of the last backward pass have overlapped with a layer.
            self._finish_sums()

    def _after_forward(self, index: int) -> None:
        if self.hold == "batch" or self._backward or index == self._top:
            return
        self._release(index, but=index + 1)

    def _before_backward(self, index: int) -> None:
        if self.hold == "batch":
            # Counted below the head, which runs backward right after its loss.
            self._begun += index == max(self._top - 1, 0)
            if self._begun == self._passes and index < self._top:
                self._sum(index + 1)
            return
        if index == self._top:
            self._begun += 1
            self._backward = True
        if index < self._top:
            self._release(index + 1, but=index)
        needed = self._uses[index][1]
        if needed:
            self._land(index)
        if index > 0:
            if self._uses[index - 1][1]:
                self._issue(index - 1)
        elif self._begun < self._passes and not needed:
            self._issue(0)
        if index < self._top:
            self._sum(index + 1)

    def _end_pass(self) -> None:
        """Reduce the gradients that no backward pass has reduced."""
        if self.hold == "unit" and not self._open:
            return
        for index in range(self._top, -1, -1):
            self._sum(index)
        if self.hold == "unit":
            for unit in self._units:
                unit.summed = False
        self._open = self._backward = False

    def _issue(self, index: int) -> None:
        if 0 <= index <= self._top:
            for unit in self._uses[index][0]:
                unit.issue_gather()

    def _land(self, index: int) -> None:
        for unit in self._uses[index][0]:
            unit.land()

    def _release(self, index: int, *, but: int) -> None:
        needed = self._uses[but][0]
        for unit in self._uses[index][0]:
            if unit not in needed:
                unit.release()

    def _sum(self, index: int) -> None:
        for unit in self._begins[index]:
            if unit.summed:
                continue
            # One sum at a time: its buffer is as large as the unit.
            self._finish_sums()
            unit.issue_sum()
            self._summing.append(unit)

    def _finish_sums(self) -> None:
        for unit in self._summing:
            unit.finish_sum()
        self._summing.clear()

    # ---- hooks

    def _hook(self, uses: Sequence[Use]) -> None:
        indices: dict[nn.Module, deque[int]] = {}
        for index, use in enumerate(uses):
            indices.setdefault(use.module, deque()).append(index)
        for module, turns in indices.items():
            module.register_forward_pre_hook(self._opener(turns))
            module.register_forward_hook(self._closer(turns))

    def _opener(self, turns: deque[int]) -> Callable[[nn.Module, Any], None]:
        """The hook before a call of a module; ``turns`` are the indices of its uses."""

        def open_(module: nn.Module, arguments: Any) -> None:
            self._before_forward(turns[0])
            turns.rotate(-1)

        return open_

    def _closer(self, turns: deque[int]) -> Callable[[nn.Module, Any, Any], None]:
        def close(module: nn.Module, arguments: Any, output: Any) -> None:
            index = turns[-1]
            self._after_forward(index)
            if getattr(output, "requires_grad", False):
                output.register_hook(lambda _: self._before_backward(index))

        return close
