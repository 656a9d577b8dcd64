"""The emulated switch: circuits in memory, a timer thread and failures on order."""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from railx.errors import UserError
from railx.fabric.circuits import Circuit, Layout, Port, ports_of
from railx.fabric.decisions.state import SwitchAction, ports_in_order
from railx.fabric.settings import EmulatedSwitchSettings
from railx.fabric.switches import SwitchCallbacks, Wiring, parse_port, port_name
from railx.settings import SettingsError

_STATE_VERSION = 1

#: A callback of the timer thread, and an event that returns the callbacks.
Tell: TypeAlias = Callable[[], None]
Event: TypeAlias = Callable[[], Tell | None]


class EmulatedSwitch:
    """The emulated switches of all rails; see :mod:`railx.fabric.switches`.

    A command takes ``latency_ns`` and, for each port that comes up beyond the first
    two, ``settings.per_port_ms``. A command that is under way when the process ends
    leaves its ports dark.
    """

    def __init__(
        self,
        latency_ns: int,
        callbacks: SwitchCallbacks,
        *,
        layout: Layout,
        ranks: int,
        settings: EmulatedSwitchSettings | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises SettingsError below "switch": too many GPUs, a state file that is
        none, a failure of a port that is not there.
        """
        self._settings = settings or EmulatedSwitchSettings()
        self._callbacks = callbacks
        self._clock = clock
        if self._settings.switching_ms is not None:
            latency_ns = round(self._settings.switching_ms * 1e6)
        self._latency_ns = latency_ns
        self._per_port_ns = round(self._settings.per_port_ms * 1e6)
        # A server with fewer ranks still has ports for all its GPUs.
        servers = -(-ranks // layout.gpus_per_server)
        self._gpus = servers * layout.gpus_per_server
        self._check_size(2 * servers)
        self._state_file = self._settings.state_file and Path(self._settings.state_file)
        self._wiring = Wiring()
        self._lit: set[Circuit] = set()
        self._lost: dict[Port, str] = {}
        self._under_way: dict[int, SwitchAction] = {}
        self._to_fail: list[str] = []
        self._free_at_ns: dict[Port, int] = {}
        self._due: list[tuple[int, int, Event]] = []
        self._order = itertools.count()
        self._condition = threading.Condition()
        self._closed = False
        self._lock = self._hold_state()
        try:
            with self._condition:
                self._read_state()
                # A later controller has to see that there was an earlier one.
                self._write_state()
                self._plan_failures()
        except BaseException:
            self._let_go()
            raise
        self._thread = threading.Thread(
            target=self._run, name="emulated optical switch", daemon=True
        )
        self._thread.start()

    def apply(self, action: SwitchAction) -> None:
        """Begin a command; see :meth:`railx.fabric.switches.Switch.apply`."""
        ports = ports_in_order(action.connect)
        with self._condition:
            self._wiring.take(action)
            self._lit -= set(action.disconnect)
            self._under_way[action.command] = action
            now_ns = self._clock()
            lost = [port for port in ports if port in self._lost]
            if lost:
                self._at(now_ns, partial(self._end, action.command, self._loss(lost[0])))
            else:
                begin_ns = max([now_ns, *(self._free_at_ns.get(port, 0) for port in ports)])
                due_ns = begin_ns + self._latency_ns + self._per_port_ns * max(len(ports) - 2, 0)
                self._free_at_ns.update(dict.fromkeys(ports, due_ns))
                reason = self._to_fail.pop() if self._to_fail else None
                self._at(due_ns, partial(self._end, action.command, reason))
            if action.disconnect:
                self._write_state()

    def read(self) -> frozenset[Circuit]:
        """The circuits that carry light."""
        with self._condition:
            return frozenset(self._lit)

    def close(self) -> None:
        """Stop the timer; commands under way are never reported."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()
        self._let_go()

    def fail_ports(self, ports: frozenset[Port], reason: str) -> None:
        """Lose ports; those that are lost already stay so."""
        self._check_ports(ports)
        with self._condition:
            self._lose(ports, reason)

    def restore_ports(self, ports: frozenset[Port]) -> None:
        """Bring lost ports back."""
        self._check_ports(ports)
        with self._condition:
            self._restore(ports)

    def fail_commands(self, count: int, reason: str) -> None:
        """Fail the next ``count`` commands, at the moment when they would be done."""
        with self._condition:
            self._to_fail += [reason] * count

    def _end(self, command: int, reason: str | None) -> Tell | None:
        """A command ends with light, or (with a reason) without it."""
        action = self._under_way.pop(command, None)
        if action is None:
            return None
        if reason is None:
            self._lit.update(action.connect)
            self._write_state()
            return partial(self._callbacks.done, command)
        self._wiring.drop(action.connect)
        return partial(self._callbacks.failed, command, reason)

    def _lose(self, ports: frozenset[Port], reason: str) -> None:
        lost = frozenset(ports - self._lost.keys())
        if not lost:
            return
        self._lost.update(dict.fromkeys(lost, reason))
        for circuit in [item for item in self._lit if not lost.isdisjoint(item.ports)]:
            self._lit.remove(circuit)
            self._wiring.darken(circuit)
        self._write_state()
        now_ns = self._clock()
        self._at(now_ns, partial(_itself, partial(self._callbacks.ports_lost, lost, reason)))
        for action in list(self._under_way.values()):
            needs = lost & ports_of(action.connect)
            if needs:
                # Its end is not reported, even if due before the report of the loss.
                tell = self._end(action.command, self._loss(min(needs)))
                self._at(now_ns, partial(_itself, tell))

    def _restore(self, ports: frozenset[Port]) -> None:
        back = frozenset(ports & self._lost.keys())
        if not back:
            return
        for port in back:
            del self._lost[port]
        self._write_state()
        self._at(self._clock(), partial(_itself, partial(self._callbacks.ports_back, back)))

    def _loss(self, port: Port) -> str:
        return f"port {port_name(port)} is lost ({self._lost[port]})"

    def _at(self, due_ns: int, event: Event) -> None:
        """Run ``event`` on the timer thread and then the callbacks that it returns."""
        number = next(self._order)
        heapq.heappush(self._due, (due_ns, number, event))
        if self._due[0][1] == number:
            # Otherwise the thread wakes for an earlier event.
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._closed and not (self._due and self._due[0][0] <= self._clock()):
                    wait_s = (self._due[0][0] - self._clock()) / 1e9 if self._due else None
                    self._condition.wait(wait_s)
                if self._closed:
                    return
                _, _, event = heapq.heappop(self._due)
                tell = event()
            if tell is not None:
                tell()

    def _check_size(self, ports: int) -> None:
        allowed = self._settings.ports
        if allowed is not None and ports > allowed:
            raise SettingsError(
                "switch.ports",
                f"got {allowed}, but {ports // 2} GPUs on a rail take {ports}; allowed: at least"
                f" {ports}, or fewer ranks",
            )

    def _check_ports(self, ports: frozenset[Port]) -> None:
        for port in sorted(ports):
            if not 0 <= port.gpu < self._gpus or port.side not in ("left", "right"):
                raise UserError(
                    f"got port {port_name(port)}; allowed: left and right of 0 to {self._gpus - 1}"
                )

    def _plan_failures(self) -> None:
        start_ns = self._clock()
        for number, failure in enumerate(self._settings.failures):
            try:
                ports = frozenset(map(parse_port, failure.ports))
                self._check_ports(ports)
            except ValueError as error:
                raise SettingsError(f"switch.failures.{number}.ports", str(error)) from None
            lost_ns = start_ns + round(failure.after_s * 1e9)
            self._at(lost_ns, partial(self._lose, ports, failure.reason))
            if failure.for_s is not None:
                back_ns = lost_ns + round(failure.for_s * 1e9)
                self._at(back_ns, partial(self._restore, ports))

    def _hold_state(self) -> int | None:
        """A lock for the life of this process: one controller has the light of a file.

        It is on a file beside, since the state is replaced whole at every change.
        """
        if not self._state_file:
            return None
        lock = -1
        try:
            beside = self._state_file.with_name(f".{self._state_file.name}.lock")
            lock = os.open(beside, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise SettingsError(
                "switch.state_file",
                f"another controller keeps its light in {self._state_file}; allowed: a file of its"
                " own, or the end of that controller first",
            ) from None
        except OSError as error:
            raise SettingsError(
                "switch.state_file",
                f"cannot write {self._state_file} ({error.strerror}); allowed: a file in a folder"
                " that can be written to",
            ) from None
        return lock

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read_state(self) -> None:
        if not self._state_file or not self._state_file.exists():
            return
        try:
            state: Any = json.loads(self._state_file.read_text(encoding="utf-8"))
            if state["version"] != _STATE_VERSION:
                raise ValueError("another version")
            lit = {Circuit(int(right), int(left)) for right, left in state["circuits"]}
            lost = {parse_port(name): str(reason) for name, reason in state["lost"].items()}
            ports = [port for circuit in lit for port in circuit.ports]
            self._check_ports(frozenset(ports) | lost.keys())
            if len(set(ports)) != len(ports) or not lost.keys().isdisjoint(ports):
                raise ValueError("a port with two peers, or a lost one with light")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SettingsError(
                "switch.state_file",
                f"{self._state_file} holds no light of this layout ({error}); allowed: a file that"
                " this driver wrote, or none",
            ) from None
        self._lit = lit
        self._wiring = Wiring(lit)
        for reason in dict.fromkeys(lost.values()):
            self._lose(frozenset(port for port in lost if lost[port] == reason), reason)

    def _write_state(self) -> None:
        """Keep the light.

        The file outlives the process, not the machine's power, as emulated light does:
        waiting for a disk would add to every command.
        """
        if self._state_file:
            state = {
                "version": _STATE_VERSION,
                "circuits": sorted(map(list, self._lit)),
                "lost": {port_name(port): why for port, why in sorted(self._lost.items())},
            }
            beside = self._state_file.with_name(f".{self._state_file.name}.part")
            beside.write_text(json.dumps(state), encoding="utf-8")
            beside.replace(self._state_file)


def _itself(tell: Tell | None) -> Tell | None:
    return tell
