"""What a phase change costs the controller: processor time of its process, beside two
asyncio servers that echo the same messages, in turn in the same run. One reads each
message and writes it again (framed JSON, nothing else), one sends back bare bytes.

    python benchmarks/controller.py [--changes 100]

Prints tables; docs/benchmarks.md sums them up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from shared import describe, record

from railx.fabric import Configuration, FabricSettings, Layout, launch_controller
from railx.fabric.holdings import Holdings
from railx.fabric.protocol import Message, MessageDecoder, connect, encode

#: Pairs that change their circuits at once; 32 are the 64 clients of the goal.
PAIRS = (8, 16, 32, 64)
GOAL = 3.0
#: Ranks of other jobs, each with a hint that its peer has not given yet.
OTHERS = (0, 64, 256)
_TURNS = 7
_SETTINGS = FabricSettings(1, "127.0.0.1", 0, 600, "on_demand", 0, heartbeat_s=600)


class Rank:
    """A client without threads: what it says next, and what it heard."""

    def __init__(self, address: str, rank: int, token: str) -> None:
        self.rank = rank
        self.granted = -1
        self.said: list[bytes] = []
        self._holdings = Holdings(Layout(1))
        self._decoder = MessageDecoder()
        self.socket = connect(address, 60)
        self.socket.sendall(
            encode("REGISTER", rank=rank, gpus_per_server=1, token=token, incarnation=rank)
        )
        assert self._read()[0]["type"] == "REGISTERED"

    def say(self, kind: str, /, **fields: object) -> None:
        data = encode(kind, **fields)
        self.said.append(data)
        self.socket.sendall(data)

    def ask(self, number: int, configuration: Configuration) -> None:
        channel = configuration.name
        members = configuration.members
        fields = {"request": number, "channel": channel, "sequence": number}
        self.say("ACQUIRE", **fields, kind=configuration.kind, members=members)

    def hear(self) -> None:
        for message in self._read():
            if message["type"] == "PING":
                continue
            configuration = Configuration(message["kind"], tuple(message["members"]))
            if message["type"] == "RECALL":
                report = self._holdings.recall(configuration, message["hold"])
                if report is not None:
                    self.say(
                        "RECALLED",
                        kind=configuration.kind,
                        members=configuration.members,
                        hold=report.hold,
                        begun=report.begun,
                        open=sorted(report.open),
                        operations=report.operations,
                    )
            else:
                assert message["type"] == "GRANT", message
                key = (message["channel"], message["sequence"])
                self._holdings.granted(key, configuration, message["hold"])
                self.granted = message["sequence"]
                if self._holdings.end(key):
                    self.say("RELEASE", channel=key[0], sequence=key[1])

    def _read(self) -> list[Message]:
        messages: list[Message] = []
        while not messages:
            data = self.socket.recv(65536)
            assert data, "the controller closed the connection"
            messages = self._decoder.feed(data)
        return messages


def neighbours(ranks: Sequence[Rank], phase: int) -> Iterator[tuple[Rank, Configuration]]:
    """Who needs which pair's ring: 0-1, 2-3, ... and in the next phase 1-2, ...."""
    turned = [*ranks[phase:], *ranks[:phase]]
    for one, other in zip(turned[::2], turned[1::2], strict=True):
        configuration = Configuration("ring", (one.rank, other.rank))
        yield one, configuration
        yield other, configuration


def change(ranks: Sequence[Rank], number: int) -> None:
    """Every rank asks for its next circuits and waits for them."""
    for rank, configuration in neighbours(ranks, number % 2):
        rank.ask(number, configuration)
    heard(ranks, lambda rank: rank.granted == number, Rank.hear)


def heard(
    ranks: Sequence[Rank], done: Callable[[Rank], bool], hear: Callable[[Rank], None]
) -> None:
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.socket, selectors.EVENT_READ, rank)
        waiting = {rank for rank in ranks if not done(rank)}
        while waiting:
            for key, _ in selector.select():
                hear(key.data)
                if done(key.data):
                    waiting.discard(key.data)


def processor_s(process: int) -> float:
    """Processor time of a process and its threads, to the nanosecond."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Echo:
    """As many sockets as ranks, to a server that sends back what it is sent."""

    def __init__(self, kind: str, said: Sequence[Sequence[bytes]]) -> None:
        self._said = said
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--echo", kind], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        self._sockets = [connect(address, 60) for _ in said]

    def change(self) -> None:
        """The messages of one phase change, each sent when the one before is back."""
        with selectors.DefaultSelector() as selector:
            state: dict[socket.socket, list[bytes]] = {}
            missing: dict[socket.socket, int] = {}
            for peer, said in zip(self._sockets, self._said, strict=True):
                state[peer] = list(said)
                missing[peer] = 0
                selector.register(peer, selectors.EVENT_READ)
            for peer in self._sockets:
                self._next(peer, state, missing)
            while missing:
                for key, _ in selector.select():
                    peer = key.fileobj
                    assert isinstance(peer, socket.socket)
                    missing[peer] -= len(peer.recv(65536))
                    if missing[peer] == 0:
                        self._next(peer, state, missing)

    def _next(
        self,
        peer: socket.socket,
        state: dict[socket.socket, list[bytes]],
        missing: dict[socket.socket, int],
    ) -> None:
        if not state[peer]:
            del missing[peer]
            return
        data = state[peer].pop(0)
        missing[peer] = len(data)
        peer.sendall(data)

    def close(self) -> None:
        for peer in self._sockets:
            peer.close()
        self.process.terminate()
        self.process.wait()


class _Bytes(asyncio.Protocol):
    """Sends back what it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Messages(_Bytes):
    """Reads each message and sends it back."""

    def __init__(self) -> None:
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                break
            message = json.loads(self._buffer[4:end])
            self._buffer = self._buffer[end:]
            body = json.dumps(message, separators=(",", ":")).encode()
            self._transport.write(len(body).to_bytes(4, "big") + body)


ECHOES = {"messages": _Messages, "bytes": _Bytes}


async def echo(kind: str) -> None:
    server = await asyncio.get_running_loop().create_server(ECHOES[kind], "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def controlled(pairs: int, others: int = 0) -> Iterator[tuple[list[Rank], int]]:
    """A controller with its ranks, those of other jobs hinted, and its process."""
    with launch_controller(_SETTINGS, 2 * pairs + others) as controller:
        assert controller.address is not None
        assert controller.process is not None
        assert controller.token is not None
        ranks = [
            Rank(controller.address, rank, controller.token) for rank in range(2 * pairs + others)
        ]
        mine, theirs = ranks[: 2 * pairs], ranks[2 * pairs :]
        for one, other in zip(theirs[::2], theirs[1::2], strict=True):
            one.say("PREPARE", kind="ring", members=(one.rank, other.rank))
        yield mine, controller.process.pid
        for rank in ranks:
            rank.socket.close()


def costs(pairs: int, changes: int, others: int = 0) -> list[float]:
    """Processor milliseconds of a phase change: the controller's and each echo's."""
    numbers = itertools.count()
    with controlled(pairs, others) as (ranks, process):
        for _ in range(4):
            change(ranks, next(numbers))
        for rank in ranks:
            rank.said.clear()
        change(ranks, next(numbers))
        echoes = [Echo(kind, [list(rank.said) for rank in ranks]) for kind in ECHOES]
        found = []
        for _ in range(_TURNS):
            begin = processor_s(process)
            for _ in range(changes):
                change(ranks, next(numbers))
            turn = [processor_s(process) - begin]
            for bare in echoes:
                begin = processor_s(bare.process.pid)
                for _ in range(changes):
                    bare.change()
                turn.append(processor_s(bare.process.pid) - begin)
            found.append(turn)
        for bare in echoes:
            bare.close()
    return [1e3 * median(times) / changes for times in zip(*found, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=60, help="phase changes of each turn")
    parser.add_argument("--echo", choices=sorted(ECHOES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        asyncio.run(echo(options.echo))
        return
    print(describe())
    print()
    print(
        "| pairs | clients | controller, CPU ms | of each client, CPU us | echo of messages, CPU ms"
        " | ratio | echo of bytes, CPU ms | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    ratios = {}
    for pairs in PAIRS:
        ours, messages, bare = costs(pairs, options.changes * PAIRS[-1] // pairs // 2)
        ratios[pairs] = ours / messages
        record(f"change of {pairs} pairs", ours, "ms", clock="processor")
        record(f"{pairs} pairs over the echo of messages", ratios[pairs], "", clock="processor")
        print(
            f"| {pairs} | {2 * pairs} | {ours:.2f} | {1e3 * ours / pairs / 2:.0f} |"
            f" {messages:.2f} | {ours / messages:.2f} | {bare:.2f} | {ours / bare:.2f} |",
            flush=True,
        )
    verdict = "met" if ratios[32] <= GOAL else "missed"
    print(f"\nGoal: at most {GOAL:g} times the echo of messages at 64 clients: {verdict}.\n")
    print("| hints of other jobs | change of 8 pairs, CPU ms |")
    print("|---|---|")
    for others in OTHERS:
        spent = costs(8, options.changes * 2, others)[0]
        record(f"change of 8 pairs, {others // 2} hints", spent, "ms", clock="processor")
        print(f"| {others // 2} | {spent:.2f} |", flush=True)


if __name__ == "__main__":
    main()
