"""A switch for tests: a NETCONF server over SSH, on PyPI's ``netconf``.

It speaks resources/yang/railx-cross-connect.yang, checks what that demands, and can be
told to fail. It listens on every address of this machine (the package can do no other),
behind a password that each test draws.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko
from lxml import etree
from netconf import error, nsmap_add, server, util

MODEL = "https://railx-lab.example/yang/railx-cross-connect"
_OPERATION = "{urn:ietf:params:xml:ns:netconf:base:1.0}operation"
NOTIFICATION = "urn:ietf:params:xml:ns:netconf:notification:1.0"
nsmap_add("rxc", MODEL)
# They log what a test does on purpose, and that a server is deleted.
for _name in ("netconf", "sshutil", "paramiko"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Crossbar:
    """The light of one switch, and the methods that the server calls."""

    def __init__(self, notifies: bool) -> None:
        self.lock = threading.Lock()
        #: Whether it announces notifications, and to whom it sends them.
        self.notifies = notifies
        self.subscribed: list[Any] = []
        #: Questions for the state of ports, and subscriptions so far.
        self.gets = self.subscriptions = 0
        #: Refuse subscriptions.
        self.refuse_subscriptions = False
        #: Ports that fail unheard while a subscription is made.
        self.lost_meanwhile: dict[int, str] = {}
        #: An answer on ports waits for this once it is made up.
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.joined: dict[int, int] = {}
        self.out: dict[int, str] = {}
        self.edits = 0
        #: Refuse the next edits with this reason; hang up before or behind the next.
        self.refuse: list[str] = []
        self.hang_up_before = self.hang_up_behind = 0

    def lose(self, *numbers: int, reason: str) -> None:
        with self.lock:
            self.out |= dict.fromkeys(numbers, reason)
            ends = set(numbers)
            self.joined = {a: b for a, b in self.joined.items() if ends.isdisjoint((a, b))}
        for number in numbers:
            self.notify("port-state", number=number, **{"in-service": "false", "reason": reason})

    def back(self, number: int) -> None:
        with self.lock:
            del self.out[number]
        self.notify("port-state", number=number, **{"in-service": "true"})

    def take(self, first: int) -> None:
        """Drop the light that begins at a port, as somebody else would."""
        with self.lock:
            del self.joined[first]
        self.notify("light-lost", **{"from": first})

    def notify(self, event: str, model: str = MODEL, **leaves: object) -> None:
        """Send an event to whoever has subscribed."""
        root = etree.Element(f"{{{NOTIFICATION}}}notification", nsmap={None: NOTIFICATION})
        etree.SubElement(root, f"{{{NOTIFICATION}}}eventTime").text = "2026-01-01T00:00:00Z"
        own = etree.SubElement(root, f"{{{model}}}{event}", nsmap={None: model})
        for name, value in leaves.items():
            etree.SubElement(own, f"{{{model}}}{name}").text = str(value)
        with self.lock:
            subscribed = list(self.subscribed)
        for session in subscribed:
            session.send_message(etree.tostring(root, encoding="unicode"))

    def hang_up_on_subscribers(self) -> None:
        with self.lock:
            subscribed, self.subscribed = self.subscribed, []
        for session in subscribed:
            session.close()

    def rpc_create_subscription(self, session: Any, rpc: Any, *parameters: Any) -> Any:
        if self.refuse_subscriptions:
            raise error.OperationFailedProtoError(rpc, message="too many subscribers")
        with self.lock:
            self.out |= self.lost_meanwhile
            self.subscribed.append(session)
            self.subscriptions += 1
        return etree.Element("ok")

    def _serves(self, session: Any, rpc: Any) -> None:
        """Without interleaving a session with a subscription serves nothing else."""
        if session in self.subscribed:
            raise error.OperationNotSupportedProtoError(rpc)

    def nc_append_capabilities(self, capabilities: Any) -> None:
        util.subelm(capabilities, "capability").text = MODEL
        names = ["writable-running", *(["notification"] if self.notifies else [])]
        for name in names:
            urn = f"urn:ietf:params:netconf:capability:{name}:1.0"
            util.subelm(capabilities, "capability").text = urn

    def rpc_get_config(self, session: Any, rpc: Any, source: Any, filter_: Any) -> Any:
        self._serves(session, rpc)
        data = util.elm("nc:data")
        switch = util.subelm(data, "rxc:optical-switch")
        with self.lock:
            for first, second in sorted(self.joined.items()):
                entry = util.subelm(switch, "rxc:cross-connect")
                util.subelm(entry, "rxc:from").text = str(first)
                util.subelm(entry, "rxc:to").text = str(second)
        return data

    def rpc_get(self, session: Any, rpc: Any, filter_: Any) -> Any:
        self._serves(session, rpc)
        data = util.elm("nc:data")
        self.gets += 1
        ports = util.subelm(util.subelm(data, "rxc:optical-switch"), "rxc:ports")
        with self.lock:
            for number in range(16):
                entry = util.subelm(ports, "rxc:port")
                util.subelm(entry, "rxc:number").text = str(number)
                util.subelm(entry, "rxc:in-service").text = str(number not in self.out).lower()
                if number in self.out:
                    util.subelm(entry, "rxc:reason").text = self.out[number]
        self.may_answer.wait(60)
        return data

    def rpc_edit_config(self, session: Any, rpc: Any, *parameters: Any) -> Any:
        self._serves(session, rpc)
        with self.lock:
            if self.hang_up_before:
                self.hang_up_before -= 1
                raise _hung_up(session)
            if self.refuse:
                raise error.OperationFailedProtoError(rpc, message=self.refuse.pop())
            self.joined = self._edited(rpc, self.joined)
            self.edits += 1
            if self.hang_up_behind:
                self.hang_up_behind -= 1
                raise _hung_up(session)
        return etree.Element("ok")

    def _edited(self, rpc: Any, joined: dict[int, int]) -> dict[int, int]:
        """What an edit makes of the light: all of it, or an error."""
        edited = dict(joined)
        for entry in rpc.iter(f"{{{MODEL}}}cross-connect"):
            first = int(entry.findtext(f"{{{MODEL}}}from"))
            if entry.get(_OPERATION) == "remove":
                edited.pop(first, None)
                continue
            second = int(entry.findtext(f"{{{MODEL}}}to"))
            ends = {*edited, *edited.values()}
            if first in ends or second in ends or first == second:
                raise error.DataExistsAppError(rpc, message="a port has one peer at most")
            if first in self.out or second in self.out:
                raise error.OperationFailedProtoError(rpc, message="a port is out of service")
            edited[first] = second
        return edited


def _hung_up(session: Any) -> EOFError:
    session.close()
    return EOFError("hung up")


class Device:
    """A running server: its address, what it wants to hear, and its light."""

    def __init__(self, key: Path, password: str, port: int = 0, *, notifies: bool = False) -> None:
        self.crossbar = Crossbar(notifies)
        self.password = password
        self._key = key
        self.host_key = paramiko.RSAKey.from_private_key_file(str(key)).get_base64()
        self._server: Any = None
        self.port = port
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        control = server.SSHUserPassController(username="railx", password=self.password)
        self._server = server.NetconfSSHServer(
            control, self.crossbar, port=self.port, host_key=str(self._key)
        )
        self.port = self._server.port

    def stop(self, *, wait: bool = True) -> None:
        """Cut every session and listen no more; the light stays.

        ``wait``: until the port is free again, a second or so.
        """
        if self._server is not None:
            with self._server.lock:
                sockets = list(self._server.sockets)
            for item in sockets:
                if item.ssh is not None:
                    item.ssh.close()
            self._server.close()
            if wait:
                self._server.join()
            self._server = None


def another_host_key() -> str:
    """A public key of the same kind that is no device's."""
    return paramiko.RSAKey.generate(2048).get_base64()


@contextmanager
def device(folder: Path, *, notifies: bool = False) -> Iterator[Device]:
    key = folder / "host_key"
    if not key.exists():
        paramiko.RSAKey.generate(2048).write_private_key_file(str(key))
    running = Device(key, secrets.token_urlsafe(12), notifies=notifies)
    try:
        yield running
    finally:
        running.stop(wait=False)
