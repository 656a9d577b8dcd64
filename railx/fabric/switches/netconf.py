"""Real switches by NETCONF over SSH (RFC 6241, RFC 6242), one for each rail.

They have to speak a cross-connect model of our own,
resources/yang/railx-cross-connect.yang, which is no vendor's. The session is ncclient's
(``pip install railx-lab[netconf]``), imported only here.

* A command is one edit-config of the running datastore; its reply says that there is
  light. A switch carries out one after another, switches of different rails at the same
  time.
* Between commands, every ``poll_s``, the driver asks which ports are out of service and
  whether the light is still there. Light that went without a command is a loss of its
  ports, which are back at once.
* A switch that announces notifications (RFC 5277) is asked at once when it sends one of
  the model's, or when their session ends: they have one to themselves, because one with
  a subscription may serve nothing else. What holds is the answer, so one that is lost,
  late or doubled only changes when the driver hears of a failure.
* A switch whose session breaks gets one new session at once. If that fails too, all
  ports of its rail are lost until it answers again; it is then made dark, because
  nobody knows what it carries.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import queue
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from railx.errors import UserError
from railx.fabric.circuits import Circuit, Layout, Port
from railx.fabric.decisions.state import SwitchAction, ports_in_order
from railx.fabric.settings import NetconfSwitchSettings
from railx.fabric.switches import SwitchCallbacks, Wiring, port_name
from railx.settings import SettingsError

#: Namespace of the model.
MODEL = "https://railx-lab.example/yang/railx-cross-connect"
#: The environment variable with the password of the switches.
PASSWORD = "RAILX_SWITCH_PASSWORD"
_TICK_S = 0.005
#: How long to wait for a notification before looking whether the session is there.
_LISTEN_S = 0.1
_BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"


class NetconfSwitch:
    """The switches of all rails; see :mod:`railx.fabric.switches`."""

    def __init__(
        self,
        settings: NetconfSwitchSettings,
        layout: Layout,
        ranks: int,
        callbacks: SwitchCallbacks,
    ) -> None:
        """Open all sessions; SettingsError below "switch" where one cannot be had."""
        rails = layout.gpus_per_server
        if len(settings.addresses) != rails:
            raise SettingsError(
                "switch.addresses",
                f"got {len(settings.addresses)} switches; allowed: {rails}, one for each rail",
            )
        servers = -(-ranks // rails)
        self._rails: list[_Rail] = []
        try:
            for rail in range(rails):
                numbering = _Numbering(rail, rails, servers)
                self._rails.append(_Rail(settings, numbering, callbacks))
        except BaseException:
            self.close()
            raise
        for switch in self._rails:
            switch.start()

    def apply(self, action: SwitchAction) -> None:
        """Begin a command; see :meth:`railx.fabric.switches.Switch.apply`."""
        self._rails[action.rail].apply(action)

    def read(self) -> frozenset[Circuit]:
        """The circuits that carry light; asks every switch."""
        return frozenset(circuit for rail in self._rails for circuit in rail.read())

    def close(self) -> None:
        """End the sessions; light stays as it is."""
        for rail in self._rails:
            rail.close()


class _Numbering:
    """The port numbers of a rail's switch, as the model has them."""

    def __init__(self, rail: int, rails: int, servers: int) -> None:
        self.rail, self._rails, self._servers = rail, rails, servers

    def number(self, port: Port) -> int:
        return 2 * (port.gpu // self._rails) + (port.side == "right")

    def port(self, number: int) -> Port:
        """Raises ValueError for a port that is no GPU's of this run."""
        server, right = divmod(number, 2)
        if not 0 <= server < self._servers:
            raise UserError(
                f"port {number} of rail {self.rail} is no GPU's; allowed: 0 to"
                f" {2 * self._servers - 1}"
            )
        return Port(server * self._rails + self.rail, "right" if right else "left")

    def all(self) -> frozenset[Port]:
        return frozenset(self.port(number) for number in range(2 * self._servers))


class _Broken(Exception):
    """The session to a switch is over."""


class _Refused(Exception):
    """A switch refused a request; the session goes on."""


class _Session:
    """One NETCONF session: three questions, each answered or an error of ours."""

    def __init__(self, settings: NetconfSwitchSettings, rail: int) -> None:
        """Raises SettingsError for invalid settings, _Broken for other failures."""
        manager, self._errors = _ncclient()
        self.address = settings.addresses[rail]
        self._broken = False
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise SettingsError(
                f"switch.addresses.{rail}", f"got {self.address!r}; allowed: host:port"
            )
        if settings.key_file is not None and not Path(settings.key_file).is_file():
            raise SettingsError(
                "switch.key_file", f"got {settings.key_file!r}; allowed: a file that is there"
            )
        if settings.key_file is None and not os.environ.get(PASSWORD):
            raise SettingsError(
                "switch.key_file", f"got none; allowed: a private key, or a password in {PASSWORD}"
            )
        try:
            self._manager = manager.connect_ssh(
                host=host.strip("[]"),
                port=int(port),
                username=settings.username,
                password=None if settings.key_file else os.environ[PASSWORD],
                key_filename=settings.key_file,
                # Only the host key of the settings is accepted.
                hostkey_b64=_host_key(settings, rail),
                hostkey_verify=True,
                allow_agent=False,
                look_for_keys=False,
                ssh_config=None,
                timeout=settings.reply_timeout_s,
                manager_params={"timeout": settings.reply_timeout_s},
            )
        except Exception as error:
            # ncclient and paramiko raise classes of many kinds, and OSError.
            raise _Broken(_single_line(error)) from None

    def close(self) -> None:
        # A session that broke answers no more; asking would wait for its whole timeout.
        if not self._broken:
            with contextlib.suppress(Exception):
                self._manager.close_session()
        # ncclient closes the connection only where close-session was answered.
        with contextlib.suppress(Exception):
            self._manager._session.close()

    def edit(self, disconnect: Iterable[int], connect: Iterable[tuple[int, int]]) -> None:
        """Carry out a change, whole or not at all; returns when there is light."""
        config = ElementTree.Element(f"{{{_BASE}}}config")
        switch = ElementTree.SubElement(config, f"{{{MODEL}}}optical-switch")
        dropped = (("remove", {"from": first}) for first in disconnect)
        added = (("create", {"from": first, "to": second}) for first, second in connect)
        for operation, ends in (*dropped, *added):
            entry = ElementTree.SubElement(switch, f"{{{MODEL}}}cross-connect")
            entry.set(f"{{{_BASE}}}operation", operation)
            for name, number in ends.items():
                ElementTree.SubElement(entry, f"{{{MODEL}}}{name}").text = str(number)
        if len(switch):
            text = ElementTree.tostring(config, encoding="unicode")
            self._ask(lambda: self._manager.edit_config(target="running", config=text))

    def cross_connects(self) -> list[tuple[int, int]]:
        """The present cross-connects."""
        everything = ("subtree", _subtree())
        reply = self._ask(lambda: self._manager.get_config("running", filter=everything))
        return [
            (_integer(entry, "from"), _integer(entry, "to"))
            for entry in reply.iter(f"{{{MODEL}}}cross-connect")
        ]

    def out_of_service(self) -> dict[int, str]:
        """The ports that cannot carry light, and why."""
        reply = self._ask(lambda: self._manager.get(filter=("subtree", _subtree("ports"))))
        ports = {}
        for entry in reply.iter(f"{{{MODEL}}}port"):
            if (entry.findtext(f"{{{MODEL}}}in-service") or "").strip() == "false":
                reason = entry.findtext(f"{{{MODEL}}}reason") or "the switch gives no reason"
                ports[_integer(entry, "number")] = " ".join(reason.split())
        return ports

    @property
    def notifies(self) -> bool:
        """Whether the switch announces that it sends notifications."""
        return ":notification" in self._manager.server_capabilities

    def subscribe(self) -> None:
        """Ask for notifications; the session then serves nothing else."""
        self._ask(self._manager.create_subscription)

    def notified(self, timeout_s: float) -> bool:
        """Whether the model has notified; _Broken where the session is over."""
        notification = self._manager.take_notification(timeout=timeout_s)
        if notification is not None:
            root = ElementTree.fromstring(notification.notification_xml)
            return any(child.tag.startswith(f"{{{MODEL}}}") for child in root)
        if not self._manager.connected:
            self._broken = True
            raise _Broken("the session of its notifications is over")
        return False

    def _ask(self, question: Any) -> ElementTree.Element:
        try:
            reply = question()
            return ElementTree.fromstring(str(reply))
        except self._errors.RPCError as error:
            raise _Refused(_single_line(error)) from None
        except Exception as error:
            self._broken = True
            raise _Broken(_single_line(error)) from None


class _Rail:
    """The switch of one rail, with its thread."""

    def __init__(
        self, settings: NetconfSwitchSettings, numbering: _Numbering, callbacks: SwitchCallbacks
    ) -> None:
        self._settings = settings
        self._numbering = numbering
        self._callbacks = callbacks
        #: Commands; None: look whether something has changed.
        self._commands: queue.Queue[SwitchAction | None] = queue.Queue()
        #: Whether an unread None is among them.
        self._woken = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"optical switch of rail {numbering.rail}", daemon=True
        )
        self._listener: threading.Thread | None = None
        self._talking = threading.Lock()
        self._state = threading.Lock()
        self._wiring = Wiring()
        #: Circuits that the switch was seen to carry, or said it does; its thread's.
        self._up: set[Circuit] = set()
        self._lost: dict[Port, str] = {}
        self._closing = False
        self._session: _Session | None = None
        try:
            self._session = _Session(settings, numbering.rail)
            circuits = self._lit()
            self._wiring = Wiring(circuits)
            self._up = set(circuits)
        except SettingsError:
            raise
        except (_Broken, _Refused, ValueError) as error:
            self.close()
            raise SettingsError(
                f"switch.addresses.{numbering.rail}",
                f"no use of the switch at {settings.addresses[numbering.rail]} ({error}); allowed:"
                " a switch that answers NETCONF and speaks railx-cross-connect",
            ) from None

    def start(self) -> None:
        self._thread.start()

    def apply(self, action: SwitchAction) -> None:
        with self._state:
            self._wiring.take(action)
        self._commands.put(action)

    def read(self) -> frozenset[Circuit]:
        with self._talking:
            try:
                return frozenset() if self._session is None else self._lit()
            except (_Broken, _Refused, ValueError):
                return frozenset()

    def close(self) -> None:
        self._closing = True
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._listener is not None:
            self._listener.join()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _run(self) -> None:
        self._look()
        while not self._closing:
            try:
                action = self._commands.get(timeout=self._settings.poll_s)
            except queue.Empty:
                action = None
            if action is not None:
                self._carry_out(action)
            elif not self._closing:
                self._look()

    def _look(self) -> None:
        """Read the changes, and subscribe to further ones."""
        # A later wake-up may concern a change after the answer.
        self._woken.clear()
        self._look_for_losses()
        if self._listens():
            # Changes before the subscription were not notified.
            self._look_for_losses()

    def _listens(self) -> bool:
        """Whether there is a new subscription to the switch's notifications."""
        if self._listener is not None and self._listener.is_alive():
            return False
        if self._session is None or not self._session.notifies:
            return False
        session = None
        try:
            session = _Session(self._settings, self._numbering.rail)
            session.subscribe()
        except (_Broken, _Refused, SettingsError):
            # Polling goes on, and tries again.
            if session is not None:
                session.close()
            return False
        name = f"notifications of rail {self._numbering.rail}"
        listen = partial(self._listen, session)
        self._listener = threading.Thread(target=listen, name=name, daemon=True)
        self._listener.start()
        return True

    def _listen(self, session: _Session) -> None:
        try:
            while not self._closing:
                if session.notified(_LISTEN_S):
                    self._wake()
        except _Broken:
            self._wake()
        finally:
            session.close()

    def _wake(self) -> None:
        """Wake the thread to read the changes, once for several reasons."""
        if not self._woken.is_set():
            self._woken.set()
            self._commands.put(None)

    def _carry_out(self, action: SwitchAction) -> None:
        reason = self._dead_port(action)
        if reason is None and self._session is None:
            reason = self._gone_reason()
        if reason is None:
            reason = self._try(action)
        elif action.disconnect:
            # Nothing of a command that failed carries light.
            self._darken(action.disconnect)
        self._up -= set(action.disconnect)
        if reason is None:
            self._up |= set(action.connect)
            self._tell(self._callbacks.done, action.command)
            return
        with self._state:
            self._wiring.drop(action.connect)
        self._tell(self._callbacks.failed, action.command, reason)

    def _try(self, action: SwitchAction) -> str | None:
        """Carry out a command; returns why it failed."""
        numbers = self._pairs(action.connect)
        drop = [first for first, _ in self._pairs(action.disconnect)]
        for attempt in (1, 2):
            try:
                with self._talking:
                    assert self._session is not None
                    if attempt == 2 and set(numbers) <= set(self._session.cross_connects()):
                        # The session broke behind the command, whose light is there.
                        return None
                    self._session.edit(drop, numbers)
                return None
            except _Refused as error:
                self._look_for_losses(frozenset(action.disconnect))
                self._darken((*action.disconnect, *action.connect))
                return self._dead_port(action) or f"the switch refused it: {error}"
            except _Broken as error:
                if attempt == 2 or not self._reconnected():
                    self._gone(str(error))
                    return self._gone_reason()
                self._look_for_losses(frozenset(action.disconnect))
                if self._session is None or self._dead_port(action):
                    self._darken(action.disconnect)
                    return self._dead_port(action) or self._gone_reason()
        return None

    def _darken(self, circuits: Iterable[Circuit]) -> None:
        """Drop these circuits; a switch that fails at that is lost."""
        if self._session is None:
            return
        try:
            with self._talking:
                self._session.edit([first for first, _ in self._pairs(circuits)], ())
        except (_Refused, _Broken) as error:
            self._gone(f"it does not drop circuits: {error}")

    def _look_for_losses(self, dropping: frozenset[Circuit] = frozenset()) -> None:
        """Read failed ports and cross-connects; reconnect to a lost switch.

        ``dropping``: what a command that is not over may have made dark.
        """
        if self._session is None:
            self._come_back()
            return
        try:
            with self._talking:
                out = self._named(self._session.out_of_service())
                joined = set(self._session.cross_connects())
        except _Broken as error:
            if not self._reconnected():
                self._gone(str(error))
        except (_Refused, ValueError) as error:
            self._gone(str(error))
        else:
            self._compare(out)
            up = sorted(self._up - dropping)
            pairs = zip(up, self._pairs(up), strict=True)
            dark = [circuit for circuit, pair in pairs if pair not in joined]
            if dark:
                vanished = f"{self._name} has dropped their light by itself"
                ports = {port: vanished for item in dark for port in item.ports}
                self._compare(out | ports)
                self._compare(out)

    def _compare(self, now: dict[Port, str]) -> None:
        """Report the changes since the last answer."""
        with self._state:
            fresh = {port: why for port, why in now.items() if port not in self._lost}
            back = frozenset(self._lost.keys() - now.keys())
            self._lost = now
            for port in fresh:
                circuit = self._wiring.by_port.get(port)
                if circuit is not None:
                    self._up.discard(circuit)
                    self._wiring.darken(circuit)
        for why in sorted(set(fresh.values())):
            ports = frozenset(port for port in fresh if fresh[port] == why)
            self._tell(self._callbacks.ports_lost, ports, why)
        if back:
            self._tell(self._callbacks.ports_back, back)

    def _gone(self, reason: str) -> None:
        """The switch is lost with all its ports."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._compare(dict.fromkeys(self._numbering.all(), f"{self._name} is gone: {reason}"))

    def _gone_reason(self) -> str:
        with self._state:
            return next(iter(self._lost.values()), f"{self._name} is gone")

    @property
    def _name(self) -> str:
        rail = self._numbering.rail
        return f"the switch of rail {rail} at {self._settings.addresses[rail]}"

    def _reconnected(self) -> bool:
        if self._closing:
            return False
        try:
            session = _Session(self._settings, self._numbering.rail)
        except (_Broken, SettingsError):
            return False
        with self._talking:
            if self._session is not None:
                self._session.close()
            self._session = session
        return True

    def _come_back(self) -> None:
        """A switch that was lost: a new session, and no light on it."""
        if not self._reconnected():
            return
        assert self._session is not None
        try:
            with self._talking:
                self._session.edit([first for first, _ in self._session.cross_connects()], ())
                out = self._named(self._session.out_of_service())
        except (_Refused, _Broken, ValueError) as error:
            self._gone(str(error))
        else:
            self._compare(out)

    def _lit(self) -> frozenset[Circuit]:
        assert self._session is not None
        out = self._named(self._session.out_of_service())
        circuits = []
        for first, second in self._session.cross_connects():
            right, left = self._numbering.port(first), self._numbering.port(second)
            if right.side != "right" or left.side != "left":
                raise ValueError(
                    f"a cross-connect from {port_name(right)} to {port_name(left)}, which is no"
                    " circuit"
                )
            circuits.append(Circuit(right.gpu, left.gpu))
        return frozenset(item for item in circuits if out.keys().isdisjoint(item.ports))

    def _named(self, numbers: dict[int, str]) -> dict[Port, str]:
        """Ports by their numbers, without those of no GPU of this run."""
        ports = len(self._numbering.all())
        return {self._numbering.port(n): why for n, why in numbers.items() if n < ports}

    def _pairs(self, circuits: Iterable[Circuit]) -> list[tuple[int, int]]:
        number = self._numbering.number
        return [(number(item.ports[0]), number(item.ports[1])) for item in circuits]

    def _dead_port(self, action: SwitchAction) -> str | None:
        with self._state:
            for port in ports_in_order(action.connect):
                if port in self._lost:
                    return f"port {port_name(port)} is lost ({self._lost[port]})"
        return None

    def _tell(self, callback: Any, *news: Any) -> None:
        if not self._closing:
            callback(*news)


def _ncclient() -> tuple[Any, Any]:
    try:
        from ncclient import manager
        from ncclient.operations import rpc
        from ncclient.transport import session
    except ImportError:
        raise SettingsError(
            "switch.driver",
            "got 'netconf', but ncclient is not installed; allowed: emulated, or netconf after"
            " `pip install ncclient`",
        ) from None
    # A session sends at its next tick; ncclient's of 0.1 s would be the latency of most
    # switches.
    session.TICK = min(session.TICK, _TICK_S)
    return manager, rpc


def _host_key(settings: NetconfSwitchSettings, rail: int) -> str:
    key = settings.host_keys[rail]
    try:
        base64.b64decode(key, validate=True)
    except binascii.Error:
        raise SettingsError(
            f"switch.host_keys.{rail}", f"got {key[:40]!r}; allowed: a public key in base64"
        ) from None
    return key


def _subtree(*below: str) -> str:
    top = ElementTree.Element(f"{{{MODEL}}}optical-switch")
    for name in below:
        ElementTree.SubElement(top, f"{{{MODEL}}}{name}")
    return ElementTree.tostring(top, encoding="unicode")


def _integer(entry: ElementTree.Element, name: str) -> int:
    text = (entry.findtext(f"{{{MODEL}}}{name}") or "").strip()
    if not (text.isascii() and text.isdecimal()):
        raise _Broken(f"it answers a {name} that is no number: {text[:40]!r}")
    return int(text)


def _single_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
