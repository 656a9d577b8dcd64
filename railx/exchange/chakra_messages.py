"""The messages of a Chakra execution trace that are used here.

A trace file holds messages one after another, each behind its length as a varint: a
``GlobalMetadata``, then the ``Node`` of every operation. Numbers of fields are those of
the public schema (mlcommons/chakra, ``et_def.proto``); other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from railx.errors import UserError
from railx.io import atomic_path

#: Types of nodes.
METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(1, 8)
#: Numbers of collectives in the order of the schema; two of them are one here.
COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}

#: Fields of the messages: name, number, type. Before a type ``*`` means many, and ``?``
#: that an attribute has one of these.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "BoolList": (("values", 1, "*bool"),),
    "AttributeProto": (
        *(("name", 1, "string"), ("doc_string", 2, "string"), ("double_val", 3, "?double")),
        *(("float_val", 5, "?float"), ("int32_val", 7, "?int32"), ("int64_val", 9, "?int64")),
        *(("uint32_val", 11, "?uint32"), ("uint64_val", 13, "?uint64")),
        *(("sint32_val", 15, "?sint32"), ("sint64_val", 17, "?sint64")),
        *(("bool_val", 27, "?bool"), ("bool_list", 28, "?BoolList"), ("string_val", 29, "?string")),
    ),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "*AttributeProto")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "int32"),
        ("ctrl_deps", 4, "*uint64"),
        ("data_deps", 5, "*uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("attr", 10, "*AttributeProto"),
    ),
}
#: Largest node in bytes; a file with a larger length is no trace.
_LARGEST = 2**26


@cache
def _classes() -> dict[str, Any]:
    """The classes of the messages, in a separate pool."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="execution_trace.proto", package="execution_trace", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        descriptor = file.message_type.add(name=name)
        for key, number, kind in fields:
            entry = descriptor.field.add(name=key, number=number, label=field.LABEL_OPTIONAL)
            if kind.startswith("*"):
                entry.label = field.LABEL_REPEATED
            elif kind.startswith("?"):
                entry.oneof_index = 0
            bare = kind.lstrip("*?")
            if bare in _MESSAGES:
                entry.type, entry.type_name = field.TYPE_MESSAGE, f".execution_trace.{bare}"
            else:
                entry.type = getattr(field, f"TYPE_{bare.upper()}")
        if name == "AttributeProto":
            descriptor.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"execution_trace.{name}"))
        for name in _MESSAGES
    }


def message(what: str, attrs: Mapping[str, tuple[str, Any]], /, **fields: Any) -> Any:
    """A message; ``attrs`` are its attributes, a type and a value by their names."""
    built = _classes()[what](**fields)
    for key, (kind, value) in attrs.items():
        attribute = built.attr.add(name=key)
        setattr(attribute, f"{kind}_val", value)
    return built


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a message by their names; lists are left out."""
    values = {}
    for attribute in node.attr:
        which = attribute.WhichOneof("value")
        if which is not None and which.endswith("_val"):
            values[attribute.name] = getattr(attribute, which)
    return values


def message_of_json(path: Path, kind: str, value: Any) -> Any:
    """A message from the JSON form of protobuf; UserError where it is none."""
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(value, _classes()[kind](), ignore_unknown_fields=True)
    except (json_format.ParseError, AttributeError, TypeError, ValueError):
        raise UserError(
            f"got {path} with JSON that is no {kind} of Chakra; allowed: a trace of chakra_jsonizer"
        ) from None


def write_messages(path: Path, messages: Iterable[Any]) -> None:
    """Write a trace file, whole or not at all."""
    with atomic_path(path) as beside, beside.open("wb") as file:
        for item in messages:
            encoded = item.SerializeToString(deterministic=True)
            file.write(_varint(len(encoded)) + encoded)


def read_messages(path: Path) -> Iterator[Any]:
    """The metadata of a trace file, then its nodes. ValueError naming the fault."""
    from google.protobuf.message import DecodeError

    content = path.read_bytes()
    at, kind = 0, "GlobalMetadata"
    while at < len(content):
        begin = at
        size, at = _read_varint(content, at)
        if not 0 <= size <= min(_LARGEST, len(content) - at):
            raise UserError(
                f"got {path}, which ends or breaks off at byte {begin}; allowed: a whole Chakra"
                " trace; copy or convert it again"
            )
        parsed = _classes()[kind]()
        try:
            parsed.ParseFromString(content[at : at + size])
        except DecodeError:
            raise UserError(
                f"got {path}, no message at byte {begin}; allowed: a Chakra trace"
            ) from None
        yield parsed
        at, kind = at + size, "Node"
    if kind == "GlobalMetadata":
        raise UserError(f"got {path}, which is empty; allowed: a Chakra trace")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at a position and the position after it; -1 without one."""
    value = shift = 0
    while at < len(content) and shift < 35:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return -1, at
