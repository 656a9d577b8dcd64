"""Chakra traces as graphs: what the schema's own package reads is in them, those of
others end, and broken ones are refused in one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra.src.converter.text_converter import TextConverter
from chakra.src.generator import generator
from chakra.src.jsonizer import jsonizer
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.chakra import write_chakra
from railx.exchange.graph_files import read_graphs
from railx.exchange.rank_nodes import Axes, ImportedGraphs
from railx.fabric.circuits import Layout
from railx.replay.graphs import COMPUTE, NODE_KINDS, RankGraphs
from railx.replay.run import prepare, replay_programs
from tests.exchange.drawn import collectives_alone, job
from tests.exchange.traces import COLL, COMP, RECV, SEND, Nodes, node, unpacked, write
from tests.replay.plain_graphs import plain_ends
from tests.replay.programs import programs as drawn_steps

REDUCE = {"comm_type": 0, "comm_size": 8}


def kinds(graphs: RankGraphs) -> list[str]:
    return [NODE_KINDS[number] for number in graphs.columns["kind"].tolist()]


def after(graphs: RankGraphs, row: int) -> list[int]:
    """The numbers of the nodes that must end before that of a row."""
    rows = graphs.dependencies[graphs.offsets[row] : graphs.offsets[row + 1]]
    return graphs.columns["number"][rows].tolist()


# Ours


@settings(max_examples=40, deadline=None)
@given(steps=drawn_steps(), seed=st.integers(0, 2**32))
def test_a_trace_of_programs_takes_as_long_as_they_do(
    steps: dict[int, list[Any]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    programs = collectives_alone(steps, seed)
    prefix = tmp_path_factory.mktemp("chakra") / "job"
    write_chakra(prefix, programs)
    graphs = read_graphs(prefix).graphs
    ends = plain_ends(graphs, graphs.columns["duration_ns"])
    replayed = replay_programs(prepare(programs, Layout(1)), "electrical", 0)
    ranks, last = graphs.columns["rank"], graphs.columns["number"]
    found = [int(ends[ranks == rank][last[ranks == rank].argmax()]) for rank in range(graphs.ranks)]
    assert found == replayed.table["end_ns"].tolist()


def test_a_small_job_node_by_node(tmp_path: Path) -> None:
    write_chakra(tmp_path / "job", job((0, 1_400, 1_400, 1_400)))
    imported = read_graphs(tmp_path / "job")
    graphs = imported.graphs
    assert kinds(graphs) == ["compute", "compute", "all_gather", "compute", "compute"] * 2
    assert graphs.columns["rank"].tolist() == [0] * 5 + [1] * 5
    assert [after(graphs, row) for row in range(5, 10)] == [[], [0], [1], [1], [2, 3]]
    # A member's part of an all-gather, and nanoseconds where microseconds are rounded.
    assert graphs.columns["bytes"].tolist() == [0, 0, 500, 0, 0] * 2
    assert graphs.columns["duration_ns"].tolist() == [0, 1_400, 2_500, 1_400, 1_400] * 2
    assert graphs.groups == ((0, 1),)
    assert graphs.columns["group"].tolist() == [-1, -1, 0, -1, -1] * 2
    assert [path.name for path in imported.files] == ["job.0.et", "job.1.et"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nodes_keep_what_the_schemas_package_wrote(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any numbers, any order in the file, dependencies of both kinds."""
    count = data.draw(st.integers(1, 12))
    numbers = data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count, unique=True))
    expected: dict[int, tuple[set[int], int, int]] = {}
    nodes = []
    for position, number in enumerate(numbers):
        before = st.sets(st.sampled_from(numbers[:position])) if position else st.just(set())
        by_data, by_control = data.draw(before), data.draw(before)
        operations, size = data.draw(st.integers(0, 2**50)), data.draw(st.integers(0, 2**50))
        expected[number] = by_data | by_control, operations, size
        nodes.append(
            node(
                number,
                COMP,
                tuple(by_data),
                tuple(by_control),
                num_ops=operations,
                tensor_size=size,
            )
        )
    prefix = write(tmp_path_factory.mktemp("job"), {0: data.draw(st.permutations(nodes)), 1: nodes})
    graphs = read_graphs(prefix).graphs
    for row in range(len(graphs)):
        before, operations, size = expected[int(graphs.columns["number"][row])]
        assert set(after(graphs, row)) == before
        assert graphs.columns["operations"][row] == operations
        assert graphs.columns["memory_bytes"][row] == size
        # Nodes are issued after those that they wait for.
        first = graphs.offsets[row], graphs.offsets[row + 1]
        assert (graphs.dependencies[first[0] : first[1]] < row).all()
    for rank in range(2):
        order = graphs.columns["number"][graphs.columns["rank"] == rank].tolist()
        assert order == lowest_first({n: before for n, (before, _, _) in expected.items()})


def lowest_first(before: dict[int, set[int]]) -> list[int]:
    """Numbers by dependencies, of several ready ones the lowest."""
    order: list[int] = []
    while len(order) < len(before):
        ready = [n for n, of in before.items() if n not in order and of <= set(order)]
        order.append(min(ready))
    return order


# Those of others


def test_the_smoke_run_of_the_public_generator_ends(tmp_path: Path) -> None:
    imported = read_graphs(unpacked("stg_smoke_8", tmp_path))
    graphs = imported.graphs
    assert (len(graphs), graphs.ranks, len(graphs.groups)) == (16_208, 8, 16)
    assert imported.by_parallelism
    assert imported.lost == ()
    count = {kind: kinds(graphs).count(kind) for kind in set(kinds(graphs))}
    assert (count["all_gather"], count["reduce_scatter"]) == (8 * 288, 8 * 192)
    assert (count["all_reduce"], count["send"], count["recv"]) == (8 * 50, 8, 8)
    gathers = graphs.columns["kind"] == NODE_KINDS.index("all_gather")
    assert set(graphs.columns["bytes"][gathers].tolist()) == {2_147_483_648}
    ends = plain_ends(graphs, np.ones(len(graphs), np.int64))
    assert (ends > 0).all()


@pytest.mark.slow
def test_128_ranks_of_the_public_generator_end(tmp_path: Path) -> None:
    graphs = read_graphs(unpacked("stg_h200_128_llama", tmp_path)).graphs
    assert (len(graphs), graphs.ranks) == (157_568, 128)
    assert (plain_ends(graphs, np.ones(len(graphs), np.int64)) > 0).all()


def test_the_ring_of_eight_takes_its_rounds(tmp_path: Path) -> None:
    """14 messages one after another, and 7 sums of 7 us between them."""
    graphs = read_graphs(unpacked("astra_custom_ring_8", tmp_path)).graphs
    sends = graphs.columns["kind"] == NODE_KINDS.index("send")
    taken = np.maximum(graphs.columns["duration_ns"], 0) + 100 * sends
    assert plain_ends(graphs, taken).max() == 14 * 100 + 7 * 7_000


def test_json_of_the_packages_own_tool_reads_as_the_binary_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = unpacked("astra_custom_ring_8", tmp_path)
    for rank in range(8):
        words = ["chakra_jsonizer", "--input_filename", f"{prefix}.{rank}.et"]
        out = ["--output_filename", str(tmp_path / f"text.{rank}.json")]
        monkeypatch.setattr(sys, "argv", [*words, *out])
        jsonizer.main()
    binary, text = read_graphs(prefix).graphs, read_graphs(tmp_path / "text").graphs
    for name, values in binary.columns.items():
        assert (text.columns[name] == values).all(), name
    assert (text.dependencies == binary.dependencies).all()
    assert (text.offsets == binary.offsets).all()
    assert text.names == binary.names


def test_a_trace_of_pytorch_by_the_packages_converter(tmp_path: Path) -> None:
    """Callers that were left out are no dependencies, calls of collectives compute."""
    axes = Axes.of_text("dp=2")
    imported = read_graphs(unpacked("chakra_pytorch_1", tmp_path), symmetric=axes)
    graphs = imported.graphs
    assert len(graphs) == 2 * 3_664
    assert imported.lost == ("3664 callers of PyTorch's operators, which are no dependencies",)
    broadcasts = graphs.columns["kind"] == NODE_KINDS.index("broadcast")
    assert graphs.columns["bytes"][broadcasts].max() == 212_480
    # The host and two streams of the device.
    computes = graphs.columns["kind"] == COMPUTE
    assert set(graphs.columns["stream"][computes].tolist()) >= {2, 2 * 7 + 1}
    assert (plain_ends(graphs, np.maximum(graphs.columns["duration_ns"], 0)) >= 0).all()


def test_callers_are_no_dependencies_of_the_converters_traces_alone(tmp_path: Path) -> None:
    nodes = [node(4, COMP, (), (9,), is_cpu_op=True), node(5, COMP, (4,), (4,))]
    prefix = write(tmp_path, {0: nodes, 1: nodes}, pid=77)
    imported = read_graphs(prefix)
    assert [after(imported.graphs, row) for row in range(2)] == [[], [4]]
    assert imported.lost == ("4 callers of PyTorch's operators, which are no dependencies",)
    write(tmp_path, {0: nodes, 1: nodes})
    with pytest.raises(ValueError, match=r"job\.0\.et, rank 0, node 4 after node 9, which is not"):
        read_graphs(prefix)


def test_the_json_of_the_packages_feeder(tmp_path: Path) -> None:
    """One object with all nodes, as the converter's JSON has them."""
    entries = [
        {"Id": 3, "Name": "aten::mm", "NodeType": 4, "runtime": 8, "data_deps": []},
        {"Id": 4, "Name": "c10d::call", "NodeType": 7, "data_deps": [3], "is_cpu_op": True},
        {
            "Id": 5,
            "Name": "nccl",
            "NodeType": 7,
            "data_deps": [4],
            "ctrlDeps": [1],
            "is_cpu_op": False,
            "comm_type": 0,
            "comm_size": 64,
        },
    ]
    for rank in range(2):
        (tmp_path / f"job.{rank}.json").write_text(json.dumps({"workload_graph": entries}))
    graphs = read_graphs(tmp_path / "job").graphs
    assert kinds(graphs) == ["compute", "compute", "all_reduce"] * 2
    assert graphs.columns["duration_ns"].tolist() == [8_000, -1, -1] * 2
    assert graphs.columns["bytes"].tolist() == [0, 0, 64] * 2
    assert [after(graphs, row) for row in range(3)] == [[], [3], [4]]
    (tmp_path / "job.1.json").write_text('{"workload_graph": [4]}')
    with pytest.raises(ValueError, match=r"job\.1\.json with no nodes in workload_graph"):
        read_graphs(tmp_path / "job")


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (generator.one_comm_coll_node_allreduce, "ALL_REDUCE", "all_reduce"),
        (generator.one_comm_coll_node_alltoall, "ALL_TO_ALL", "all_to_all"),
        (generator.one_comm_coll_node_allgather, "ALL_GATHER", "all_gather"),
        (generator.one_comm_coll_node_reducescatter, "REDUCE_SCATTER", "reduce_scatter"),
        (generator.one_comm_coll_node_broadcast, "BROADCAST", "broadcast"),
    ],
)
def test_collectives_of_the_packages_generator(
    make: Callable[[int, int], None],
    name: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(3, 1024)
    graphs = read_graphs(tmp_path / name).graphs
    assert kinds(graphs) == [kind] * 3
    assert graphs.columns["bytes"].tolist() == [1024] * 3
    assert graphs.columns["duration_ns"].tolist() == [-1] * 3
    assert graphs.groups == ((0, 1, 2),)


def test_computation_of_the_packages_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generator.two_comp_nodes_dependent(2, 5)
    generator.one_remote_mem_load_node(2, 64)
    generator.one_metadata_node_all_types(2)
    graphs = read_graphs(tmp_path / "two_comp_nodes_dependent").graphs
    assert plain_ends(graphs, graphs.columns["duration_ns"]).max() == 10_000
    memory = read_graphs(tmp_path / "one_remote_mem_load_node")
    assert memory.lost == ("2 transfers from or to memory have no price: they take no time",)
    assert kinds(read_graphs(tmp_path / "one_metadata_node_all_types").graphs) == ["compute"] * 2


#: A workload of two layers as ASTRA-sim's text form has it, in our own numbers.
DATA_PARALLEL = """DATA
2
first -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 4096 0
second -1 11 NONE 0 21 NONE 0 31 ALLREDUCE 8192 0
"""


def test_what_the_packages_converter_writes_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "layers.txt").write_text(DATA_PARALLEL)
    TextConverter(str(tmp_path / "layers.txt"), str(tmp_path / "layers"), 4, 2).convert()
    graphs = read_graphs(tmp_path / "layers").graphs
    reduces = graphs.columns["kind"] != COMPUTE
    assert (graphs.ranks, graphs.groups) == (4, ((0, 1, 2, 3),))
    assert sorted(graphs.columns["bytes"][reduces].tolist()) == [4096] * 8 + [8192] * 8
    computed = graphs.columns["duration_ns"][~reduces].sum() // 4
    assert computed == 2 * (10 + 11 + 31 + 21 + 30) * 1000
    taken = np.where(reduces, graphs.columns["bytes"], graphs.columns["duration_ns"])
    # The reduction of a layer is under way while the one before it computes.
    took = plain_ends(graphs, taken).max()
    assert computed + 2 * 4096 <= took < computed + 2 * (4096 + 8192)


def test_groups_have_their_members_and_messages_their_ends(tmp_path: Path) -> None:
    send = {"comm_size": 16, "comm_src": 0, "comm_dst": 2, "comm_tag": 3}
    prefix = write(
        tmp_path,
        {
            0: [node(4, COLL, **REDUCE, pg_name="7"), node(5, SEND, (4,), **send)],
            1: [node(4, COLL, **REDUCE, pg_name="7")],
            2: [node(1, RECV, comm_size=16, comm_src=0, comm_tag=3)],
        },
    )
    groups = tmp_path / "groups.json"
    groups.write_text('{"3": [2], "7": [1, 0]}')
    graphs = read_graphs(prefix, groups).graphs
    assert graphs.groups == ((2,), (0, 1))
    assert graphs.columns["group"].tolist() == [1, -1, 1, -1]
    assert graphs.columns["peer"].tolist() == [-1, 2, -1, 0]
    assert graphs.columns["tag"].tolist() == [-1, 3, -1, 3]


@pytest.mark.parametrize("name", ["job.groups.json", "job.json"])
def test_groups_beside_the_traces_are_found(name: str, tmp_path: Path) -> None:
    own = [node(4, COLL, **REDUCE, pg_name="7")]
    prefix = write(tmp_path, {0: own, 1: own})
    (tmp_path / name).write_text('{"7": [1, 0]}')
    assert read_graphs(prefix).graphs.groups == ((0, 1),)


@pytest.mark.parametrize(
    ("nodes", "groups", "expected"),
    [
        ({0: []}, None, "got ranks 0 of"),
        ({0: [], 2: []}, None, "got ranks 0, 2 of"),
        (
            {0: [], 1: [node(4, COMP, (9,))]},
            None,
            (
                "job.1.et, rank 1, node 4 after node 9, which is not there; allowed: nodes of the"
                " file; record or convert the trace again"
            ),
        ),
        (
            {0: [], 1: [node(4, COMP, (2**64 - 1,))]},
            None,
            "job.1.et, rank 1, node 4, out of range; allowed: 64 bits",
        ),
        (
            {0: [], 1: [node(4, COMP, **{"railx.duration_ns": float("inf")})]},
            None,
            "rank 1, node 4 with railx.duration_ns inf; allowed: a number from 0 up",
        ),
        (
            {0: [node(3, COMP, (5,)), node(5, COMP, (), (3,)), node(1, COMP)], 1: []},
            None,
            (
                "job.0.et, rank 0, node 3, which depends on itself through nodes 3, 5; allowed: no"
                " circle"
            ),
        ),
        (
            {0: [node(3, COMP), node(3, COMP)], 1: []},
            None,
            "job.0.et, rank 0, node 3, which is there twice",
        ),
        (
            {0: [node(0, COLL, comm_type=44)], 1: []},
            None,
            "job.0.et, rank 0, node 0 with comm_type 44; allowed: 0 to 9",
        ),
        ({0: [node(0, COLL)], 1: []}, None, "node 0 with comm_type None; allowed: 0 to 9"),
        (
            {0: [node(0, COLL, comm_type=0, comm_size=-4)], 1: []},
            None,
            "node 0 with comm_size -4; allowed: a number from 0 up",
        ),
        (
            {0: [node(0, COLL, **REDUCE, pg_name="3")], 1: []},
            '{"1": [0, 1]}',
            "rank 0, node 0 with pg_name '3'; allowed: a group of --groups (1)",
        ),
        (
            {0: [node(0, COLL, **REDUCE, pg_name="3")], 1: []},
            None,
            "allowed: a group of --groups (it has none)",
        ),
        (
            {0: [node(0, COLL, **REDUCE, pg_name="1")], 1: [], 2: []},
            '{"1": [1, 2]}',
            (
                "job.0.et, rank 0, node 0 in group 1 of other ranks; allowed: one of its own; check"
                " --groups"
            ),
        ),
        (
            {0: [node(7, COLL, **REDUCE)], 1: []},
            None,
            (
                "job.0.et, rank 0, node 7, operation 0 of the group of ranks 0, 1: all_reduce of 8"
                " bytes on rank 0, none on rank 1; allowed: the same operations on all members"
            ),
        ),
        (
            {0: [node(0, COLL, **REDUCE)], 1: [node(0, COLL, comm_type=6, comm_size=8)]},
            None,
            "all_reduce of 8 bytes on rank 0, all_to_all of 8 bytes on rank 1",
        ),
        (
            {0: [node(0, COLL, **REDUCE)], 1: [node(0, COLL, comm_type=0, comm_size=9)]},
            None,
            "all_reduce of 8 bytes on rank 0, all_reduce of 9 bytes on rank 1",
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
            {0: [node(0, SEND, comm_dst=1)], 1: [node(2, RECV, comm_src=0, comm_tag=4)]},
            None,
            (
                "job.0.et, rank 0, node 0, a send of rank 0 to rank 1, tag 0, with 1 sends for 0"
                " receives; allowed: as many"
            ),
        ),
        ({0: [], 1: []}, "[", "--groups: got "),
        ({0: [], 1: []}, '{"1": [0, 0]}', "; allowed: an object of lists of different ranks"),
        ({0: [], 1: []}, '{"1": [0, 2]}', "with rank 2, of which job has no file; allowed: ranks"),
        ({0: [], 1: []}, "[1]", "; allowed: an object of lists of different ranks"),
    ],
)
def test_broken_traces_are_refused_in_one_line(
    nodes: Nodes, groups: str | None, expected: str, tmp_path: Path
) -> None:
    prefix = write(tmp_path, nodes)
    if groups is not None:
        (tmp_path / "job.groups.json").write_text(groups)
    with pytest.raises(ValueError) as refused:
        read_graphs(prefix)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ranks_may_have_no_nodes(tmp_path: Path) -> None:
    own = [node(0, COMP, num_ops=5), node(1, COMP, (0,), num_ops=6)]
    graphs = read_graphs(write(tmp_path, {0: [], 1: own, 2: [], 3: own, 4: []})).graphs
    assert graphs.columns["rank"].tolist() == [1, 1, 3, 3]
    assert [after(graphs, row) for row in range(4)] == [[], [0], [], [0]]


def test_members_of_an_exchange_may_give_different_bytes(tmp_path: Path) -> None:
    sizes = [[node(0, COLL, comm_type=6, comm_size=8 + rank)] for rank in range(2)]
    assert len(read_graphs(write(tmp_path, dict(enumerate(sizes)))).graphs) == 2


@pytest.mark.parametrize("left", [0, 1, 5, 20])
def test_a_trace_that_breaks_off_is_refused(left: int, tmp_path: Path) -> None:
    files, _ = write_chakra(tmp_path / "job", job())
    files[0].write_bytes(files[0].read_bytes()[:left])
    with pytest.raises(ValueError, match=r"job\.0\.et, which (is empty|ends or breaks off)"):
        read_graphs(tmp_path / "job")


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200), ending=st.sampled_from(["et", "json"]))
def test_no_bytes_end_in_another_error(
    content: bytes, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    for rank in range(2):
        (folder / f"job.{rank}.{ending}").write_bytes(content)
    message = ""
    try:
        assert isinstance(read_graphs(folder / "job"), ImportedGraphs)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "which is empty"),
        ('{"version": "1"}{"id": "3", ', "breaks off at character 16"),
        ('{"version": "1"}[3]', "no Node of Chakra"),
        ('{"version": "1"}{"id": "-3"}', "no Node of Chakra"),
        (json.dumps({"version": "1"}) + '{"id": "3", "dataDeps": ["4"]}', "after node 4"),
    ],
)
def test_broken_json_is_refused_in_one_line(text: str, expected: str, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"job.{rank}.json").write_text(text)
    with pytest.raises(ValueError) as refused:
        read_graphs(tmp_path / "job")
    assert expected in str(refused.value)
    assert "job.0.json" in str(refused.value)
    assert "\n" not in str(refused.value)
