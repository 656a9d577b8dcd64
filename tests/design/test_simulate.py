"""The best points replayed beside the closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from railx.design import simulate as simulation
from railx.design.front import Design, design
from railx.design.rates import RateStore
from railx.design.settings import DesignSettings
from railx.design.simulate import packet_rates, simulate
from railx.design.text import simulated_lines
from railx.families import build_topology
from railx.network.settings import StaticNetworkSettings, UniformTraffic
from railx.network.throughput import simulate_static, uniform_lane_loads
from railx.performance.closed import step_times
from railx.performance.layers import Setting
from railx.performance.plans import Plan, Plans
from railx.steps.referee import replayed_step_s
from tests.builders import build, topology_settings
from tests.network.test_packets import slotted_switch
from workflow.outputs import Table
from workflow.stages import stage_of


@pytest.fixture(scope="module")
def answer() -> Design:
    return design(
        DesignSettings(
            gpus=32,
            model="llama3_8b",
            global_batch=64,
            most_chips=2.0,
            fault_samples=1,
            simulated=2,
            networks={
                "rails": topology_settings("rail_only", planes=1),
                "torus": topology_settings("torus_3d"),
            },
        )
    )


def test_the_closed_form_is_that_of_the_point(answer: Design) -> None:
    rows = simulate(answer, RateStore())
    assert [row["network"] for row in rows] == [point.name for point in answer.front[:2]]
    for row, point in zip(rows, answer.front, strict=False):
        assert row["closed_s"] == pytest.approx(point.step_s)
        assert abs(row["difference"]) < 0.05
        assert row["term"] is None
    assert len(simulated_lines(rows)) == 3 + 2 * len(rows)


def test_an_all_to_all_in_packets_stays_below_the_exact_loads(answer: Design) -> None:
    points = {point.name: point for point in answer.front}
    for row in simulate(answer, RateStore()):
        closed = points[row["network"]].all_to_all_gb_s
        assert row["all_to_all_gb_s"] == closed
        topology = build_topology(points[row["network"]].graph)
        uniform = UniformTraffic("uniform", 1.0)
        routing = StaticNetworkSettings("static", "min")
        exact, _ = simulate_static(topology, uniform, routing, "", seed=1)
        bound = exact["bound_gb_s_per_chip"]
        # Random packets fill a window by a few percent more or less.
        assert 0.3 * bound < row["packets_gb_s"] < 1.03 * bound
        assert row["packets_difference"] == pytest.approx(closed / row["packets_gb_s"] - 1)
        far = row["packets_difference"] > 0.1
        assert (row["packets_term"] is not None) == far


def test_rates_fall_from_the_closed_form_to_packets_by_their_causes() -> None:
    """8 x 8 chips: ties that go up load a ring's links as 5 to 4 of the closed form,
    and packets block each other beside that; nothing else takes a tenth.
    """
    topology = build("torus_2d", x_scale=8, y_scale=8, n=1)
    closed = 50 / uniform_lane_loads(topology, "balanced").max()
    rates = packet_rates(topology, closed)
    assert rates.pop("") == closed
    assert rates["minimal paths"] == pytest.approx(0.8 * closed)
    assert rates["whole cycles on a link"] == rates["minimal paths"]
    assert 0.93 < rates["shared input ports"] / rates["minimal paths"] < 1
    assert 0.85 < rates["head-of-line blocking"] / rates["shared input ports"] < 0.93


def test_one_switch_loses_what_its_input_ports_and_queues_lose() -> None:
    """A model that shares no code has three queues an input, and as many as block
    little.
    """
    topology = build("rail_only", planes=1, chips_per_server=1, servers=64, switch_radix=64)
    rates = packet_rates(topology, math.inf)
    for name, queues in (("shared input ports", 24), ("head-of-line blocking", 3)):
        expected = 50 * slotted_switch(64, queues, 300)
        assert rates[name] == pytest.approx(expected, rel=0.04)


def test_a_link_that_a_packet_takes_for_whole_cycles_is_fuller() -> None:
    """4 flits over a link of 0.3 flits a cycle take 14 cycles, not 13.3."""
    rates = packet_rates(build("railx_hyperx", m=2, n=1, internal_width=0.3), math.inf)
    _, inside, rounded, *_ = rates.items()
    assert inside[0] == "links inside nodes"
    assert inside[1] / rounded[1] == pytest.approx(0.3 * 14 / 4)


def test_what_is_too_large_is_said(answer: Design, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "MAX_RANKS", 0)
    small = replace(answer, settings=replace(answer.settings, simulated_chips=2, simulated=1))
    rows = simulate(small, RateStore())
    assert (rows[0]["replayed_s"], rows[0]["packets_gb_s"]) == (None, None)
    simulated = stage_of("design.simulated").outputs["simulated"]
    assert isinstance(simulated, Table)
    assert [list(row) for row in rows] == [list(simulated.declared())] * len(rows)
    text = "\n".join(simulated_lines(rows))
    assert "not replayed: its replicas" in text
    assert "not in packets: more chips than simulated_chips" in text


def test_few_replicas_take_as_long_as_all() -> None:
    from railx.steps.random_plans import draw

    setting, plan = next(
        (setting, plan)
        for setting, plan in map(draw, range(100))
        if plan.data >= 4 and plan.pipeline > 1 and plan.expert == 1
    )
    assert replayed_step_s(setting, plan, 2) == replayed_step_s(setting, plan)


@pytest.mark.parametrize(("kind", "term"), [("send", "pipeline"), ("", "bubble")])
def test_the_term_that_differs_is_named(
    answer: Design, monkeypatch: pytest.MonkeyPatch, kind: str, term: str
) -> None:
    """Here the replay takes half as long again where a kind of transfer takes time."""

    def slower(setting: Setting, plan: Plan, replicas: int) -> float:
        assert replicas <= plan.data
        without = kind and kind in getattr(setting.network, "kinds", ())
        seconds = float(step_times(setting, Plans.of([plan])).total_s[0])
        return seconds * (1.0 if without else 1.5)

    monkeypatch.setattr(simulation, "replayed_step_s", slower)
    rows = simulate(replace(answer, front=answer.front[:1]))
    assert rows[0]["term"] == term
    assert "differs in: " + term in "\n".join(simulated_lines(rows))
