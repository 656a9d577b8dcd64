"""Ranks that work, faults that befall them and the controller, and what came of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from railx.fabric import Configuration, FabricClient, FabricError, FabricSettings, Layout
from railx.fabric.circuits import Port
from railx.fabric.launch import reserved_port
from railx.fabric.observer import Observer, ObserverError
from railx.fabric.protocol import TOKEN
from railx.fabric.settings import EmulatedSwitchSettings, JournalSettings
from railx.settings import to_dict

from .checker import Checker, Span
from .proxy import Proxy

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]

#: Nothing may wait longer than this for anything: then somebody was forgotten.
STUCK_S = 40.0
_GROUPS = 14
_PRINTED = 10
#: What of the controller's state is printed where it is not at rest.
_STATE = ("waiting", "queue", "leases", "holds", "lost_ports")


@dataclass(eq=False)
class Operation:
    """An operation of the schedule, and what its members have done with it."""

    channel: str
    number: int
    configuration: Configuration
    begun_ns: dict[int, int] = field(default_factory=dict)
    ended_ns: dict[int, int] = field(default_factory=dict)
    failed: bool = False


class Mortal(FabricClient):
    """A rank's client that can die without a word."""

    def cut(self) -> None:
        """As the end of its process: the connection closes, and nothing comes again."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_broken(self) -> bool:
        """Whether it can do nothing any more."""
        return self._broken is not None or self._closed.is_set()


class Soak:
    """One run: a controller, its ranks, the proxy between them, and the checker."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.random = Random(options.seed)
        self.layout = Layout(options.gpus_per_server)
        self.ranks = options.ranks
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.broken: list[str] = []
        self.longest_wait_ms = 0.0
        self._options = options
        self._began = time.monotonic()
        self._log = folder / "switches"
        self._log.touch()
        self.checker = Checker(self.layout, self._log)
        self._said = (folder / "controller.log").open("w+")
        settings = FabricSettings(
            gpus_per_server=options.gpus_per_server,
            host="127.0.0.1",
            port=0,
            timeout_s=5,
            heartbeat_s=0.5,
            mode="on_demand",
            reconfiguration_latency_ms=options.latency_ms,
            switch=EmulatedSwitchSettings(state_file=str(folder / "light")),
            journal=JournalSettings(str(folder / "journal"), 1024),
        )
        os.environ[TOKEN] = secrets.token_urlsafe(16)
        self._held = contextlib.ExitStack()
        self._settings = self._held.enter_context(reserved_port(settings))
        self.start()
        self.proxy = Proxy(self.address, options.seed, options.double, options.lose)
        self._groups = self._draw_groups()
        self._numbers: Counter[str] = Counter()
        self._clients: dict[int, Mortal] = {}
        #: Moved by every change of an operation; members wait on it for one another.
        self._moved = threading.Condition()
        self._down: set[int] = set()
        #: Nothing befalls anybody: nobody may be refused anything.
        self._calm = False
        self._next_restart = 0.0
        self._lost_ports: set[Port] = set()

    # The controller.

    @property
    def address(self) -> str:
        """Of the controller, whether one runs or not."""
        return f"127.0.0.1:{self._settings.port}"

    def start(self) -> None:
        """Start a controller; RuntimeError where it does not start."""
        self.controller = subprocess.Popen(
            [
                *(sys.executable, str(Path(__file__).with_name("controller.py")), str(self._log)),
                *("--until-stdin-closes", "--ranks", str(self.ranks)),
                *("--settings", json.dumps(to_dict(self._settings))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.controller.stdout is not None
        line = self.controller.stdout.readline()
        if not line:
            raise RuntimeError(f"the controller did not start: {self.said()[-400:]}")
        self._settings = replace(self._settings, port=json.loads(line)["port"])

    def said(self) -> str:
        """Everything that the controllers have logged."""
        self._said.seek(0)
        return self._said.read()

    def restart(self) -> None:
        """Kill the controller without a word, and start the next one."""
        self.controller.send_signal(signal.SIGKILL)
        self.controller.wait()
        time.sleep(self.random.uniform(0, 0.3))
        self.start()

    def observer(self) -> Observer:
        """A connection of its own, not through the proxy."""
        return Observer(self.address)

    # The schedule: the same for all ranks, so that nobody waits in a circle.

    def _draw_groups(self) -> list[Configuration]:
        groups: dict[Configuration, None] = {}
        while len(groups) < _GROUPS:
            kind: Any = self.random.choice(("pair", "ring", "ring"))
            size = 2 if kind == "pair" else self.random.randint(2, max(2, self.ranks // 2))
            groups[Configuration(kind, tuple(self.random.sample(range(self.ranks), size)))] = None
        return list(groups)

    def _draw_round(self) -> list[Operation]:
        operations: list[Operation] = []
        while len(operations) < self._options.operations:
            configuration = self.random.choice(self._groups)
            # A group often stays at work, as layers do.
            for _ in range(self.random.choice((1, 1, 2, 6))):
                channel = configuration.name
                operations.append(Operation(channel, self._numbers[channel], configuration))
                self._numbers[channel] += 1
        return operations

    # A rank.

    def _connect(self, rank: int) -> Mortal:
        limit = time.monotonic() + STUCK_S
        while True:
            try:
                return Mortal(self.proxy.address, rank, gpus_per_server=self.layout.gpus_per_server)
            except FabricError as error:
                # The controller may be away, or the end of the last life not known yet.
                if time.monotonic() > limit:
                    self._break(f"rank {rank} cannot register: {error}")
                    raise
                time.sleep(0.05)

    def _live(self, rank: int, operations: Sequence[Operation], random: Random) -> None:
        mine = [item for item in operations if rank in item.configuration.members]
        try:
            client = self._clients[rank]
            for place, operation in enumerate(mine):
                if rank in self._down:
                    break
                later = mine[place + 1].configuration if place + 1 < len(mine) else None
                if random.random() < 0.1:
                    later = random.choice(mine).configuration
                self._work(rank, client, operation, later if random.random() < 0.6 else None)
        except Exception as error:
            self._break(f"rank {rank} broke: {error!r}")
        finally:
            for operation in mine:
                self._give_up(operation, rank)

    def _work(
        self, rank: int, client: Mortal, operation: Operation, later: Configuration | None
    ) -> None:
        configuration = operation.configuration
        key = operation.channel, operation.number
        if operation.failed:
            # Members learn of it by the controller alone; it is asked all the same.
            self.counts["asked for what had failed"] += 1
        asked = time.monotonic()
        try:
            if not client.begin(*key, configuration):
                client.acquire(*key, configuration)
            else:
                self.counts["begun under a held lease"] += 1
        except FabricError as error:
            self._note_failure(rank, client, error, time.monotonic() - asked)
            self._give_up(operation, rank)
            return
        wait_ms = 1e3 * (time.monotonic() - asked)
        self.longest_wait_ms = max(self.longest_wait_ms, wait_ms)
        members = set(configuration.members)
        with self._moved:
            operation.begun_ns[rank] = time.monotonic_ns()
            self._moved.notify_all()
            together = self._moved.wait_for(
                lambda: operation.failed or members <= operation.begun_ns.keys(), STUCK_S
            )
            if not together:
                missing = sorted(members - operation.begun_ns.keys())
                self._break(f"{operation.channel} {operation.number}: {missing} never came")
                operation.failed = True
        if random_pause := self.random.random() * self._options.work_ms / 1e3:
            time.sleep(random_pause)
        with self._moved:
            operation.ended_ns[rank] = time.monotonic_ns()
        try:
            client.release(*key, prepare=later)
        except FabricError as error:
            self._note_failure(rank, client, error, 0.0)

    def _note_failure(self, rank: int, client: Mortal, error: FabricError, waited_s: float) -> None:
        text = str(error)
        self.counts["operations refused"] += 1
        if waited_s > STUCK_S:
            self._break(f"rank {rank} waited {waited_s:.0f} s for a refusal: {text}")
        known = (
            *("lost its connection", "has left", "has been silent", "is lost", "failed"),
            *("gave up", "did not come back", "not come back", "closed the connection", "broke"),
            *("came back", "no answer", "asked again", "disagree", "has gone on"),
        )
        # Commands may still be about to fail that were told to fail before.
        if self._calm and "stuck mirror" not in text:
            self._break(f"rank {rank} was refused without any fault: {text}")
        self._tell(f"rank {rank} after {waited_s:.1f} s: {text}")
        self.reasons[next((word for word in known if word in text), text)] += 1
        if client.is_broken:
            self._down.add(rank)

    def _give_up(self, operation: Operation, rank: int) -> None:
        """A member that will not begin it: nobody waits for it any more."""
        with self._moved:
            if rank not in operation.begun_ns:
                operation.failed = True
                self._moved.notify_all()

    # The faults.

    def _fault(self, random: Random) -> None:
        what = random.choice(
            (
                *("kill a rank", "kill a rank", "a rank leaves", "freeze a rank"),
                *("kill the controller", "kill the controller"),
                *("fail ports", "fail ports", "restore ports", "restore ports", "fail commands"),
            )
        )
        up = sorted(self._clients.keys() - self._down)
        if what in ("kill a rank", "a rank leaves", "freeze a rank"):
            if not up or len(self._down) > self.ranks // 3:
                return
            rank = random.choice(up)
            self._down.add(rank)
            if what == "kill a rank":
                self._clients[rank].cut()
            elif what == "a rank leaves":
                self._clients[rank].close()
            else:
                self.proxy.freeze(rank)
        elif what == "kill the controller":
            # Who waits has new patience with each, so that a controller has to live
            # longer than it waits for ranks that are gone; but not always.
            if time.monotonic() < self._next_restart and random.random() < 0.9:
                return
            self.restart()
            self._next_restart = time.monotonic() + self._settings.timeout_s
        else:
            ports = {
                Port(random.randrange(self.ranks), random.choice(("left", "right")))
                for _ in range(random.choice((1, 1, 4)))
            }
            try:
                with self.observer() as observer:
                    if what == "fail ports":
                        self._lost_ports |= ports
                        observer.fail_ports(ports, "pulled out")
                    elif what == "restore ports":
                        observer.restore_ports(self._lost_ports)
                        self._lost_ports.clear()
                    else:
                        observer.fail_commands(random.randint(1, 3), "stuck mirror")
            except ObserverError as error:
                self._break(f"the observer: {error}")
        self.counts[what] += 1
        self._tell(what)

    # A round: a stretch of the schedule with faults in it; whoever died returns.

    def _tell(self, what: str) -> None:
        if self._options.verbose:
            print(f"{time.monotonic() - self._began:7.1f} s: {what}", flush=True)

    def round(self, *, faults: bool = True) -> None:
        """Every rank works through a stretch of the schedule, then all is at rest."""
        for rank in sorted(self._down):
            self.proxy.thaw(rank)
            client = self._clients.pop(rank, None)
            if client is not None:
                client.cut()
                client.close()
        self._down.clear()
        self._calm = not faults
        if self._lost_ports:
            with self.observer() as observer:
                observer.restore_ports(self._lost_ports)
            self._lost_ports.clear()
        operations = self._draw_round()
        with ThreadPoolExecutor(self.ranks) as pool:
            # Who works before its peers are there would be refused.
            missing = [rank for rank in range(self.ranks) if rank not in self._clients]
            self._clients |= dict(zip(missing, pool.map(self._connect, missing), strict=True))
            self.counts["lives"] += len(missing)
        self._tell("a round begins")
        threads = [
            threading.Thread(
                target=self._live,
                args=(rank, operations, Random(self.random.random())),
                name=f"rank {rank}",
            )
            for rank in range(self.ranks)
        ]
        for thread in threads:
            thread.start()
        random = Random(self.random.random())
        for thread in threads:
            while thread.is_alive():
                pause_s = random.expovariate(1 / self._options.fault_s)
                thread.join(pause_s if faults else None)
                if faults and thread.is_alive():
                    self._fault(random)
        self._tell("all ranks are through")
        self._rest()
        self._tell("at rest")
        spans = [
            Span(
                max(item.begun_ns.values()),
                min(item.ended_ns.values()),
                f"{item.channel} ({item.number})",
                item.configuration,
            )
            for item in operations
            if item.begun_ns.keys() >= set(item.configuration.members) and item.ended_ns
        ]
        self.counts["operations not begun by all"] += len(operations) - len(spans)
        self.checker.judge(span for span in spans if span.begin_ns < span.end_ns)
        self.counts["rounds"] += 1
        if self.controller.poll() is not None:
            raise RuntimeError(f"the controller ended: {self.said()[-2000:]}")

    def _rest(self) -> None:
        """Nobody works: nothing may be leased, queued or asked for."""
        limit, left = time.monotonic() + STUCK_S, "nobody answers"
        while time.monotonic() < limit:
            try:
                with self.observer() as observer:
                    status = observer.status()
                    statistics = status["statistics"]
            except ObserverError:
                continue
            names = ("queued", "leased_circuits", "open")
            left = ", ".join(f"{name} {statistics[name]}" for name in names if statistics.get(name))
            if not left and not statistics["recovering"]:
                return
            left += f" ({json.dumps({name: status.get(name) for name in _STATE})})"
            time.sleep(0.05)
        self._break(f"at rest, but {left}")

    def _break(self, what: str) -> None:
        self.broken.append(what)
        if len(self.broken) <= _PRINTED:
            print(f"BROKEN: {what[:600]}", flush=True)

    def close(self) -> float:
        """End everything; returns the processor seconds of the controllers."""
        for client in self._clients.values():
            client.close()
        self.proxy.close()
        with self.observer() as observer:
            observer.shut_down()
        code = self.controller.wait(30)
        self._held.close()
        if code != 0:
            self._break(f"the controller ended with {code}: {self.said()[-2000:]}")
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python scripts/soak",
        description=(
            "Runs the control plane under load and faults, and checks from outside that no two"
            " operations use one port at once, that none is under way without light, that no"
            " light in use is torn down, and that nobody waits for ever."
        ),
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=12)
    parser.add_argument("--gpus-per-server", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=2.0, help="from a command to light")
    parser.add_argument("--operations", type=int, default=400, help="operations of a round")
    parser.add_argument("--work-ms", type=float, default=2.0, help="longest operation")
    parser.add_argument("--fault-s", type=float, default=0.6, help="mean time between faults")
    parser.add_argument("--double", type=float, default=0.05, help="share of messages doubled")
    parser.add_argument("--keep", metavar="FOLDER", help="keep logs and journals there")
    parser.add_argument("--verbose", action="store_true", help="say what happens when")
    parser.add_argument("--lose", type=float, default=0.1, help="share of hints lost")
    options = parser.parse_args(arguments)
    if options.ranks < 4:
        # Fewer do not have _GROUPS different groups.
        parser.error(f"--ranks: got {options.ranks}; allowed: at least 4")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 where nothing was broken."""
    options = options_of(arguments)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.keep or made)
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(options, folder)
        told = begin
        while time.monotonic() - begin < options.seconds and not soak.broken:
            soak.round()
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(
                    f"{told - begin:4.0f} s: {soak.checker.counts['operations']} operations,"
                    f" {soak.counts['kill the controller']} restarts",
                    flush=True,
                )
        if not soak.broken and not soak.checker.broken:
            # What is left after all of it still works without faults.
            soak.round(faults=False)
        processor_s = soak.close()
    broken = [*soak.broken, *soak.checker.broken]
    report(soak, time.monotonic() - begin, processor_s, broken)
    return 1 if broken else 0


def report(soak: Soak, seconds: float, processor_s: float, broken: list[str]) -> None:
    """What was done, what happened, and whether anything was broken."""
    print(f"{seconds:.0f} s, {soak.ranks} ranks, longest wait {soak.longest_wait_ms:.0f} ms")
    print(f"processor time of the controllers: {processor_s:.0f} s")
    for title, counts in (
        ("done and suffered", soak.counts),
        ("judged", soak.checker.counts),
        ("messages", soak.proxy.counts),
        ("refusals that ranks saw", soak.reasons),
    ):
        print(f"{title}:")
        for name, count in sorted(counts.items()):
            print(f"  {count:>9,}  {name}")
    print(f"invariants broken: {len(broken)}")
    for what in broken[:_PRINTED]:
        print(f"  {what[:600]}")
