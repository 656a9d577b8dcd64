"""One stage of a pipeline, alone in this process: when it receives, what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from railx.performance.decoder import ModelSettings
from railx.performance.trainer_memory import ModelShard
from railx.planning.format.parts import Chunk, Pipeline, PlanError, Slice
from railx.planning.format.plan import PipelineBatch
from railx.planning.format.schedule import Op, operations, stage_layers
from tests.plans import chunk, pipeline_plan
from training import pipeline as runtime
from training import pipeline_memory
from training.loop import _peaks
from training.model import Decoder
from training.pipeline import CachedSlice, PipelineParallel, Receipt, StageLinks
from training.timeline import Timeline

pytestmark = pytest.mark.system

MODEL = ModelSettings("test", 4, 16, 4, 2, 24, 32)

#: A sequence in four slices, the last with two others; then two whole sequences.
CHUNKS = (
    chunk((0, 0, 7, 24)),
    chunk((0, 7, 13, 24)),
    chunk((0, 13, 19, 24)),
    chunk((1, 0, 3, 3), (0, 19, 24, 24), (2, 0, 4, 4)),
    chunk((3, 0, 9, 9)),
    chunk((4, 0, 8, 8)),
)
LENGTHS = {0: 24, 1: 3, 2: 4, 3: 9, 4: 8, 5: 6}
BATCH = PipelineBatch(
    0, (Pipeline(3, 0, CHUNKS), Pipeline(3, 0, (chunk((5, 0, 6, 6)),)))
)  # fmt: skip
SEQUENCES = {s: np.arange(n, dtype=np.int64) % MODEL.vocabulary for s, n in LENGTHS.items()}


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@dataclass
class Neighbours(StageLinks):
    """Stages that are not there: they take everything at once and send zeros."""

    events: list[tuple[str, int]] = field(default_factory=list)
    sent: list[StorageWeakRef] = field(default_factory=list)

    def send(self, tensor: Tensor, to: int) -> None:
        self.events.append(("send", to))
        self.sent.append(StorageWeakRef(tensor.untyped_storage()))

    def post(self, like: Tensor, source: int) -> Receipt:
        self.events.append(("post", source))
        return Receipt(like.zero_(), _Arrival(self.events, source))

    def release(self) -> None:
        pass

    def finish(self) -> None:
        self.events.append(("finish", -1))


@dataclass
class _Arrival:
    events: list[tuple[str, int]]
    source: int

    def wait(self) -> None:
        self.events.append(("wait", self.source))


def with_recomputed(layers: int) -> tuple[Chunk, ...]:
    return tuple(replace(item, checkpoint_layers=(layers,) * 3) for item in CHUNKS)


def stage(number: int, links: StageLinks, monkeypatch: pytest.MonkeyPatch) -> PipelineParallel:
    """Stage ``number`` of three."""
    monkeypatch.setattr(dist, "get_rank", lambda group=None: number)
    held = stage_layers(MODEL.layers, 3)[number]
    decoder = Decoder(MODEL, seed=1, compute=torch.float64, layers=held)
    return PipelineParallel(decoder, 3, links, SEQUENCES, "sdpa", Timeline())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_receives_are_posted_before_the_compute_that_precedes_their_use(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Neighbours()
    own = stage(number, links, monkeypatch)
    for passed in ("_forward", "_backward"):
        plain = getattr(own, passed)

        def noted(*args: Any, kind: str = passed.lstrip("_"), plain: Any = plain) -> Any:
            links.events.append((kind, args[0].op.chunk))
            return plain(*args)

        monkeypatch.setattr(own, passed, noted)
    own.run(BATCH)
    before, after = number - 1, number + 1
    expected: list[tuple[str, int]] = []
    steps = [(op.kind, op.chunk) for part in BATCH.pipelines for op in operations(part, number)]
    posted = 0
    for place, (kind, index) in enumerate(steps):
        source, to = (before, after) if kind == "forward" else (after, before)
        while posted < min(place + 2, len(steps)):
            ahead = before if steps[posted][0] == "forward" else after
            expected += [("post", ahead)] if 0 <= ahead <= 2 else []
            posted += 1
        expected.append((kind, index))
        expected += [("wait", source)] if 0 <= source <= 2 else []
        expected += [("send", to)] if 0 <= to <= 2 else []
    # What was sent is waited for once, at the end.
    assert links.events == [*expected, ("finish", -1)]


def test_outputs_and_gradients_are_gone_once_they_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = Neighbours()
    own = stage(1, links, monkeypatch)
    left: list[int] = []
    monkeypatch.setattr(
        links, "release", lambda: left.append(sum(not sent.expired() for sent in links.sent))
    )
    own.run(BATCH)
    assert len(links.sent) == 2 * 7
    assert left == [0] * (2 * 7)


@dataclass
class _Kept:
    """Keys and values that were kept, by slice (its place in the chunks) and layer."""

    storages: dict[tuple[int, int], list[StorageWeakRef]] = field(default_factory=dict)

    def layers(self, index: int) -> list[int]:
        """The layers whose keys or values of a slice are still there."""
        return [
            layer
            for (other, layer), storages in self.storages.items()
            if other == index and not all(storage.expired() for storage in storages)
        ]


@pytest.mark.parametrize("recomputed", [0, 1])
def test_kept_keys_and_values_are_freed_right_after_their_last_use(
    recomputed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice's keys and values go layer by layer in its own backward pass."""
    own = stage(0, Neighbours(), monkeypatch)
    layers = list(own.decoder.layer_range)
    kept, now = _Kept(), [0]
    plain = CachedSlice.add

    def keep(self: CachedSlice, layer: int, keys: Tensor, values: Tensor) -> None:
        before = len(self.leaves)
        plain(self, layer, keys, values)
        if len(self.leaves) > before:
            kept.storages[now[0], layer] = [
                StorageWeakRef(leaf.untyped_storage()) for leaf in self.leaves[layer]
            ]

    monkeypatch.setattr(CachedSlice, "add", keep)
    forward, backward = own._forward, own._backward

    def noted(step: Any, weight: float) -> Any:
        now[0] = step.op.chunk
        return forward(step, weight)

    at_the_end: list[list[int]] = []

    def checked(step: Any) -> None:
        index = step.op.chunk
        if index < 3:
            assert kept.layers(index) == layers
        # The embedding is the last to get a gradient: every layer is through then.
        hook = own.decoder.embedding.weight.register_post_accumulate_grad_hook(
            lambda _: at_the_end.append(kept.layers(index))
        )
        backward(step)
        hook.remove()
        assert kept.layers(index) == []
        if 0 < index <= 3:
            assert kept.layers(index - 1) == layers

    monkeypatch.setattr(own, "_forward", noted)
    monkeypatch.setattr(own, "_backward", checked)
    own.run(PipelineBatch(0, (Pipeline(3, 0, with_recomputed(recomputed)),)))
    assert len(kept.storages) == 3 * len(layers)
    assert at_the_end == [[]] * len(CHUNKS)
    assert (own._cached_slices, own._live, own._posted) == ({}, {}, {})


@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_attention_saves_neither_joins_nor_what_is_recomputed(
    recomputed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that are not recomputed save their queries, and their keys in parts."""
    own = stage(0, Neighbours(), monkeypatch)
    joins: list[StorageWeakRef] = []
    queried: list[StorageWeakRef] = []
    plain = runtime.variable_length_attention

    def attention(queries: Tensor, keys: Tensor, values: Tensor, *further: Any) -> Tensor:
        if len(keys) > len(queries):
            joins.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in (keys, values))
            queried.append(StorageWeakRef(queries.untyped_storage()))
        return plain(queries, keys, values, *further)

    monkeypatch.setattr(runtime, "variable_length_attention", attention)
    batch = PipelineBatch(0, (Pipeline(3, 0, with_recomputed(recomputed)),))
    for step in runtime.stage_steps(batch, own.replica, 0)[:4]:
        assert step.op.kind == "forward"
        own._forward(step, 1.0)
    # Three slices with context, two layers.
    assert len(joins) == 2 * len(queried) == 2 * 3 * 2
    assert all(join.expired() for join in joins)
    assert [query.expired() for query in queried] == [
        layer < recomputed for _ in range(3) for layer in range(2)
    ]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    st.data(),
)
def test_a_saved_view_comes_back_from_its_parts(lengths: list[int], data: st.DataObject) -> None:
    parts = [torch.randn(length, 2, 3)[:, :, :2] for length in lengths]
    join = torch.cat(parts)
    start = data.draw(st.integers(0, len(join) - 1))
    stop = data.draw(st.integers(start + 1, len(join)))
    heads = data.draw(st.sampled_from([slice(0, 2), slice(0, 1), slice(1, 2)]))
    view = join[start:stop, heads].transpose(0, 1)[None]
    saved = runtime._InParts.of(view, parts)
    bounds = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    touched = [
        part
        for part, (begin, end) in zip(parts, pairwise(bounds), strict=True)
        if begin < stop and start < end
    ]
    assert [id(part) for part in saved.parts] == [id(part) for part in touched]
    assert saved.joined().equal(view)


class _Message:
    """A message under way until ``done``."""

    def __init__(self) -> None:
        self.done = False

    def is_completed(self) -> bool:
        return self.done

    def wait(self) -> None:
        self.done = True


def test_a_sent_tensor_is_kept_until_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[_Message] = []

    def isend(tensor: Tensor, to: int) -> _Message:
        messages.append(_Message())
        return messages[-1]

    monkeypatch.setattr(dist, "isend", isend)
    links, held = StageLinks(), []
    for _ in range(3):
        tensor = torch.ones(3)
        links.send(tensor, 1)
        held.append(StorageWeakRef(tensor.untyped_storage()))
        del tensor
    links.send(torch.ones(0), 1)
    assert len(messages) == 3
    messages[1].done = True
    assert [storage.expired() for storage in held] == [False] * 3
    links.release()
    assert [storage.expired() for storage in held] == [False, True, False]
    links.finish()
    assert all(message.done for message in messages)
    assert [storage.expired() for storage in held] == [True] * 3


def test_nothing_is_received_where_a_place_has_no_tokens() -> None:
    receipt = StageLinks().post(torch.empty(0, 4), 5)
    assert receipt.wait().shape == (0, 4)


def test_a_plan_of_another_shape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = stage(0, Neighbours(), monkeypatch)
    other = PipelineBatch(7, (Pipeline(3, 0, (chunk((5, 0, 6, 6)),), 2),))
    with pytest.raises(PlanError) as refused:
        own.run(other)
    assert str(refused.value) == (
        "batch 7, pipeline 0: 3 stages of 2 ranks; allowed: 3 stages of 1"
    )


def test_planned_peaks_are_those_of_the_own_replica() -> None:
    """The first replica holds two chunks at a time, the second has one."""
    many = Pipeline(2, 0, tuple(chunk((row, 0, 5, 5)) for row in range(4)))
    plan = pipeline_plan(4, [many, Pipeline(2, 1, (chunk((4, 0, 5, 5)),))])
    settings = SimpleNamespace(training=SimpleNamespace(warmup_iterations=0, iterations=1))
    for replica, most in ((0, 2), (1, 1)):
        runner = object.__new__(PipelineParallel)
        runner.replica, runner.stage, runner.peak_live_chunks = replica, 0, 7
        engine: Any = SimpleNamespace(runner=runner)
        run: Any = settings
        assert _peaks(run, plan, engine) == (7, most)


def test_what_is_kept_of_a_message_does_not_hold_the_rest_of_it() -> None:
    """Queries, keys and values come as parts of one tensor where ranks exchange."""
    message = torch.randn(6, 8, 4, requires_grad=True)
    queries, keys, values = message.split((4, 2, 2), dim=1)
    kept = CachedSlice()
    attend = runtime.ChunkAttention((Slice(0, 0, 6, 9),), [], kept, "sdpa", 0)
    attend(0, queries, keys, values)
    for leaf in kept.leaves[0]:
        assert leaf.untyped_storage().nbytes() == leaf.nbytes == 6 * 2 * 4 * 4


def test_times_of_a_pass_on_a_gpu_are_those_of_its_end_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda", 0)
    clock = SimpleNamespace(ns=0)

    def synchronize() -> None:
        clock.ns += 1000

    stream = SimpleNamespace(synchronize=synchronize)
    for name, value in (
        ("current_stream", {device: stream}.__getitem__),
        ("reset_peak_memory_stats", lambda _: None),
        ("memory_allocated", lambda _: 0),
        ("max_memory_allocated", lambda _: 0),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(pipeline_memory.time, "monotonic_ns", lambda: clock.ns)
    runner: Any = SimpleNamespace(
        device=device, stage=0, stages=2, sequence_rank=0, degree=1, live_chunks=1
    )
    nothing: Any = None
    log = pipeline_memory.PassLog(runner, nothing, nothing, fused_attention=True)
    log._predicted = [pipeline_memory.Predicted(1, 0)]
    with log.operation(0, Op("forward", 0)):
        clock.ns += 1  # the launch
    (passed,) = log.operations()
    assert (passed.start_ns, passed.end_ns) == (1000, 2001)


@pytest.mark.parametrize(("degree", "heads"), [(1, 6), (2, 3), (3, 2), (4, 3), (12, 1)])
def test_cached_keys_and_values_are_those_of_the_ranks_heads(degree: int, heads: int) -> None:
    """Also where the degree divides the heads, but not those of keys and values."""
    model = ModelSettings("grouped", 2, 24, 12, 6, 8, 31)
    stage = pipeline_memory.Stage(model, ModelShard(2), 0, 2, degree=degree)
    part = chunk((0, 0, 10, 20))
    assert stage.key_value_bytes(part, 1) == 2 * 4 * 10 * heads * model.head_width
