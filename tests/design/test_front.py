"""The front, what is dropped, and the prices at which the first place changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.design.front import design, dominates, front_of
from railx.design.point import setting_on, setting_words
from railx.design.rates import RateStore
from railx.design.settings import DesignSettings
from railx.design.sizes import sized_for, with_device_node
from railx.design.text import design_lines
from railx.errors import UserError
from railx.performance.advice import setting_of
from railx.performance.search import Job, price, search
from railx.settings import SettingsError, load
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
        assert lines[at + 2] == f"   plan     {point.plan_words}"
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


def test_unknown_families_are_refused() -> None:
    with pytest.raises(SettingsError, match="families: got 'ether'; allowed: rail_only, railx_"):
        replace(SPACE, families=("ether",))
    assert list(replace(SPACE, families=("slim_fly",)).searched) == ["fly"]
