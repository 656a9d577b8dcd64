"""ZeRO-3: every rank keeps its rows of the parameters, and gathers them to compute.

Notable:

* a parameter is cut along dim 0 as DTensor's ``Shard(0)`` cuts it, the last ranks
  having fewer rows or none. The rows that a rank keeps are the master: single precision
  below bfloat16 activations. Optimizer and checkpoints see these rows alone;
* parameters travel unit by unit (embedding, each layer, head): one message gathers a
  unit, cast to the precision of the activations, and one adds up its gradients in the
  precision of the master and leaves each rank its rows;
* the gather of the next unit is issued before a unit computes, forward and backward,
  and the sum of a unit's gradients before the unit below it computes backward. What is
  still under way is waited for where it is needed: the gather in front of its unit, the
  sum when the next sum is due, and all sums before the optimizer;
* a parameter stays one tensor, whose storage is filled and emptied. Autograd saves that
  tensor, so that a cast weight is alive once, while its unit computes;
* every rank issues the same messages in the same order. With sequence parallelism that
  is one walk forward and one backward for each micro-batch; a rank without tokens takes
  the same walk without computing (``idle``). A layer that is computed again in the
  backward pass finds its parameters there;
* replicas of a pipeline run different numbers of chunks in different orders, so walks
  cannot be in step there. A stage is gathered once per batch, its gradients are summed
  once, while its last chunk runs backward, and it is emptied at the batch's end. The
  price is a stage's parameters and gradients alive during the batch; the master and the
  optimizer's moments stay cut (``railx.workload.memory`` counts both ways).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.timeline import Timeline

__all__ = ["Hold", "Sharding", "Use"]

#: How long gathered parameters stay: while their unit computes, or for the batch.
Hold = Literal["unit", "batch"]


@dataclass(frozen=True)
class Use:
    """A module's call in a walk through the model.

    ``parameters`` are the names of those that it reads; ``kept`` says that its backward
    pass reads them again (a table of embeddings is not).
    """

    module: nn.Module
    parameters: tuple[str, ...]
    kept: bool = True


@dataclass(eq=False)
class _Part:
    """One parameter of a unit.

    ``whole`` is what the model computes with, ``base`` its storage with the padding of
    uneven rows, ``shard`` this rank's rows of the master; they lie at ``offset`` in the
    flat tensors of the unit.
    """

    name: str
    whole: nn.Parameter
    base: Tensor
    shard: nn.Parameter
    offset: int
    width: int
    filled: bool = False


class _Unit:
    """Parameters that travel together."""

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
        cuts = [(name, old, _rows(old.shape[0], ranks)) for name, old in named]
        self.width = sum(rows * old[:1].numel() for _, old, rows in cuts)
        self.flat = torch.zeros(self.width, dtype=master, device=device)
        self.even = all(old.shape[0] == rows * ranks for _, old, rows in cuts)
        offset = 0
        for name, old, rows in cuts:
            row = old[:1].numel()
            start = min(rank * rows, old.shape[0])
            stop = min(start + rows, old.shape[0])
            own = self.flat[offset : offset + (stop - start) * row].view(
                stop - start, *old.shape[1:]
            )
            own.copy_(rows_of(name, old, start, stop))
            base = torch.empty(rows * row * ranks, dtype=compute, device=device)
            whole = nn.Parameter(base[: old.numel()].view(old.shape))
            base.untyped_storage().resize_(0)
            self.parts.append(_Part(name, whole, base, nn.Parameter(own), offset, rows * row))
            offset += rows * row
        self.present = False
        self.summed = False
        self._gather: tuple[Any, Tensor] | None = None
        self._collected: Tensor | None = None
        self._sum: tuple[Any, Tensor, Tensor] | None = None
        self._gradient: Tensor | None = None

    # ---- parameters

    def issue_gather(self) -> None:
        """Start to gather, unless the parameters are there or on their way."""
        if self.present or self._gather is not None or self.ranks == 1:
            return
        if len(self.parts) == 1:
            # A single parameter is its message: it lands where it is used.
            self._fill()
            message = self.parts[0].base.data
        else:
            message = torch.empty(self.ranks * self.width, dtype=self.compute, device=self.device)
        work = _all_gather(message, self.flat.to(self.compute), group=self.group, async_op=True)
        self._gather = work, message

    def land(self) -> None:
        """Wait until the parameters are there."""
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
        """Empty the storage of the gathered parameters."""
        if self.present:
            self.present = False
            for part in self.parts:
                part.base.untyped_storage().resize_(0)

    def _fill(self) -> None:
        # Through .data everywhere: autograd need not know that storage comes and goes.
        for part in self.parts:
            part.base.untyped_storage().resize_(part.base.numel() * part.base.element_size())

    # ---- gradients

    def collect(self, part: _Part) -> None:
        """Take a parameter's gradient into the message that will sum it."""
        gradient = part.whole.grad
        part.whole.grad = None
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
        """Start to add up the collected gradients over the ranks."""
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
        own = torch.empty(self.width, dtype=self.master, device=self.device)
        work = _reduce_scatter(own, collected, group=self.group, async_op=True)
        self._sum = work, own, collected

    def finish_sum(self) -> None:
        """Wait for the sum and add this rank's rows to its gradient."""
        if self._sum is None:
            return
        work, own, _ = self._sum
        self._sum = None
        with self.timeline.communication():
            work.wait()
        self._add(own)

    def _message(self) -> Tensor:
        if self._collected is None:
            # Rows that only pad are never copied to, but travel.
            make = torch.empty if self.even else torch.zeros
            self._collected = make(self.ranks * self.width, dtype=self.master, device=self.device)
        return self._collected

    def _add(self, own: Tensor) -> None:
        if self._gradient is not None:
            self._gradient += own
            return
        self._gradient = own
        for part in self.parts:
            part.shard.grad = own[part.offset : part.offset + part.shard.numel()].view_as(
                part.shard
            )

    def forget(self) -> None:
        """Drop the gradients of the last batch."""
        self._gradient = None
        for part in self.parts:
            part.shard.grad = None


class Sharding:
    """The parameters of a model, cut over the ranks of ``group``.

    ``uses`` are the modules in the order in which a forward pass calls them. A
    parameter belongs to the unit of its first use. ``group`` None leaves the master
    whole on this rank: the model then computes with one cast copy of it. ``rows_of``
    draws rows ``start`` to ``stop`` of a parameter (name, tensor, start, stop). Every
    rank of the group makes one at the same point.
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
        # The units whose first use is use k: their gradients are whole once it has run
        # backward.
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
                    rows_of=rows_of or _rows_of_parameter,
                    timeline=timeline,
                )
                for name, part in zip(new, unit.parts, strict=True):
                    _exchange(model, name, part.whole)
                    of[name] = unit
                    _after_gradient(part.whole, self._collector(unit, part))
                    del parameters[name]
                begins.append(unit)
                self._units.append(unit)
            self._begins.append(begins)
            needed = list(dict.fromkeys(of[name] for name in use.parameters))
            self._uses.append((needed, use.kept))
        if parameters:
            raise ValueError(f"{next(iter(parameters))}: a parameter that no unit uses")
        if hold == "unit" and uses[0].kept:
            raise ValueError("units are held one by one only where the first use is a look-up")
        self._hook(uses)
        self._top = len(uses) - 1
        self._passes = self._begun = 0
        self._backward = False
        self._open = False
        self._summing: list[_Unit] = []

    @property
    def shards(self) -> dict[str, nn.Parameter]:
        """This rank's rows of every parameter, by the names in the whole model."""
        return {part.name: part.shard for unit in self._units for part in unit.parts}

    def distributed(self, name: str, local: Tensor) -> Tensor:
        """``local``, cut as parameter ``name`` is, as a DTensor over the group.

        Itself where the master is whole.
        """
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

    def begin(self, passes: int) -> None:
        """Begin a batch of so many passes forward and backward on this rank.

        Where units are held while they compute, ranks have as many passes as others.
        """
        for unit in self._units:
            unit.forget()
            unit.summed = False
        self._passes, self._begun, self._backward, self._open = passes, 0, False, False
        self._issue(0)

    def idle(self) -> None:
        """Take part in a pass without computing: the same messages in order."""
        for place in range(self._top + 1):
            self._before_forward(place)
            self._after_forward(place)
        for place in range(self._top, -1, -1):
            self._before_backward(place)

    def finish(self) -> None:
        """End the batch: the shards have their gradients, and nothing is gathered."""
        if self.hold == "batch":
            # A replica without a chunk takes part all the same.
            for place in range(self._top + 1):
                self._land(place)
        self._end_pass()
        self._finish_sums()
        for unit in self._units:
            unit.release()

    # ---- a pass

    def _before_forward(self, place: int) -> None:
        if self.hold == "unit":
            if self._backward and place > 0:
                return  # a layer computed again
            if place == 0:
                self._end_pass()
                self._open = True
        self._land(place)
        self._issue(place + 1)
        if place > 1:
            # What the last backward pass left has had a layer's time.
            self._finish_sums()

    def _after_forward(self, place: int) -> None:
        if self.hold == "batch" or self._backward or place == self._top:
            return
        self._release(place, but=place + 1)

    def _before_backward(self, place: int) -> None:
        if self.hold == "batch":
            # Counted below the top: the head of a pipeline runs backward long before.
            self._begun += place == max(self._top - 1, 0)
            if self._begun == self._passes and place < self._top:
                self._sum(place + 1)
            return
        if place == self._top:
            self._begun += 1
            self._backward = True
        if place < self._top:
            self._release(place + 1, but=place)
        needed = self._uses[place][1]
        if needed:
            self._land(place)
        if place > 0:
            if self._uses[place - 1][1]:
                self._issue(place - 1)
        elif self._begun < self._passes and not needed:
            self._issue(0)
        if place < self._top:
            self._sum(place + 1)

    def _end_pass(self) -> None:
        """Sum what the last backward pass left, or what no pass has begun."""
        if self.hold == "unit" and not self._open:
            return
        for place in range(self._top, -1, -1):
            self._sum(place)
        if self.hold == "unit":
            for unit in self._units:
                unit.summed = False
        self._open = self._backward = False

    def _issue(self, place: int) -> None:
        if 0 <= place <= self._top:
            for unit in self._uses[place][0]:
                unit.issue_gather()

    def _land(self, place: int) -> None:
        for unit in self._uses[place][0]:
            unit.land()

    def _release(self, place: int, *, but: int) -> None:
        needed = self._uses[but][0]
        for unit in self._uses[place][0]:
            if unit not in needed:
                unit.release()

    def _sum(self, place: int) -> None:
        for unit in self._begins[place]:
            if unit.summed:
                continue
            # One sum under way at a time: its message is as large as its unit.
            self._finish_sums()
            unit.issue_sum()
            self._summing.append(unit)

    def _finish_sums(self) -> None:
        for unit in self._summing:
            unit.finish_sum()
        self._summing.clear()

    # ---- hooks

    def _collector(self, unit: _Unit, part: _Part) -> Callable[[Tensor], None]:
        return lambda _: unit.collect(part)

    def _hook(self, uses: Sequence[Use]) -> None:
        places: dict[nn.Module, list[int]] = {}
        for place, use in enumerate(uses):
            places.setdefault(use.module, []).append(place)
        for module, own in places.items():
            turns = deque(own)
            module.register_forward_pre_hook(self._opener(turns))
            module.register_forward_hook(self._closer(turns))

    def _opener(self, turns: deque[int]) -> Callable[[nn.Module, Any], None]:
        """What precedes a call of a module, whose uses take turns."""

        def open_(module: nn.Module, arguments: Any) -> None:
            self._before_forward(turns[0])
            turns.rotate(-1)

        return open_

    def _closer(self, turns: deque[int]) -> Callable[[nn.Module, Any, Any], None]:
        def close(module: nn.Module, arguments: Any, output: Any) -> None:
            place = turns[-1]
            self._after_forward(place)
            if isinstance(output, Tensor) and output.requires_grad:
                _before_gradient(output, lambda _: self._before_backward(place))

        return close


def _rows(rows: int, ranks: int) -> int:
    """The rows of each rank but the last ones, as DTensor cuts them."""
    return -(-rows // ranks)


def _rows_of_parameter(name: str, parameter: Tensor, start: int, stop: int) -> Tensor:
    return parameter.detach()[start:stop]


def _exchange(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put ``parameter`` where the one of this name is."""
    path, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(path), attribute, parameter)


# Torch's own hints leave these untyped.
_distributed: Any = dist


def _all_gather(output: Tensor, own: Tensor, **options: Any) -> Any:
    # Versions before 2.13 know only the longer name, which is going out of use.
    call = getattr(_distributed, "all_gather_single", None) or _distributed.all_gather_into_tensor
    return call(output, own, **options)


def _reduce_scatter(own: Tensor, whole: Tensor, **options: Any) -> Any:
    call = getattr(_distributed, "reduce_scatter_single", None)
    return (call or _distributed.reduce_scatter_tensor)(own, whole, **options)


def _after_gradient(parameter: Any, hook: Callable[[Tensor], None]) -> None:
    parameter.register_post_accumulate_grad_hook(hook)


def _before_gradient(output: Any, hook: Callable[[Tensor], None]) -> None:
    output.register_hook(hook)
