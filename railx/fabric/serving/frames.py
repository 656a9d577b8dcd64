"""The core's answers as frames of the protocol."""

from __future__ import annotations

from functools import lru_cache
from json.encoder import encode_basestring_ascii

from railx.fabric.actions import GrantAction, RefuseAction
from railx.fabric.circuits import Configuration
from railx.fabric.protocol import VERSION, encode, frame

__all__ = ["MAXIMUM_LINE", "grant_frame", "recall_frame", "refuse_frame"]

#: Characters of a line in the log and in messages to ranks.
MAXIMUM_LINE = 1000


def grant_frame(action: GrantAction) -> bytes:
    """GRANT, formatted directly: a controller sends no other message as often."""
    request = "null" if action.request is None else action.request
    hold = "null" if action.hold is None else action.hold
    return frame(
        (
            f'{{"version":{VERSION},"type":"GRANT","request":{request},'
            f'"channel":{encode_basestring_ascii(action.key[0])},"sequence":{action.key[1]},'
            f'{_needs(action.configuration)},"generation":{action.generation},'
            f'"wait_ns":{action.wait_ns},"stall_ns":{action.stall_ns},'
            f'"reconfigured":{action.reconfigured},'
            f'"mispredicted":{"true" if action.mispredicted else "false"},"hold":{hold}}}'
        ).encode()
    )


@lru_cache(maxsize=256)
def recall_frame(configuration: Configuration, hold: int, reason: str | None) -> bytes:
    """RECALL: the same for all holders of the lease."""
    reason_json = "null" if reason is None else encode_basestring_ascii(reason[:MAXIMUM_LINE])
    return frame(
        (
            f'{{"version":{VERSION},"type":"RECALL",{_needs(configuration)},'
            f'"hold":{hold},"reason":{reason_json}}}'
        ).encode()
    )


def refuse_frame(action: RefuseAction) -> bytes:
    """ERROR."""
    message = action.message[:MAXIMUM_LINE]
    return encode("ERROR", request=action.request, reason=action.reason, message=message)


@lru_cache(maxsize=1024)
def _needs(configuration: Configuration) -> str:
    """Kind and members within a message: the same for all members."""
    members = ",".join(map(str, configuration.members))
    return f'"kind":"{configuration.kind}","members":[{members}]'
