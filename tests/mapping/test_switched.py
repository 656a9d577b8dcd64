"""Jobs on circuits set once and switched, against the step times of whole networks;
plans of ports and the windows of their changes, against brute force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.families import build_topology
from railx.mapping.layout import compute_flops, step_transfers
from railx.mapping.phases import (
    Plan,
    Programme,
    Step,
    Use,
    plans,
    programme_of,
    stall_ns,
    uses_of,
    windows_of,
)
from railx.mapping.settings import JobSettings, SwitchedSettings
from railx.mapping.step import Basis, step_times
from railx.mapping.switched import switched_times
from railx.performance.volumes import Transfer
from railx.settings import SettingsError, load, to_dict
from tests.builders import CATALOGUE, SMALL_JOB, topology_settings

#: 16 nodes of 4 chips with 8 ports a chip, on each network.
NODES: dict[str, dict[str, Any]] = {
    "railx": to_dict(topology_settings("railx_torus", x_scale=4, y_scale=4)),
    "photonic": to_dict(
        topology_settings("opus_rails", chips_per_server=4, servers=16, ocs_ports=16, port_gbps=200)
    ),
    "electrical": to_dict(topology_settings("rail_only", chips_per_server=4, servers=16)),
}
LONG = SMALL_JOB | {
    "model": SMALL_JOB["model"] | {"hidden": 8192, "feed_forward": 16384},
    "layout": {
        "mesh": {"tensor": 4},
        "x": {"sequence": 4},
        "y": {"data": 2, "pipeline": 2},
    },
}


def settings_of(**changes: Any) -> SwitchedSettings:
    plain = {
        "jobs": {"small": SMALL_JOB, "long": LONG},
        "networks": {
            name: {"topology": topology, "routings": ["min", "balanced"], "counting": None}
            for name, topology in NODES.items()
        },
        "injection_gb_s_per_chip": 400.0,
        "reference": "railx",
        "latencies_ms": [0, 0.05, 1, 1000],
        "catalogue": str(CATALOGUE),
        "price_set": "opus_400g",
    }
    settings: SwitchedSettings = load(SwitchedSettings, plain | changes, "switched")
    return settings


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return switched_times(settings_of())


def picked(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def test_the_parts_make_up_the_step(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        parts = ("compute_ms", "inside_ms", "network_ms", "bubble_ms", "stall_ms")
        assert row["step_ms"] == pytest.approx(sum(row[part] for part in parts))
        assert all(row[part] >= 0 for part in parts)


@pytest.mark.parametrize("name", ["railx", "electrical"])
def test_without_switching_a_step_lasts_as_long_as_on_the_whole_network(
    rows: list[dict[str, Any]], name: str
) -> None:
    # One use on rows and one on columns; packets have nothing to set.
    mode = "set_once" if name == "railx" else "packets"
    topology = build_topology(settings_of().networks[name].topology)
    job: JobSettings = settings_of().jobs["small"]
    whole = step_times(
        topology, ["min"], {"small": job}, [Basis("equal_bandwidth", 1, 1, None)], name
    )
    for row in picked(rows, network=name, job="small", basis="equal_bandwidth", mode=mode):
        assert row["step_ms"] == pytest.approx(whole[0]["step_ms"])
        assert row["changes"] == row["stall_ms"] == 0


def test_a_gather_over_rows_and_columns_goes_one_after_the_other() -> None:
    both = LONG | {"layout": {"mesh": {"tensor": 4}, "x": {"sequence": 4}, "y": {"data": 4}}}
    settings = settings_of(jobs={"both": both}, latencies_ms=[0])
    topology = build_topology(settings.networks["railx"].topology)
    basis = Basis("equal_bandwidth", 1, 1, None)
    whole = step_times(topology, ["min", "balanced"], settings.jobs, [basis], "railx")
    (row, *_) = picked(
        switched_times(settings), network="railx", basis="equal_bandwidth", mode="set_once"
    )
    assert row["step_ms"] == pytest.approx(whole[0]["step_ms"])


def test_what_shares_rails_is_slower_and_dearer_ports_are_slower_at_equal_cost(
    rows: list[dict[str, Any]],
) -> None:
    at = {"rule": "on_demand", "latency_ms": 0, "job": "long"}
    (shared,) = picked(rows, network="photonic", mode="set_once", basis="equal_bandwidth", **at)
    (alone,) = picked(rows, network="photonic", mode="every_phase", basis="equal_bandwidth", **at)
    # Three uses on eight rails: at best (a^.5 + b^.5 + c^.5)^2 in place of a + b + c.
    assert 1.5 * alone["network_ms"] < shared["network_ms"] < 3.5 * alone["network_ms"]
    (equal,) = picked(rows, network="electrical", basis="equal_bandwidth", **at)
    (cheap,) = picked(rows, network="electrical", basis="equal_cost", **at)
    slower = equal["cost_per_gpu_usd"] / cheap["cost_per_gpu_usd"]
    assert slower > 3
    assert cheap["network_ms"] == pytest.approx(slower * equal["network_ms"], rel=0.02)
    assert cheap["inside_ms"] == pytest.approx(equal["inside_ms"])


def test_the_best_plan_is_no_worse_than_either_way(rows: list[dict[str, Any]]) -> None:
    modes: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("network", "job", "basis", "rule", "latency_ms"))
        modes.setdefault(key, {})[row["mode"]] = row["step_ms"]
    for key, times in modes.items():
        if key[0] != "electrical":
            best = times["where_it_pays"]
            assert best <= min(times["set_once"], times["every_phase"])
            if key[-1] == 0:
                assert best == pytest.approx(times["every_phase"])


def test_photonic_rails_without_latency_are_electrical_ones_but_for_halved_neighbours(
    rows: list[dict[str, Any]],
) -> None:
    at = {"basis": "equal_bandwidth", "rule": "on_demand", "latency_ms": 0, "job": "long"}
    (photonic,) = picked(rows, network="photonic", mode="every_phase", **at)
    (electrical,) = picked(rows, network="electrical", mode="packets", **at)
    # Two stages face each other over all ports, and rings of gathers fill both sides.
    assert photonic["network_ms"] == pytest.approx(electrical["network_ms"], rel=0.01)


def test_changes_are_counted_and_paid(rows: list[dict[str, Any]]) -> None:
    at = {"basis": "equal_bandwidth", "latency_ms": 1000, "job": "long", "network": "photonic"}
    (demanded,) = picked(rows, mode="every_phase", rule="on_demand", **at)
    # Layers, stages, layers, stages in each of 3 micro-batches; then the gradients.
    assert demanded["changes"] == 3 * 4 + 1
    # One further micro-batch is waited for, of two stages.
    assert demanded["stall_ms"] == pytest.approx(1000 * (13 + 4))
    (provisioned,) = picked(rows, mode="every_phase", rule="provisioned", **at)
    assert 0 < provisioned["stall_ms"] < demanded["stall_ms"]
    (railx,) = picked(rows, mode="every_phase", rule="on_demand", **(at | {"network": "railx"}))
    # Columns alone take turns: stages for the micro-batches, replicas at the end.
    assert railx["changes"] == 2


def test_equal_cost_is_equal(rows: list[dict[str, Any]]) -> None:
    same = picked(rows, basis="equal_cost")
    assert len({round(row["cost_per_gpu_usd"], 6) for row in same}) == 1
    for row in picked(rows, basis="equal_bandwidth", latency_ms=0, rule="on_demand"):
        (other,) = picked(
            rows,
            basis="equal_cost",
            **{key: row[key] for key in ("network", "job", "mode", "rule", "latency_ms")},
        )
        ratio = other["cost_per_gpu_usd"] / row["cost_per_gpu_usd"]
        assert other["watts_per_gpu"] == pytest.approx(ratio * row["watts_per_gpu"])


def test_a_job_without_room_says_so() -> None:
    large = SMALL_JOB | {"layout": {"mesh": {"tensor": 4}, "x": {"data": 8}, "y": {"pipeline": 4}}}
    found = switched_times(settings_of(jobs={"large": large}, latencies_ms=[0]))
    assert {row["network"] for row in found if row["reason"]} == set(NODES)
    assert all(row["step_ms"] is None for row in found)


def test_only_priced_networks_with_lines() -> None:
    with pytest.raises(SettingsError, match="reference: got 'other'; allowed: railx, photonic"):
        settings_of(reference="other")
    torus = to_dict(topology_settings("torus_2d"))
    with pytest.raises(SettingsError, match=r"topology\.family: got 'torus_2d'; .*rail_only"):
        settings_of(networks={"torus": {"topology": torus, "routings": ["min"], "counting": None}})


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_lasts_as_long_as_on_the_whole_network(recompute: str) -> None:
    settings = settings_of(jobs={"again": SMALL_JOB | {"recompute": recompute}}, latencies_ms=[0])
    topology = build_topology(settings.networks["railx"].topology)
    basis = Basis("equal_bandwidth", 1, 1, None)
    whole = step_times(topology, ["min"], settings.jobs, [basis], "railx")
    (row, *_) = picked(
        switched_times(settings), network="railx", basis="equal_bandwidth", mode="set_once"
    )
    assert row["step_ms"] == pytest.approx(whole[0]["step_ms"])


def test_nothing_overlaps_where_circuits_switch() -> None:
    with pytest.raises(SettingsError, match=r"jobs\.late\.overlaps_data: got true; allowed: false"):
        settings_of(jobs={"late": SMALL_JOB | {"overlaps_data": True}})


ROWS, COLUMNS = ("x",), ("y",)
USES = (
    Use(ROWS, ("data",), 4),
    Use(ROWS, ("expert",), 2),
    Use(COLUMNS, ("pipeline",), 4),
    Use(COLUMNS, ("sequence",), 2),
)
STEPS = st.lists(
    st.tuples(st.sampled_from((None, *USES)), st.integers(1, 50).map(float)), min_size=1, max_size=8
)


def by_hand(programme: Programme, turns: dict[Use, int], steps: int) -> Counter[float]:
    """Windows of the last of so many steps, every operation written out."""
    timeline: list[tuple[int, Step]] = []
    for number in range(steps):
        for _ in range(programme.micro_batches):
            timeline += [(number, step) for step in programme.micro_batch]
        timeline += [(number, step) for step in programme.end]
    found: Counter[float] = Counter()
    clock, ends, owner = 0.0, dict[tuple[str, ...], float](), dict[tuple[str, ...], int]()
    for number, (use, time) in timeline:
        if use is not None:
            changed = use.axes in owner and owner[use.axes] != turns[use]
            if changed and number == steps - 1:
                found[clock - ends[use.axes]] += 1
            owner[use.axes], ends[use.axes] = turns[use], clock + time
        clock += time
    return found


@given(STEPS, STEPS, st.integers(1, 5), st.lists(st.integers(0, 1), min_size=4, max_size=4))
def test_windows_are_those_of_a_step_written_out(
    micro_batch: list[Step], end: list[Step], micro_batches: int, chosen: list[int]
) -> None:
    # Turns 0 and 1 for rows, 2 and 3 for columns.
    numbers = {
        use: 2 * (use.axes == COLUMNS) + turn for use, turn in zip(USES, chosen, strict=True)
    }
    plan = Plan(tuple({use: 1 for use in USES if numbers[use] == turn} for turn in range(4)))
    programme = Programme(tuple(micro_batch), tuple(end), micro_batches, 0, 0.0)
    windows = windows_of(programme, plan)
    assert windows.count == by_hand(programme, numbers, 4)
    assert windows.changes == sum(windows.count.values())


def test_waiting_repeats_the_changes_of_a_further_micro_batch() -> None:
    data, expert = USES[:2]
    micro_batch: tuple[Step, ...] = ((expert, 10.0), (None, 4.0), (data, 3.0), (None, 2.0))
    own = Plan(({data: 8}, {expert: 8}))
    alone = windows_of(Programme(micro_batch, (), 2, 0, 0.0), own)
    assert alone.count == {2.0: 2, 4.0: 2}
    waiting = windows_of(Programme(micro_batch, (), 2, 3, 0.0), own)
    assert waiting.count == {2.0: 5, 4.0: 5}
    assert waiting.changes == alone.changes == 4


def test_a_stall_is_latency_on_demand_and_what_exceeds_the_window_provisioned() -> None:
    data, expert = USES[:2]
    micro_batch: tuple[Step, ...] = ((expert, 10.0), (None, 4.0), (data, 3.0), (None, 2.0))
    plan = Plan(({data: 8}, {expert: 8}))
    windows = windows_of(Programme(micro_batch, (), 2, 0, 0.0), plan)
    assert stall_ns(windows, 3.0, "on_demand") == 12.0
    assert stall_ns(windows, 3.0, "provisioned") == 2 * (3 - 2)
    assert stall_ns(windows, 10.0, "provisioned") == 2 * (10 - 2) + 2 * (10 - 4)
    assert stall_ns(windows, 2.0, "provisioned") == 0.0


def test_every_plan_is_there_once() -> None:
    three = [Use(ROWS, (name,), 2) for name in ("data", "expert", "pipeline")]
    found = list(plans(three, 8, dict.fromkeys(three, 1)))
    # One turn each; two share 8 rails (7 ways, 3 pairs); all three do (21).
    assert len(found) == 1 + 3 * 7 + 21
    assert len({str(plan) for plan in found}) == len(found)
    for plan in found:
        assert all(sum(turn.values()) == 8 for turn in plan.turns)
        assert sorted(use.over for turn in plan.turns for use in turn) == sorted(
            use.over for use in three
        )


def test_a_plan_leaves_a_wiring_its_rails_and_packets_have_no_owner() -> None:
    data, expert = USES[:2]
    fewest = {data: 1, expert: 7}
    shared = [plan for plan in plans([data, expert], 8, fewest) if len(plan.turns) == 1]
    assert [dict(plan.turns[0]) for plan in shared] == [{data: 1, expert: 7}]
    packets = [plan for plan in plans([data, expert], 1, fewest) if len(plan.turns) == 1]
    assert [dict(plan.turns[0]) for plan in packets] == [{data: 1, expert: 1}]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_programme_has_every_transfer_as_often_as_the_step(
    job_of: Callable[..., JobSettings], experts: dict[str, object], sparse: bool
) -> None:
    job = job_of(**(experts if sparse else {}))
    transfers = step_transfers(job)
    axes = (ROWS, COLUMNS)
    times: dict[Transfer, list[Step]] = {
        one: [(use, 1.0) for use in uses_of(job.layout, one, axes)] or [(None, 1.0)]
        for one in transfers
    }
    programme = programme_of(job, times)
    for per_step, steps in ((False, programme.micro_batch), (True, programme.end)):
        wanted: Counter[Use | None] = Counter()
        for one in transfers:
            if one.per_step == per_step:
                for use, _ in times[one]:
                    wanted[use] += one.times
        compute = 0.0 if per_step else programme.compute_ns
        found: Counter[Use | None] = Counter()
        for own, time in steps:
            found[own] += time  # type: ignore[assignment]
        found[None] -= compute  # type: ignore[assignment]
        assert {use: pytest.approx(number) for use, number in wanted.items() if use} == {
            use: number for use, number in found.items() if use
        }
        assert found[None] == pytest.approx(wanted[None], abs=1e-3)
    flops_ns = compute_flops(job) / (job.chip.peak_tflops * job.chip.efficiency) / 1e3
    assert programme.compute_ns == pytest.approx(flops_ns)
    assert programme.waits == job.layout.degree("pipeline") - 1


def test_rails_join_both_axes_and_rows_and_columns_are_apart(
    job_of: Callable[..., JobSettings], experts: dict[str, object]
) -> None:
    job = job_of(**experts)
    dense = next(one for one in step_transfers(job) if one.per_step)
    rails = uses_of(job.layout, dense, (("x", "y"),))
    assert rails == [Use(("x", "y"), ("expert", "data"), 8)]
    grid = uses_of(job.layout, dense, (ROWS, COLUMNS))
    assert grid == [Use(ROWS, ("expert",), 4), Use(COLUMNS, ("data",), 2)]
