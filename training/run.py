"""Train a plan under every fabric setting of its sweep: ``python -m training.run
--config resolved.json --out DIR``.

Started plainly, it launches as many local ranks as the plan has devices. Under torchrun
it is one rank of the launch, so that a plan can span machines: ``torchrun
--nproc-per-node 4 -m training.run --config resolved.json --out DIR``. Needs torch,
numpy and pyarrow.

An unusable setting, plan, corpus or checkpoint, a missing GPU and a port in use end the
command with one line and exit code 2 before anything is written.

Finished blocks and the last checkpoint (training.checkpoint_every) stay in
DIR/unfinished until the results are written: the same command continues after a kill.
``--resume`` begins with the checkpoint of any other run of the same model, seed and
batches, whatever its plan and its ranks were.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from railx.errors import UserError
from railx.fabric import FabricError
from railx.io import read_json
from railx.places import check_writable
from railx.planning.format.files import read_plan
from railx.planning.format.plan import priced_zero_stage
from railx.progress import publish
from railx.settings import SettingsError, to_dict
from training.checkpoint import Checkpoint, check_checkpoint, find_checkpoint
from training.data import plan_lengths, read_sequences
from training.load import load_average
from training.loop import Block, train
from training.model import device_type
from training.planning import PlannerFailed, check_planning
from training.rails import RankContext, median_ms
from training.ranks import FAILED, UNUSABLE, launch_ranks
from training.results import write_results
from training.settings import (
    RunSettings,
    check_plan,
    check_sharding,
    fabric_sweep,
    load_run_settings,
)
from training.unfinished import CHECKPOINT_FOLDERS, Unfinished, run_identity

#: Errors whose message is one line for the user, and the exit code of each.
_EXIT_CODES = {UserError: UNUSABLE, FabricError: UNUSABLE, PlannerFailed: FAILED}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.run",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="resolved settings of the run, one JSON object"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for iterations.parquet, trace.parquet, trace.json, result.json",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        default=None,
        metavar="CHECKPOINT",
        help="begin with this checkpoint, or with the last one in this folder of a run",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="drop the unfinished results of a run with other settings in the folder",
    )
    options = parser.parse_args(arguments)
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    try:
        settings = _read_settings(options.config)
        resumed = (
            None if options.resume is None else find_checkpoint(options.resume, CHECKPOINT_FOLDERS)
        )
        ranks = int(os.environ["WORLD_SIZE"]) if under_torchrun else None
        _check(settings, options.out, ranks, resumed, replace=options.replace)
    except (UserError, OSError) as error:
        # All ranks of a machine see the same: one line is enough.
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _say(error)
        return UNUSABLE
    try:
        if not under_torchrun:
            return launch(settings, options.out, resumed)
        run_rank(settings, options.out, resumed)
    except (UserError, FabricError) as error:
        _say(error)
        return UNUSABLE
    except PlannerFailed as error:
        # All ranks say the same.
        if os.environ["RANK"] == "0":
            _say(error)
        return FAILED
    return 0


def launch(settings: RunSettings, out: Path, resumed: Checkpoint | None = None) -> int:
    """Run a local process a device, ending with this one; returns the exit code."""
    plan = read_plan(settings.plan)
    preload = ["training.results"]
    if settings.training.checkpoint_every or resumed is not None:
        preload.append("torch.distributed.checkpoint")
    begun = None if resumed is None else str(resumed.folder)
    unfinished = Unfinished(out, run_identity(settings, resumed))
    try:
        failure = launch_ranks(
            _rank,
            plan.devices,
            (to_dict(settings), str(out), begun),
            preload=preload,
            expected_errors=_EXIT_CODES,
        )
    except KeyboardInterrupt:
        note = unfinished.description()
        _say(f"interrupted; {note}" if note else "interrupted")
        return 128 + signal.SIGINT
    if failure is None:
        return 0
    sys.stderr.write(failure.trace)
    note = unfinished.description()
    unusable = failure.code == UNUSABLE
    _say(f"{failure.message}; {note}" if note and not unusable else failure.message)
    return failure.code


def run_rank(settings: RunSettings, out: Path, resumed: Checkpoint | None = None) -> None:
    """Run one rank in the environment of torchrun; rank 0 writes ``out``."""
    plan = read_plan(settings.plan)
    store, rank, ranks = next(iter(rendezvous("env://")))
    store.set_timeout(timedelta(seconds=settings.training.timeout_s))
    device = device_type(settings.training.device, "training.device")
    context = _rank_context(device, store, rank, ranks)
    load_at_start = load_average()
    unfinished = Unfinished(out, run_identity(settings, resumed))
    blocks: list[Block] = []
    for block in train(settings, context, unfinished, resumed):
        blocks.append(block)
        _progress(block, len(blocks), settings)
    if rank == 0:
        begun = 0 if resumed is None else resumed.step
        summary = write_results(out, settings, plan, context, blocks, load_at_start, begun)
        unfinished.end()
        agree = "agree" if summary["losses_agree"] else "DO NOT AGREE"
        print(
            f"{settings.name}: losses of all settings {agree} (largest relative difference"
            f" {summary['loss_difference']:.1e}); set aside as disturbed:"
            f" {summary['set_aside']} of {len(blocks)} blocks",
            flush=True,
        )


def _rank(settings: dict[str, Any], out: str, resumed: str | None) -> None:
    begun = None if resumed is None else find_checkpoint(Path(resumed), ())
    run_rank(load_run_settings(settings), Path(out), begun)


def _read_settings(path: Path) -> RunSettings:
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: allowed: one JSON object")
    return load_run_settings(value)


def _check(
    settings: RunSettings,
    out: Path,
    ranks: int | None,
    resumed: Checkpoint | None = None,
    *,
    replace: bool = False,
) -> None:
    """Run all checks that need no rank.

    ``ranks`` is torchrun's number, None for as many as the plan's devices. ``replace``
    permits dropping the unfinished results of another run.
    """
    plan = read_plan(settings.plan)
    device = device_type(settings.training.device, "training.device")
    training = dataclasses.replace(settings.training, device=device)
    check_plan(plan, settings.model, plan.devices if ranks is None else ranks, training)
    check_planning(settings, plan)
    zero_stage = priced_zero_stage(plan)
    if zero_stage is not None:
        mismatch = check_sharding(settings.training, zero_stage, plan.devices)
        if mismatch and os.environ.get("RANK", "0") == "0":
            print(f"training.run: training.sharding: {mismatch}", file=sys.stderr, flush=True)
    sequences = read_sequences(settings.corpus, plan_lengths(plan), settings.model.vocabulary)
    if resumed is not None:
        check_checkpoint(resumed, settings, plan, sequences)
        _check_steps(settings, resumed)
    check_writable(out, out)
    _check_unfinished(Unfinished(out, run_identity(settings, resumed)), resumed, replace)
    _check_hosts(settings)
    if int(os.environ.get("RANK", "0")) == 0:
        _check_address(settings)


def _rank_context(
    device_type: Literal["cpu", "cuda"], store: Store, rank: int, ranks: int
) -> RankContext:
    """The rank with its device, and NCCL where no ranks of the launch share one."""
    if device_type == "cpu":
        return RankContext(rank, ranks, store, torch.device("cpu"), "gloo")
    gpus, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", rank))
    device = torch.device("cuda", local % gpus)
    torch.cuda.set_device(device)
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) <= gpus
    store.set(f"own_gpu/{rank}", str(int(alone)))
    every = all(store.get(f"own_gpu/{other}") == b"1" for other in range(ranks))
    return RankContext(
        rank, ranks, store, device, "nccl" if every and dist.is_nccl_available() else "gloo"
    )


def _check_hosts(settings: RunSettings) -> None:
    """Refuse loopback addresses in a launch over several hosts.

    Gloo sends the other hosts the address to which this host's name resolves; on many
    systems that is a loopback address.
    """
    here, head = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("MASTER_ADDR", "")
    if here in (None, os.environ.get("WORLD_SIZE")) or _loopback(head):
        return
    host, hostname = settings.fabric.host, socket.gethostname()
    switched = any(setting.mode != "electrical" for setting in fabric_sweep(settings))
    if switched and (host.startswith("unix:") or _loopback(host)):
        raise SettingsError(
            "fabric.host",
            f"got {host}, which other hosts do not reach; allowed: an address of the first host",
        )
    if "GLOO_SOCKET_IFNAME" not in os.environ and _loopback(hostname):
        raise UserError(
            f"GLOO_SOCKET_IFNAME: is missing, and {hostname} is a loopback address here, which"
            " other hosts do not reach; allowed: the network interface to them, e.g. eth0"
        )


def _loopback(name: str) -> bool:
    """Whether a name resolves to loopback addresses only; False for unknown names."""
    try:
        addresses = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return False
    return all(ip_address(str(address[0]).split("%")[0]).is_loopback for *_, address in addresses)


def _check_address(settings: RunSettings) -> None:
    fabric = settings.fabric
    if fabric.port == 0 or all(setting.mode == "electrical" for setting in fabric_sweep(settings)):
        return
    try:
        socket.create_server((fabric.host, fabric.port)).close()
    except OSError as error:
        raise SettingsError(
            "fabric.port",
            f"got {fabric.port}, {error.strerror}; allowed: a free port of {fabric.host}, or 0",
        ) from None


def _check_steps(settings: RunSettings, resumed: Checkpoint) -> None:
    training = settings.training
    if resumed.step >= training.iterations:
        raise SettingsError(
            "training.iterations",
            f"got {training.iterations}; allowed: more than {resumed.step}, the steps that are in"
            f" {resumed.folder}",
        )


def _check_unfinished(unfinished: Unfinished, resumed: Checkpoint | None, replace: bool) -> None:
    """Refuse to drop the unfinished results of another run without ``replace``."""
    difference = unfinished.difference()
    if difference is None:
        return
    if not replace:
        raise UserError(
            f"{unfinished.folder}: holds an unfinished run: {difference}; allowed: the settings of"
            " that run, to go on with it, another folder, or --replace, which drops it"
        )
    if resumed is not None and unfinished.folder.resolve() in resumed.folder.resolve().parents:
        raise UserError(
            f"{resumed.folder}: --replace would drop this checkpoint; allowed: another folder for"
            " --out"
        )


def _progress(block: Block, number: int, settings: RunSettings) -> None:
    fabric, training = block.fabric, settings.training
    planned = len(fabric_sweep(settings)) * training.repeats
    if int(os.environ["RANK"]) == 0:
        publish("blocks", number, max(number, planned))
    load = "" if block.load_share is None else f", others took {block.load_share:.0%}"
    print(
        f"[{number}/{max(number, planned)}] repeat {block.repeat + 1}/{training.repeats},"
        f" {fabric.mode}, {fabric.reconfiguration_latency_ms:g} ms:"
        f" {median_ms(block.rows):.0f} ms per iteration, loss {block.rows[-1]['loss']:.4f}"
        f"{load}{' (disturbed)' if block.disturbed else ''}",
        flush=True,
    )


def _say(message: object) -> None:
    print(f"training.run: error: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
