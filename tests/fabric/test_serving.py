"""What one peer costs the others: long answers, bursts of questions, lists without end.

The server runs without sockets here, so that every turn of its loop can be looked at.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from railx.fabric import Configuration, FabricSettings, launch_controller, protocol
from railx.fabric.core import ControllerCore
from railx.fabric.decisions.state import SwitchAction
from railx.fabric.observer import Observer, status_text
from railx.fabric.protocol import (
    MAXIMUM_BYTES,
    MessageDecoder,
    ProtocolError,
    Request,
    encode,
    read_request,
)
from railx.fabric.serving import server as serving
from railx.fabric.serving.base import Connection
from railx.fabric.serving.metrics import metrics_text
from railx.fabric.serving.server import Server
from tests.fabric.raw import register

SETTINGS = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 0)


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and whether it is read from."""

    def __init__(self) -> None:
        super().__init__({"socket": self})
        self.reads = True
        self._decoder = MessageDecoder()
        self._heard: list[dict[str, Any]] = []

    def getsockname(self) -> str:
        return "a socket file"

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: Any) -> None:
        self._heard += self._decoder.feed(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.reads = False

    def heard(self) -> list[dict[str, Any]]:
        """What came since the last time."""
        heard, self._heard = self._heard, []
        return heard


class Peer:
    """Somebody at the other end of a wire to a server of the same loop."""

    def __init__(self, server: Server, rank: int | None = None) -> None:
        self.wire = Wire()
        self.connection = Connection(server)
        self.connection.connection_made(self.wire)
        if rank is None:
            self.say(encode("OBSERVE", token="t"))
        else:
            said = {"rank": rank, "gpus_per_server": 1, "incarnation": rank + 1}
            self.say(encode("REGISTER", **said, token="t"))

    def say(self, data: bytes) -> None:
        assert self.wire.reads
        into = self.connection.get_buffer(-1)
        into[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def heard(self) -> list[tuple[str, int | None]]:
        return [(message["type"], message.get("request")) for message in self.wire.heard()]


def served(ranks: int, story: Callable[[Server], Awaitable[None]]) -> None:
    async def serve() -> None:
        server = Server(SETTINGS, ranks, "t", lambda _: None)
        try:
            await story(server)
            assert server.failure is None
        finally:
            server.close()

    asyncio.run(serve())


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def ring(core: ControllerCore, ranks: int) -> None:
    """All ranks are there and have light and a lease for the ring of all."""
    configuration = Configuration("ring", tuple(range(ranks)))
    actions = []
    for rank in range(ranks):
        core.register(rank, (1 << 62) + rank)
        actions += core.ask(rank, 1, ("fsdp", 0), configuration, 1, can_hold=True)
    for action in actions:
        if isinstance(action, SwitchAction):
            core.switched(action.command, 2)


def test_the_state_grows_with_the_ranks_and_not_with_their_square() -> None:
    sizes = []

    async def story(server: Server) -> None:
        ring(server.core, server.ranks)
        status = server.status()
        status["last_heard_s"] = dict.fromkeys(map(str, range(server.ranks)), 0.0)
        assert status["left_out"] == {}
        (lease,) = status["leases"]
        (hold,) = status["holds"]
        assert len(lease["circuits"]) == len(hold["holders"]) == server.ranks
        assert lease["holds"] == [hold["hold"]]
        assert f"railx_circuits_leased {server.ranks}\n" in metrics_text(status)
        sizes.append(len(encode("STATUS", request=1, status=status)))

    for ranks in (1024, 2048):
        served(ranks, story)
    # Numbers have more digits, nothing more.
    assert sizes[1] < 2.1 * sizes[0]
    assert sizes[1] < 0.5 * MAXIMUM_BYTES


def test_a_state_that_no_message_holds_is_cut_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAXIMUM_BYTES", 8192)

    async def story(server: Server) -> None:
        ring(server.core, 256)
        waits = Configuration("ring", tuple(range(0, 256, 2)))
        for rank in waits.members[:50]:
            server.core.ask(rank, 2, ("dp", 0), waits, 3)
        observer = Peer(server)
        observer.say(encode("STATUS", request=1))
        observer.say(encode("METRICS", request=2))
        await turns()
        _, answer, metrics = observer.wire.heard()
        status = answer["status"]
        assert (answer["type"], status["ranks"].keys()) == ("STATUS", set(map(str, range(32))))
        every = dict.fromkeys(("circuits", "leases", "ranks"), 256 - 32)
        some = {"holders": 256 - 32, "asked": 50 - 32, "missing": 128 - 50 - 32}
        assert status["left_out"] == every | some
        assert status["statistics"]["left_out"] == {"circuits": 224, "ranks": 224}
        (waiting,) = status["waiting"]
        shown = ",".join(map(str, range(0, 64, 2)))
        assert waiting["configuration"] == f"ring {shown},... (128 ranks)"
        lines = status_text(status).splitlines()
        users = f"{','.join(map(str, range(32)))},... (256 ranks)"
        (row,) = [line for line in lines if line.startswith("  31>32 ")]
        assert row.split(maxsplit=2) == ["31>32", "-", f"ring {users}"]
        (said,) = [line for line in lines if line.startswith("left out")]
        assert "more than a message holds" in said
        assert "224 of leases" in said
        # Counts are those of all.
        assert "railx_circuits_leased 256\n" in metrics["text"]

    served(256, story)


def test_silence_of_each_rank_is_left_out_of_metrics_that_no_message_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(server: Server) -> None:
        for rank in range(3):
            Peer(server, rank)
        observer = Peer(server)
        for most, told in ((3, True), (2, False)):
            monkeypatch.setattr(serving, "_ENTRIES", most)
            observer.say(encode("METRICS", request=1))
            await turns()
            text = observer.wire.heard()[-1]["text"]
            assert ("railx_rank_silence_seconds" in text) == told
            assert "railx_ranks_present 3\n" in text

    served(3, story)


def test_a_burst_of_long_questions_lets_others_come_in_between() -> None:
    """One answer a turn, in order, and no more is read until all are answered."""

    async def story(server: Server) -> None:
        greedy, other = Peer(server), Peer(server)
        await turns()
        assert greedy.heard() == other.heard() == [("OBSERVING", None)]
        questions = [encode(kind, request=n) for n, kind in enumerate(("STATUS", "METRICS") * 2)]
        greedy.say(b"".join(questions) + encode("PING") + encode("PING")[:7])
        assert not greedy.wire.reads
        pong, heard = ("PONG", None), []
        for _ in range(8):
            other.say(encode("PING"))
            await turns(1)
            heard.append(greedy.heard())
            assert other.heard() == [pong]
        answers = [("STATUS", 0), ("METRICS", 1), ("STATUS", 2), ("METRICS", 3), pong]
        assert [answer for turn in heard for answer in turn] == answers
        assert max(map(len, heard)) == 1
        assert greedy.wire.reads
        # The half of a message that came with them is not lost, and one question at a
        # time is never kept waiting.
        greedy.say(encode("PING")[7:] + encode("STATUS", request=9))
        assert greedy.wire.reads
        await turns(1)
        assert greedy.heard() == [pong, ("STATUS", 9)]

    served(2, story)


def test_a_rank_gets_so_many_counters_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(server: Server) -> None:
        rank = Peer(server, 0)
        await turns()
        (registered,) = rank.heard()
        assert registered == ("REGISTERED", None)
        questions = b"".join(encode("STATS", request=number) for number in range(3))
        rank.say(questions)
        assert rank.wire.reads, "three short ones are answered at once"
        await turns(1)
        assert rank.heard() == [("STATS", 0), ("STATS", 1), ("STATS", 2)]
        monkeypatch.setattr(serving, "_TURN_BYTES", 1000)
        rank.say(questions + encode("LEAVE"))
        assert not rank.wire.reads
        # Its own silence is not counted while nobody listens to it.
        rank.connection.missed = 1
        await turns(5)
        assert rank.connection.missed == 0
        assert rank.heard() == [("STATS", 0), ("STATS", 1), ("STATS", 2)]
        assert rank.connection.closing, "it has left"
        assert server.core.gone.get(0) == "has left"

    served(2, story)


def test_who_goes_in_the_middle_of_a_burst_is_answered_nothing_more() -> None:
    async def story(server: Server) -> None:
        gone = Peer(server)
        await turns()
        gone.heard()
        gone.say(encode("STATUS", request=0) * 5 + encode("SHUTDOWN"))
        gone.connection.connection_lost(None)
        await turns(8)
        assert gone.heard() == []
        assert not server.stopped.is_set()

    served(2, story)


def test_a_real_controller_shows_a_ring_of_many() -> None:
    ranks = 48
    with launch_controller(SETTINGS, ranks) as controller:
        assert controller.address is not None
        peers = [register(controller, rank) for rank in range(ranks)]
        asks = {"request": 1, "channel": "g", "sequence": 0, "kind": "ring"}
        for peer in peers:
            peer.sendall(encode("ACQUIRE", **asks, members=list(range(ranks))))
        assert MessageDecoder().feed(peers[0].recv(4096))[0]["type"] == "GRANT"
        with Observer(controller.address) as observer:
            status = observer.status()
        name = "ring " + ",".join(map(str, range(ranks)))
        assert [hold["configuration"] for hold in status["holds"]] == [name]
        assert json.dumps(status).count(name) == 1
        lines = status_text(status).splitlines()
        assert f"  0>1      {'-':<10}  {name}" in lines
        assert f"  39>40    {'-':<10}  {name}" in lines
        assert "  ... and 8 more (--json has them)" in lines
        for peer in peers:
            peer.close()


def prepare(members: list[int], ranks: int) -> Request:
    body = json.dumps({"version": protocol.VERSION, "type": "PREPARE", "kind": "ring"})
    request = read_request(f'{body[:-1]},"members":{members}}}'.encode(), ranks)
    assert request.type == "PREPARE"
    return request


def test_a_group_larger_than_the_job_is_refused_before_anything_is_kept() -> None:
    with pytest.raises(ProtocolError) as told:
        prepare(list(range(60_000)), 2)
    assert told.value.reason == "configuration"
    assert str(told.value) == "a group of 60000 ranks; allowed: at most 2, the ranks of this job"
    assert prepare([1, 0], 2).configuration.members == (0, 1)


@pytest.mark.parametrize(("members", "kept"), [(1024, 40), (1025, 16)])
def test_few_large_groups_are_remembered(members: int, kept: int) -> None:
    """So that no rank fills the memory with groups that it makes up."""
    groups = [
        weakref.ref(prepare(list(range(begin, begin + members)), 4096).configuration)
        for begin in range(1000, 1040)
    ]
    assert sum(group() is not None for group in groups) == kept
