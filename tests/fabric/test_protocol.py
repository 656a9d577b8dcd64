"""Messages survive any cut of the stream; anything else is refused."""

from __future__ import annotations

import itertools
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.protocol import MAXIMUM_BYTES, VERSION, MessageDecoder, ProtocolError, encode

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
