"""Execution traces of PyTorch: a recorded job on gloo, and small ones written here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from railx.errors import UserError
from railx.exchange.graph_files import read_graphs
from railx.exchange.rank_nodes import Axes
from railx.exchange.torch_traces import shortest_times
from railx.replay.graph_run import prepare_graph, replay_graph
from railx.replay.graphs import NODE_KINDS, RankGraphs
from tests.exchange.traces import unpacked
from tests.replay.plain_graphs import graphs_of_rows, plain_ends, row

#: A tensor of 1,000 elements of 4 bytes in memory 50.
BUCKET = [40, 50, 0, 1000, 4, "cpu"]
SCHEMA = "(Tensor[] tensors, ..., bool async_op=True, int timeout=-1)"


class Recording:
    """A trace and its profile, operator by operator; times in us."""

    def __init__(self, rank: int, groups: Sequence[dict[str, Any]] = (), world: int = 2) -> None:
        self.rank, self.world = rank, world
        self.nodes: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        if groups:
            self.operator("## process_group:init ##", inputs=[json.dumps(list(groups))])

    def operator(
        self,
        name: str,
        start: float | None = None,
        lasts: float = 0.0,
        inputs: Sequence[Any] = (),
        thread: int = 1,
        parent: int = -1,
        **attributes: Any,
    ) -> int:
        """An operator; without a start the profile lacks it."""
        record = len(self.nodes) + 1
        attrs = [{"name": "rf_id", "type": "uint64", "value": record}]
        attrs += [{"name": key, "type": "", "value": value} for key, value in attributes.items()]
        values = {"values": list(inputs), "shapes": [], "types": []}
        self.nodes.append(
            {
                "id": 100 + record,
                "name": name,
                "ctrl_deps": 100 + parent,
                "inputs": values,
                "outputs": {"values": [], "shapes": [], "types": []},
                "attrs": attrs,
            }
        )
        if start is not None:
            said = {"Record function id": record, "External id": 1000 + record}
            self.event(name, "cpu_op", start, lasts, tid=thread, args=said)
        return record

    def event(self, name: str, kind: str, start: float, lasts: float, **more: Any) -> None:
        event = {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": lasts, **more}
        self.events.append(event)

    def kernel(self, record: int, name: str, start: float, lasts: float, stream: int) -> None:
        said = {"External id": 1000 + record, "stream": stream}
        self.event(name, "kernel", start, lasts, args=said)

    def write(self, folder: Path) -> Path:
        trace = {"schema": "1.1.1-chakra.0.0.4", "nodes": self.nodes}
        said = {"rank": self.rank, "world_size": self.world}
        profile = {"distributedInfo": said, "traceEvents": self.events}
        (folder / f"job.{self.rank}.json").write_text(json.dumps(trace))
        (folder / f"job.{self.rank}.kineto.json").write_text(json.dumps(profile))
        return folder / "job"


def overlapped(rank: int, *, synchronous: bool = False, world: int = 2) -> Recording:
    """10 us, an all-reduce from 10 to 40, 5 us beside it, then its tensor is used."""
    job = Recording(rank, world=world)
    job.operator("ProfilerStep#1", 0, 60)
    job.operator("aten::mm", 0, 10)
    job.operator(
        "c10d::allreduce_", 10, 2, [[BUCKET], "<Object>", not synchronous, -1], op_schema=SCHEMA
    )
    job.operator("gloo:all_reduce", 10, 30, [BUCKET], thread=7)
    job.operator("aten::relu", 12, 5)
    job.operator("aten::copy_", 44, 6, [BUCKET])
    return job


def write_both(folder: Path, **options: Any) -> Path:
    for rank in range(2):
        prefix = overlapped(rank, **options).write(folder)
    return prefix


def nodes_of(graphs: RankGraphs, rank: int = 0) -> list[tuple[str, str, int, list[int]]]:
    """Name, kind, time and dependencies (within the rank) of the nodes of a rank."""
    rows = (graphs.columns["rank"] == rank).nonzero()[0].tolist()
    return [
        (
            graphs.names[row],
            NODE_KINDS[graphs.columns["kind"][row]],
            int(graphs.columns["duration_ns"][row]),
            [
                int(before) - rows[0]
                for before in graphs.dependencies[graphs.offsets[row] : graphs.offsets[row + 1]]
            ],
        )
        for row in rows
    ]


def test_moments_since_1970_are_as_exact_as_those_since_the_start(tmp_path: Path) -> None:
    """Profilers of older releases of torch count microseconds from 1970 on."""
    wanted = nodes_of(read_graphs(write_both(tmp_path)).graphs)
    for rank in range(2):
        job = overlapped(rank)
        for event in job.events:
            event["ts"] += 1_700_000_000_123_457.5
        prefix = job.write(tmp_path)
    assert nodes_of(read_graphs(prefix).graphs) == wanted


def test_a_recorded_job_takes_as_long_as_it_did(tmp_path: Path) -> None:
    """Two buckets of plain torch on gloo, with its times of collectives."""
    prefix = unpacked("torch_gloo_2", tmp_path)
    imported = read_graphs(prefix)
    graphs = imported.graphs
    assert (graphs.ranks, graphs.groups, imported.lost) == (2, ((0, 1),), ())
    assert imported.issued
    reduces = graphs.columns["kind"] == NODE_KINDS.index("all_reduce")
    # One bucket of two layers of 256 x 256 and their biases, and the loss.
    expected = [4 * 2 * (256 * 256 + 256), 4]
    assert graphs.columns["bytes"][reduces].tolist() == expected * 2
    replayed = replay_graph(prepare_graph(graphs, graphs.columns["duration_ns"]))
    for rank in range(2):
        profile = json.loads(prefix.with_name(f"job.{rank}.kineto.json").read_text())
        (step,) = [e for e in profile["traceEvents"] if e["name"].startswith("ProfilerStep")]
        took_us = replayed.ended_ns[graphs.columns["rank"] == rank].max() / 1e3
        # The wake-up after a collective is not in its recorded time.
        assert 0.9 * step["dur"] < took_us <= step["dur"]
    assert (plain_ends(graphs, graphs.columns["duration_ns"]) == replayed.ended_ns).all()


def test_a_time_that_one_member_lacks_is_that_of_the_others() -> None:
    times = ((0, 77), (0, 30), (0, -1), (1, -1), (1, 20), (1, -1))
    rows = [row(rank, "all_reduce", group=0, duration_ns=ns) for rank, ns in times]
    found = shortest_times(graphs_of_rows(rows, ((0, 1),)))
    assert found.columns["duration_ns"].tolist() == [77, 20, -1] * 2


def test_the_user_of_a_tensor_waits_and_the_idle_host_does_not_compute(tmp_path: Path) -> None:
    graphs = read_graphs(write_both(tmp_path)).graphs
    assert nodes_of(graphs) == [
        ("aten::mm", "compute", 10_000, []),
        ("c10d::allreduce_", "all_reduce", 30_000, [0]),
        ("c10d::allreduce_", "compute", 2_000, [0]),
        ("aten::relu", "compute", 5_000, [2]),
        # Idle from 17 to 40, then 4 us until it goes on.
        ("aten::relu", "compute", 4_000, [3]),
        ("aten::copy_", "compute", 6_000, [1, 4]),
        ("aten::copy_", "compute", 10_000, [5]),
        ("end", "compute", 0, [6]),
    ]
    assert graphs.columns["bytes"].tolist() == [0, 4000, 0, 0, 0, 0, 0, 0] * 2
    assert plain_ends(graphs, graphs.columns["duration_ns"]).max() == 56_000


def test_a_synchronous_call_is_waited_for_at_once(tmp_path: Path) -> None:
    graphs = read_graphs(write_both(tmp_path, synchronous=True)).graphs
    names = [(name, after) for name, _, _, after in nodes_of(graphs)]
    assert names[3] == ("aten::relu", [1, 2])


def test_a_worker_that_the_trace_misses_has_the_time_of_the_profile(tmp_path: Path) -> None:
    """torch's observer now and then loses a span of gloo's threads."""
    for rank in range(2):
        job = overlapped(rank)
        job.operator("c10d::allreduce_", 50, 1, [[[41, 51, 0, 2, 4, "cpu"]], "<Object>", True, -1])
        job.operator("gloo:all_reduce", 51, 7, [[41, 51, 0, 2, 4, "cpu"]], thread=7)
        job.nodes = [
            node
            for node in job.nodes
            if node["name"] != "gloo:all_reduce" or node["inputs"]["values"] != [BUCKET]
        ]
        prefix = job.write(tmp_path)
    graphs = read_graphs(prefix).graphs
    reduces = graphs.columns["kind"] == NODE_KINDS.index("all_reduce")
    assert graphs.columns["duration_ns"][reduces].tolist() == [30_000, 7_000] * 2


def test_the_shortest_time_of_the_members_counts(tmp_path: Path) -> None:
    """The first member's time contains its wait for the second."""
    first, second = overlapped(0), overlapped(1)
    for event in second.events:
        if event["name"] == "gloo:all_reduce":
            event["dur"] = 8
    first.write(tmp_path)
    graphs = read_graphs(second.write(tmp_path)).graphs
    reduces = graphs.columns["kind"] == NODE_KINDS.index("all_reduce")
    assert graphs.columns["duration_ns"][reduces].tolist() == [8_000, 8_000]


def test_kernels_follow_their_stream_and_collectives_their_tensors(tmp_path: Path) -> None:
    """The host runs ahead; what touches the tensor waits on the device alone."""
    for rank in range(2):
        job = Recording(rank)
        first = job.operator("aten::mm", 0, 3)
        job.kernel(first, "gemm", 5, 50, stream=7)
        call = job.operator("c10d::allreduce_", 4, 2, [[BUCKET], True, -1], op_schema=SCHEMA)
        # NCCL's kernel belongs to the span below the call.
        below = job.operator("record_param_comms", 4.5, 1, [BUCKET], parent=call, pg_name="0")
        job.kernel(below, "ncclDevKernel_AllReduce", 60, 20, stream=20)
        other = job.operator("aten::add", 7, 1)
        job.kernel(other, "add", 55, 4, stream=7)
        user = job.operator("aten::copy_", 9, 1, [BUCKET])
        job.kernel(user, "copy", 85, 6, stream=7)
        job.event("cudaDeviceSynchronize", "cuda_runtime", 10, 81)
        job.operator("aten::item", 92, 1)
        prefix = job.write(tmp_path)
    graphs = read_graphs(prefix).graphs
    found = {name: (kind, ns, after) for name, kind, ns, after in nodes_of(graphs)}
    order = [name for name, *_ in nodes_of(graphs)]
    assert found["gemm"] == ("compute", 50_000, [])
    assert order.index("gemm") in found["add"][2]
    reduce = order.index("c10d::allreduce_")
    assert nodes_of(graphs)[reduce][1:3] == ("all_reduce", 20_000)
    assert order.index("gemm") in nodes_of(graphs)[reduce][3]
    assert {reduce, order.index("add")} <= set(found["copy"][2])
    streams = graphs.columns["stream"][: len(order)].tolist()
    assert [streams[order.index(name)] for name in ("gemm", "add", "copy")] == [8, 8, 8]
    assert reduce not in found["add"][2]
    # The device takes 50 + 20 + 6, then the host goes on.
    ends = plain_ends(graphs, graphs.columns["duration_ns"])
    assert ends.max() == 50_000 + 20_000 + 6_000 + 2_000


@pytest.mark.parametrize(
    ("operator", "inputs", "kind", "size"),
    [
        ("_allgather_base_", [[0, 1, 0, 16, 4, "cpu"], [2, 3, 0, 8, 4, "cpu"]], "all_gather", 32),
        (
            "_reduce_scatter_base_",
            [[0, 1, 0, 8, 4, "cpu"], [2, 3, 0, 16, 4, "cpu"]],
            "reduce_scatter",
            64,
        ),
        (
            "reduce_scatter_",
            [[[0, 1, 0, 8, 2, "cpu"]], [[[2, 3, 0, 8, 2, "cpu"], [4, 5, 0, 8, 2, "cpu"]]]],
            "reduce_scatter",
            32,
        ),
        ("alltoall_base_", [[0, 1, 0, 8, 4, "cpu"], [2, 3, 0, 9, 4, "cpu"]], "all_to_all", 36),
        ("scatter_", [[[0, 1, 0, 8, 4, "cpu"]], []], "scatter", 64),
        ("barrier", ["<Object>", [], -1], "barrier", 0),
        ("broadcast_", [[[0, 1, 0, 8, 4, "cpu"]], "<Object>", 0], "broadcast", 32),
    ],
)
def test_bytes_of_each_collective(
    operator: str, inputs: list[Any], kind: str, size: int, tmp_path: Path
) -> None:
    for rank in range(2):
        job = Recording(rank)
        job.operator(f"c10d::{operator}", 1, 1, inputs)
        prefix = job.write(tmp_path)
    graphs = read_graphs(prefix).graphs
    chosen = graphs.columns["group"] >= 0
    assert graphs.columns["bytes"][chosen].tolist() == [size] * 2
    assert {NODE_KINDS[number] for number in graphs.columns["kind"][chosen].tolist()} == {kind}


def test_messages_name_ranks_of_their_group(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "ranks": [], "group_size": 4},
        {"pg_name": "5", "ranks": [3, 1], "group_size": 2},
    ]
    for rank in range(4):
        job = Recording(rank, groups, world=4)
        if rank == 1:
            job.operator("c10d::send", 1, 1, [[BUCKET], "<Object>", 1, 9], pg_name="5")
        if rank == 3:
            job.operator("c10d::recv_", 1, 1, [[BUCKET], "<Object>", 0, 9], pg_name="5")
        job.operator("c10d::allreduce_", 5, 1, [[BUCKET]], pg_name="0")
        prefix = job.write(tmp_path)
    graphs = read_graphs(prefix).graphs
    messages = graphs.columns["peer"] >= 0
    assert graphs.columns["rank"][messages].tolist() == [1, 3]
    assert graphs.columns["peer"][messages].tolist() == [3, 1]
    assert graphs.columns["tag"][messages].tolist() == [9, 9]
    assert set(graphs.groups) == {(0, 1, 2, 3), (1, 3)}


def test_operators_without_a_time_are_counted(tmp_path: Path) -> None:
    for rank in range(2):
        job = overlapped(rank)
        job.operator("aten::forgotten")
        prefix = job.write(tmp_path)
    lost = read_graphs(prefix).lost
    assert lost == ("2 operators have no time in the profile: they take no time",)


def test_missing_times_are_named(tmp_path: Path) -> None:
    prefix = write_both(tmp_path)
    (tmp_path / "job.1.kineto.json").unlink()
    with pytest.raises(ValueError, match=r"job\.1\.json, rank 1, without times; allowed: the prof"):
        read_graphs(prefix)
    job = overlapped(1)
    job.events = [event for event in job.events if "c10d" not in event["name"]]
    job.write(tmp_path)
    with pytest.raises(ValueError, match=r"job\.1\.json, rank 1, node 103, c10d::allreduce_, has "):
        read_graphs(prefix)


def test_a_rank_of_a_larger_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rank 0, which is rank 0 of 8 in its run, with 2 here"):
        read_graphs(write_both(tmp_path, world=8))


def test_one_rank_stands_for_all(tmp_path: Path) -> None:
    prefix = overlapped(0, world=8).write(tmp_path)
    graphs = read_graphs(prefix, symmetric=Axes.of_text("dp=8")).graphs
    assert (graphs.ranks, graphs.groups) == (8, (tuple(range(8)),))
    assert plain_ends(graphs, graphs.columns["duration_ns"]).max() == 56_000


def test_a_group_without_a_name_is_refused_where_there_are_several(tmp_path: Path) -> None:
    groups = [{"pg_name": name, "ranks": [], "group_size": 2} for name in "01"]
    for rank in range(2):
        job = Recording(rank, groups)
        job.operator("c10d::allreduce_", 5, 1, [[BUCKET]])
        prefix = job.write(tmp_path)
    with pytest.raises(ValueError, match=r"node 102, c10d::allreduce_ of group None; allowed: a g"):
        read_graphs(prefix)


@pytest.mark.parametrize("name", ["job.0.json", "job.0.kineto.json"])
@pytest.mark.parametrize("left", [40, 200])
def test_files_that_break_off_are_refused(name: str, left: int, tmp_path: Path) -> None:
    prefix = write_both(tmp_path)
    (tmp_path / name).write_text((tmp_path / name).read_text()[:left])
    with pytest.raises(ValueError) as refused:
        read_graphs(prefix)
    assert name in str(refused.value)
    assert "breaks off" in str(refused.value)


@pytest.mark.parametrize(
    "broken",
    [
        *(
            '{"schema": "1", "nodes": [{"id": 3}]}',
            '{"schema": "1", "nodes": 3}',
            '{"schema": "1"}',
        ),
        '{"schema": "1", "nodes": [{"name": "## process_group:init ##", "inputs": ["[{}]"]}]}',
    ],
)
def test_other_forms_are_refused_in_one_line(broken: str, tmp_path: Path) -> None:
    prefix = write_both(tmp_path)
    (tmp_path / "job.0.json").write_text(broken)
    with pytest.raises(ValueError) as refused:
        read_graphs(prefix)
    assert "job.0.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"), [("dur", float("nan")), ("dur", -5), ("ts", float("inf")), ("ts", "soon")]
)
def test_times_that_are_none_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    job = overlapped(0)
    job.events[1][key] = value
    overlapped(1).write(tmp_path)
    with pytest.raises(UserError, match=r"job\.0\.json, rank 0, in a form that is not known"):
        read_graphs(job.write(tmp_path))
