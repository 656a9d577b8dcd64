"""The ranks of the coverage matrix, started by ``coverage.py``.

Usage: coverage_program.py RANKS FOLDER SETTINGS CASES, the last two JSON. SETTINGS is a
list of ``{"name", "backend", "ranks", "variables"}``; ranks from ``ranks`` up sit one
out. CASES are titles, none for all. Writes FOLDER/RANK.json: what each case found, or
why it was refused, by setting. A case that does not end prints where every thread is,
and the program ends with 1.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.multiprocessing as mp

from railx_torch import backend, environment
from tests.training.coverage_cases import CASES, Case, World

#: Far above any case on a busy machine, far below the time of all of them.
CASE_LIMIT_S = 200
#: How long an operation waits for the other ranks.
GROUP_LIMIT_S = 30
DEVICE = torch.device(os.environ.get("COVERAGE_DEVICE", "cpu"))


def plain(value: Any) -> Any:
    """What JSON can hold, numbers exactly."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return plain(value.float() if value.dtype == torch.bfloat16 else value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def found_by(case: Case, world: World, meet: Callable[[str], None]) -> dict[str, Any]:
    """The result of a case, or the line that refuses it."""
    faulthandler.dump_traceback_later(CASE_LIMIT_S, exit=True)
    world.seed = case.seed
    begin = time.monotonic()
    try:
        outcome: dict[str, Any] = {"found": plain(case.run(world))}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        outcome = {"refused": f"{type(error).__name__}: {lines[0]}"}
        if os.environ.get("COVERAGE_TRACE"):
            traceback.print_exc()
    seconds = time.monotonic() - begin
    if "refused" in outcome and seconds >= GROUP_LIMIT_S:
        # Every later case would wait as long, as no group survives that.
        raise RuntimeError(f"{case.title}: after {seconds:.0f} s: {outcome['refused']}")
    # The next case must not depend on the groups of this one, and no rank may end a
    # group in which another still receives.
    meet(case.title)
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    faulthandler.cancel_dump_traceback_later()
    return {**outcome, "seconds": round(seconds, 3)}


def meeting_place(rank: int, folder: Path) -> Any:
    """A store on a free port of rank 0; the others read the port from a file."""
    file = dist.FileStore(str(folder / "port"), -1)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        file.set("port", str(store.port))
        return store
    return dist.TCPStore("127.0.0.1", int(file.get("port")), wait_for_workers=False)


def run(
    setting: dict[str, Any], rank: int, store: Any, folder: Path, titles: list[str]
) -> dict[str, Any]:
    """All cases under one setting."""
    os.environ.update(setting["variables"])
    if setting["backend"] == "railx":
        # The environment is read once in a process; here it changes.
        place = environment.read(os.environ)
        backend.configure(place.options, place.recorder(rank))
    here = folder / setting["name"]
    here.mkdir(exist_ok=True)
    of_setting = dist.PrefixStore(setting["name"], store)

    def meet(title: str) -> None:
        """Wait for all ranks of this setting, past the backend that is tested."""
        keys = [f"{title}/{of_rank}" for of_rank in range(setting["ranks"])]
        of_setting.set(keys[rank], "")
        of_setting.wait(keys, timedelta(seconds=2 * CASE_LIMIT_S))

    dist.init_process_group(
        setting["backend"],
        store=of_setting,
        rank=rank,
        world_size=setting["ranks"],
        timeout=timedelta(seconds=GROUP_LIMIT_S),
    )
    outcomes = {}
    for case in CASES:
        if titles and case.title not in titles:
            continue
        world = World(rank, setting["ranks"], here, DEVICE)
        outcomes[case.title] = found_by(case, world, meet)
        if os.environ.get("COVERAGE_TRACE"):
            print(rank, setting["name"], case.title, str(outcomes[case.title])[:150], flush=True)
    dist.destroy_process_group()
    return outcomes


def work(rank: int, folder: Path, settings: list[dict[str, Any]], titles: list[str]) -> None:
    """Every setting in turn."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = meeting_place(rank, folder)
    written = {
        setting["name"]: run(setting, rank, store, folder, titles)
        for setting in settings
        if rank < setting["ranks"]
    }
    (folder / f"{rank}.json").write_text(json.dumps(written))
    # Rank 0 holds the store until the last one has written.
    store.add("ended", 1)
    if rank == 0:
        while store.add("ended", 0) < settings[0]["ranks"]:
            time.sleep(0.05)


def main() -> None:
    """Start the ranks; forks need not load again what the cases load."""
    arguments = (Path(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4]))
    # A fork may not use a GPU that was asked for before it.
    method = "fork" if DEVICE.type == "cpu" else "spawn"
    ranks = mp.start_processes(
        work, arguments, nprocs=int(sys.argv[1]), join=False, start_method=method
    )
    # The others wait for a rank that died; stuck ones say where they are.
    while not ranks.join(grace_period=10):
        pass


if __name__ == "__main__":
    main()
