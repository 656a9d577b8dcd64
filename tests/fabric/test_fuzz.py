"""Messages survive any cut of the stream; anything else is refused. No bytes from any
peer end the controller, or reach another rank.
"""

from __future__ import annotations

import itertools
import json
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railx.fabric import Configuration, Controller, FabricClient, FabricSettings, launch_controller
from railx.fabric.protocol import MAXIMUM_BYTES, VERSION, MessageDecoder, ProtocolError, encode
from tests.fabric.raw import framed, knock

VALUES = st.one_of(
    st.integers(), st.text(), st.booleans(), st.none(), st.lists(st.integers(), max_size=4)
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["request", "channel", "kind", "members"]), VALUES), max_size=5
)


@given(fields=MESSAGES, cuts=st.lists(st.integers(0, 400), max_size=10))
def test_messages_come_out_whole_wherever_the_stream_is_cut(
    fields: list[dict[str, object]], cuts: list[int]
) -> None:
    stream = b"".join(encode("ACQUIRE", **message) for message in fields)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder = MessageDecoder()
    received = [
        message
        for begin, end in itertools.pairwise(edges)
        for message in decoder.feed(stream[begin:end])
    ]
    assert received == [{"version": VERSION, "type": "ACQUIRE", **message} for message in fields]


def test_bytes_behind_a_message_are_kept() -> None:
    first, second = encode("STATS", request=1), encode("LEAVE")
    decoder = MessageDecoder()
    assert [message["type"] for message in decoder.feed(first + second[:3])] == ["STATS"]
    assert [message["type"] for message in decoder.feed(second[3:])] == ["LEAVE"]


def test_a_message_too_large_is_neither_sent_nor_received() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        encode("ERROR", message="x" * MAXIMUM_BYTES)
    with pytest.raises(ProtocolError, match="at most"):
        MessageDecoder().feed(struct.pack(">I", MAXIMUM_BYTES + 1))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff\xff", "not JSON"),
        (b"[]", "without a type"),
        (b'{"version": 1}', "without a type"),
        (
            json.dumps({"type": "STATS", "version": 0}).encode(),
            f"protocol version 0; allowed: {VERSION}",
        ),
    ],
)
def test_other_bytes_are_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        MessageDecoder().feed(struct.pack(">I", len(body)) + body)


PAIR = Configuration("ring", (0, 1))
SETTINGS = FabricSettings(1, "127.0.0.1", 0, 60, "on_demand", 0)

#: A message of each type that a rank or a stranger may send, in order.
GOOD: tuple[dict[str, Any], ...] = (
    {"type": "REGISTER", "rank": 3, "gpus_per_server": 1, "token": "?", "incarnation": 5},
    {"type": "OBSERVE", "token": "?"},
    {"type": "ACQUIRE", "request": 1, "channel": "c", "sequence": 0, "kind": "ring"}
    | {"members": [2, 3]},
    {"type": "LISTEN", "request": 2, "channels": {"c": [3, 0]}},
    {"type": "RELEASE", "channel": "c", "sequence": 0},
    {"type": "RECALLED", "kind": "pair", "members": [2, 3], "hold": 0, "begun": {"c": 1}}
    | {"open": [["c", 1]], "operations": 1},
    {"type": "PRESENT", "configurations": [["pair", [2, 3]]], "begun": [["c", 1, 0, -1]]}
    | {"open": [["c", 1]], "operations": 0},
    {"type": "PREPARE", "kind": "pair", "members": [2, 3]},
    {"type": "ABANDON", "channel": "c", "sequence": 0},
    {"type": "STATS", "request": 3},
    {"type": "STATUS", "request": 3},
    {"type": "METRICS", "request": 3},
    {"type": "FAIL_PORTS", "request": 3, "ports": [[2, "left"]], "reason": "r"},
    {"type": "RESTORE_PORTS", "request": 3, "ports": [[2, "left"]]},
    {"type": "FAIL_COMMANDS", "request": 3, "count": 1, "reason": "r"},
    {"type": "PING"},
    {"type": "PONG"},
    {"type": "LEAVE"},
)
#: JSON that is no field of any message, or not of most.
BAD = (
    *("true", "false", "null", "0.9", "-0.0", "1e999", "-1e999", "Infinity", "NaN", "-1", "0"),
    *('"0"', '""', '"a"', r'"\ud800"', r'"\n"', '"' + "x" * 300 + '"', str(1 << 63), "9" * 400),
    *("9" * 5000, "[]", "{}", "[0]", "[true,2]", "[2,3,4,5]", "[[]]", "[-1,2]", '["2",3]'),
    *("[2,2]", '{"c":[]}', '{"c":[0,true]}', '{"":[0,1]}', '[["c"]]', '[["c",0.5]]'),
    "[" * 500 + "]" * 500,
    "[" * 100_000,
    "[" + ",".join(["0"] * 20_000) + "]",
)


def text(message: dict[str, Any], replaced: dict[str, str]) -> bytes:
    """A message as JSON, with some fields as the given text instead."""
    fields = {name: json.dumps(value) for name, value in message.items()} | replaced
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good message with some of its fields exchanged or left out."""
    message = {"version": VERSION, **draw(st.sampled_from(GOOD))}
    names = draw(st.lists(st.sampled_from(sorted(message)), unique=True, max_size=2))
    gone = draw(st.booleans())
    left = {name: value for name, value in message.items() if not (gone and name in names)}
    bad = {name: draw(st.sampled_from(BAD)) for name in names if not gone}
    return framed(text(left, bad))


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Controller, FabricClient, FabricClient]]:
    with launch_controller(SETTINGS, 4) as controller:
        assert controller.address is not None
        with (
            FabricClient(controller.address, 0, gpus_per_server=1) as zero,
            FabricClient(controller.address, 1, gpus_per_server=1) as one,
        ):
            yield controller, zero, one
        assert controller.process is not None
        assert controller.process.poll() is None


def works(zero: FabricClient, one: FabricClient, number: int) -> None:
    """Two ranks that nobody disturbed still have circuits between them."""
    other = threading.Thread(target=one.acquire, args=("works", number, PAIR))
    other.start()
    zero.acquire("works", number, PAIR)
    other.join()
    for client in (zero, one):
        client.release("works", number)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * 4000, "too_deep"),
        (b"[" * (1 << 20), "too_large"),
        (b"\xff", "not_json"),
        (b"[]", "no_type"),
        (text({"type": "REGISTER", "version": VERSION}, {"rank": "1e999"}), "not_whole"),
        (text({"type": "REGISTER", "version": VERSION}, {"rank": "Infinity"}), "not_whole"),
        (text({"type": "REGISTER", "version": VERSION}, {"rank": "NaN"}), "not_whole"),
        (text({"type": "REGISTER", "version": VERSION}, {"rank": '"0"'}), "wrong_field"),
        (text({"type": "REGISTER", "version": VERSION}, {"rank": "0.9"}), "not_whole"),
        (text({"type": "REGISTER", "version": VERSION}, {"rank": "true"}), "wrong_field"),
        (text({"type": "REGISTER", "version": VERSION}, {}), "missing_field"),
        (text({"type": "REGISTER", "version": 1}, {}), "version"),
        (text({"type": "JOIN", "version": VERSION}, {}), "unknown_type"),
        (text({"type": "SHUTDOWN", "version": VERSION}, {}), "not_registered"),
        (text({"type": "STATS", "version": VERSION}, {"request": "1"}), "not_registered"),
        (text({"version": VERSION, **GOOD[0]}, {}), "token"),
        (text({"version": VERSION, **GOOD[0]}, {"token": "null"}), "token"),
        (text({"version": VERSION, **GOOD[0]}, {"token": r'"\ud800"'}), "token"),
        (text({"version": VERSION, **GOOD[1]}, {}), "token"),
    ],
)
def test_a_stranger_is_told_why_counted_and_not_heard_again(
    running: tuple[Controller, FabricClient, FabricClient], body: bytes, reason: str
) -> None:
    controller, zero, _ = running
    before = zero.statistics()["refusals"].get(reason, 0)
    (answer,) = knock(controller, framed(body) + framed(body))
    assert (answer["type"], answer["reason"]) == ("ERROR", reason)
    assert "\n" not in answer["message"]
    assert zero.statistics()["refusals"][reason] == before + 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"channel": '""'}, "wrong_field"),
        ({"channel": r'"a\nb"'}, "wrong_field"),
        ({"sequence": "-1"}, "wrong_field"),
        ({"sequence": str(1 << 63)}, "wrong_field"),
        ({"sequence": "9" * 5000}, "not_json"),
        ({"sequence": "0.0"}, "not_whole"),
        ({"members": "[true,2]"}, "wrong_field"),
        ({"members": "[2,2]"}, "configuration"),
        ({"members": "[2]"}, "configuration"),
        ({"members": "[0,1,2,3,4]"}, "configuration"),
        ({"members": "[" * 500 + "]" * 500}, "wrong_field"),
        ({"members": "[" * 500_000}, "too_deep"),
        ({"kind": '"star"'}, "configuration"),
        ({"kind": "[]"}, "wrong_field"),
        ({"type": '"REGISTER"'}, "missing_field"),
        ({"type": '"STATUS"'}, "not_observing"),
    ],
)
def test_a_rank_that_says_nonsense_is_told_why(
    running: tuple[Controller, FabricClient, FabricClient], fields: dict[str, str], reason: str
) -> None:
    controller, _, _ = running
    told = knock(controller, framed(text({"version": VERSION, **GOOD[2]}, fields)), rank=2)
    assert [(answer["type"], answer["reason"]) for answer in told] == [("ERROR", reason)]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    data=st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(framed)),
    known=st.booleans(),
)
def test_raw_bytes(
    running: tuple[Controller, FabricClient, FabricClient], data: bytes, known: bool
) -> None:
    knock(running[0], data, rank=2 if known else None)


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(messages=st.lists(mutated(), min_size=1, max_size=6), known=st.booleans())
def test_mutated_messages(
    running: tuple[Controller, FabricClient, FabricClient], messages: list[bytes], known: bool
) -> None:
    knock(running[0], b"".join(messages), rank=2 if known else None)


def test_those_that_behave_work_on(
    running: tuple[Controller, FabricClient, FabricClient],
) -> None:
    """After all of the above; a rank that was cut off has left nothing behind."""
    controller, zero, one = running
    for number in range(3):
        works(zero, one, number)
    assert controller.address is not None
    with FabricClient(controller.address, 2, gpus_per_server=1) as two:
        statistics = two.statistics()
    assert statistics["queued"] == 0
    assert statistics["grants"] >= 2
    assert sum(statistics["refusals"].values()) > 0
