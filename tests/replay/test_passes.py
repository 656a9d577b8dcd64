"""Cluster time from a trace: computation of known length, by a profile, gives a closed
form; prices by a table, and bandwidths for planners.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.fabric.circuits import Layout
from railx.performance.cluster import ClusterSettings, all_to_all_gb_s, with_topology
from railx.performance.layer_profile import ProfileFit
from railx.performance.sequence_cost import bandwidth_unit
from railx.planning.format.parts import Pipeline
from railx.replay.cluster_time import RECORDED, cluster_time, profiled_passes, summarised
from railx.replay.graph_pricing import price_of
from railx.replay.recording import cluster_programs
from railx.replay.settings import ReplaySettings
from railx.settings import SettingsError, to_dict
from tests.builders import checked
from tests.plans import chunk, micro_batch, pipeline_plan, sequence_parallel_plan
from tests.replay.programs import steps_of
from tests.replay.reference import replay
from workflow.config import compose_experiment
from workflow.stages import STAGES, inputs_of

MS = 10**6
LAYERS = 3
FIT = ProfileFit(
    model="by_hand",
    device="paper",
    dtype="float32",
    torch="2.11",
    quadratic_ms_per_token2=1e-3,
    linear_ms_per_token=0.1,
    constant_ms=2.0,
    forward_quadratic_ms_per_token2=0.25e-3,
    forward_linear_ms_per_token=0.025,
    forward_constant_ms=0.5,
    recompute_over_forward=None,
    ends_linear_ms_per_token=0.05,
    ends_constant_ms=1.0,
    forward_share=0.25,
    activation_bytes_per_token=1.0,
    exchange_bytes_per_token=0.0,
    checkpoint_bytes_per_token=None,
    ends_bytes_per_token=0.0,
    context_bytes_per_token=None,
    all_to_all_gb_s={},
    all_to_all_latency_ms={},
    held_out_all_to_all_error=None,
    points=5,
    held_out=1,
    held_out_error=0.0,
    held_out_largest_error=0.0,
    held_out_forward_error=0.0,
    held_out_backward_error=0.0,
    held_out_recompute_error=None,
    published_error=0.06,
    published_pipeline_error=0.05,
    held_out_memory_error=0.0,
    held_out_checkpoint_memory_error=None,
    fidelity="measured_cpu",
)
#: Two ranks together, then one sequence for each.
PLAN = sequence_parallel_plan(
    2, [micro_batch(((0, 1), {0: 80, 1: 40})), micro_batch(((0,), {2: 50}), ((1,), {3: 100}))]
)


def whole_ms(lengths: list[int], degree: int) -> float:
    """A micro-batch on a rank of its group, forward and backward."""
    squares, tokens = sum(length**2 for length in lengths), sum(lengths)
    layer = (1e-3 * squares + 0.1 * tokens) / degree + 2.0
    return LAYERS * layer + 0.05 * tokens / degree + 1.0


TOGETHER, SHORT, LONG = whole_ms([80, 40], 2), whole_ms([50], 1), whole_ms([100], 1)


class Tape:
    """Writes a recording: what a rank does, one after another, at any pace."""

    def __init__(self, rank: int, pace: int) -> None:
        self.rank, self.pace = rank, pace
        self.clock = self.busy = 0
        self.sequence = 0
        self.events: list[dict[str, Any]] = []

    def head(self, kind: str, **more: Any) -> dict[str, Any]:
        named = {"iteration": 0, "rank": self.rank, "mode": "electrical", "kind": kind}
        named |= {"reconfiguration_latency_ms": 0.0, "bytes": 0, "phase": "", "group": ""}
        return named | {"channel": "", "sequence": -1} | more

    def compute(self, phase: str, busy_ms: int) -> None:
        """A span that lasts longer on the wall, as others use the processor too."""
        start, busy = self.clock, busy_ms * MS
        self.clock += busy * self.pace
        self.busy += busy
        times = {"start_ns": start, "end_ns": self.clock, "busy_ns": busy}
        self.events.append(self.head("compute", phase=phase, **times))

    def exchange(self, lasts_ms: int = 7) -> None:
        """An all-to-all of both ranks that the program waits for."""
        begin = (self.clock, self.busy)
        self.clock += lasts_ms * MS
        self.events.append(
            self.head("all_to_all", group="0,1", channel="0", sequence=self.sequence, bytes=1000)
            | {"start_ns": begin[0], "end_ns": self.clock}
            | self.moments(begin, begin, (self.clock, self.busy))
        )
        self.sequence += 1

    def end(self) -> list[dict[str, Any]]:
        """All of it, with the iteration around it."""
        now = (self.clock, self.busy)
        span = self.head("iteration") | {"start_ns": 0, "end_ns": self.clock}
        return [span | self.moments((0, 0), now, now), *self.events]

    @staticmethod
    def moments(*marks: tuple[int, int]) -> dict[str, int]:
        named = dict(zip(("issued", "waited", "resumed"), marks, strict=True))
        walls = {f"{name}_ns": mark[0] for name, mark in named.items()}
        return walls | {f"{name}_busy_ns": mark[1] for name, mark in named.items()}


def recording(paces: tuple[int, int] = (1, 3), optimizer_ms: int = 0) -> list[dict[str, Any]]:
    """One iteration of the plan; the all-to-alls lie inside of passes."""
    events = []
    for rank, pace in enumerate(paces):
        tape = Tape(rank, pace)
        for phase in ("forward", "backward"):
            tape.compute(phase, 5 + rank)
            tape.exchange()
            tape.compute(phase, 11)
        for phase in ("forward", "backward"):
            tape.compute(phase, 9)
        if optimizer_ms:
            tape.compute("optimizer", optimizer_ms)
        events += tape.end()
    return events


def iteration_ms(events: list[dict[str, Any]], price_ms: float = 4.0, **more: Any) -> list[float]:
    passes = profiled_passes(PLAN, FIT, LAYERS, [0])
    programs = cluster_programs(events, lambda *_: price_ms * MS, passes, **more)
    rows = replay(steps_of(programs), Layout(1), "electrical", 0)
    return [row.duration_ns / MS for row in rows]


def test_passes_are_those_of_the_plan_by_the_profile() -> None:
    passes = profiled_passes(PLAN, FIT, LAYERS, [0, 1])
    assert (
        passes[0, 0]
        == passes[0, 1]
        == [
            ("forward", pytest.approx(0.25 * TOGETHER)),
            ("backward", pytest.approx(0.75 * TOGETHER)),
            ("forward", pytest.approx(0.25 * SHORT)),
            ("backward", pytest.approx(0.75 * SHORT)),
        ]
    )
    assert sum(ms for _, ms in passes[1, 0]) == pytest.approx(TOGETHER + LONG)


def test_an_iteration_takes_its_passes_and_its_communication() -> None:
    """A part of each pass comes before its all-to-all; the slower rank is awaited."""

    def common(phase_ms: float) -> float:
        before = max(5 / 16, 6 / 17) * phase_ms
        return before + 4.0

    after = [(11 / 16), (11 / 17)]
    forward, backward = 0.25 * TOGETHER, 0.75 * TOGETHER
    # The second all-to-all: each rank comes after the rest of its forward pass.
    arrive = [
        common(forward) + after[rank] * forward + (1 - after[rank]) * backward for rank in (0, 1)
    ]
    met = max(arrive) + 4.0
    wanted = [met + after[0] * backward + SHORT, met + after[1] * backward + LONG]
    assert iteration_ms(recording()) == pytest.approx(wanted, abs=1e-4)


def test_where_all_is_even_it_is_the_sum() -> None:
    events = [event for rank in (0, 1) for event in even(rank)]
    assert iteration_ms(events, 2.5) == pytest.approx(
        [TOGETHER + 2 * 2.5 + SHORT, TOGETHER + 2 * 2.5 + LONG], abs=1e-4
    )


def even(rank: int) -> list[dict[str, Any]]:
    tape = Tape(rank, 2)
    for phase in ("forward", "backward"):
        tape.compute(phase, 10)
        tape.exchange()
        tape.compute(phase, 10)
    for phase in ("forward", "backward"):
        tape.compute(phase, 9)
    return tape.end()


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_how_fast_the_recording_was_makes_no_difference(paces: tuple[int, int]) -> None:
    assert iteration_ms(recording(paces)) == pytest.approx(iteration_ms(recording()), abs=1e-4)


def test_what_is_no_pass_stays_as_measured_but_on_a_shared_device() -> None:
    alone, with_optimizer = iteration_ms(recording()), iteration_ms(recording(optimizer_ms=13))
    assert with_optimizer == pytest.approx([ms + 13 for ms in alone], abs=1e-4)
    shared = iteration_ms(recording(optimizer_ms=13), shared_device=True)
    assert shared == pytest.approx(alone, abs=1e-4)


def test_passes_of_a_pipeline_are_those_of_its_stages() -> None:
    """The last stage has the ends too; a recomputed layer is computed forward again."""
    chunks = (chunk((0, 0, 60, 60)), chunk((1, 0, 100, 100)))
    made = pipeline_plan(2, [Pipeline(2, 0, chunks)])
    passes = profiled_passes(made, FIT, 4, [0])
    layers = [2 * (1e-3 * s**2 + 0.1 * s + 2.0) for s in (60, 100)]
    ends = [0.05 * s + 1.0 for s in (60, 100)]
    assert [kind for kind, _ in passes[0, 0]] == ["forward", "forward", "backward", "backward"]
    assert sum(ms for _, ms in passes[0, 0]) == pytest.approx(sum(layers))
    assert sum(ms for _, ms in passes[1, 0]) == pytest.approx(sum(layers) + sum(ends))
    recomputed = replace(chunks[0], checkpoint_layers=(1, 0))
    again = profiled_passes(
        pipeline_plan(2, [Pipeline(2, 0, (recomputed, chunks[1]))]), FIT, 4, [0]
    )
    more = sum(ms for _, ms in again[0, 0]) - sum(ms for _, ms in passes[0, 0])
    assert more == pytest.approx(0.25 * layers[0] / 2)
    assert again[1, 0] == passes[1, 0]


def test_a_recording_of_another_plan_is_refused() -> None:
    other = [event for event in recording() if event["phase"] != "backward"]
    with pytest.raises(ValueError, match=r"rank 0 ran 1 runs of passes in iteration 0; allowed: 4"):
        iteration_ms(other)


def test_cluster_time_says_where_computation_comes_from() -> None:
    passes = profiled_passes(PLAN, FIT, LAYERS, [0])
    settings = ReplaySettings("analytic", "profile", "tiny", (), (), "held", 0.0)
    table = [
        {"operation": "all_to_all", "group_size": 2, "stride": 1, "fidelity": "analytic"}
        | {"gb_s": 1000.0, "latency_us": 4000.0}
    ]
    for shared in (False, True):
        rows = cluster_time(
            recording(), {"net": table}, settings, Layout(1), 0, shared_device=shared, passes=passes
        )
        found = {row["topology"]: row for row in rows}
        assert {name: row["compute"] for name, row in found.items()} == {
            RECORDED: "measured",
            "net": "profile",
        }
        assert found["net"]["cluster_ms"] == pytest.approx(max(iteration_ms(recording())), abs=1e-3)
    assert found[RECORDED]["cluster_ms"] == found[RECORDED]["wall_ms"]


def test_a_profile_is_named_where_it_is_used_and_nowhere_else() -> None:
    with pytest.raises(SettingsError, match=r"^profile: got None; allowed with profile times: the"):
        ReplaySettings("analytic", "profile", None, (), (), "held", 0.0)
    with pytest.raises(
        SettingsError, match=r"^profile: got 'x'; allowed with measured times: null"
    ):
        ReplaySettings("analytic", "measured", "x", (), (), "held", 0.0)


def test_an_experiment_gives_the_replay_its_profile_and_the_plan_of_the_run() -> None:
    profile = ["profiles=[tiny]", "replay.compute=profile", "replay.profile=tiny"]
    experiment = to_dict(compose_experiment(["experiment=quick", *profile]))
    inputs = inputs_of(STAGES["replay"], experiment, "flexsp_stdlib")
    assert str(inputs["profile"]) == "results/quick/profile/tiny/fit.json"
    assert str(inputs["plan"]) == "results/quick/plan/flexsp_stdlib/plan.json"
    measured = to_dict(compose_experiment(["experiment=quick"]))
    assert {"profile", "plan"}.isdisjoint(inputs_of(STAGES["replay"], measured, "flexsp_stdlib"))


def test_passes_come_in_the_order_of_the_plan_s_schedule() -> None:
    chunks = tuple(chunk((sequence, 0, 10, 10)) for sequence in range(3))
    for schedule, kinds in (("1f1b", "FBFBFB"), ("gpipe", "FFFBBB")):
        pipeline = replace(Pipeline(2, 0, chunks), schedule=schedule)
        passes = profiled_passes(pipeline_plan(2, [pipeline]), FIT, LAYERS, [0])
        assert [kind[0].upper() for kind, _ in passes[1, 0]] == list(kinds)


def row(operation: str, size: int, stride: int, gb_s: float, us: float, **more: Any) -> Any:
    place = {"operation": operation, "group_size": size, "stride": stride, "fidelity": "analytic"}
    return place | {"gb_s": gb_s, "latency_us": us} | more


TABLE = [
    row("all_reduce", 2, 1, 100.0, 1.0),
    row("all_reduce", 2, 2, 50.0, 1.0),
    row("all_reduce", 4, 1, 10.0, 1.0, algorithm="direct"),
    row("all_reduce", 4, 1, 40.0, 9.0, algorithm="ring"),
    row("message", 2, 1, 25.0, 0.5),
]


def test_an_operation_takes_latency_and_bytes_over_bandwidth() -> None:
    price = price_of(TABLE)
    assert price("all_reduce", 1000, (0, 1)) == 1000 + 10
    assert price("broadcast", 1000, (5, 7)) == 1000 + 20
    assert price("barrier", 0, (0, 1)) == 1000
    assert price("send", 1000, (1, 2)) == price("recv", 1000, (1, 2)) == 500 + 40


def test_the_faster_algorithm_is_taken_and_the_next_larger_shape() -> None:
    price = price_of(TABLE)
    assert price("all_reduce", 1000, (0, 1, 2, 3)) == 1000 + 100
    assert price("all_reduce", 10**6, (0, 1, 2, 3)) == 9000 + 25_000
    assert price("all_reduce", 1000, (0, 1, 2)) == 1000 + 100
    assert price("all_reduce", 1000, (0, 9)) == 1000 + 20, "the widest stride there is"
    with pytest.raises(ValueError, match="no rows of all_to_all"):
        price("all_to_all", 1, (0, 1))


def moments(issued: int, waited: int, resumed: int, busy: tuple[int, int, int]) -> dict[str, int]:
    names = ("issued", "waited", "resumed")
    walls = dict(zip((f"{name}_ns" for name in names), (issued, waited, resumed), strict=True))
    return walls | dict(zip((f"{name}_busy_ns" for name in names), busy, strict=True))


def trace() -> list[dict[str, Any]]:
    """Two ranks that share a core: 4 ms of computation take 8 ms, half of it while an
    all-reduce is under way.
    """
    events = []
    for rank in range(2):
        head = {"iteration": 1, "rank": rank, "mode": "electrical", "phase": ""}
        head |= {"reconfiguration_latency_ms": 0.0, "bytes": 10**8}
        ms = 10**6
        span = moments(0, 12 * ms, 12 * ms, (0, 4 * ms, 4 * ms))
        whole = {"kind": "iteration", "group": "", "channel": "", "sequence": -1}
        events.append(head | whole | span | {"start_ns": 0, "end_ns": 12 * ms})
        reduce = {"kind": "all_reduce", "group": "0,1", "channel": "0", "sequence": 0}
        span = moments(4 * ms, 8 * ms, 12 * ms, (2 * ms, 4 * ms, 4 * ms))
        events.append(head | reduce | span | {"start_ns": 4 * ms, "end_ns": 12 * ms})
    return events


def test_cluster_time_is_busy_time_and_the_price_of_communication() -> None:
    settings = ReplaySettings("analytic", "measured", None, (5.0,), (), "held", 0.0)
    fast = [row("all_reduce", 2, 1, 100.0, 0.0)]  # 1 ms, hidden
    slow = [row("all_reduce", 2, 1, 25.0, 0.0)]  # 4 ms, half of it hidden
    rows = cluster_time(trace(), {"fast": fast, "slow": slow}, settings, Layout(1), 1)
    found = {(one["topology"], one["mode"]): one for one in rows}
    assert {key: one["cluster_ms"] for key, one in found.items()} == {
        (RECORDED, "electrical"): 12.0,
        (RECORDED, "on_demand"): 17.0,
        ("fast", "electrical"): 4.0,
        ("fast", "on_demand"): 2.0 + 5.0 + 1.0,
        ("slow", "electrical"): 2.0 + 4.0,
        ("slow", "on_demand"): 2.0 + 5.0 + 4.0,
    }
    assert found["fast", "electrical"]["hidden_share"] == 1.0
    assert found["slow", "electrical"]["hidden_share"] == 0.5
    assert found["slow", "on_demand"]["stall_ms"] == 5.0
    assert found["slow", "electrical"]["wall_ms"] == 12.0
    assert found["slow", "on_demand"]["wall_ms"] is None, "it was not run"
    medians = {(one["topology"], one["mode"]): one for one in summarised(rows)}
    assert medians["slow", "electrical"]["cluster_ms"] == 6.0
    # The stage adds its own columns before and after these and declares their order.
    for own in (rows, summarised(rows)):
        assert {tuple(one)[:3] for one in own} == {("topology", "compute", "mode")}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("leases", "again"), [("held", 0), ("returned", 1)])
def test_leases_stay_with_their_members_as_in_a_run(
    leases: Literal["held", "returned"], again: int, first: int
) -> None:
    """The same circuits in the next iteration: nobody asks for them again.

    Also where the recording has not the first operation of the channel.
    """
    later = [
        {name: value + 20 * 10**6 if name.endswith("_ns") else value for name, value in one.items()}
        | {"iteration": 2, "sequence": min(one["sequence"] + 1 + first, 1 + first)}
        for one in trace()
    ]
    settings = ReplaySettings("analytic", "measured", None, (5.0,), (5.0,), leases, 0.0)
    rows = cluster_time([*trace(), *later], {}, settings, Layout(1), 1)
    asked = {(one["mode"], one["iteration"]): one["requests"] for one in rows}
    assert asked == {
        **{("electrical", number): 0 for number in (1, 2)},
        **{(mode, 1): 1 for mode in ("on_demand", "provisioned")},
        **{(mode, 2): again for mode in ("on_demand", "provisioned")},
    }


def test_messages_take_as_long_as_the_settings_say() -> None:
    settings = ReplaySettings("analytic", "measured", None, (0.0, 5.0), (), "held", 0.25)
    rows = cluster_time(trace(), {}, settings, Layout(1), 1)
    # The question and its answer.
    assert [one["cluster_ms"] for one in rows] == [12.0, 12.5, 17.5]


def test_a_shared_gpu_tells_no_cluster_time() -> None:
    settings = ReplaySettings("analytic", "measured", None, (), (), "held", 0.0)
    rows = cluster_time(trace(), {"fast": TABLE}, settings, Layout(1), 1, shared_device=True)
    assert {one["topology"] for one in rows} == {RECORDED}
    assert cluster_time(trace(), {}, settings, Layout(1), 2) == [], "warm-up is left out"


def test_a_cluster_takes_the_bandwidths_of_a_topology() -> None:
    cluster = ClusterSettings("c", 4, 1.0, 10, 1.0, {"2": 9.0}, topology="railx")
    table = [row("all_to_all", size, 1, 100.0 / size, 0.0) for size in (2, 4, 8)]
    strided = [row("all_to_all", 2, 2, 1.0, 0.0)]
    filled = with_topology(cluster, [*table, *strided])
    assert all_to_all_gb_s(filled) == {2: 50.0, 4: 25.0}
    unit = bandwidth_unit(checked("cost_model", "flexsp_7b"))
    fitted = all_to_all_gb_s(with_topology(cluster, table, unit))
    assert fitted == pytest.approx({2: 50e9 / (2**20 * 1000), 4: 25e9 / (2**20 * 1000)})
    assert bandwidth_unit(checked("cost_model", "analytic")) == 1.0
    with pytest.raises(SettingsError, match="has no exact all-to-all"):
        with_topology(cluster, strided)
