"""Traces of other programs, unpacked, and small ones written node by node."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.third_party.utils.protolib import encodeMessage

__all__ = ["COLL", "COMP", "RECV", "SEND", "Nodes", "node", "schema", "unpacked", "write"]

#: Parts of a trace file, by their rank.
Nodes = dict[int, list[Any]]
COLL, COMP, SEND, RECV = (
    schema.COMM_COLL_NODE,
    schema.COMP_NODE,
    schema.COMM_SEND_NODE,
    schema.COMM_RECV_NODE,
)
_PREFIXES = {
    "stg_smoke_8": "smoke/workload",
    "stg_h200_128_llama": "fig12/workload",
    "astra_custom_ring_8": "custom_ring_allreduce_8npus_1MB/custom_allreduce",
    "torch_gloo_2": "job",
    "chakra_pytorch_1": "chakra",
}


def unpacked(name: str, folder: Path) -> Path:
    """The prefix of a trace of tests/exchange/data, unpacked into a folder."""
    with tarfile.open(Path(__file__).parent / "data" / f"{name}.tar.xz") as archive:
        # Python before 3.11.4 has no filters.
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **options)
    return folder / _PREFIXES[name]


def write(folder: Path, nodes: Nodes, name: str = "job", **metadata: int) -> Path:
    """Write nodes as Chakra traces, with metadata; returns their prefix."""
    for rank, own in nodes.items():
        with (folder / f"{name}.{rank}.et").open("wb") as file:
            said = [schema.AttributeProto(name=k, uint64_val=v) for k, v in metadata.items()]
            encodeMessage(file, schema.GlobalMetadata(version="1.0.0", attr=said))
            for each in own:
                encodeMessage(file, each)
    return folder / name


def node(
    number: int,
    kind: int,
    after: tuple[int, ...] = (),
    control: tuple[int, ...] = (),
    **attributes: Any,
) -> Any:
    """A node with attributes of the types of their values."""
    made = schema.Node(id=number, name=f"n{number}", type=kind, data_deps=after, ctrl_deps=control)
    for name, value in attributes.items():
        if name == "duration_micros":
            made.duration_micros = value
            continue
        names = {bool: "bool", int: "int64", str: "string", float: "double"}
        field = f"{names[type(value)]}_val"
        made.attr.append(schema.AttributeProto(name=name, **{field: value}))
    return made
