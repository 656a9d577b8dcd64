"""Programs as Chakra traces: the schema's own package reads them, and whoever carries
them out takes as long as our replay.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.jsonizer import jsonizer
from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd
from hypothesis import given, settings
from hypothesis import strategies as st

from railx.exchange.chakra import write_chakra
from railx.fabric.circuits import Configuration, Layout
from railx.replay.run import prepare, replay_programs
from tests.exchange.drawn import job, said, together
from tests.replay.programs import ReplayedOperation, Step, from_steps
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
def test_whoever_carries_a_trace_out_takes_as_long_as_the_replay(
    steps: dict[int, list[Step]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = {rank: [step for step in own if step.iteration == 0] for rank, own in steps.items()}
    programs = together(said(from_steps(first), seed))
    prefix = tmp_path_factory.mktemp("chakra") / "job"
    files, _ = write_chakra(prefix, programs)
    nodes = read_nodes(prefix, programs.ranks)
    replayed = replay_programs(prepare(programs, Layout(1)), "electrical", 0)
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
    programs = from_steps({0: [*steps, Step(0, "end")], 1: [*steps, Step(0, "end")]})
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
    programs = from_steps({0: [*steps, Step(0, "end")], 1: [*steps, Step(0, "end")]})
    write_chakra(tmp_path / "job", programs)
    assert max(len(node.data_deps) for node in read_nodes(tmp_path / "job", 2)[0]) == 1


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


def test_operations_of_a_channel_follow_each_other(tmp_path: Path) -> None:
    """Two at once on one channel take twice as long, on two channels they do not."""
    for channels, expected in ((("a", "a"), 5_000), (("a", "b"), 2_500)):
        begun: dict[str, int] = defaultdict(int)
        operations = []
        for name in channels:
            operations.append(
                ReplayedOperation(
                    (f"0,1:{name}", begun[name]),
                    Configuration("ring", (0, 1)),
                    {0: 2_500, 1: 2_500},
                    kind="all_reduce",
                )
            )
            begun[name] += 1
        own = [Step(0, "begin"), *(Step(0, "issue", 0, each) for each in operations)]
        own += [*(Step(0, "wait", 0, each) for each in reversed(operations)), Step(0, "end")]
        programs = from_steps({0: own, 1: own})
        files, _ = write_chakra(tmp_path / "job", programs)
        nodes = read_nodes(tmp_path / "job", 2)
        assert carried_out(nodes, json.loads(files[-1].read_text())) == {0: expected, 1: expected}
