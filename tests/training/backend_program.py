"""One rank of the backend's tests, started by ``test_backend.py``; writes what it saw
to FOLDER/RANK.json.

Usage: backend_program.py SCENARIO RANK RANKS FOLDER ADDRESSES, the last one JSON: the
controller's address (or null) by setting.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from railx.fabric import CircuitSchedule, FabricClient
from railx_torch import backend
from railx_torch.backend import BackendOptions
from railx_torch.trace import Recorder

RANK, RANKS, FOLDER = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
ADDRESSES: dict[str, str | None] = json.loads(sys.argv[5])
RESULTS: dict[str, Any] = {}


@contextmanager
def setting(name: str, *, gpus_per_server: int = 1) -> Iterator[Recorder]:
    """A process group under one setting (a name of ADDRESSES, "mode" or
    "mode:variant").
    """
    recorder = Recorder(RANK)
    mode: Any = name.partition(":")[0]
    backend.configure(BackendOptions("gloo", ADDRESSES[name], mode, gpus_per_server), recorder)
    dist.init_process_group(
        "railx",
        init_method=f"file://{FOLDER}/store-{name}",
        rank=RANK,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    yield recorder
    dist.destroy_process_group()


def take_statistics() -> dict[str, int]:
    statistics = asdict(backend.statistics())
    backend.reset_statistics()
    return statistics


def wait_for_light(circuits: list[list[int]]) -> None:
    """Compute (here: ask again) until the controller has these circuits up."""
    client = backend._current().client
    assert client is not None
    while not all(
        circuit in client.statistics()["rails"].get("0", {}).get("circuits", [])
        for circuit in circuits
    ):
        pass


def first_pays() -> None:
    """Three all-reduces of 1024 numbers; the sums are 3, 5 and 7."""
    with setting("on_demand") as recorder:
        rows = []
        for number in range(3):
            tensor = torch.full((1024,), RANK + 1.0 + number)
            dist.all_reduce(tensor)
            rows.append({"values": tensor.unique().tolist(), **take_statistics()})
        RESULTS["first_pays"] = rows
        RESULTS["first_pays_trace"] = recorder.table().to_pylist()


def collectives(group: Any) -> dict[str, Any]:
    """The results of every collective on ``group``, from the same inputs each time."""
    generator = torch.Generator().manual_seed(RANK)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    found: dict[str, Any] = {}

    def keep(name: str, *tensors: torch.Tensor) -> None:
        found[name] = [tensor.tolist() for tensor in tensors]

    tensor = new(5)
    dist.all_reduce(tensor, group=group)
    keep("all_reduce", tensor)
    tensor = new(3, 2)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    keep("all_reduce max", tensor)
    many = [new(2), new(3)]
    work = dist.all_reduce(many[0], group=group, async_op=True)
    other = dist.all_reduce(many[1], group=group, async_op=True)
    other.wait()
    work.wait()
    keep("all_reduce in flight", *many)
    tensor = new(4)
    dist.broadcast(tensor, RANKS - 1, group=group)
    keep("broadcast", tensor)
    tensor = new(4)
    dist.reduce(tensor, 0, group=group)
    keep("reduce", *([tensor] if RANK == 0 else []))
    outputs = [torch.empty(3, dtype=torch.float64) for _ in range(RANKS)]
    dist.all_gather(outputs, new(3), group=group)
    keep("all_gather", *outputs)
    output = torch.empty(3 * RANKS, dtype=torch.float64)
    dist.all_gather_into_tensor(output, new(3), group=group)
    keep("all_gather_into_tensor", output)
    outputs = [torch.empty(2, dtype=torch.float64) for _ in range(RANKS)] if RANK == 0 else None
    dist.gather(new(2), outputs, 0, group=group)
    keep("gather", *(outputs or []))
    output = torch.empty(2, dtype=torch.float64)
    inputs = [new(2) for _ in range(RANKS)]
    dist.scatter(output, inputs if RANK == 0 else None, 0, group=group)
    keep("scatter", output)
    inputs = [new(2) for _ in range(RANKS)]
    dist.reduce_scatter(output, inputs, group=group)
    keep("reduce_scatter", output)
    dist.reduce_scatter_tensor(output, new(2 * RANKS), group=group)
    keep("reduce_scatter_tensor", output)
    tensor = new(RANKS * 2)
    output = torch.empty_like(tensor)
    dist.all_to_all_single(output, tensor, group=group)
    keep("all_to_all_single", output)
    # Rank r sends r + destination + 1 rows to each destination.
    sent = [RANK + peer + 1 for peer in range(RANKS)]
    tensor = new(sum(sent), 2)
    output = torch.empty(sum(sent), 2, dtype=torch.float64)
    dist.all_to_all_single(output, tensor, sent, sent, group=group)
    keep("all_to_all_single uneven", output)
    outputs = [torch.empty(RANK + peer + 1, dtype=torch.float64) for peer in range(RANKS)]
    inputs = [new(RANK + peer + 1) for peer in range(RANKS)]
    try:
        dist.all_to_all(outputs, inputs, group=group)
        keep("all_to_all", *outputs)
    except RuntimeError:
        # Torch's gloo has it from 2.12 on.
        keep("all_to_all")
    output = torch.empty(3, dtype=torch.float64)
    if RANK == 0:
        dist.send(new(3), 1, group=group)
    elif RANK == 1:
        assert dist.recv(output, group=group) == 0
        keep("any source", output)
    objects: list[Any] = [None] * RANKS
    dist.all_gather_object(objects, {"rank": RANK}, group=group)
    found["all_gather_object"] = objects
    objects = ["from 0" if RANK == 0 else None]
    dist.broadcast_object_list(objects, 0, group=group)
    found["broadcast_object_list"] = objects
    dist.barrier(group=group)
    dist.monitored_barrier(group=group)
    return found


def every_collective() -> None:
    for mode in ("electrical", "on_demand:again"):
        with setting(mode) as recorder:
            RESULTS.setdefault("collectives", {})[mode] = collectives(dist.group.WORLD)
            RESULTS.setdefault("subgroup", {})[mode] = collectives(
                dist.new_group(list(range(RANKS)))
            )
            RESULTS["plain"] = collectives(dist.new_group(list(range(RANKS)), backend="gloo"))
            RESULTS.setdefault("kinds", {})[mode] = sorted(
                set(recorder.table()["kind"].to_pylist())
            )


def both_directions() -> None:
    """Many messages both ways at once, two tags, sends issued before receives and
    waited for in the wrong order.
    """
    with setting("on_demand:messages") as recorder:
        peer = 1 - RANK
        sends = [torch.full((1000 * (number + 1),), 10.0 * RANK + number) for number in range(6)]
        receives = [torch.empty_like(tensor) for tensor in sends]
        works = [dist.isend(tensor, peer, tag=number % 2) for number, tensor in enumerate(sends)]
        # The other tag first: messages of different tags do not wait for each other.
        arriving = [
            dist.irecv(receives[number], peer, tag=number % 2) for number in (1, 0, 3, 2, 5, 4)
        ]
        for work in [*reversed(arriving), *reversed(works)]:
            work.wait()
        RESULTS["messages"] = [tensor.unique().tolist() for tensor in receives]
        tensor, received = torch.tensor([float(RANK)]), torch.empty(1)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, received, peer)]
        ):
            work.wait()
        RESULTS["batch"] = received.tolist()
        future = dist.all_reduce(tensor, async_op=True).get_future()
        RESULTS["future"] = future.wait()[0].tolist()
        RESULTS["message_statistics"] = take_statistics()
        table = recorder.table().to_pylist()
        RESULTS["message_events"] = sorted(
            {
                (row["kind"], row["group"], row["phase"])
                for row in table
                if row["kind"] != "reconfiguration"
            }
        )
        RESULTS["message_bytes"] = sum(row["bytes"] for row in table if row["kind"] == "send")


def refusals() -> None:
    def line(call: Callable[[], object]) -> str:
        try:
            call()
        except (RuntimeError, ValueError) as error:
            return str(error)
        return "nothing was refused"

    with setting("electrical:refusals"):
        RESULTS["configure_while_open"] = line(
            lambda: backend.configure(BackendOptions("gloo", None, "electrical", 1), Recorder(RANK))
        )
        # Gloo fails where a rank leaves while others still connect.
        dist.barrier()
    RESULTS["controller_in_electrical"] = line(
        lambda: BackendOptions("gloo", "127.0.0.1:1", "electrical", 1)
    )
    backend.configure(BackendOptions("gloo", None, "electrical", 1), Recorder(RANK + 1))
    store = f"file://{FOLDER}/store-wrong-rank"
    RESULTS["wrong_rank"] = line(
        lambda: dist.init_process_group("railx", init_method=store, rank=RANK, world_size=RANKS)
    )


def alternate(iterations: int, *, announced: bool = False) -> list[dict[str, Any]]:
    """Two all-reduces in halves, then two in the world, each iteration."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rows = []
    for iteration in range(iterations):
        backend.begin_iteration(iteration)
        values = []
        for group in (halves[RANK // 2], halves[RANK // 2], dist.group.WORLD, dist.group.WORLD):
            if announced and group is dist.group.WORLD:
                wait_for_light([[0, 1], [1, 2], [2, 3], [3, 0]])
            tensor = torch.tensor([1.0 + RANK + iteration, 2.0])
            dist.all_reduce(tensor, group=group)
            values.append(tensor.tolist())
        rows.append({"values": values, **take_statistics()})
    return rows


def modes() -> None:
    """The same program under every mode; the schedule comes from the electrical run."""
    with setting("electrical"):
        RESULTS["electrical"] = alternate(3)
        schedule = backend.recorded_schedule()
        RESULTS["schedule"] = {
            number: [item.name for item in items] for number, items in schedule.iterations.items()
        }
    with setting("on_demand") as recorder:
        RESULTS["on_demand"] = alternate(3)
        RESULTS["on_demand_trace"] = recorder.table().to_pylist()
    with setting("provisioned") as recorder:
        backend.use_schedule(schedule)
        RESULTS["provisioned"] = alternate(3, announced=True)
        RESULTS["provisioned_trace"] = recorder.table().to_pylist()
    with setting("provisioned:wrong"):
        half, world = schedule.iterations[0][0], schedule.iterations[0][2]
        backend.use_schedule(CircuitSchedule({1: (half, world, world, world)}))
        RESULTS["wrong_schedule"] = alternate(3)
    with setting("on_demand:servers", gpus_per_server=2):
        RESULTS["servers"] = alternate(3)


def dies() -> None:
    """The last rank ends without a word while the others wait for it."""
    # On a busy machine the controller's word takes longer.
    FabricClient.reason_of_failure = partialmethod(  # type: ignore[assignment]
        FabricClient.reason_of_failure, timeout_s=60
    )
    with setting("on_demand:dies"):
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        if RANK == RANKS - 1:
            (FOLDER / f"{RANK}.json").write_text(json.dumps(RESULTS))
            os._exit(0)
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            RESULTS["death"] = str(error)


SCENARIOS: dict[str, list[Callable[[], None]]] = {
    "two": [first_pays, every_collective, both_directions, refusals],
    "four": [modes, dies],
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for scenario in SCENARIOS[sys.argv[1]]:
        scenario()
    (FOLDER / f"{RANK}.json").write_text(json.dumps(RESULTS))
