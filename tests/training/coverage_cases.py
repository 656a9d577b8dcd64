"""What the coverage matrix runs: one function per case, which uses torch.distributed in
one way and returns what came out of it, to compare between backends.

No case knows the backend. A case draws its inputs from its own name and the rank, so
that it finds the same whatever ran before it.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["CASES", "Case", "World"]

# Torch's own hints leave most of what is used here untyped.
_dist: Any = dist


@dataclass
class World:
    """One rank of the default group, and a folder that all of them see."""

    rank: int
    size: int
    folder: Path
    device: torch.device
    seed: int = 0

    def draw(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Numbers of this rank; other ones at each call."""
        self.seed += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.rank)
        return torch.randn(*shape, generator=generator, dtype=dtype).to(self.device)

    def same(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Numbers that are alike on all ranks; other ones at each call."""
        self.seed += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + 999)
        return torch.randn(*shape, generator=generator, dtype=dtype).to(self.device)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Room for a result."""
        return torch.full(shape, -1, dtype=dtype, device=self.device)

    def halves(self) -> Any:
        """The group of this rank's half of the world (alone, where the world has 2)."""
        half = self.size // 2
        groups = [dist.new_group(list(range(i * half, (i + 1) * half))) for i in range(2)]
        return groups[self.rank // half]

    def others(self) -> Any:
        """The group of the ranks with this one's place in each half."""
        half = self.size // 2
        groups = [dist.new_group([place, place + half]) for place in range(half)]
        return groups[self.rank % half]


@dataclass(frozen=True)
class Case:
    """A row of the matrix."""

    section: str
    title: str
    run: Callable[[World], Any]

    @property
    def seed(self) -> int:
        """The same in every process and run."""
        return zlib.crc32(self.title.encode()) % 1000


CASES: list[Case] = []
_section = ""


def section(title: str) -> None:
    """The cases that follow belong to ``title``."""
    global _section
    _section = title


def case(title: str, since: str = "") -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
    """Add a case to the list, unless torch is older than ``since``.

    On an older one it breaks off over plain gloo, with messages on the way that the
    cases behind it would receive.
    """

    def add(run: Callable[[World], Any]) -> Callable[[World], Any]:
        if torch.__version__ >= since:
            CASES.append(Case(_section, title, run))
        return run

    return add


# ---------------------------------------------------------------- collectives
section("Collectives")


@case("all_reduce")
def all_reduce(world: World) -> Any:
    found = []
    for operation in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        tensor = world.draw(3, 2)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
        found.append(tensor)
    return found


@case("all_reduce of bits")
def all_reduce_bits(world: World) -> Any:
    found = []
    for operation in ("BAND", "BOR", "BXOR"):
        tensor = torch.tensor([world.rank + 5, 6, 3 * world.rank], device=world.device)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
        found.append(tensor)
    return found


@case("all_reduce of other types")
def all_reduce_types(world: World) -> Any:
    found = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8):
        tensor = torch.tensor([1, 2, world.rank], dtype=dtype, device=world.device)
        dist.all_reduce(tensor)
        found.append(tensor)
    pair = torch.complex(world.draw(2), world.draw(2))
    dist.all_reduce(pair)
    return [*found, torch.view_as_real(pair)]


@case("all_reduce of nothing, of one number and of a large tensor")
def all_reduce_sizes(world: World) -> Any:
    found = []
    for tensor in (world.draw(0), world.draw(1).squeeze(), world.draw(70_001)):
        dist.all_reduce(tensor)
        found.append(tensor.sum())
    return found


@case("all_reduce of a sparse tensor")
def all_reduce_sparse(world: World) -> Any:
    indices = torch.tensor([[world.rank, world.rank + 1]])
    tensor = torch.sparse_coo_tensor(indices, world.draw(2).cpu(), (world.size + 1,))
    dist.all_reduce(tensor)
    return tensor.to_dense()


@case("broadcast")
def broadcast(world: World) -> Any:
    found = []
    for root in range(world.size):
        tensor = world.draw(4)
        dist.broadcast(tensor, root)
        found.append(tensor)
    return found


@case("reduce")
def reduce(world: World) -> Any:
    tensor = world.draw(4)
    dist.reduce(tensor, world.size - 1)
    return tensor if world.rank == world.size - 1 else None


@case("all_gather")
def all_gather(world: World) -> Any:
    outputs = [world.empty(3, 2) for _ in range(world.size)]
    dist.all_gather(outputs, world.draw(3, 2))
    return outputs


@case("all_gather of other shapes on each rank")
def all_gather_uneven(world: World) -> Any:
    outputs = [world.empty(rank + 1) for rank in range(world.size)]
    dist.all_gather(outputs, world.draw(world.rank + 1))
    return outputs


@case("all_gather_into_tensor, joined")
def all_gather_into_tensor(world: World) -> Any:
    output = world.empty(2 * world.size, 3)
    dist.all_gather_into_tensor(output, world.draw(2, 3))
    return output


@case("all_gather_into_tensor, stacked")
def all_gather_stacked(world: World) -> Any:
    output = world.empty(world.size, 2, 3)
    dist.all_gather_into_tensor(output, world.draw(2, 3))
    return output


@case("gather")
def gather(world: World) -> Any:
    outputs = [world.empty(2) for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(world.draw(2), outputs, 0)
    return outputs


@case("scatter")
def scatter(world: World) -> Any:
    output, inputs = world.empty(2), [world.draw(2) for _ in range(world.size)]
    dist.scatter(output, inputs if world.rank == 1 else None, 1)
    return output


@case("reduce_scatter")
def reduce_scatter(world: World) -> Any:
    output = world.empty(2)
    dist.reduce_scatter(output, [world.draw(2) for _ in range(world.size)])
    return output


@case("reduce_scatter_tensor")
def reduce_scatter_tensor(world: World) -> Any:
    found = []
    for operation in ("SUM", "AVG", "MAX"):
        output = world.empty(2)
        dist.reduce_scatter_tensor(
            output, world.draw(2 * world.size), getattr(dist.ReduceOp, operation)
        )
        found.append(output)
    return found


@case("all_to_all")
def all_to_all(world: World) -> Any:
    outputs = [world.empty(2) for _ in range(world.size)]
    dist.all_to_all(outputs, [world.draw(2) for _ in range(world.size)])
    return outputs


@case("all_to_all of other shapes for each rank")
def all_to_all_shapes(world: World) -> Any:
    outputs = [world.empty(rank + world.rank + 1) for rank in range(world.size)]
    dist.all_to_all(outputs, [world.draw(rank + world.rank + 1) for rank in range(world.size)])
    return outputs


@case("all_to_all_single, equal parts")
def all_to_all_single(world: World) -> Any:
    output = world.empty(2 * world.size, 2)
    dist.all_to_all_single(output, world.draw(2 * world.size, 2))
    return output


@case("all_to_all_single, unequal parts")
def all_to_all_uneven(world: World) -> Any:
    # Rank r sends r + destination rows to each destination: none from 0 to 0.
    splits = [world.rank + rank for rank in range(world.size)]
    output = world.empty(sum(splits), 2)
    dist.all_to_all_single(output, world.draw(sum(splits), 2), splits, splits)
    return output


@case("barrier")
def barrier(world: World) -> Any:
    # Each writes before the barrier what all read behind it.
    (world.folder / f"barrier-{world.rank}").touch()
    dist.barrier()
    found = all((world.folder / f"barrier-{rank}").exists() for rank in range(world.size))
    dist.barrier()
    (world.folder / f"barrier-{world.rank}").unlink()
    return found


@case("monitored_barrier")
def monitored_barrier(world: World) -> Any:
    dist.monitored_barrier()


@case("tensors that are not contiguous")
def not_contiguous(world: World) -> Any:
    tensor = world.draw(3, 2).t()
    dist.all_reduce(tensor)
    return tensor


# ------------------------------------------------------------- asynchronously
section("Asynchronous and coalesced")


@case("async_op, waited for in the other order")
def out_of_order(world: World) -> Any:
    tensors = [world.draw(size) for size in (5, 50_000, 3, 1)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return [tensor.sum() for tensor in tensors], [work.is_completed() for work in works]


@case("async_op of each collective")
def each_async(world: World) -> Any:
    found: list[torch.Tensor] = [world.draw(3), world.draw(3), world.draw(3)]
    gathered = [world.empty(2) for _ in range(world.size)]
    joined, part, swapped = world.empty(2 * world.size), world.empty(2), world.empty(world.size)
    works = [
        dist.all_reduce(found[0], async_op=True),
        dist.broadcast(found[1], 0, async_op=True),
        dist.reduce(found[2], 0, async_op=True),
        dist.all_gather(gathered, world.draw(2), async_op=True),
        dist.all_gather_into_tensor(joined, world.draw(2), async_op=True),
        dist.reduce_scatter_tensor(part, world.draw(2 * world.size), async_op=True),
        dist.all_to_all_single(swapped, world.draw(world.size), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()
    return found[:2], found[2] if world.rank == 0 else None, gathered, joined, part, swapped


@case("futures and what is chained to them")
def futures(world: World) -> Any:
    tensor = world.draw(3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: [2 * item for item in done.value()])
    value = future.wait()
    return value, doubled.wait(), future.done()


@case("many operations in flight on several groups")
def many_in_flight(world: World) -> Any:
    groups = [dist.group.WORLD, world.others(), world.halves()]
    tensors = [world.draw(4) for _ in range(24)]
    works = [
        dist.all_reduce(tensor, group=groups[number % len(groups)], async_op=True)
        for number, tensor in enumerate(tensors)
    ]
    for work in reversed(works):
        work.wait()
    return tensors


@case("all_reduce_coalesced")
def all_reduce_coalesced(world: World) -> Any:
    tensors = [world.draw(2), world.draw(3)]
    _dist.all_reduce_coalesced(tensors)
    return tensors


@case("all_gather_coalesced")
def all_gather_coalesced(world: World) -> Any:
    outputs = [[world.empty(2), world.empty(3)] for _ in range(world.size)]
    _dist.all_gather_coalesced(outputs, [world.draw(2), world.draw(3)])
    return outputs


def _coalesced(world: World, issue: Callable[[Any], list[torch.Tensor]]) -> Any:
    """``issue`` within the manager, waited for inside it and behind it."""
    # A group of its own: where the manager is refused, torch keeps what was collected.
    group = dist.new_group(list(range(world.size)))
    found = []
    for asynchronous in (False, True):
        with _dist.distributed_c10d._coalescing_manager(
            group=group, device=world.device, async_ops=asynchronous
        ) as manager:
            found += issue(group)
        if asynchronous:
            manager.wait()
    return found


@case("coalescing manager: all_reduce")
def coalescing_all_reduce(world: World) -> Any:
    def issue(group: Any) -> list[torch.Tensor]:
        tensors = [world.draw(2), world.draw(3)]
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
        return tensors

    return _coalesced(world, issue)


@case("coalescing manager: all_gather_into_tensor")
def coalescing_all_gather(world: World) -> Any:
    def issue(group: Any) -> list[torch.Tensor]:
        outputs = [world.empty(2 * world.size), world.empty(3 * world.size)]
        for output in outputs:
            share = world.draw(output.numel() // world.size)
            dist.all_gather_into_tensor(output, share, group=group)
        return outputs

    return _coalesced(world, issue)


@case("coalescing manager: reduce_scatter_tensor")
def coalescing_reduce_scatter(world: World) -> Any:
    def issue(group: Any) -> list[torch.Tensor]:
        outputs = [world.empty(2), world.empty(3)]
        for output in outputs:
            whole = world.draw(output.numel() * world.size)
            dist.reduce_scatter_tensor(output, whole, group=group)
        return outputs

    return _coalesced(world, issue)


# ------------------------------------------------------------------- messages
section("Messages")


@case("send and recv around the ring")
def around(world: World) -> Any:
    received = world.empty(3)
    following, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    if world.rank == 0:
        dist.send(world.draw(3), following)
        source = dist.recv(received, before)
    else:
        source = dist.recv(received, before)
        dist.send(world.draw(3), following)
    return received, source


@case("isend and irecv, both directions at once")
def both_directions(world: World) -> Any:
    peer = world.size - 1 - world.rank
    sent = [world.draw(1000 * (number + 1)) for number in range(3)]
    received = [world.empty(1000 * (number + 1)) for number in range(3)]
    works = [dist.isend(tensor, peer) for tensor in sent]
    works += [dist.irecv(tensor, peer) for tensor in received]
    for work in reversed(works):
        assert work is not None
        work.wait()
    return [tensor.sum() for tensor in received]


@case("messages by tag, received in the other order")
def tags(world: World) -> Any:
    peer = world.rank ^ 1
    sent = [world.draw(4) for _ in range(4)]
    received = [world.empty(4) for _ in range(4)]
    works = [dist.isend(tensor, peer, tag=tag) for tag, tensor in enumerate(sent)]
    for tag in reversed(range(4)):
        dist.recv(received[tag], peer, tag=tag)
    for work in works:
        assert work is not None
        work.wait()
    return received


@case("recv from any source")
def any_source(world: World) -> Any:
    """Nobody goes on before all has been received: what comes from anyone may come from
    a later case.
    """
    if world.rank > 0:
        dist.send(world.draw(2), 0)
        dist.barrier()
        return None
    found = {}
    for number in range(1, world.size):
        received = world.empty(2)
        try:
            source = dist.recv(received)
        except Exception:
            # What was sent must not reach a later case.
            for sender in range(number, world.size):
                dist.recv(received, sender)
            dist.barrier()
            raise
        found[str(source)] = received
    dist.barrier()
    return dict(sorted(found.items()))


@case("recv from any source, beside receives that name theirs")
def any_source_and_named(world: World) -> Any:
    """Tag 1 goes to whoever receives, tags 0 and 2 to who knows the sender."""
    sent = {tag: [world.draw(2) for _ in range(2)] for tag in range(3)}
    if world.rank > 0:
        for number in range(2):
            for tag in (0, 2, 1):
                dist.send(sent[tag][number], 0, tag=tag)
        dist.barrier()
        return None
    senders = range(1, world.size)
    named = {}
    requests = []
    for sender in senders:
        for number in range(2):
            for tag in (0, 2):
                named[str((sender, tag, number))] = received = world.empty(2)
                requests.append(dist.irecv(received, sender, tag=tag))
    found: dict[str, list[torch.Tensor]] = {str(sender): [] for sender in senders}
    for _ in range(2 * len(senders)):
        received = world.empty(2)
        found[str(dist.recv(received, tag=1))].append(received)
    for request in requests:
        assert request is not None
        request.wait()
    dist.barrier()
    return [named, found]


@case("batch_isend_irecv")
def batch(world: World) -> Any:
    following, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    up, down = world.empty(3), world.empty(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, world.draw(3), following, tag=1),
            dist.P2POp(dist.isend, world.draw(3), before, tag=2),
            dist.P2POp(dist.irecv, up, before, tag=1),
            dist.P2POp(dist.irecv, down, following, tag=2),
        ]
    )
    for work in works:
        work.wait()
    return up, down


@case("messages within a sub-group, peers by their place in it")
def group_peers(world: World) -> Any:
    group = world.others()
    peer = 1 - dist.get_rank(group)
    received = world.empty(2)
    work = _dist.isend(world.draw(2), group=group, group_dst=peer)
    _dist.recv(received, group=group, group_src=peer)
    work.wait()
    return received


# ----------------------------------------------------------------- sub-groups
section("Sub-groups")


@case("new_group: halves, pairs across them, one rank alone")
def new_group(world: World) -> Any:
    found = []
    for group in (world.halves(), world.others()):
        tensor = world.draw(3)
        dist.all_reduce(tensor, group=group)
        found.append(tensor)
    alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    tensor = world.draw(3)
    dist.all_reduce(tensor, group=alone)
    return [*found, tensor]


@case("overlapping groups, used in turn")
def overlapping(world: World) -> Any:
    groups = [
        (members, dist.new_group(members))
        for members in ([*range(world.size - 1)], [*range(1, world.size)])
    ]
    found = []
    for _ in range(2):
        for members, group in groups:
            tensor = world.draw(2)
            if world.rank in members:
                dist.all_reduce(tensor, group=group)
            found.append(tensor)
    return found


@case("a root by its rank in the group")
def group_roots(world: World) -> Any:
    group = world.others()
    tensor, output = world.draw(2), world.empty(2)
    _dist.broadcast(tensor, group=group, group_src=1)
    pieces = [world.draw(2), world.draw(2)] if dist.get_rank(group) == 0 else None
    _dist.scatter(output, pieces, group=group, group_src=0)
    return tensor, output


@case("new_group with use_local_synchronization")
def local_synchronization(world: World) -> Any:
    half = world.size // 2
    members = [rank for rank in range(world.size) if rank // half == world.rank // half]
    group = dist.new_group(members, use_local_synchronization=True)
    tensor = world.draw(3)
    dist.all_reduce(tensor, group=group)
    return tensor


@case("new_subgroups and new_subgroups_by_enumeration")
def new_subgroups(world: World) -> Any:
    own, _ = dist.new_subgroups(2)
    pairs = [[rank, world.size - 1 - rank] for rank in range(world.size // 2)]
    other, _ = dist.new_subgroups_by_enumeration(pairs)
    tensor = world.draw(3)
    dist.all_reduce(tensor, group=own)
    dist.all_reduce(tensor, group=other)
    return tensor


@case("split_group")
def split_group(world: World) -> Any:
    half = world.size // 2
    group = _dist.split_group(split_ranks=[[*range(half)], [*range(half, world.size)]])
    tensor = world.draw(3)
    dist.all_reduce(tensor, group=group)
    return tensor


@case("a group that is destroyed and made again")
def destroyed(world: World) -> Any:
    found = []
    for _ in range(3):
        group = dist.new_group(list(range(world.size)))
        tensor = world.draw(3)
        dist.all_reduce(tensor, group=group)
        found.append(tensor)
        dist.destroy_process_group(group)
    return found


@case("ranks, sizes and names of groups")
def describing(world: World) -> Any:
    group = dist.new_group(list(range(world.size)), group_desc="described")
    # Nobody lets go of a group that another rank still connects to.
    dist.barrier(group)
    return (
        dist.get_process_group_ranks(group),
        dist.get_world_size(group),
        dist.get_rank(group),
        dist.get_global_rank(group, world.size - 1),
        group.group_desc,
        bool(group.group_name),
    )


# -------------------------------------------------------------------- objects
section("Objects")


@case("all_gather_object")
def all_gather_object(world: World) -> Any:
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, {"rank": world.rank, "word": "x" * world.rank})
    return found


@case("gather_object")
def gather_object(world: World) -> Any:
    found: list[Any] | None = [None] * world.size if world.rank == 0 else None
    dist.gather_object(("from", world.rank), found, 0)
    return found


@case("broadcast_object_list")
def broadcast_object_list(world: World) -> Any:
    found = [{"a": 1}, "b"] if world.rank == 0 else [None, None]
    dist.broadcast_object_list(found, 0)
    return found


@case("scatter_object_list")
def scatter_object_list(world: World) -> Any:
    found: list[Any] = [None]
    inputs = [{"to": rank} for rank in range(world.size)] if world.rank == 0 else None
    dist.scatter_object_list(found, inputs, 0)
    return found


@case("send_object_list and recv_object_list")
def object_messages(world: World) -> Any:
    found: list[Any] = [None, None]
    if world.rank % 2 == 0:
        dist.send_object_list(["word", {"rank": world.rank}], world.rank + 1)
        return None
    dist.recv_object_list(found, world.rank - 1)
    return found


# ----------------------------------------------------- functional collectives
section("Functional and differentiable collectives")


@case("functional: all_reduce, all_gather_tensor, reduce_scatter_tensor")
def functional_three(world: World) -> Any:
    group = dist.group.WORLD
    return (
        functional.all_reduce(world.draw(3), "sum", group) + 0,
        functional.all_gather_tensor(world.draw(2, 2), 1, group) + 0,
        functional.reduce_scatter_tensor(world.draw(2 * world.size), "sum", 0, group) + 0,
        functional.broadcast(world.draw(3), 0, group) + 0,
    )


@case("functional: all_to_all_single, permute_tensor")
def functional_all_to_all(world: World) -> Any:
    splits = [world.rank + rank + 1 for rank in range(world.size)]
    group = dist.group.WORLD
    return (
        functional.all_to_all_single(world.draw(sum(splits)), splits, splits, group) + 0,
        functional.permute_tensor(
            world.draw(3), [(rank + 1) % world.size for rank in range(world.size)], group
        )
        + 0,
    )


@case("functional: coalesced")
def functional_coalesced(world: World) -> Any:
    group: Any = dist.group.WORLD
    long = [world.draw(2 * world.size), world.draw(3 * world.size)]
    return (
        [item + 0 for item in functional.all_reduce_coalesced(long, "sum", group)],
        [item + 0 for item in functional.all_gather_into_tensor_coalesced(long, group)],
        [
            item + 0
            for item in functional.reduce_scatter_tensor_coalesced(long, "sum", [0, 0], group)
        ],
    )


@case("functional: by ranks and by mesh")
def functional_groups(world: World) -> Any:
    mesh = init_device_mesh(world.device.type, (world.size,))
    return (
        functional.all_reduce(world.draw(3), "sum", list(range(world.size))) + 0,
        functional.all_reduce(world.draw(3), "max", mesh) + 0,
        functional.all_reduce(world.draw(3), "avg", (mesh, 0)) + 0,
    )


@case("functional: gradients")
def functional_gradients(world: World) -> Any:
    group: Any = dist.group.WORLD
    tensor = world.draw(2 * world.size).requires_grad_()
    gathered = functional.all_gather_tensor_autograd(tensor, 0, group)
    parts = functional.reduce_scatter_tensor_autograd(gathered * gathered, "sum", 0, group)
    swapped = functional.all_to_all_single_autograd(parts, None, None, group)
    (swapped * world.draw(2 * world.size)).sum().backward()
    return swapped.detach(), tensor.grad


@case("torch.distributed.nn: all_reduce, all_gather, reduce_scatter, all_to_all")
def differentiable_collectives(world: World) -> Any:
    tensor = world.draw(world.size).requires_grad_()
    total = differentiable.all_reduce(tensor * tensor)
    gathered = torch.stack(tuple(differentiable.all_gather(total)))
    swapped = differentiable.all_to_all_single(world.empty(world.size), gathered.sum(0))
    (swapped * world.draw(world.size)).sum().backward()
    return swapped.detach(), tensor.grad


@case("torch.distributed.nn: broadcast, reduce, gather, scatter")
def differentiable_rooted(world: World) -> Any:
    tensor = world.draw(3).requires_grad_()
    broadcast_tensor = differentiable.broadcast(tensor * 2, 0)
    reduced = differentiable.reduce(broadcast_tensor * world.draw(3), 0)
    reduced.sum().backward()
    return broadcast_tensor.detach(), tensor.grad


# -------------------------------------------------------------- data parallel
section("Data parallel")


class Network(nn.Module):
    """Three layers with biases and a norm, alike on all ranks."""

    def __init__(self, width: int = 8, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(width, 2 * width, dtype=dtype)
        self.middle = nn.Linear(2 * width, 2 * width, dtype=dtype)
        self.last = nn.Linear(2 * width, width, dtype=dtype)
        self.norm = nn.LayerNorm(width, dtype=dtype)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(self.norm(inputs)))
        return self.last(torch.tanh(self.middle(hidden)))


def _train(
    world: World, model: nn.Module, *, steps: int = 2, optimizer: Any = None
) -> list[torch.Tensor]:
    """The losses of a few steps on data of this rank."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(world.draw(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def _whole(model: nn.Module) -> list[torch.Tensor]:
    """All parameters, sharded ones put together."""
    return [
        parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()
        for parameter in model.parameters()
    ]


@case("DistributedDataParallel")
def ddp(world: World) -> Any:
    model = nn.parallel.DistributedDataParallel(Network().to(world.device), bucket_cap_mb=1)
    return _train(world, model), _whole(model)


@case("DDP: small buckets, no_sync, gradients as views, unused parameters")
def ddp_options(world: World) -> Any:
    network = Network().to(world.device)
    model = nn.parallel.DistributedDataParallel(
        network, bucket_cap_mb=1e-4, gradient_as_bucket_view=True, find_unused_parameters=True
    )
    network.unused = nn.Linear(2, 2, dtype=torch.float64)
    with model.no_sync():
        model(world.draw(4, 8)).square().mean().backward()
    return _train(world, model), _whole(network.first)


@case("DDP: communication hooks")
def ddp_hooks(world: World) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    found = []
    for state, hook in (
        (None, default_hooks.fp16_compress_hook),
        (
            powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
            ),
            powerSGD_hook.powerSGD_hook,
        ),
    ):
        network = Network(dtype=torch.float32).to(world.device)
        model: Any = nn.parallel.DistributedDataParallel(network)
        model.register_comm_hook(state, hook)
        for _ in range(4):
            model(world.draw(4, 8, dtype=torch.float32)).square().mean().backward()
        found.append(network.first.weight.grad)
    return found


@case("DDP: uneven inputs (Join)")
def ddp_join(world: World) -> Any:
    model: Any = nn.parallel.DistributedDataParallel(Network().to(world.device))
    with model.join():
        for _ in range(1 + world.rank):
            model(world.draw(4, 8)).square().mean().backward()
    return model.module.first.weight.grad


@case("ZeroRedundancyOptimizer")
def zero_optimizer(world: World) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(Network().to(world.device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    return _train(world, model, optimizer=optimizer), _whole(model)


@case("FSDP1 (FullyShardedDataParallel)")
def fsdp1(world: World) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        Network(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=world.device if world.device.type == "cuda" else torch.device("cpu"),
        use_orig_params=True,
    )
    losses = _train(world, model)
    norm = model.clip_grad_norm_(1.0)
    with FullyShardedDataParallel.summon_full_params(model):
        whole = [parameter.detach().clone() for parameter in model.parameters()]
    return losses, norm, whole


def _fully_sharded(world: World, mesh: DeviceMesh, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = Network().to(world.device)
    for layer in (model.first, model.middle, model.last):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


@case("FSDP2 (fully_shard)")
def fsdp2(world: World) -> Any:
    mesh = init_device_mesh(world.device.type, (world.size,))
    found = []
    for reshard in (True, False):
        model = _fully_sharded(world, mesh, reshard_after_forward=reshard)
        found.append((_train(world, model), _whole(model)))
    return found


@case("FSDP2: mixed precision, gradient norm")
def fsdp2_mixed(world: World) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(world.device.type, (world.size,))
    model = _fully_sharded(world, mesh, mp_policy=policy)
    model(world.draw(4, 8)).float().square().mean().backward()
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return norm.full_tensor(), _train(world, model)


@case("FSDP2: gradients accumulated without reduction, prefetched by hand")
def fsdp2_accumulation(world: World) -> Any:
    mesh = init_device_mesh(world.device.type, (world.size,))
    model: Any = _fully_sharded(world, mesh)
    model.first.set_modules_to_forward_prefetch([model.middle])
    model.set_requires_gradient_sync(False)
    model(world.draw(4, 8)).square().mean().backward()
    model.set_requires_gradient_sync(True)
    return _train(world, model), _whole(model)


@case("HSDP: FSDP2 on a mesh of two dimensions")
def hsdp(world: World) -> Any:
    mesh = init_device_mesh(
        world.device.type, (world.size // 2, 2), mesh_dim_names=("replicate", "shard")
    )
    model = _fully_sharded(world, mesh)
    return _train(world, model), _whole(model)


# --------------------------------------------------- meshes, tensors, pipeline
section("Meshes and tensor parallel")


@case("DeviceMesh: dimensions, slices, groups")
def device_mesh(world: World) -> Any:
    mesh = init_device_mesh(
        world.device.type, (world.size // 2, 2), mesh_dim_names=("outer", "inner")
    )
    found = []
    for group in (mesh["outer"].get_group(), mesh["inner"].get_group()):
        tensor = world.draw(2)
        dist.all_reduce(tensor, group=group)
        found.append(tensor)
    again = DeviceMesh.from_group(mesh["inner"].get_group(), world.device.type)
    flat = mesh._flatten("flat") if hasattr(mesh, "_flatten") else mesh
    return found, mesh.get_coordinate(), again.size(), flat.size()


@case("DTensor: distribute, redistribute, arithmetic")
def dtensor(world: World) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(world.device.type, (world.size,))
    whole = world.same(2 * world.size + 1, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    moved = sharded.redistribute(mesh, [Shard(1)])
    product = sharded.t() @ sharded
    return (
        sharded.to_local(),
        moved.to_local(),
        product.redistribute(mesh, [Replicate()]).to_local(),
        (sharded + 1).sum().full_tensor(),
    )


@case("DTensor: factories, gradients, two dimensions")
def dtensor_two(world: World) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, ones

    mesh = init_device_mesh(world.device.type, (world.size // 2, 2))
    place = [Shard(0), Shard(1)]
    left = distribute_tensor(world.same(4, 4), mesh, place).requires_grad_()
    right = ones(4, 4, dtype=torch.float64, device_mesh=mesh, placements=[Replicate(), Shard(0)])
    (left @ right).sum().backward()
    assert left.grad is not None
    return left.grad.full_tensor(), (left @ right).full_tensor()


@case("tensor parallel: column-wise, row-wise")
def tensor_parallel(world: World) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(world.device.type, (world.size,))
    model = Network().to(world.device)
    parallelize_module(model, mesh, {"first": ColwiseParallel()})
    parallelize_module(model, mesh, {"last": RowwiseParallel()})
    model.middle = nn.Identity()
    inputs = world.same(4, 8)
    loss = model(inputs).square().mean()
    loss.backward()
    gradient: Any = model.first.weight.grad
    return loss.detach(), gradient.full_tensor()


@case("tensor parallel: sequence parallel, loss parallel")
def sequence_and_loss_parallel(world: World) -> Any:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    mesh = init_device_mesh(world.device.type, (world.size,))
    model = Network().to(world.device)
    model.middle = nn.Identity()
    head = nn.Linear(8, 16, bias=False, dtype=torch.float64, device=world.device)
    nn.init.ones_(head.weight)
    plan: dict[str, Any] = {
        "norm": SequenceParallel(sequence_dim=0),
        "first": ColwiseParallel(input_layouts=Shard(0)),
        "last": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, mesh, plan)
    parallelize_module(
        head,
        mesh,
        ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1), use_local_output=False),
    )
    inputs = world.same(8, 8)
    share = inputs.chunk(world.size)[world.rank]
    with loss_parallel():
        scores = head(model(share))
        loss = F.cross_entropy(scores, torch.arange(8, device=world.device) % 16)
        loss.backward()
    gradient: Any = model.last.weight.grad
    del Replicate
    return loss.full_tensor() if hasattr(loss, "full_tensor") else loss, gradient.full_tensor()


@case("FSDP2 with tensor parallel on a mesh of two dimensions")
def two_dimensions(world: World) -> Any:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(
        world.device.type, (world.size // 2, 2), mesh_dim_names=("data", "tensor")
    )
    model = Network().to(world.device)
    plan: dict[str, Any] = {"first": ColwiseParallel(), "middle": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    return _train(World(world.rank // 2, 2, world.folder, world.device, 5), model), _whole(model)


section("Pipelines")


class _Part(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        torch.manual_seed(index)
        self.linear = nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(hidden))


def _pipeline(world: World, name: str, per_rank: int, *, back: bool = False) -> Any:
    """Two steps of a schedule with ``per_rank`` stages on each rank.

    ``back``: the second half of the stages goes down the ranks (V).
    """
    from torch.distributed import pipelining

    stages = per_rank * world.size
    indices = [world.rank + world.size * turn for turn in range(per_rank)]
    if back:
        indices[1] = stages - 1 - world.rank
    parts = [_Part(index).to(world.device) for index in indices]
    made = [
        pipelining.PipelineStage(part, index, stages, world.device)
        for part, index in zip(parts, indices, strict=True)
    ]
    schedule_class: Any = getattr(pipelining, name)
    micro_batches = 2 * world.size
    schedule = schedule_class(made if per_rank > 1 else made[0], micro_batches, loss_fn=F.mse_loss)
    found = []
    for _ in range(2):
        inputs, target = world.same(2 * micro_batches, 6), world.same(2 * micro_batches, 6)
        losses: list[torch.Tensor] = []
        arguments = [inputs] if 0 in indices else []
        further = {"target": target, "losses": losses} if stages - 1 in indices else {}
        schedule.step(*arguments, **further)
        found.append([loss.detach() for loss in losses])
    return found, [part.linear.weight.grad for part in parts]


for _name, _per_rank, _back, _since in (
    ("ScheduleGPipe", 1, False, ""),
    ("Schedule1F1B", 1, False, ""),
    ("ScheduleLoopedBFS", 2, False, ""),
    ("ScheduleInterleaved1F1B", 2, False, ""),
    ("ScheduleInterleavedZeroBubble", 2, False, ""),
    ("ScheduleZBVZeroBubble", 2, True, "2.13"),
    ("ScheduleDualPipeV", 2, True, "2.13"),
):
    case(_name, _since)(functools.partial(_pipeline, name=_name, per_rank=_per_rank, back=_back))


@case("Schedule1F1B with FSDP2 in each stage")
def pipeline_fsdp2(world: World) -> Any:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    mesh = init_device_mesh(
        world.device.type, (2, world.size // 2), mesh_dim_names=("stage", "replica")
    )
    index = mesh["stage"].get_local_rank()
    part = _Part(index).to(world.device)
    fully_shard(part.linear, mesh=mesh["replica"])
    fully_shard(part, mesh=mesh["replica"])
    stage = PipelineStage(part, index, 2, world.device, group=mesh["stage"].get_group())
    schedule = Schedule1F1B(stage, 2, loss_fn=F.mse_loss)
    losses: list[torch.Tensor] = []
    inputs, target = world.same(4, 6), world.same(4, 6)
    for _ in range(2):
        if index == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=target, losses=losses)
    gradient: Any = part.linear.weight.grad
    return [loss.detach() for loss in losses], gradient.full_tensor()


# ------------------------------------------------------------- torch.compile
section("torch.compile")


@contextlib.contextmanager
def _fresh() -> Iterator[None]:
    """Nothing compiled before, nothing left behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(function: Callable[..., Any], backend: str = "aot_eager") -> Any:
    return torch.compile(function, backend=backend, fullgraph=True)


@case("compiled functional collectives")
def compiled_functional(world: World) -> Any:
    group: Any = dist.group.WORLD

    def work(tensor: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(tensor * 2, "sum", group)
        gathered = functional.all_gather_tensor(total + 1, 0, group)
        return functional.reduce_scatter_tensor(gathered * 3, "sum", 0, group) + 1

    with _fresh():
        return [_compiled(work)(world.draw(3)) for _ in range(2)]


@case("compiled all_reduce, all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single")
def compiled_plain(world: World) -> Any:
    def work(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = tensor * 2
        dist.all_reduce(total)
        gathered = torch.empty(tensor.shape[0] * world.size, dtype=tensor.dtype)
        dist.all_gather_into_tensor(gathered, total)
        part = torch.empty_like(tensor)
        dist.reduce_scatter_tensor(part, gathered)
        swapped = torch.empty_like(gathered)
        dist.all_to_all_single(swapped, gathered)
        return total, gathered, part, swapped

    with _fresh():
        return _compiled(work)(world.draw(3))


@case("compiled model under DDP")
def compiled_ddp(world: World) -> Any:
    with _fresh():
        model = nn.parallel.DistributedDataParallel(Network().to(world.device))
        compiled = torch.compile(model, backend="aot_eager")
        loss = compiled(world.draw(4, 8)).square().mean()
        loss.backward()
        return loss.detach(), model.module.first.weight.grad


@case("compiled layers under FSDP2")
def compiled_fsdp2(world: World) -> Any:
    with _fresh():
        mesh = init_device_mesh(world.device.type, (world.size,))
        model: Any = _fully_sharded(world, mesh)
        for layer in (model.first, model.middle, model.last):
            layer.compile(backend="aot_eager")
        return _train(world, model), _whole(model)


@case("compiled tensor-parallel model")
def compiled_tensor_parallel(world: World) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with _fresh():
        mesh = init_device_mesh(world.device.type, (world.size,))
        model = nn.Sequential(
            nn.Linear(8, 16, dtype=torch.float64), nn.Linear(16, 8, dtype=torch.float64)
        ).to(world.device)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        loss = torch.compile(model, backend="aot_eager")(world.same(4, 8)).square().mean()
        loss.backward()
        gradient: Any = model[0].weight.grad
        return loss.detach(), gradient.full_tensor()


# ---------------------------------------------------------------- checkpoints
section("Distributed checkpoints")


@case("DCP: save and load FSDP2 and its optimizer")
def dcp(world: World) -> Any:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = world.folder / "dcp"
    mesh = init_device_mesh(world.device.type, (world.size,))
    model = _fully_sharded(world, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    _train(world, model, optimizer=optimizer)
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    expected = _whole(model)
    other = _fully_sharded(world, mesh)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    weights, state = get_state_dict(other, other_optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(other, other_optimizer, model_state_dict=weights, optim_state_dict=state)
    same = all(torch.equal(a, b) for a, b in zip(_whole(other), expected, strict=True))
    return same, _train(world, other, optimizer=other_optimizer)


@case("DCP: load in another layout")
def dcp_other_layout(world: World) -> Any:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    folder = world.folder / "dcp-layout"
    mesh = init_device_mesh(world.device.type, (world.size,))
    whole = world.same(5, 6)
    checkpoint.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
    found = []
    for place in (Shard(1), Replicate()):
        target = {"w": distribute_tensor(torch.zeros_like(whole), mesh, [place])}
        checkpoint.load(target, checkpoint_id=folder)
        found.append(target["w"].full_tensor())
    return found, [bool(torch.equal(item, whole)) for item in found]


@case("DCP: async_save")
def dcp_async(world: World) -> Any:
    import torch.distributed.checkpoint as checkpoint

    folder = world.folder / "dcp-async"
    mesh = init_device_mesh(world.device.type, (world.size,))
    model = _fully_sharded(world, mesh)
    saved: Any = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=folder)
    saved.result()
    target = {"model": _fully_sharded(world, mesh).state_dict()}
    checkpoint.load(target, checkpoint_id=folder)
    return [item.full_tensor() for item in target["model"].values()]


@case("full state dict, and its broadcast from rank 0")
def full_state(world: World) -> Any:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )

    mesh = init_device_mesh(world.device.type, (world.size,))
    model = _fully_sharded(world, mesh)
    _train(world, model)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    other = _fully_sharded(world, mesh)
    set_model_state_dict(
        other,
        whole if world.rank == 0 else {},
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    return _whole(other)
