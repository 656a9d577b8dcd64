"""A rank's side of the protocol, word for word; the test plays the controller."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from railx.fabric.circuits import Configuration
from railx.fabric.client import FabricClient, FabricError
from railx.fabric.protocol import VERSION, MessageDecoder, encode

PAIR = Configuration("pair", (0, 1))
RING = Configuration("ring", (0, 2))
NEEDS = {"kind": "pair", "members": [0, 1]}


class Played:
    """A controller that says what a test has it say."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(60)
        host, port = self._listening.getsockname()
        self.address = f"{host}:{port}"
        self._peer: socket.socket | None = None
        self._decoder = MessageDecoder()
        self._heard: list[dict[str, Any]] = []

    def say(self, kind: str, /, **fields: Any) -> None:
        assert self._peer is not None
        self._peer.sendall(encode(kind, **fields))

    def say_bytes(self, data: bytes) -> None:
        assert self._peer is not None
        self._peer.sendall(data)

    def hear(self, kind: str) -> dict[str, Any]:
        """The next message without its version; {} where the peer has closed."""
        assert self._peer is not None
        while not self._heard:
            data = self._peer.recv(65536)
            assert data, f"the client closed, but {kind} was due"
            self._heard += self._decoder.feed(data)
        message = self._heard.pop(0)
        assert (message.pop("version"), message.pop("type")) == (VERSION, kind), message
        return message

    def ends(self) -> None:
        """The client closes, and says nothing more."""
        assert self._peer is not None
        assert not self._heard
        assert self._peer.recv(1) == b""

    def hang_up(self) -> None:
        assert self._peer is not None
        self._peer.close()
        self._peer, self._decoder = None, MessageDecoder()

    def welcome(self, **fields: Any) -> dict[str, Any]:
        """Take the next connection and its REGISTER."""
        self._peer, _ = self._listening.accept()
        self._peer.settimeout(60)
        told = self.hear("REGISTER")
        answer = {"ranks": 4, "reconfiguration_latency_ms": 1.0, "timeout_s": 60.0}
        answer |= {"heartbeat_timeout_s": 60.0, "reconnect_s": 0.0, "incarnation": 77}
        self.say("REGISTERED", **(answer | {"recovering": False} | fields))
        return told

    def grant(self, request: int | None, channel: str, sequence: int, **fields: Any) -> None:
        account = {"generation": 5, "wait_ns": 10, "stall_ns": 20, "reconfigured": 1}
        answer = {"request": request, "channel": channel, "sequence": sequence}
        more = account | {"mispredicted": False, "hold": None} | NEEDS
        self.say("GRANT", **(answer | more | fields))

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._listening.close()


@pytest.fixture
def played() -> Iterator[Played]:
    controller = Played()
    yield controller
    controller.close()


def later(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do it on a thread; what is returned waits for its result, or its FabricError."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except FabricError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert found, "the client never answered"
        return found[0]

    return result


def registered(played: Played, **options: Any) -> FabricClient:
    """Rank 0, registered."""
    welcome = options.pop("welcome", {})
    options = {"gpus_per_server": 1, "token": "secret", "timeout_s": 60, **options}
    client = later(lambda: FabricClient(played.address, 0, **options))
    told = played.welcome(**welcome)
    assert told.pop("incarnation") >= 0
    assert told == {"rank": 0, "gpus_per_server": 1, "token": "secret", "controller": None}
    found = client()
    assert isinstance(found, FabricClient), found
    return found


def test_a_client_registers_and_leaves_in_order(played: Played) -> None:
    client = registered(played, welcome={"timeout_s": 7.0})
    assert (client.ranks, client.timeout_s) == (4, 7.0)
    client.close()
    client.close()
    assert played.hear("LEAVE") == {}
    played.ends()
    with pytest.raises(FabricError, match="is closed"):
        client.prepare(PAIR)


def test_who_is_refused_is_no_client(played: Played) -> None:
    client = later(lambda: FabricClient(played.address, 0, gpus_per_server=1, token="other"))
    played._peer, _ = played._listening.accept()
    played.hear("REGISTER")
    played.say("ERROR", request=None, reason="token", message="rank 0 with another token")
    assert str(client()) == "rank 0 with another token"
    played.ends()


def test_an_operation_is_asked_for_granted_and_released(played: Played) -> None:
    with registered(played) as client:
        grant = later(lambda: client.acquire("c", 3, PAIR))
        asked = played.hear("ACQUIRE")
        assert asked == {"request": 0, "channel": "c", "sequence": 3, **NEEDS}
        played.grant(0, "c", 3)
        found = grant()
        assert (found.generation, found.wait_ns, found.stall_ns) == (5, 10, 20)
        assert (found.reconfigured, found.mispredicted) == (1, False)
        # Nothing stays, so the next operation asks too.
        assert not client.begin("c", 4, PAIR)
        client.release("c", 3)
        assert played.hear("RELEASE") == {"channel": "c", "sequence": 3}


def test_a_held_lease_costs_no_message_until_it_is_recalled(played: Played) -> None:
    back: list[tuple[str, int]] = []
    with registered(played, given_back=back.extend) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR))
        played.hear("ACQUIRE")
        played.grant(0, "c", 0, hold=9)
        grant()
        client.release("c", 0)
        assert client.begin("c", 1, PAIR)
        client.release("c", 1)
        assert client.begin("c", 2, PAIR)
        played.say("RECALL", **NEEDS, hold=9, reason=None)
        report = played.hear("RECALLED")
        assert report == {
            **NEEDS,
            "hold": 9,
            "begun": {"c": 2},
            "open": [["c", 2]],
            "operations": 2,
        }
        # What was under way is told, and the next one asks.
        client.release("c", 2)
        assert played.hear("RELEASE") == {"channel": "c", "sequence": 2}
        assert back == [("c", 2)]
        assert not client.begin("c", 3, PAIR)
        # A recall of a lease that is not there any more is not answered.
        played.say("RECALL", **NEEDS, hold=9, reason=None)
        played.say("PING")
        assert played.hear("PONG") == {}


def test_a_hint_gives_back_what_is_in_its_way(played: Played) -> None:
    with registered(played) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR))
        played.hear("ACQUIRE")
        played.grant(0, "c", 0, hold=9)
        grant()
        client.release("c", 0, prepare=PAIR)
        client.prepare(PAIR)
        client.prepare(RING)
        assert played.hear("RECALLED")["hold"] == 9
        assert played.hear("PREPARE") == {"kind": "ring", "members": [0, 2]}


def test_a_refusal_is_what_the_caller_hears(played: Played) -> None:
    with registered(played) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR))
        played.hear("ACQUIRE")
        played.say("ERROR", request=0, reason="lost", message="rank 1 has left")
        assert str(grant()) == "rank 1 has left"


def test_who_gives_up_says_so_and_hears_why(played: Played) -> None:
    with registered(played) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR, timeout_s=0))
        played.hear("ACQUIRE")
        assert played.hear("ABANDON") == {"channel": "c", "sequence": 0}
        played.say("ERROR", request=0, reason="abandoned", message="rank 1 has not asked for it")
        assert str(grant()) == "rank 1 has not asked for it"


def test_a_grant_that_crosses_giving_up_starts_nothing(played: Played) -> None:
    with registered(played) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR, timeout_s=0))
        played.hear("ACQUIRE")
        played.hear("ABANDON")
        played.grant(0, "c", 0)
        assert "no answer from the controller" in str(grant())
        assert played.hear("RELEASE") == {"channel": "c", "sequence": 0}


def test_an_operation_that_is_abandoned_after_its_grant_is_released(played: Played) -> None:
    with registered(played) as client:
        asked = client.ask("c", 0, PAIR)
        played.hear("ACQUIRE")
        played.grant(0, "c", 0)
        assert asked.question.answered.wait(60)
        assert asked.answered
        client.abandon(asked)
        assert played.hear("RELEASE") == {"channel": "c", "sequence": 0}


def test_listening_is_answered_refused_or_given_up(played: Played) -> None:
    with registered(played) as client:
        sender = later(lambda: client.listen({"c": (1, 4)}))
        assert played.hear("LISTEN") == {"request": 0, "channels": {"c": [1, 4]}}
        played.say("FOUND", request=0, source=None, channel=None, sequence=None)
        assert played.hear("LISTEN") == {"request": 1, "channels": {"c": [1, 4]}}
        played.say("FOUND", request=1, source=1, channel="c", sequence=4)
        assert sender() == ("c", 4)
        sender = later(lambda: client.listen({"c": (1, 5)}))
        played.hear("LISTEN")
        played.say("ERROR", request=2, reason="port", message="the port is lost")
        assert str(sender()) == "the port is lost"
        sender = later(lambda: client.listen({"c": (1, 6)}, timeout_s=0))
        played.hear("LISTEN")
        played.say("FOUND", request=3, source=None, channel=None, sequence=None)
        assert str(sender()) == "no rank has sent within 0 s"


def test_light_that_comes_after_the_lease_is_accounted(played: Played) -> None:
    late: list[tuple[str, int, int]] = []
    options = {"granted_late": lambda *told: late.append((*told[:2], told[2].stall_ns))}
    with registered(played, **options) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR))
        played.hear("ACQUIRE")
        played.grant(0, "c", 0, hold=9)
        grant()
        assert client.begin("c", 1, PAIR)
        played.say("RECALL", **NEEDS, hold=9, reason=None)
        played.hear("RECALLED")
        played.grant(None, "c", 1, stall_ns=8)
        played.say("PING")
        played.hear("PONG")
        assert late == [("c", 1, 8)]


def test_what_befell_an_operation_under_way_is_known(played: Played) -> None:
    with registered(played) as client:
        reason = later(lambda: client.reason_of_failure((0, 1), 0))
        played.hear("STATS")
        played.say("STATS", request=0, statistics={})
        assert reason() is None
        played.say("ERROR", request=None, reason="port", message="a port is lost")
        played.say("RECALL", **NEEDS, hold=1, reason="rank 1 has left")
        # It may be a lease whose grant is on its way: nothing began under it.
        assert played.hear("RECALLED")["begun"] == {}
        played.say("PING")
        played.hear("PONG")
        assert client.reason_of_failure((0, 1)) == "rank 1 has left during pair 0,1"
        assert client.reason_of_failure((0, 3)) == "a port is lost"


def test_a_controller_that_hears_of_a_loss_late_is_waited_for(played: Played) -> None:
    with registered(played) as client:
        reason = later(lambda: client.reason_of_failure((0, 1), 0))
        played.hear("STATS")
        played.say("RECALL", **NEEDS, hold=1, reason="rank 1 lost its connection")
        played.say("STATS", request=0, statistics={})
        assert reason() == "rank 1 lost its connection during pair 0,1"


def test_a_port_that_nobody_listens_at_answers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        joined = socket.socket()
        joined.settimeout(timeout)
        joined.bind(("127.0.0.1", 0))
        joined.connect(joined.getsockname())
        return joined

    monkeypatch.setattr(socket, "create_connection", to_itself)
    with pytest.raises(FabricError, match=r"no controller answers at .* \(Connection refused\)"):
        FabricClient("127.0.0.1:9", 0, gpus_per_server=1)


@pytest.mark.parametrize("garbage", [b"", b"\x00\x00\x00\x02{]", b"\xff\xff\xff\xff"])
def test_nobody_waits_for_a_controller_that_is_gone(played: Played, garbage: bytes) -> None:
    with registered(played) as client:
        grants = [later(lambda name=name: client.acquire(name, 0, PAIR)) for name in "ab"]
        for _ in grants:
            played.hear("ACQUIRE")
        played.say_bytes(garbage)
        played.hang_up()
        for grant in grants:
            assert "the controller" in str(grant())
        with pytest.raises(FabricError, match="controller at"):
            client.acquire("c", 0, PAIR)


def test_a_controller_that_is_back_hears_what_was_begun_and_asked(played: Played) -> None:
    with registered(played, reconnect_s=60) as client:
        grant = later(lambda: client.acquire("held", 0, PAIR))
        played.hear("ACQUIRE")
        played.grant(0, "held", 0, hold=9)
        grant()
        waits = later(lambda: client.acquire("c", 0, RING))
        asked = played.hear("ACQUIRE")
        gives_up = later(lambda: client.acquire("d", 0, RING, timeout_s=0))
        played.hear("ACQUIRE")
        played.hear("ABANDON")
        played.hang_up()
        told = played.welcome(recovering=True, incarnation=78)
        assert told["controller"] == 77
        assert played.hear("PRESENT") == {
            "configurations": [["pair", [0, 1]]],
            "begun": [["held", 0, 0, -1]],
            "open": [["held", 0]],
            "operations": 0,
        }
        # The same number, so that the same caller has the answer.
        assert played.hear("ACQUIRE") == asked
        assert played.hear("ABANDON") == {"channel": "d", "sequence": 0}
        assert played.hear("ACQUIRE")["request"] == 2
        played.say("ERROR", request=2, reason="abandoned", message="rank 0 gave up")
        assert str(gives_up()) == "rank 0 gave up"
        played.grant(asked["request"], "c", 0, kind="ring", members=[0, 2])
        assert waits().generation == 5
        # What it held is gone with the one that lent it.
        assert not client.begin("held", 1, PAIR)


def test_a_controller_that_did_not_wait_is_none(played: Played) -> None:
    with registered(played, reconnect_s=60) as client:
        grant = later(lambda: client.acquire("c", 0, PAIR))
        played.hear("ACQUIRE")
        played.hang_up()
        played.welcome(incarnation=78)
        assert "did not wait for rank 0" in str(grant())
