"""Stands between ranks and controller: doubles messages, delays doubles, loses some.

The streams under the protocol lose nothing, so that only what may be lost is: hints and
questions for a sign of life. A connection can also be frozen, as a stopped host is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import threading
from collections import Counter
from random import Random

from railx.fabric.protocol import FrameDecoder

#: What makes a connection somebody's is said once on it.
_ONCE = {"REGISTER", "REGISTERED", "OBSERVE", "OBSERVING", "LEAVE", "SHUTDOWN"}
_MAY_BE_LOST = {"PREPARE", "PING", "PONG"}


class Proxy:
    """Listens on a port of its own, on a thread of its own."""

    def __init__(self, address: str, seed: int, double: float, lose: float) -> None:
        host, _, port = address.rpartition(":")
        self._there = (host, int(port))
        self._random = Random(seed)
        self._double, self._lose = double, lose
        self.counts: Counter[str] = Counter()
        self._frozen: set[int] = set()
        self._ready = threading.Event()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def freeze(self, rank: int) -> None:
        """From now on nothing passes on the connection that this rank has."""
        self._frozen.add(rank)

    def thaw(self, rank: int) -> None:
        """The next connection of this rank is as any other."""
        self._frozen.discard(rank)

    def close(self) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 21)
        )
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._there, limit=1 << 21)
        except OSError:
            writer.close()
            return
        who: list[int] = []
        tasks = [
            asyncio.ensure_future(self._pass(reader, up_writer, who, "up")),
            asyncio.ensure_future(self._pass(up_reader, writer, who, "down")),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for one in (writer, up_writer):
                with contextlib.suppress(OSError, RuntimeError):
                    one.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        who: list[int],
        direction: str,
    ) -> None:
        decoder, late = FrameDecoder(), []
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                for body in decoder.feed(data):
                    message = json.loads(body)
                    kind = message["type"]
                    if kind == "REGISTER":
                        who.append(message["rank"])
                    while who and who[0] in self._frozen:
                        await asyncio.sleep(0.05)
                    chance = self._random.random()
                    if kind in _MAY_BE_LOST and chance < self._lose:
                        self.counts[f"lost {direction}"] += 1
                        continue
                    if writer.is_closing():
                        return
                    whole = struct.pack(">I", len(body)) + body
                    writer.write(whole)
                    if kind not in _ONCE and chance > 1 - self._double:
                        self.counts[f"doubled {direction}"] += 1
                        if self._random.random() < 0.5:
                            writer.write(whole)
                        else:
                            late.append(whole)
                    if late and self._random.random() < 0.2:
                        self.counts["doubles that came late"] += 1
                        writer.write(late.pop(0))
                await writer.drain()
