"""Programs as Chakra traces: the schema's own package reads them, whoever carries them
out takes as long as our replay, and they come back as they were.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.converter.text_converter import TextConverter
from chakra.src.generator import generator
from chakra.src.jsonizer import jsonizer
from chakra.src.third_party.utils.protolib import decodeMessage, encodeMessage, openFileRd
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.chakra import Imported, read_chakra, write_chakra
from railx.fabric.circuits import Configuration, Layout
from railx.replay.engine import ReplayedOperation, Step
from railx.replay.programs import DOES, KINDS, Programs
from railx.replay.run import replay_programs
from tests.exchange.drawn import job, rows, said, together
from tests.replay.programs import programs as drawn_steps

#: Parts of a trace file, by their rank.
Nodes = dict[int, list[Any]]


def read_nodes(prefix: Path, ranks: int) -> Nodes:
    """The nodes of every rank, read by the package of the schema."""
    found: Nodes = {}
    for rank in range(ranks):
        with openFileRd(str(prefix.with_name(f"{prefix.name}.{rank}.et"))) as file:
            metadata = schema.GlobalMetadata()
            assert decodeMessage(file, metadata)
            assert metadata.version == "0.0.4"
            found[rank] = []
            while decodeMessage(file, node := schema.Node()):
                found[rank].append(node)
            assert not file.read()
    return found


def attribute(node: Any, name: str, default: Any = None) -> Any:
    for each in node.attr:
        if each.name == name:
            return getattr(each, each.WhichOneof("value"))
    return default


def carried_out(nodes: Nodes, groups: Mapping[str, list[int]]) -> dict[int, int]:
    """When each rank is done: every node once all that it depends on is over.

    An operation begins when all its members are there. Nothing of ours is asked but how
    many nanoseconds a node takes.
    """
    done: dict[tuple[int, int], int] = {}
    calls: dict[tuple[int, Any], int] = defaultdict(int)
    key_of: dict[tuple[int, int], tuple[Any, int]] = {}
    members: dict[tuple[Any, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, own in nodes.items():
        for node in own:
            if node.type == schema.COMM_COLL_NODE:
                lane: Any = attribute(node, "pg_name")
                assert rank in groups[lane]
            elif node.type in (schema.COMM_SEND_NODE, schema.COMM_RECV_NODE):
                lane = tuple(attribute(node, f"comm_{end}") for end in ("src", "dst", "tag"))
                assert lane[node.type == schema.COMM_RECV_NODE] == rank
            else:
                continue
            key_of[rank, node.id] = key = lane, calls[rank, lane]
            calls[rank, lane] += 1
            members[key].append((rank, node.id))
    for (lane, _), own in members.items():
        expected = groups[lane] if isinstance(lane, str) else sorted(lane[:2])
        assert sorted(rank for rank, _ in own) == expected
    by_place = {(rank, node.id): node for rank, own in nodes.items() for node in own}
    left = set(by_place)

    def ready(place: tuple[int, int]) -> int | None:
        node = by_place[place]
        before = [(place[0], number) for number in (*node.data_deps, *node.ctrl_deps)]
        return max((done[each] for each in before), default=0) if set(before) <= set(done) else None

    while left:
        before = len(left)
        for place in sorted(left):
            whole = members[key_of[place]] if place in key_of else [place]
            begins = [ready(each) for each in whole]
            if place in left and None not in begins:
                for each in whole:
                    takes_ns = attribute(by_place[each], "railx.duration_ns")
                    done[each] = max(when for when in begins if when is not None) + takes_ns
                    left.discard(each)
        assert len(left) < before, "the traces lock up"
    return {rank: done[rank, own[-1].id] for rank, own in nodes.items()}


@settings(max_examples=40, deadline=None)
@given(steps=drawn_steps(), seed=st.integers(0, 2**32))
def test_programs_come_back_as_they_were(
    steps: dict[int, list[Step]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = said(Programs.from_steps(steps), seed)
    prefix = tmp_path_factory.mktemp("chakra") / "job"
    write_chakra(prefix, programs)
    found = read_chakra(prefix)
    assert rows(found.programs) == rows(programs)


@settings(max_examples=40, deadline=None)
@given(steps=drawn_steps(), seed=st.integers(0, 2**32))
def test_whoever_carries_a_trace_out_takes_as_long_as_the_replay(
    steps: dict[int, list[Step]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = {rank: [step for step in own if step.iteration == 0] for rank, own in steps.items()}
    programs = together(said(Programs.from_steps(first), seed))
    prefix = tmp_path_factory.mktemp("chakra") / "job"
    files, _ = write_chakra(prefix, programs)
    nodes = read_nodes(prefix, programs.ranks)
    replayed = replay_programs(programs, Layout(1), "electrical", 0)
    found = carried_out(nodes, json.loads(files[-1].read_text()))
    assert [found[rank] for rank in sorted(found)] == replayed.table["end_ns"].tolist()


def test_a_small_job_node_by_node(tmp_path: Path) -> None:
    files, lost = write_chakra(tmp_path / "job", job((0, 1_400, 1_400, 1_400)))
    assert [path.name for path in files] == ["job.0.et", "job.1.et", "job.groups.json"]
    assert json.loads(files[-1].read_text()) == {"1": [0, 1]}
    own = read_nodes(tmp_path / "job", 2)[1]
    assert [(node.id, node.type) for node in own] == [
        (0, schema.COMP_NODE),
        (1, schema.COMP_NODE),
        (2, schema.COMM_COLL_NODE),
        (3, schema.COMP_NODE),
        (4, schema.COMP_NODE),
    ]
    assert [list(node.data_deps) for node in own] == [[], [0], [1], [1], [3, 2]]
    # 1.4, 2.8 and 4.2 us after the begin are 1, 3 and 4 whole ones.
    assert [node.duration_micros for node in own] == [0, 1, 2, 2, 1]
    gather = own[2]
    # Two members give half of what they then have.
    expected = {"is_cpu_op": False, "comm_type": 2, "comm_size": 500, "pg_name": "1"}
    assert {name: attribute(gather, name) for name in expected} == expected
    kinds = {each.name: each.WhichOneof("value") for each in gather.attr}
    assert (kinds["comm_type"], kinds["comm_size"]) == ("int64_val", "int64_val")
    assert lost == ["that ranks begin an iteration together"]
    assert not any(node.type == schema.METADATA_NODE for node in own)


def test_microseconds_of_a_rank_add_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    gaps = rng.integers(0, 3_000, 400)
    steps = [Step(0, "begin", 0)]
    operation = ReplayedOperation(("0,1:a", 0), Configuration("ring", (0, 1)), {0: 1, 1: 1})
    for number, gap_ns in enumerate(gaps.tolist()):
        each = ReplayedOperation(
            ("0,1:a", number), operation.configuration, {0: 1, 1: 1}, kind="all_reduce"
        )
        steps += [Step(0, "issue", gap_ns, each), Step(0, "wait", 0, each)]
    programs = Programs.from_steps({0: [*steps, Step(0, "end")], 1: [*steps, Step(0, "end")]})
    write_chakra(tmp_path / "job", programs)
    own = read_nodes(tmp_path / "job", 2)[0]
    micros = np.cumsum([n.duration_micros for n in own if n.type == schema.COMP_NODE])[:-1]
    exact = np.cumsum(gaps[gaps > 0])
    assert abs(micros[1:] * 1000 - exact).max() <= 500


def test_dependencies_do_not_pile_up(tmp_path: Path) -> None:
    """Waits without computation between them: each node names the last one alone."""
    steps = [Step(0, "begin")]
    for number in range(50):
        each = ReplayedOperation(
            ("0,1:a", number), Configuration("ring", (0, 1)), {0: 1, 1: 1}, kind="all_reduce"
        )
        steps += [Step(0, "issue", 0, each), Step(0, "wait", 0, each)]
    programs = Programs.from_steps({0: [*steps, Step(0, "end")], 1: [*steps, Step(0, "end")]})
    write_chakra(tmp_path / "job", programs)
    assert max(len(node.data_deps) for node in read_nodes(tmp_path / "job", 2)[0]) == 1
    assert rows(read_chakra(tmp_path / "job").programs) == rows(programs)


def test_the_same_programs_give_the_same_bytes(tmp_path: Path) -> None:
    texts = set()
    for name in ("one", "two"):
        files, _ = write_chakra(tmp_path / name, job((5, 6, 7, 8)))
        texts.add(b"".join(path.read_bytes() for path in files))
    assert len(texts) == 1


def test_the_packages_own_tool_writes_a_trace_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_chakra(tmp_path / "job", job((0, 1_000, 0, 0)))
    out = tmp_path / "job.json"
    words = ["chakra_jsonizer", "--input_filename", str(tmp_path / "job.0.et")]
    monkeypatch.setattr(sys, "argv", [*words, "--output_filename", str(out)])
    jsonizer.main()
    decoder, text, found = json.JSONDecoder(), out.read_text(), []
    while text:
        value, at = decoder.raw_decode(text)
        found.append(value)
        text = text[at:].lstrip()
    assert found[0]["version"] == "0.0.4"
    types = [value["type"] for value in found[1:]]
    assert types == ["COMP_NODE", "COMP_NODE", "COMM_COLL_NODE", "COMP_NODE"]


# Traces of others


@pytest.mark.parametrize(
    ("make", "name", "kind", "size"),
    [
        (generator.one_comm_coll_node_allreduce, "ALL_REDUCE", "all_reduce", 1024),
        (generator.one_comm_coll_node_alltoall, "ALL_TO_ALL", "all_to_all", 1024),
        (generator.one_comm_coll_node_allgather, "ALL_GATHER", "all_gather", 3 * 1024),
        (generator.one_comm_coll_node_reducescatter, "REDUCE_SCATTER", "reduce_scatter", 1024),
        (generator.one_comm_coll_node_broadcast, "BROADCAST", "broadcast", 1024),
    ],
)
def test_what_the_packages_generator_writes_can_be_read(
    make: Callable[[int, int], None],
    name: str,
    kind: str,
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(3, 1024)
    found = read_chakra(tmp_path / name, price=lambda what, size, members: 7.0 * size)
    assert [row[2] for row in rows(found.programs)] == [0, 1, 2, 3] * 3
    issues = found.programs.columns["does"] == DOES.index("issue")
    assert {KINDS[number] for number in found.programs.columns["kind"][issues]} == {kind}
    assert set(found.programs.columns["bytes"][issues].tolist()) == {size}
    assert set(found.programs.columns["lasts_ns"][issues].tolist()) == {7 * size}
    assert found.programs.configurations == (Configuration("ring", (0, 1, 2)),)
    assert found.lost == ()
    assert read_chakra(tmp_path / name).lost == (
        "3 operations have no duration: they take no time",
    )


def test_computation_of_the_packages_generator_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generator.two_comp_nodes_dependent(2, 5)
    generator.one_remote_mem_load_node(2, 64)
    generator.one_metadata_node_all_types(2)
    found = read_chakra(tmp_path / "two_comp_nodes_dependent").programs
    assert replay_programs(found, Layout(1), "electrical", 0).iteration_ns() == {0: 10_000}
    memory = read_chakra(tmp_path / "one_remote_mem_load_node")
    assert memory.lost == ("2 transfers from or to memory take no time",)
    assert len(read_chakra(tmp_path / "one_metadata_node_all_types").programs) == 4


#: A workload of two layers as ASTRA-sim's text form has it, in our own numbers.
DATA_PARALLEL = """DATA
2
first -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 4096 0
second -1 11 NONE 0 21 NONE 0 31 ALLREDUCE 8192 0
"""


def test_what_the_packages_converter_writes_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "layers.txt").write_text(DATA_PARALLEL)
    TextConverter(str(tmp_path / "layers.txt"), str(tmp_path / "layers"), 4, 2).convert()
    found = read_chakra(tmp_path / "layers", price=lambda what, size, members: float(size))
    programs = found.programs
    assert (programs.ranks, programs.configurations[0].members) == (4, (0, 1, 2, 3))
    issues = programs.columns["does"] == DOES.index("issue")
    assert programs.columns["bytes"][issues].tolist() == [8192, 4096, 8192, 4096] * 4
    computed = programs.columns["gap_ns"].sum() / 4
    assert computed == 2 * (10 + 11 + 31 + 21 + 30) * 1000
    # The reduction of a layer is under way while the one before it computes.
    took = replay_programs(programs, Layout(1), "electrical", 0).iteration_ns()[0]
    assert computed + 2 * 4096 <= took < computed + 2 * (4096 + 8192)


def write(folder: Path, nodes: Nodes, name: str = "job") -> Path:
    for rank, own in nodes.items():
        with (folder / f"{name}.{rank}.et").open("wb") as file:
            encodeMessage(file, schema.GlobalMetadata(version="1.0.0"))
            for node in own:
                encodeMessage(file, node)
    return folder / name


def node(number: int, kind: int, after: tuple[int, ...] = (), **attributes: Any) -> Any:
    made = schema.Node(id=number, name=f"n{number}", type=kind, data_deps=after)
    for name, value in attributes.items():
        field = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
        made.attr.append(schema.AttributeProto(name=name, **{field: value}))
    return made


COLL, COMP, SEND, RECV = (
    schema.COMM_COLL_NODE,
    schema.COMP_NODE,
    schema.COMM_SEND_NODE,
    schema.COMM_RECV_NODE,
)


def test_groups_have_their_members_and_messages_their_ends(tmp_path: Path) -> None:
    prefix = write(
        tmp_path,
        {
            0: [
                node(4, COLL, comm_type=0, comm_size=8, pg_name="7"),
                node(5, SEND, (4,), comm_size=16, comm_src=0, comm_dst=2, comm_tag=3),
            ],
            1: [node(4, COLL, comm_type=0, comm_size=8, pg_name="7")],
            2: [node(1, RECV, comm_size=16, comm_src=0, comm_tag=3)],
        },
    )
    groups = tmp_path / "groups.json"
    groups.write_text('{"7": [1, 0]}')
    found = read_chakra(prefix, groups).programs
    assert found.channels == ("0,1:7", "0,2:0>2.3")
    assert found.configurations == (Configuration("ring", (0, 1)), Configuration("pair", (0, 2)))
    assert [DOES[number] for number in found.columns["does"][:6]] == [
        *("begin", "issue", "wait", "issue", "wait", "end"),
    ]


def test_num_ops_take_time_where_a_rate_is_given(tmp_path: Path) -> None:
    own = [node(0, COMP, num_ops=3_000_000)]
    prefix = write(tmp_path, {0: own, 1: own})
    with pytest.raises(ValueError, match=r"node 0 with num_ops and no duration; allowed: .*tflops"):
        read_chakra(prefix)
    found = read_chakra(prefix, tflops=0.5).programs
    assert found.columns["gap_ns"].tolist() == [0, 6_000, 0, 6_000]


def test_a_group_of_one_takes_no_time(tmp_path: Path) -> None:
    alone = [node(0, COLL, comm_type=0, comm_size=8, pg_name="1")]
    prefix = write(tmp_path, {0: alone, 1: []})
    (tmp_path / "job.groups.json").write_text('{"1": [0]}')
    assert len(read_chakra(prefix).programs) == 4


REDUCE = {"comm_type": 0, "comm_size": 8}


@pytest.mark.parametrize(
    ("nodes", "groups", "expected"),
    [
        ({0: []}, None, "got ranks 0 of"),
        ({0: [], 2: []}, None, "got ranks 0, 2 of"),
        ({0: [node(0, COMP, (9,))], 1: []}, None, "node 0 after node 9, which is not there"),
        (
            {0: [node(0, COMP, (1,)), node(1, COMP, (0,))], 1: []},
            None,
            "nodes that depend on each other; allowed: no circle",
        ),
        ({0: [node(0, COLL, comm_type=44)], 1: []}, None, "comm_type 44; allowed: 0 to 9"),
        ({0: [node(0, COLL)], 1: []}, None, "comm_type None; allowed: 0 to 9"),
        (
            {0: [node(0, COLL, **REDUCE, pg_name="3")], 1: []},
            '{"1": [0, 1]}',
            "pg_name '3'; allowed: a group of --groups (1)",
        ),
        (
            {0: [node(0, COLL, **REDUCE, pg_name="3")], 1: []},
            None,
            "allowed: a group of --groups (it has none)",
        ),
        (
            {0: [node(0, COLL, **REDUCE, pg_name="1")], 1: [], 2: []},
            '{"1": [1, 2]}',
            "in group 1 of other ranks; allowed: one of its own",
        ),
        (
            {0: [node(0, COLL, **REDUCE)], 1: []},
            None,
            "operation 0 of 0,1:all on ranks [0] (all_reduce); allowed: one operation on ranks",
        ),
        (
            {0: [node(0, COLL, **REDUCE)], 1: [node(0, COLL, comm_type=6, comm_size=8)]},
            None,
            "on ranks [0, 1] (all_reduce, all_to_all)",
        ),
        (
            {0: [node(0, SEND, comm_src=1, comm_dst=0)], 1: []},
            None,
            "a send from 1 to 0; allowed: of its own",
        ),
        (
            {0: [node(0, SEND, comm_dst=5)], 1: []},
            None,
            "a send from 0 to 5; allowed: ranks below 2",
        ),
        (
            {0: [node(0, SEND, comm_dst=1)], 1: [node(0, SEND, comm_dst=0)]},
            None,
            "operation 0 of 0,1:0>1.0 on ranks [0] (send); allowed: one operation on ranks [0, 1]",
        ),
        ({0: [], 1: []}, "[", "--groups: got "),
        ({0: [], 1: []}, '{"1": [0, 0]}', "; allowed: an object of lists of ranks from 0 to 1"),
        ({0: [], 1: []}, '{"1": [0, 2]}', "; allowed: an object of lists of ranks from 0 to 1"),
        ({0: [], 1: []}, "[1]", "; allowed: an object of lists of ranks from 0 to 1"),
    ],
)
def test_broken_traces_are_refused_in_one_line(
    nodes: Nodes, groups: str | None, expected: str, tmp_path: Path
) -> None:
    prefix = write(tmp_path, nodes)
    if groups is not None:
        (tmp_path / "job.groups.json").write_text(groups)
    with pytest.raises(ValueError) as refused:
        read_chakra(prefix)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("left", [0, 1, 5, 20])
def test_a_trace_that_breaks_off_is_refused(left: int, tmp_path: Path) -> None:
    files, _ = write_chakra(tmp_path / "job", job())
    files[0].write_bytes(files[0].read_bytes()[:left])
    with pytest.raises(ValueError, match=r"job\.0\.et, which (is empty|ends or breaks off)"):
        read_chakra(tmp_path / "job")


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200))
def test_no_bytes_end_in_another_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    for rank in range(2):
        (folder / f"job.{rank}.et").write_bytes(content)
    message = ""
    try:
        assert isinstance(read_chakra(folder / "job"), Imported)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message
