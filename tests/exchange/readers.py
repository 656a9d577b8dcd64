"""Strict readers of what simulators take, written from what their sources say.

They refuse what the simulators refuse and allow what they allow, so that the examples
that the simulators come with are read here too (``test_published_examples.py``):

* ASTRA-sim's analytical backend: ``NetworkParser`` of astra-network-analytical;
* its ns-3 backend: the topology files of ``examples/network/ns3``;
* BookSim2: ``src/examples/anynet/README`` and ``AnyNet::readFile``;
* LogGOPSim: the scanner of ``txt2bin``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from railx.exchange.astra_network import Dimension

__all__ = ["Operation", "read_analytical", "read_anynet", "read_goal", "read_ns3"]

#: ASTRA-sim's gigabyte in bytes, so that byte/ns = rate * 2^30 / 10^9.
GIGABYTE = 2**30


def pair(one: int, other: int) -> tuple[int, int]:
    """A link that leads both ways, by the lower end first."""
    return min(one, other), max(one, other)


def read_analytical(text: str) -> list[Dimension]:
    """The dimensions, rates in Gbit/s of a link."""
    values = yaml.safe_load(text)
    assert set(values) == {"topology", "npus_count", "bandwidth", "latency"}
    columns = [values[key] for key in ("topology", "npus_count", "bandwidth", "latency")]
    assert {len(each) for each in columns} == {len(columns[0])}
    found = []
    for block, length, rate, latency_ns in zip(*columns, strict=True):
        assert block in ("Ring", "FullyConnected", "Switch")
        assert isinstance(length, int)
        assert length > 1
        assert rate > 0
        assert latency_ns >= 0
        found.append(Dimension(block, length, rate * GIGABYTE / 1e9 * 8, float(latency_ns)))
    return found


def read_ns3(text: str) -> tuple[int, set[int], list[tuple[int, int, float, float]]]:
    """Vertices, switches and links (ends, Gbit/s, ns), as the backend scans them."""
    words = text.split()
    vertices, count, links = map(int, words[:3])
    switches = list(map(int, words[3 : 3 + count]))
    assert len(set(switches)) == count
    rest = words[3 + count :]
    assert len(rest) == 5 * links
    found = []
    for at in range(0, len(rest), 5):
        one, other, rate, delay, error = rest[at : at + 5]
        assert re.fullmatch(r"[0-9.]+Gbps", rate)
        assert re.fullmatch(r"[0-9.]+ms", delay)
        assert error == "0"
        assert 0 <= int(one) < vertices
        assert 0 <= int(other) < vertices
        found.append((int(one), int(other), float(rate[:-4]), float(delay[:-2]) * 1e6))
    # One interface for each neighbour: parallel links would hide one another.
    assert len({pair(one, other) for one, other, _, _ in found}) == links
    return vertices, set(switches), found


def read_anynet(text: str) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """The router of each node, and the cycles from router to router, one way each.

    A channel without a number takes a cycle, and so does the way back that no line
    names.
    """
    nodes: dict[int, int] = {}
    said: dict[tuple[int, int], int] = {}
    routers = set()
    for line in text.splitlines():
        words = line.split(" ")
        assert words[0] == "router"
        head = int(words[1])
        assert head not in routers
        routers.add(head)
        at = 2
        while at < len(words):
            kind, number = words[at], int(words[at + 1])
            at += 2
            if kind == "node":
                assert number not in nodes
                nodes[number] = head
                continue
            assert kind == "router"
            assert (head, number) not in said
            said[head, number] = 1
            if at < len(words) and words[at].isdecimal():
                said[head, number] = int(words[at])
                at += 1
    channels = {(other, one): 1 for one, other in said} | said
    assert routers == set(range(len(routers)))
    assert set(nodes) == set(range(len(nodes)))
    return nodes, channels


_LABEL = r"[a-zA-Z][a-zA-Z0-9_]*"
_OPERATION = re.compile(
    rf"(?P<label>{_LABEL}): (?:calc (?P<ns>[0-9]+)(?: cpu (?P<calc_cpu>[0-9]+))?"
    r"|(?P<what>send|recv) (?P<bytes>[0-9]+)b (?P<way>to|from) (?P<peer>[0-9]+)"
    r"(?: tag (?P<tag>[0-9]+))?(?: cpu (?P<cpu>[0-9]+))?(?: nic (?P<nic>[0-9]+))?)"
)
_REQUIRES = re.compile(rf"({_LABEL}) requires ({_LABEL})")


@dataclass
class Operation:
    """Computation of ``size`` ns, or a message of ``size`` bytes."""

    what: str
    size: int
    peer: int = -1
    tag: int = 0
    cpu: int = 0
    after: list[str] = field(default_factory=list)


def read_goal(text: str) -> list[dict[str, Operation]]:
    """The operations of every rank by their labels, in the order of the file.

    As the scanner of the simulator has it: a label stands before what requires it, cpu
    and nic fit a byte, tags four; what is left out is 0.
    """
    lines = iter(text.splitlines())
    head = next(lines).split(" ")
    assert head[0] == "num_ranks"
    ranks: list[dict[str, Operation]] = []
    inside = False
    for line in lines:
        if not line:
            continue
        if not inside:
            assert line == f"rank {len(ranks)} {{"
            ranks.append({})
            inside = True
            continue
        if line == "}":
            inside = False
            continue
        requires = _REQUIRES.fullmatch(line)
        if requires is not None:
            later, earlier = requires.groups()
            assert earlier in ranks[-1]
            ranks[-1][later].after.append(earlier)
            continue
        found = _OPERATION.fullmatch(line)
        assert found is not None, line
        assert found["label"] not in ranks[-1]
        cpu = int(found["calc_cpu"] or found["cpu"] or 0)
        assert cpu < 256
        if found["ns"] is not None:
            made = Operation("calc", int(found["ns"]), cpu=cpu)
        else:
            assert (found["what"] == "send") == (found["way"] == "to")
            made = Operation(found["what"], int(found["bytes"]), int(found["peer"]), cpu=cpu)
            made.tag = int(found["tag"] or 0)
            assert made.tag < 2**32
            assert int(found["nic"] or 0) < 256
            assert made.peer != len(ranks) - 1
        ranks[-1][found["label"]] = made
    assert not inside
    assert len(ranks) == int(head[1])
    return ranks
