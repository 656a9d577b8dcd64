"""Chakra execution traces as graphs: the protobuf files and the JSON of Chakra's tools.

A node waits for its ``data_deps`` and its ``ctrl_deps``. ``num_ops`` and
``tensor_size`` of a computation are its operations and memory bytes, ``comm_size`` the
bytes of an operation, unchanged: the meaning of a unit is a question of prices
(:mod:`railx.replay.graph_pricing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.exchange.chakra_messages import (
    COLL,
    COLLECTIVES,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    RECV,
    SEND,
    attributes,
    message_of_json,
    read_messages,
)
from railx.exchange.rank_nodes import RankNodes
from railx.replay.graphs import COMPUTE, NODE_KINDS

_NAMES = {number: name for name, number in COLLECTIVES.items()} | {8: "reduce_scatter"}
#: Types of nodes in the JSON of Chakra's tools.
_WORDS = ("METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
_TYPES = {f"{word}_NODE": number for number, word in enumerate(_WORDS, METADATA)}
#: The schema that astra-sim/symbolic_tensor_graph writes into the metadata. Its ranks
#: are numbered by data, then tensor, then pipeline parallelism.
_GENERATOR = "symbolic_tensor_network"
GENERATED = "generated"
_LARGEST_INT32 = 2**31 - 1
_LARGEST_INT64 = 2**63 - 1


class GroupNumbers:
    """The groups of a trace by name, numbered in the order of the file.

    ``ranks``: how many there are; an empty name and ``0`` mean all of them where
    no group has that name.
    """

    def __init__(self, groups: Mapping[str, Sequence[int]], ranks: int) -> None:
        self._ranks = ranks
        #: The number of each group by its name.
        self.names = {name: number for number, name in enumerate(groups)}
        self.members = [tuple(sorted(members)) for members in groups.values()]

    def number(self, nodes: RankNodes, node: int, name: str) -> int:
        """The number of a group; UserError for an unknown one, or one of others."""
        if name not in self.names:
            if name not in ("", "0"):
                named = ", ".join(self.names) or "it has none"
                raise UserError(
                    f"{nodes.where(node)} with pg_name {name!r}; allowed: a group of --groups"
                    f" ({named})"
                )
            self.names[name] = len(self.members)
            self.members.append(tuple(range(self._ranks)))
        number = self.names[name]
        if nodes.rank not in self.members[number]:
            raise UserError(
                f"{nodes.where(node)} in group {name} of other ranks; allowed: one of its own;"
                " check --groups"
            )
        return number


def chakra_nodes(
    path: Path, rank: int, groups: GroupNumbers, ranks: int
) -> tuple[RankNodes, dict[str, int]]:
    """The nodes of a file, and counts: transfers from or to memory, dependencies left
    out, files of the public generator.

    Traces that Chakra's converter made of PyTorch's (their metadata has the number of a
    process) name callers in ``ctrl_deps``, which are no dependencies: callers end last,
    and the converter leaves some out.
    """
    nodes, lost = RankNodes(path, rank), {"memory": 0, "callers": 0, GENERATED: 0}
    messages = read_messages(path) if path.suffix == ".et" else _json_messages(path)
    metadata = attributes(next(messages))
    lost[GENERATED] += metadata.get("schema") == _GENERATOR
    converted = "pid" in metadata
    for node in messages:
        attrs = attributes(node)
        lost["callers"] += converted and len(node.ctrl_deps)
        after = [*node.data_deps] if converted else [*node.data_deps, *node.ctrl_deps]
        duration_ns = node.duration_micros * 1000
        if "railx.duration_ns" in attrs:
            duration_ns = _count(nodes, node.id, attrs, "railx.duration_ns")
        if not duration_ns and "railx.duration_ns" not in attrs:
            duration_ns = -1
        number = int(node.id)
        if max(number, duration_ns, *after) > _LARGEST_INT64:
            raise UserError(f"{nodes.where(number)}, out of range; allowed: 64 bits")
        on_host = bool(attrs.get("is_cpu_op", False))
        if node.type == COLL and not (on_host and "comm_type" not in attrs):
            values = _collective(nodes, number, attrs, groups)
        elif node.type in (SEND, RECV):
            values = _message(nodes, number, node.type, attrs, ranks)
        else:
            # Of PyTorch's traces also the calls of collectives, which have no type.
            values = {
                "kind": COMPUTE,
                "stream": _stream(attrs, on_host=on_host),
                "operations": _count(nodes, number, attrs, "num_ops"),
                "memory_bytes": _count(nodes, number, attrs, "tensor_size"),
            }
            lost["memory"] += node.type in (MEM_LOAD, MEM_STORE)
        nodes.add(number, node.name, values.pop("kind"), after, duration_ns=duration_ns, **values)
    return nodes, lost


def _collective(
    nodes: RankNodes, number: int, attrs: Mapping[str, Any], groups: GroupNumbers
) -> dict[str, int]:
    given = attrs.get("comm_type")
    name = _NAMES.get(given) if isinstance(given, int) else None
    if name is None:
        raise UserError(f"{nodes.where(number)} with comm_type {given}; allowed: 0 to 9")
    return {
        "kind": NODE_KINDS.index(name),
        "bytes": _count(nodes, number, attrs, "comm_size"),
        "group": groups.number(nodes, number, str(attrs.get("pg_name", ""))),
    }


def _message(
    nodes: RankNodes, number: int, kind: int, attrs: Mapping[str, Any], ranks: int
) -> dict[str, int]:
    word = "send" if kind == SEND else "recv"
    ends_named = {"comm_src": nodes.rank, "comm_dst": nodes.rank} | dict(attrs)
    ends = [_count(nodes, number, ends_named, key) for key in ("comm_src", "comm_dst")]
    allowed = ""
    if ends[kind == RECV] != nodes.rank or ends[0] == ends[1]:
        allowed = "of its own to another rank"
    elif not all(0 <= end < ranks for end in ends):
        allowed = f"ranks below {ranks}, each with a file"
    if allowed:
        raise UserError(
            f"{nodes.where(number)}, a {word} from {ends[0]} to {ends[1]}; allowed: {allowed}"
        )
    return {
        "kind": NODE_KINDS.index(word),
        "bytes": _count(nodes, number, attrs, "comm_size"),
        "peer": ends[kind == SEND],
        "tag": min(_count(nodes, number, attrs, "comm_tag"), _LARGEST_INT32),
    }


def _count(nodes: RankNodes, number: int, attrs: Mapping[str, Any], key: str) -> int:
    value = attrs.get(key, 0)
    if isinstance(value, str) or not 0 <= value <= _LARGEST_INT64:
        raise UserError(f"{nodes.where(number)} with {key} {value!r}; allowed: a number from 0 up")
    return int(value)


def _stream(attrs: Mapping[str, Any], *, on_host: bool) -> int:
    """The stream of a computation: its thread in PyTorch, on the host or a device."""
    thread = attrs.get("tid", 0)
    if not isinstance(thread, int) or not 0 <= thread < _LARGEST_INT32 // 2:
        return 0
    return 2 * thread + (not on_host and "tid" in attrs)


def _json_messages(path: Path) -> Iterator[Any]:
    """The metadata, then the nodes of a file of ``chakra_jsonizer``, one JSON object
    after another, or those of the feeder's JSON, one object with all nodes.
    """
    text, decoder, at = path.read_text(encoding="utf-8"), json.JSONDecoder(), 0
    kind = "GlobalMetadata"
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            raise UserError(
                f"got {path}, which ends or breaks off at character {at}; allowed: a whole trace"
                " of chakra_jsonizer; convert it again"
            ) from None
        if isinstance(value, dict) and "workload_graph" in value:
            yield from _feeder_messages(path, value["workload_graph"])
            return
        if kind == "Node" and isinstance(value, dict):
            value["type"] = _TYPES.get(str(value.get("type")), 0)
        yield message_of_json(path, kind, value)
        kind = "Node"
        while text[at : at + 1].isspace():
            at += 1
    if kind == "GlobalMetadata":
        raise UserError(f"got {path}, which is empty; allowed: a Chakra trace")


def _feeder_messages(path: Path, entries: Any) -> Iterator[Any]:
    """Metadata as of the converter, then the nodes of the feeder's JSON."""
    numbers = ("tensor_size", "comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag")
    yield message_of_json(path, "GlobalMetadata", {"attr": [{"name": "pid", "int64Val": 0}]})
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"got {path} with no nodes in workload_graph; allowed: a list of them")
    for entry in entries:
        attrs = [{"name": key, "int64Val": entry[key]} for key in numbers if key in entry]
        attrs.append({"name": "is_cpu_op", "boolVal": entry.get("is_cpu_op", False)})
        attrs.append({"name": "pg_name", "stringVal": str(entry.get("pg_name", ""))})
        node = {
            "id": entry.get("Id"),
            "name": entry.get("Name"),
            "type": entry.get("NodeType"),
            "dataDeps": entry.get("data_deps", []),
            "ctrlDeps": entry.get("ctrlDeps", []),
            "durationMicros": entry.get("runtime", 0),
            "attr": attrs,
        }
        yield message_of_json(path, "Node", node)
