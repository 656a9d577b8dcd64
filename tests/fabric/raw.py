"""Peers that speak to a controller by hand, in order or not."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from typing import Any

import pytest

from railx.fabric import Controller
from railx.fabric.protocol import MessageDecoder, connect, encode

__all__ = ["answers", "framed", "knock", "register", "stranger"]


def framed(body: bytes) -> bytes:
    """A body of any size behind its length."""
    return struct.pack(">I", len(body)) + body


def stranger(controller: Controller) -> socket.socket:
    """A connection that has said nothing yet."""
    assert controller.address is not None
    peer = connect(controller.address, 10)
    peer.settimeout(60)
    return peer


def register(controller: Controller, rank: int, **fields: Any) -> socket.socket:
    """A connection of a rank, REGISTERED read."""
    peer = stranger(controller)
    said = {
        "rank": rank,
        "gpus_per_server": 1,
        "incarnation": secrets.randbits(63),
        "token": controller.token,
    }
    peer.sendall(encode("REGISTER", **(said | fields)))
    decoder, heard = MessageDecoder(), list[dict[str, Any]]()
    while not heard:
        # This message alone: a heartbeat may be right behind it.
        heard = decoder.feed(peer.recv(1) or pytest.fail("closed before REGISTERED"))
    assert heard[0]["type"] == "REGISTERED", heard
    return peer


def answers(peer: socket.socket) -> list[dict[str, Any]]:
    """Whatever comes until the controller closes, which it does when we have."""
    decoder, found = MessageDecoder(), []
    with contextlib.suppress(ConnectionError):
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_WR)
        while data := peer.recv(65536):
            found += decoder.feed(data)
    peer.close()
    return found


def knock(controller: Controller, data: bytes, rank: int | None = None) -> list[dict[str, Any]]:
    """Send bytes, as a stranger or a rank, and hear what comes, heartbeats apart."""
    peer = stranger(controller) if rank is None else register(controller, rank)
    with contextlib.suppress(ConnectionError):
        peer.sendall(data)
    return [answer for answer in answers(peer) if answer["type"] != "PING"]
