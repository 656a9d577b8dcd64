"""Networks side by side: the rows are those of the rooms that they are from. A network
beside others: places by value, the same job on each, errors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railx.design.arena import arena_rows, best_serving
from railx.design.comparison import Comparison, compare_network, comparison_lines, write_page
from railx.design.point import evaluate, setting_on
from railx.design.rates import RateStore
from railx.design.settings import ArenaSettings, PointSettings, ServingJob, TrainingJob
from railx.design.sizes import sized_for
from railx.economics import price, read_catalogue
from railx.errors import UserError
from railx.families import build_topology, family_of
from railx.network.metrics import topology_metrics
from railx.network.settings import ExpertTraffic, PacketNetworkSettings, UniformTraffic
from railx.performance.advice import setting_of
from railx.performance.plans import Plan, Plans
from railx.performance.serving import decode_times, serving_memory_bytes
from railx.tenancy.settings import FaultTraceSettings
from tests.builders import topology_settings
from tests.workflow.test_cli import refused
from workflow.cli import main

POINT = PointSettings(gpus=64, model="llama3_8b", fault_samples=2)
SETTINGS = ArenaSettings(
    networks={name: topology_settings(name) for name in ("rail_only", "torus_2d")},
    chips=(64, 4096),
    graph_chips=1000,
    traffics={
        "uniform": UniformTraffic("uniform", 1.0),
        "experts": ExpertTraffic("experts", 1.0, 16, 0.5),
    },
    loads_over_bound=(0.2,),
    packets=PacketNetworkSettings("packet", warmup_cycles=200, measured_cycles=600),
    jobs={
        "dense": TrainingJob("training", "llama3_8b"),
        "decode": ServingJob("decode", "mixtral_8x22b", 4096, 8),
        "too_large": TrainingJob("training", "deepseek_v3"),
    },
    point=POINT,
    most_chips=4.0,
)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(arena_rows("torus_2d", SETTINGS, 1))


def value(rows: list[dict[str, Any]], measure: str, subject: str = "", asked: int = 64) -> Any:
    (row,) = (
        row
        for row in rows
        if (row["measure"], row["subject"], row["asked_chips"]) == (measure, subject, asked)
    )
    return row["value"]


def test_one_value_a_row_with_unit_and_fidelity(rows: list[dict[str, Any]]) -> None:
    keys = [(row["asked_chips"], row["subject"], row["measure"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {row["fidelity"] for row in rows} == {"analytic", "packet"}
    assert all(row["note"] for row in rows if row["value"] is None and row["measure"] == "step")


def test_steps_and_prices_are_those_of_a_design_point(rows: list[dict[str, Any]]) -> None:
    point = evaluate("torus_2d", SETTINGS.networks["torus_2d"], POINT, most_chips=4.0)
    assert value(rows, "step", "dense") == point.step_s
    assert value(rows, "joules_step", "dense") == point.joules
    assert value(rows, "usd_chip_with_node") == pytest.approx(point.cost.usd)
    free = price(point.network, POINT.price_set, read_catalogue(POINT.catalogue))
    assert value(rows, "usd_chip") == pytest.approx(free.per_chip.usd)
    assert value(rows, "usd_chip_with_node") > value(rows, "usd_chip")
    assert value(rows, "step", "too_large") is None


def test_bisection_and_cables_are_those_of_the_network_without_its_servers(
    rows: list[dict[str, Any]],
) -> None:
    """Nodes of eight chips that the cut of the torus would divide."""
    alone = sized_for(SETTINGS.networks["torus_2d"], 64, 256).bill
    cut = topology_metrics(build_topology(alone))["bisection_gb_s_per_chip"]
    assert value(rows, "bisection_gb_s_per_chip") == cut
    bill = family_of(alone).bill
    assert bill is not None
    (ends,) = bill.ports(alone).cables.values()
    chips = bill.ports(alone).chips
    assert value(rows, "cable_ends_chip", "external") == pytest.approx(ends / chips)
    assert value(rows, "cable_ends_chip", "external", 4096) > 0


def test_a_value_that_is_missing_says_why(rows: list[dict[str, Any]]) -> None:
    missing = {row["measure"]: row["note"] for row in rows if row["value"] is None}
    assert all(note for measure, note in missing.items() if measure != "joules_step")
    assert missing["watts_chip_with_node"] == "a part without watts in the catalogue"
    assert all(row["note"] == "" for row in rows if row["measure"] == "watts_chip")


def test_packets_at_a_low_load_arrive_as_offered(rows: list[dict[str, Any]]) -> None:
    offered = value(rows, "offered", "uniform at 0.2")
    assert offered == pytest.approx(0.2 * value(rows, "uniform_bound", "uniform"))
    for pattern in ("uniform", "experts"):
        assert value(rows, "accepted", f"{pattern} at 0.2") == pytest.approx(offered, rel=0.1)
        mean, p99 = (value(rows, f"latency_{one}", f"{pattern} at 0.2") for one in ("mean", "p99"))
        assert 0 < mean < p99


def test_large_networks_have_packets_at_the_largest_load_alone() -> None:
    one = replace(SETTINGS, chips=(64,), jobs={}, packet_chips=2, loads_over_bound=(0.2, 0.1))
    rows = arena_rows("torus_2d", one, 1)
    assert {row["subject"] for row in rows if row["fidelity"] == "packet"} == {"uniform at 0.2"}


def test_shares_under_a_fault_trace_are_weighted_by_time(tmp_path: Path) -> None:
    """One of eight servers is down for 4 of 10 days."""
    file = tmp_path / "trace.csv"
    file.write_text("time_days,node,event\n1,0,fault_start\n5,0,fault_end\n")
    trace = FaultTraceSettings(str(file), 8, 8, 10.0, (16, 64), 2)
    few = replace(SETTINGS, chips=(64,), traffics={}, jobs={}, trace=trace)
    rows = list(arena_rows("rail_only", few, 1))
    assert value(rows, "largest_share", "fault trace") == pytest.approx(0.6 + 0.4 * 7 / 8)
    assert value(rows, "largest_share_p1", "fault trace") == 7 / 8
    assert value(rows, "usable_share", "fault trace, jobs of 16") == pytest.approx(0.6 + 0.4 * 0.75)
    assert value(rows, "usable_share", "fault trace, jobs of 64") == pytest.approx(0.6)
    rows = list(arena_rows("torus_2d", few, 1))
    assert value(rows, "largest_share", "fault trace") < 0.95
    assert value(rows, "usable_share", "fault trace, jobs of 64") is None
    small = replace(few, trace=replace(trace, servers=7))
    (row,) = (row for row in arena_rows("rail_only", small, 1) if "trace" in row["subject"])
    assert (row["value"], row["note"]) == (None, "got 64; allowed: 56, those of the trace")


def test_a_size_without_a_graph_is_the_largest_below(rows: list[dict[str, Any]]) -> None:
    """Two tiers of 16-port switches join 16, 32 or 64 servers, not 48."""
    few = replace(SETTINGS, chips=(48 * 8,), graph_chips=384, traffics={}, jobs={}, most_chips=1.6)
    tree = topology_settings("mpft_2048", switch_radix=16, servers=64)
    (chips,) = {
        row["chips"] for row in arena_rows("tree", replace(few, networks={"tree": tree}), 1)
    }
    assert chips == 256


def test_above_the_graphs_closed_forms_alone_stand(rows: list[dict[str, Any]]) -> None:
    large = {row["measure"] for row in rows if row["asked_chips"] == 4096}
    assert {"usd_chip", "injection", "all_to_all_closed_form"} < large
    assert not large & {"step", "uniform_bound", "latency_mean", "collective"}


def test_a_size_that_a_network_lacks_is_a_row_that_says_so() -> None:
    rows = list(arena_rows("rail_only", replace(SETTINGS, chips=(10**6,)), 1))
    (row,) = rows
    assert (row["measure"], row["value"], row["chips"]) == ("size", None, None)
    assert "allowed" in row["note"]


@pytest.mark.parametrize("most_latency_ms", [40.0, 10_000.0])
def test_decoding_is_the_best_of_all_its_plans(most_latency_ms: float) -> None:
    """Bound by its latency, and by the memory of a device."""
    job = ServingJob("decode", "mixtral_8x22b", 4096, 8, most_latency_ms)
    network = SETTINGS.networks["rail_only"]
    point = replace(POINT, model=job.model, tokens=job.tokens)
    found = best_serving(network, job, point, 4.0, RateStore())
    setting = setting_of(point.advice)
    setting, _ = setting_on(sized_for(network, 64, 256), setting, point, RateStore())
    best = 0.0
    for tensor, power in product((1, 2, 4, 8), range(9)):
        if 64 // tensor % 8:
            continue
        plan = Plan(
            data=64 // tensor,
            tensor=tensor,
            expert=8,
            micro_batch=2**power,
            sequence_tokens=4096,
        )
        plans = Plans.of([plan])
        if serving_memory_bytes(setting, plans, 4096.0)[0] > 0.9 * setting.device.capacity_gb * 1e9:
            continue
        times = decode_times(setting, plans, 4096.0)
        if times.total_s[0] <= most_latency_ms / 1e3:
            best = max(best, float(times.tokens_per_s[0]))
    assert found["tokens_per_s"][0] == pytest.approx(best)
    assert found["step"][0] <= most_latency_ms / 1e3
    assert 0 <= found["exchanged_share"][0] < 1
    with pytest.raises(UserError, match="most_latency_ms"):
        best_serving(network, replace(job, most_latency_ms=0.01), point, 4.0, RateStore())
    assert np.isfinite(found["sequences"][0])
    with pytest.raises(UserError, match="expert: got 3; allowed: a divisor of the experts, 8"):
        best_serving(network, replace(job, expert=3), point, 4.0, RateStore())


def test_tensor_ranks_that_serve_divide_the_heads() -> None:
    """Of twelve heads: eight ranks would be the fastest."""
    job = ServingJob("decode", "mpt_125m", 65536, 1, 5.0)
    point = replace(POINT, model=job.model, tokens=job.tokens)
    found = best_serving(SETTINGS.networks["rail_only"], job, point, 4.0, RateStore())
    assert 12 % found["tensor_degree"][0] == 0


def test_experts_alone_may_wait_for_changes_of_circuits() -> None:
    """These experts stay within a server, and so do not wait."""
    jobs: dict[str, Any] = {
        "experts": TrainingJob("training", "mixtral_8x22b"),
        "dense": TrainingJob("training", "llama3_8b"),
    }
    network = topology_settings("mixnet")
    few = replace(SETTINGS, chips=(128,), traffics={}, jobs=jobs, networks={"mixnet": network})
    rows = list(arena_rows("mixnet", few, 1))
    changes = [row for row in rows if row["measure"].startswith("step_re")]
    changes += [row for row in rows if row["measure"] == "step_blocked"]
    assert [row["subject"] for row in changes] == ["experts", "experts"]
    assert {row["value"] for row in changes} == {value(rows, "step", "experts", 128)}
    assert changes[0]["note"].startswith("5695 ms a layer and micro-batch: ")


ARENA = replace(SETTINGS, most_chips=2.0)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare_network("mine", topology_settings("torus_2d"), ARENA, 1)


def test_the_same_network_has_the_same_values(comparison: Comparison) -> None:
    rows = {row["network"]: row for row in comparison.rows}
    assert rows["mine"]["values"] == rows["torus_2d"]["values"]
    assert rows.keys() == {"mine", "torus_2d", "rail_only"}
    # 100 chips: jobs have whole servers of 8.
    assert comparison.chips == 96
    arena = list(arena_rows("torus_2d", replace(ARENA, chips=(96,)), 1))
    (rate,) = (
        r["value"] for r in arena if (r["subject"], r["measure"]) == ("dense", "tokens_per_s")
    )
    assert rows["mine"]["values"][0] == pytest.approx(rate / 96, rel=1e-12)


def test_places_count_better_values(comparison: Comparison) -> None:
    table = comparison.as_dict()
    for measure, place in table["places"].items():
        values = {row["network"]: row[measure] for row in table["rows"] if row[measure] is not None}
        smaller = any(word in measure for word in ("USD", "hops", "latency", "W a chip"))
        ranked = sorted(values.values(), reverse=not smaller)
        expected = (ranked.index(values["mine"]) + 1, len(values)) if "mine" in values else None
        assert place == expected, measure
    assert {"dense tokens/s a device", "USD a chip"} <= table["places"].keys()
    # No column of a job that fits nowhere, but a note.
    assert not any("too_large" in measure for measure in table["places"])
    assert any(note.startswith("too_large: ") for note in table["notes"])


def test_rows_are_remembered_by_name_and_size() -> None:
    asked: dict[str, list[dict[str, Any]]] = {}

    def kept(name: str, compute: Any) -> list[dict[str, Any]]:
        return asked.setdefault(name, [] if name in asked else compute())

    small = replace(ARENA, traffics={}, jobs={"dense": ARENA.jobs["dense"]})
    first = compare_network("mine", topology_settings("torus_2d"), small, 1, kept=kept)
    again = compare_network("mine", topology_settings("torus_2d"), small, 1, kept=kept)
    assert asked.keys() == {"rail_only 96", "torus_2d 96"}
    assert first.rows == again.rows


def test_the_page_has_every_row(comparison: Comparison, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", comparison, ARENA)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<tr") == 1 + len(comparison.measures) + len(comparison.rows)
    assert page.count('class="mine"') == 1
    assert "http" not in page


def test_a_network_that_nodes_do_not_divide(capsys: pytest.CaptureFixture[str]) -> None:
    network = "resources/topologies/petersen.graphml"
    assert main(["compare-network", network, "arena=small", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (row,) = (row for row in answer["rows"] if row["network"] == "petersen")
    # The Petersen graph: 15 links, diameter 2.
    assert (row["chips"], row["diameter hops"]) == (10, 2)
    assert "USD a chip" not in row or row["USD a chip"] is None
    assert "usd_chip: no bill of materials" in answer["notes"]


def test_a_size_that_the_network_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="mine: "):
        compare_network("mine", topology_settings("torus_2d"), replace(ARENA, most_chips=1.0), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.graphml"], "nothing.graphml: got no such file; allowed: a network's FILE"),
        (["network=torus_2d"], "network=torus_2d: got no network; allowed: a FILE"),
        (["topology=torus"], "topology: got 'torus'; allowed: "),
        (["topology=torus_2d", "arena=none"], "arena: got no jobs or no networks; allowed: "),
        (
            ["topology=torus_2d", "arena=small", "arena.point.price_set=nope"],
            "arena.point.price_set: got 'nope'; allowed: ",
        ),
        (
            ["topology=torus_2d", "arena=small", "arena.jobs.dense_70b.model=nope"],
            "arena.jobs.dense_70b.model: got nope; allowed: ",
        ),
        (
            ["topology=torus_2d", "arena=small", "arena.loads_over_bound=[]"],
            "arena.loads_over_bound: got (); allowed: not empty",
        ),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "compare-network", *words).startswith(message)


def test_lines_mark_the_network(comparison: Comparison) -> None:
    marked = [line for line in comparison_lines(comparison) if line.startswith("*")]
    assert [line.split()[1] for line in marked] == ["mine"]
