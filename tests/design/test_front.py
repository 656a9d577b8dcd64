"""One design point, its plan, its price and what it says of itself, the largest job
among failed servers among it; the front, what is dropped, and the prices at which the
first place changes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.design.front import design, dominates, front_of
from railx.design.point import evaluate, plan_words, setting_on, setting_words
from railx.design.rates import GroupRates, RateStore
from railx.design.settings import DesignSettings, PointSettings
from railx.design.sizes import sized_for, usable_share, with_device_node
from railx.design.text import design_lines
from railx.economics import PricedNetwork, read_catalogue
from railx.errors import UserError
from railx.performance.advice import setting_of
from railx.performance.devices import device_named
from railx.performance.search import Job, candidates, price, search
from railx.settings import SettingsError, load
from railx.tenancy.largest import largest_box
from railx.vocabulary.topology import NodeSettings
from tests.builders import topology_settings
from tests.design.points import PRICES, SAMPLE, designed, drawn

SPACE = DesignSettings(
    gpus=64,
    model="llama3_8b",
    global_batch=64,
    fault_samples=2,
    most_chips=2.0,
    networks={
        "torus": topology_settings("torus_2d"),
        "rails": topology_settings("rail_only", planes=1),
        "railx": topology_settings("railx_hyperx"),
        "fly": topology_settings("slim_fly"),
    },
)
NUMBERS = st.integers(1, 4)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=8))
def test_the_front_has_what_nothing_beats(rows: list[tuple[int, int, int, int]]) -> None:
    points = [
        drawn(str(n), step, {"transceiver": usd}, float(watts), usable / 4)
        for n, (step, usd, watts, usable) in enumerate(rows)
    ]
    front = front_of(points)
    for point, (step, usd, watts, usable) in zip(points, rows, strict=True):
        beaten = any(
            a <= step and b <= usd and c <= watts and d >= usable and (a, b, c, d) != row
            for row in [(step, usd, watts, usable)]
            for a, b, c, d in rows
        )
        assert (point in front) != beaten
    assert front


def test_unknown_watts_never_win() -> None:
    known, unknown = (drawn(str(watts), 1.0, {"transceiver": 1}, watts) for watts in (5.0, None))
    assert dominates(known, unknown)
    assert not dominates(unknown, known)
    assert unknown.joules is None


def test_the_first_place_by_dollars_changes_where_two_lines_cross() -> None:
    answer = designed(SAMPLE, objective="cost")
    assert answer.front[0].name == "cheap"
    for row in answer.crossings:
        change = row.crossing_usd - PRICES[row.component]
        usd = {
            point.name: point.usd + change * point.cost.components.get(row.component, 0)
            for point in answer.points
        }
        assert usd[row.network] == pytest.approx(usd["cheap"])
        assert min(usd.values()) == pytest.approx(usd["cheap"])
    # 2 x 800 + 2 x 600 a chip against 8 x 800 + 8 x 500.
    switch = next(row for row in answer.crossings if row.component == "electrical_switch_port")
    assert (switch.network, switch.crossing_usd) == ("middle", pytest.approx(4400.0))
    assert "transceiver" not in {row.component for row in answer.crossings}


def test_the_first_place_by_step_time_changes_where_the_budget_ends() -> None:
    budget = 40 * 100 * (800 + 600) * 1.05
    answer = designed(SAMPLE, budget_usd=budget)
    (transceiver,) = (row for row in answer.crossings if row.component == "transceiver")
    assert transceiver.crossing_usd == pytest.approx(800 + 0.05 * 1400)
    assert transceiver.network == "middle"
    flips = {(row.component, row.factor): row.first for row in answer.flips}
    assert flips == {
        ("transceiver", 1.2): "middle",
        ("electrical_switch_port", 1.2): "middle",
    }


def test_a_better_network_takes_the_first_place_where_it_comes_into_the_budget() -> None:
    answer = designed(SAMPLE, budget_usd=5e6)
    assert answer.front[0].name == "middle"
    rows = {row.component: row for row in answer.crossings}
    # The fast network costs 5.6 M USD, of which 4,000 transceivers.
    assert rows["transceiver"].crossing_usd == pytest.approx(800 - 0.6e6 / 4000)
    assert rows["electrical_switch_port"].crossing_usd == pytest.approx(600 - 0.6e6 / 4000)
    assert {rows[key].network for key in ("transceiver", "electrical_switch_port")} == {"fast"}
    assert rows["ocs_port"].crossing_usd == pytest.approx(500 + (5e6 - 1.04e6) / 800)
    assert rows["ocs_port"].network == "cheap"


def test_the_search_equals_pricing_everything() -> None:
    answer = design(SPACE)
    setting = setting_of(SPACE.advice)
    job, values = Job(64, 64, SPACE.tokens, SPACE.memory_share), {}
    for name, network in SPACE.networks.items():
        try:
            sized = sized_for(with_device_node(network, setting.device), 64, 128)
        except SettingsError:
            continue
        on, bound = setting_on(sized, setting, SPACE, RateStore())
        plans = search(replace(setting, network=bound), job).plans
        values[name] = float(price(on, plans).times.total_s.min())
    assert {point.name: point.step_s for point in answer.points} == values
    assert [point.step_s for point in answer.points] == sorted(values.values())
    assert {drop.network for drop in answer.dropped} == set(SPACE.networks) - {
        point.name for point in answer.front
    }
    text = "\n".join(design_lines(answer))
    assert all(name in text for name in SPACE.networks)


def test_every_point_has_its_setting_its_plan_and_its_fidelity() -> None:
    answer = designed(SAMPLE)
    lines = design_lines(answer)
    assert max(map(len, lines)) <= 120
    for rank, point in enumerate(answer.front, 1):
        at = next(n for n, line in enumerate(lines) if line.startswith(f"{rank}  {point.name} "))
        assert lines[at].endswith("analytic")
        assert lines[at + 1].startswith("   setting  ports of 400 Gbit/s, n ")
        assert lines[at + 2] == f"   plan     {plan_words(point.plan)}"
    assert "note: drawn (fast, middle, cheap)" in lines
    rows = answer.as_dict()["front"]
    assert [row["setting"] for row in rows] == [setting_words(p.network) for p in answer.front]
    assert load(type(SAMPLE[0].network), rows[0]["settings"]) == SAMPLE[0].network


def test_a_setting_is_what_a_network_differs_in() -> None:
    """Numbers, what is not its family's default, and the node."""
    tree = topology_settings("fat_tree", taper=0.5, planes=1, switch_radix=8)
    assert setting_words(tree) == (
        "ports of 400 Gbit/s, tiers 3, switch_radix 8, planes 1, taper 0.5"
    )
    hyperx = topology_settings("hyperx", shape=[3, 4], node={"chips": 4, "gb_s": 300})
    assert "shape 3 x 4, " in setting_words(hyperx)
    assert setting_words(hyperx).endswith("nodes of 4 (switch, 300 GB/s)")


def test_an_equal_network_is_named_once() -> None:
    torus = topology_settings("torus_2d")
    answer = design(replace(SPACE, networks={"one": torus, "two": torus}))
    assert [point.name for point in answer.points] == ["one"]
    assert answer.dropped == (("two", "is one at this size"),)


def catalogue(folder: Path) -> Path:
    """The catalogue with a transceiver that costs nothing."""
    path = folder / "prices.csv"
    lines = Path("resources/catalogue/prices.csv").read_text(encoding="utf-8")
    path.write_text(lines.replace("transceiver,400,879,", "transceiver,400,0,"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget_usd": 10.0}, "budget_usd: got 10, which buys no network for 64 gpus; allowed: "),
        ({"watts": 1.0}, "watts: got 1, which feeds no network for 64 gpus; allowed: "),
        (
            {"model": "llama3_405b"},
            "gpus: got 64; llama3_405b fits no plan (104 GB on",
        ),
        ({"networks": {}}, "networks: got none; allowed: one or more (conf/design)"),
        ({"price_set": "opus_800g"}, "the port speed of price set 'opus_800g'"),
    ],
)
def test_what_cannot_be_names_the_nearest(changes: dict[str, object], message: str) -> None:
    small = {name: SPACE.networks[name] for name in ("torus", "rails")}
    with pytest.raises(UserError) as error:
        design(replace(SPACE, **{"networks": small, **changes}))  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_price_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="where a transceiver costs 0 USD; allowed: prices above"):
        design(replace(SPACE, catalogue=str(catalogue(tmp_path))))


def test_accelerators_are_charged_at_a_price_of_ones_own(tmp_path: Path) -> None:
    charged = replace(SPACE, gpus=60, include_accelerators=True, families=("slim_fly",))
    with pytest.raises(SettingsError, match="include_accelerators: got true; allowed: false, or a"):
        design(charged)
    path = tmp_path / "prices.csv"
    lines = Path("resources/catalogue/prices.csv").read_text(encoding="utf-8")
    row = "opus_400g,accelerator,,30000,700,a device,an offer,2026-11,low,default,25000,40000\n"
    path.write_text(lines + row, encoding="utf-8")
    (point,) = design(replace(charged, catalogue=str(path), budget_usd=1e8)).points
    (bare,) = design(replace(charged, include_accelerators=False)).points
    assert (point.chips, point.cost.components["accelerator"]) == (bare.chips, 60)
    assert bare.chips > 60
    for at, usd in (("usd", 30_000), ("usd_low", 25_000), ("usd_high", 40_000)):
        more = getattr(point.cost, at) - getattr(bare.cost, at)
        assert more * point.chips == pytest.approx(60 * usd)
    assert (point.watts, point.joules) == (bare.watts, bare.joules)


def test_a_price_below_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"price_change: got 2\.0; allowed: from 0 to 1"):
        load(DesignSettings, {"price_change": 2.0})


def test_unknown_families_are_refused() -> None:
    with pytest.raises(SettingsError, match="families: got 'ether'; allowed: rail_only, railx_"):
        replace(SPACE, families=("ether",))
    assert list(replace(SPACE, families=("slim_fly",)).searched) == ["fly"]


JOB = PointSettings(gpus=64, model="llama3_8b", global_batch=64, fault_samples=2)


@pytest.mark.parametrize("name", ["torus_2d", "slim_fly", "rail_only", "railx_hyperx"])
def test_the_plan_is_the_best_of_all_plans(name: str) -> None:
    network = topology_settings(name)
    point = evaluate(name, network, JOB, most_chips=4.0)
    setting = setting_of(JOB.advice)
    sized = sized_for(with_device_node(network, setting.device), 64, 256)
    on_network, bound = setting_on(sized, setting, JOB, RateStore())
    job = Job(64, 64, JOB.tokens, JOB.memory_share)
    plans = search(replace(setting, network=bound), job).plans
    every = price(on_network, plans).times.total_s
    assert point.step_s == every.min()
    assert point.step_s <= price(on_network, plans).times.total_s[0]
    assert len(candidates(setting.model, job, 8)) > len(plans) > 100
    assert sum(point.parts_s.values()) == pytest.approx(point.step_s)


def test_dollars_and_watts_are_counts_times_prices() -> None:
    point = evaluate("torus", topology_settings("torus_2d"), JOB, most_chips=4.0)
    catalogue = read_catalogue(JOB.catalogue)
    counts = PricedNetwork(point.network).counts.components
    # 64 chips with 450 GB/s each inside nodes, at assumed prices with a range.
    assert point.cost.components == {**counts, "node_switch_gb_s": 64 * 450}
    node = catalogue.price("node_assumed", "node_switch_gb_s")
    by_set = {
        key: sum(n * catalogue.price(key, part).unit_usd for part, n in counts.items())
        for key in (JOB.price_set, *JOB.price_sets)
    }
    assert point.usd == pytest.approx(by_set["opus_400g"] + 64 * 450 * node.unit_usd)
    assert point.cost.usd_low == pytest.approx(min(by_set.values()) / 64 + 450 * node.low_usd)
    assert point.cost.usd_high == pytest.approx(max(by_set.values()) / 64 + 450 * node.high_usd)
    free = evaluate(
        "torus", topology_settings("torus_2d"), replace(JOB, node_price_set=None), most_chips=4.0
    )
    assert free.usd == pytest.approx(by_set["opus_400g"])
    watts = sum(
        n * (catalogue.price("opus_400g", part).unit_watts or 0) for part, n in counts.items()
    )
    assert point.watts == pytest.approx(watts)
    assert point.joules == pytest.approx((watts + 64 * 700) * point.step_s)


def test_all_rates_of_a_point_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its plans, and of an all-to-all that has no closed form."""
    network = topology_settings("mixnet")
    first = evaluate("mixnet", network, JOB, most_chips=4.0, store=RateStore(tmp_path))
    assert "all-to-all by exact loads" in first.notes
    monkeypatch.setattr(GroupRates, "_crossing", None)
    again = evaluate("mixnet", network, JOB, most_chips=4.0, store=RateStore(tmp_path))
    assert again.row() == first.row()


def test_a_point_says_what_it_rests_on() -> None:
    point = evaluate("fly", topology_settings("slim_fly"), JOB, most_chips=4.0)
    row = point.row()
    assert row["fidelity"] == "analytic"
    assert "detours in closed form" in row["notes"]
    assert row["step_low_s"] < row["step_s"] < row["step_high_s"]
    assert row["step_high_s"] == pytest.approx(row["step_s"] * (1 + row["expected_error"]))
    assert row["binds"].split()[0] in point.parts_s
    assert row["all_to_all_gb_s"] <= row["injection_gb_s"] == 400


def test_a_partly_filled_tree_is_computed_on_a_full_one() -> None:
    tree = with_device_node(topology_settings("fat_tree", switch_radix=16), device_named("h100"))
    sized = sized_for(tree, 200, 500)
    graph: Any = sized.graph
    assert sized.chips == 200
    assert (graph.populated_chips, graph.switch_radix) == (None, 12)
    point = evaluate("tree", tree, replace(JOB, gpus=256))
    assert point.notes == ("loads of a full tree of 432 chips",)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("khop_ring", {}, "bill: got none of khop_ring; allowed: networks with prices"),
        ("rail_only", {"gpus": 20}, "chips: got 24 for 20; allowed: at most 22 (most_chips)"),
        ("rail_only", {"gpus": 8192}, "chips: got 8192; allowed: at most 128"),
        ("torus_2d", {"model": "llama3_405b"}, "gpus: got 64; llama3_405b fits no plan"),
        ("torus_2d", {"price_set": "opus_800g"}, "allowed: 800, the port speed of price set"),
        ("torus_2d", {"price_sets": ("gold",)}, "price_sets: got 'gold'"),
    ],
)
def test_what_cannot_be_is_one_line(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        evaluate(name, topology_settings(name), replace(JOB, **changes), most_chips=1.1)
    assert message in str(error.value)


def test_draws_of_faults_are_those_of_the_seed() -> None:
    shares = [
        evaluate("x", topology_settings("railx_hyperx", m=4), JOB, most_chips=4.0).usable.share
        for _ in range(2)
    ]
    assert shares[0] == shares[1] <= 1
    assert np.isfinite(shares[0])


@given(
    st.sampled_from([(5,), (3, 4), (2, 3, 4)]),
    st.integers(0, 2**24 - 1),
)
def test_the_largest_box_is_that_of_brute_force(sides: tuple[int, ...], bits: int) -> None:
    healthy = np.array([bits >> unit & 1 for unit in range(math.prod(sides))], bool).reshape(sides)
    best = 0
    for start in itertools.product(*map(range, sides)):
        for lengths in itertools.product(*(range(1, side + 1) for side in sides)):
            box = itertools.product(
                *(
                    [(at + step) % side for step in range(length)]
                    for at, length, side in zip(start, lengths, sides, strict=True)
                )
            )
            if all(healthy[unit] for unit in box):
                best = max(best, math.prod(lengths))
    assert largest_box(healthy) == best


def test_a_job_on_any_nodes_loses_the_failed_ones() -> None:
    tree = topology_settings("fat_tree")
    assert usable_share(tree, 128, 8, 0.125, 1, 1) == (0.875, "closed form")
    # A cube of eight servers works where all do.
    cubes = topology_settings("tpu_v4")
    assert usable_share(cubes, 512, 8, 0.125, 1, 1).share == pytest.approx(0.875**8)
    assert usable_share(tree, 128, 8, 0.0, 1, 1).share == 1


class OneFailure:
    """Draws a single failed server, another one every time."""

    def __init__(self, seed: int) -> None:
        self.turn = seed

    def random(self, servers: int) -> np.ndarray:
        self.turn += 1
        return (np.arange(servers) != self.turn % servers).astype(float)


@pytest.mark.parametrize(
    ("name", "chips", "basis", "left"),
    [
        # A failed node of 25 in a square takes a row, a chip of 100 in a torus as well.
        ("railx_hyperx", 100, "lines", 0.8),
        ("torus_2d", 100, "blocks", 0.9),
    ],
)
def test_a_failed_server_takes_what_the_shape_of_jobs_takes(
    name: str,
    chips: int,
    basis: str,
    left: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(np.random, "default_rng", OneFailure)
    server = {"railx_hyperx": 4, "torus_2d": 1}[name]
    usable = usable_share(topology_settings(name), chips, server, server / chips, 3, 1)
    assert tuple(usable) == (pytest.approx(left), basis)


def test_nodes_of_a_torus_are_the_units_of_its_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "default_rng", OneFailure)
    settings = topology_settings("torus_2d", node={"chips": 4, "links": "switch"})
    assert settings.node == NodeSettings(4, "switch")
    usable = usable_share(settings, 100, 4, 1 / 25, 3, 1)
    assert tuple(usable) == (pytest.approx(0.8), "blocks")


@pytest.mark.parametrize(
    ("gpus", "tokens", "batch"),
    [
        (256, 8192, 512),
        (4096, 8192, 4096),
        (1296, 4096, 1296),
        (1001, 8192, 1000),
        (500, 8192, 992),
        (7, 8192, 518),
        (64, 2**23, 64),
    ],
)
def test_replicas_of_eight_devices_divide_the_usual_batch(
    gpus: int, tokens: int, batch: int
) -> None:
    assert PointSettings(gpus=gpus, tokens=tokens).batch == batch
    assert batch * tokens >= 2**22
    assert batch % max(1, gpus // 8) == 0
