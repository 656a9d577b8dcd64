"""Time and memory of groups and chunks against published constants and closed forms."""

from dataclasses import replace
from typing import Any

import pytest

from railx.performance.cluster import all_to_all_gb_s, bandwidth_gb_s
from railx.performance.decoder import forward_flops, parameter_count
from railx.performance.sequence_cost import (
    CostModel,
    ShardingTraffic,
    build_cost_model,
    model_state_mib,
)
from railx.settings import SettingsError
from tests.builders import checked, published_rows


def _cost(size: str, max_length: int, memory_gib: float = 30.0) -> CostModel:
    cluster = replace(checked("cluster", "a100_64"), memory_gib=memory_gib)
    return build_cost_model(
        checked("cost_model", f"flexsp_{size}"),
        cluster,
        checked("model", f"gpt_{size}"),
        max_length,
    )


def _tiny() -> CostModel:
    return build_cost_model(
        checked("cost_model", "analytic"),
        checked("cluster", "cpu_4"),
        checked("model", "tiny"),
        1024,
    )


@pytest.mark.parametrize(
    ("size", "max_length", "memory_gib", "tokens"),
    [
        ("7b", 192_000, 30, 6449),
        ("7b", 384_000, 30, 6407),
        ("13b", 192_000, 30, 6483),
        ("13b", 384_000, 30, 6427),
        ("30b", 192_000, 30, 6627),
        ("30b", 384_000, 30, 6538),
        ("7b", 192_000, 28, 5992),
        ("7b", 384_000, 28, 5950),
        ("13b", 192_000, 28, 5998),
        ("13b", 384_000, 28, 5942),
        ("30b", 192_000, 28, 6028),
        ("30b", 384_000, 28, 5939),
    ],
)
def test_token_caps_are_the_published_ones(
    size: str, max_length: int, memory_gib: float, tokens: int
) -> None:
    assert _cost(size, max_length, memory_gib).tokens_per_device == tokens


@pytest.mark.parametrize("size", ["7b", "13b", "30b"])
def test_config_holds_the_published_constants(size: str) -> None:
    settings = checked("cost_model", f"flexsp_{size}")
    published = {
        row["quantity"]: float(row["value"])
        for row in published_rows("flexsp_cost_constants.csv")
        if row["model"] == f"gpt_{size}"
    }
    for key in (
        "quadratic_ms_per_token2",
        "linear_ms_per_token",
        "constant_ms",
        "activation_mib_per_token",
    ):
        assert getattr(settings, key) == published[key]


def test_cluster_holds_the_published_bandwidths() -> None:
    table = {
        row["degree"]: float(row["gb_s"])
        for row in published_rows("flexsp_all_to_all_bandwidth.csv")
        if row["table"] == "4k_seq_2_ib"
    }
    assert checked("cluster", "a100_64").all_to_all_gb_s == table


@pytest.mark.parametrize(
    ("cluster", "table"), [("a100_16", "4k_seq_2_ib"), ("a100_16_2k", "2k_seq_comment")]
)
def test_the_published_cluster_of_16_devices(cluster: str, table: str) -> None:
    published = {
        row["degree"]: float(row["gb_s"])
        for row in published_rows("flexsp_all_to_all_bandwidth.csv")
        if row["table"] == table
    }
    settings, model = checked("cluster", cluster), checked("model", "gpt_7b")
    assert settings.all_to_all_gb_s == published
    constants = {row["id"]: row["value"] for row in published_rows("flexsp_cost_constants.csv")}
    fitted = checked("cost_model", "flexsp_7b_16")
    kept = constants["gpt_7b_activation_mib_per_token_on_16_devices"]
    assert fitted.activation_mib_per_token == float(kept)
    assert replace(
        fitted, activation_mib_per_token=4.480441895
    ) == checked("cost_model", "flexsp_7b")  # fmt: skip
    # Tokens per device as its public code works them out.
    for longest, tokens in ((32_000, 9014), (64_000, 8967)):
        cost = build_cost_model(fitted, settings, model, longest)
        assert (cost.tokens_per_device, cost.degrees) == (tokens, (1, 2, 4, 8, 16))


@pytest.mark.parametrize(
    ("degree", "microseconds"),
    [(1, 0.0), (2, 8.4), (4, 4.8), (8, 2.6), (16, 12.1), (32, 10.5), (64, 6.4)],
)
def test_all_to_all_time_per_token_of_the_7b_model(degree: int, microseconds: float) -> None:
    assert _cost("7b", 192_000).group_time_ms([1], degree).all_to_all_ms * 1000 == pytest.approx(
        microseconds, abs=0.05
    )


def test_group_time_is_equation_12() -> None:
    time = _cost("7b", 192_000).group_time_ms([1000, 3000], 8)
    assert time.compute_ms == pytest.approx(
        (5.128e-6 * (1000**2 + 3000**2) + 0.1839576 * 4000) / 8 + 629.3563
    )
    assert time.all_to_all_ms == pytest.approx(4000 * 2.0 / 8 / 96.5)
    assert time.total_ms == time.compute_ms + time.all_to_all_ms


def test_quadratic_and_linear_compute_meet_at_the_published_length() -> None:
    cost = _cost("7b", 192_000)
    assert cost.linear_ms / cost.quadratic_ms == pytest.approx(35_900, rel=1e-3)


def test_analytic_times_are_operations_over_throughput() -> None:
    model, cost = checked("model", "tiny"), _tiny()
    operations_per_ms = 0.05e9 * 0.5
    expected = 3 * forward_flops(model, 700) / operations_per_ms / 2 + cost.constant_ms
    assert cost.group_time_ms([700], 2).compute_ms == pytest.approx(expected)
    assert cost.group_time_ms([700], 2).all_to_all_ms == pytest.approx(
        700 * 4 * 4 * 4 * (128 + 64) / 2 / (0.1 * 1e6)
    )


def test_zero_stages_keep_more() -> None:
    fitted, cluster, model = (
        checked("cost_model", "flexsp_7b"),
        checked("cluster", "a100_64"),
        checked("model", "gpt_7b"),
    )
    whole = 7.11745 * 1024 * 16
    shares = {3: 1 / 64, 2: 7 / 8 / 64 + 1 / 8, 1: 6 / 8 / 64 + 2 / 8}
    for stage, share in shares.items():
        states = model_state_mib(replace(fitted, zero_stage=stage), cluster, model, 192_000)
        assert states == pytest.approx(whole * share, rel=1e-5)


def test_degrees_follow_devices_table_and_heads() -> None:
    assert _cost("7b", 192_000).degrees == (1, 2, 4, 8, 16, 32, 64)
    cluster = replace(checked("cluster", "a100_64"), devices=16)
    small = build_cost_model(
        checked("cost_model", "analytic"),
        cluster,
        checked("model", "tiny"),
        1024,
    )
    assert small.degrees == (1, 2, 4, 8)  # 8 heads
    assert small.smallest_degree(small.tokens_per_device + 1) == 2
    assert small.smallest_degree(small.longest_tokens + 1) is None


def test_any_number_of_devices_and_the_last_bandwidth_beyond_the_table() -> None:
    cluster = replace(checked("cluster", "a100_64"), devices=1024)
    wide = replace(checked("model", "gpt_7b"), heads=1024, kv_heads=1024)
    cost = build_cost_model(checked("cost_model", "flexsp_7b"), cluster, wide, 192_000)
    assert cost.degrees == tuple(2**n for n in range(11))
    # Twice the degree sends half of each token per device at the same bandwidth.
    assert cost.all_to_all_ms[128] == cost.all_to_all_ms[64] / 2
    assert cost.all_to_all_ms[1024] == cost.all_to_all_ms[64] / 16
    assert bandwidth_gb_s(cluster, 5000) == cluster.all_to_all_gb_s["64"]
    for devices, degrees in ((48, (1, 2, 4, 8, 16, 32)), (96, (1, 2, 4, 8, 16, 32, 64)), (1, (1,))):
        smaller = replace(cluster, devices=devices, memory_gib=200.0)
        assert tuple(all_to_all_gb_s(smaller)) == degrees[1:]
        cost = build_cost_model(checked("cost_model", "flexsp_7b"), smaller, wide, 32_000)
        assert cost.degrees == degrees


def test_a_degree_that_is_not_listed() -> None:
    cluster = replace(checked("cluster", "a100_64"), all_to_all_gb_s={"2": 9.0, "8": 3.0})
    assert all_to_all_gb_s(cluster) == {2: 9.0, 8: 3.0, 16: 3.0, 32: 3.0, 64: 3.0}
    assert [bandwidth_gb_s(cluster, degree) for degree in (2, 3, 5, 8, 9)] == [9, 3, 3, 3, 3]
    alone = replace(cluster, all_to_all_gb_s={})
    assert all_to_all_gb_s(alone) == {}
    assert bandwidth_gb_s(alone, 2) is None


def test_any_degree_that_divides_the_heads() -> None:
    cluster = replace(checked("cluster", "a100_64"), devices=20)
    model = replace(checked("model", "gpt_13b"), heads=40, kv_heads=40)
    cost = build_cost_model(checked("cost_model", "flexsp_13b"), cluster, model, 32_000)
    assert cost.degrees == (1, 2, 4, 8)
    assert cost.any_degrees == (1, 2, 4, 5, 8, 10, 20)
    # 5 exchanges at the bandwidth of 8, 10 at that of 16, 20 at that of 32.
    table, whole = cluster.all_to_all_gb_s, 3.125
    for degree, listed in ((5, "8"), (8, "8"), (10, "16"), (20, "32")):
        assert cost.group_time_ms([1000], degree).all_to_all_ms == pytest.approx(
            1000 * whole / degree / table[listed]
        )
    # Degrees that the heads do not allow have a price too, the same either way.
    everything = build_cost_model(
        checked("cost_model", "flexsp_13b"), cluster, model, 32_000, degrees=range(1, 21)
    )
    assert everything.any_degrees == tuple(range(1, 21))
    for degree in range(1, 21):
        assert cost.all_to_all_for(degree) == pytest.approx(everything.all_to_all_ms[degree])
    assert cost.all_to_all_for(100) == pytest.approx(whole / 100 / table["64"])
    chosen = build_cost_model(
        checked("cost_model", "flexsp_13b"), cluster, model, 32_000, degrees=(3, 8, 32)
    )
    assert chosen.any_degrees == (1, 3, 8)


def test_traffic_of_sharding_is_paid_once_a_micro_batch() -> None:
    plain, cluster, model = (
        checked("cost_model", "flexsp_7b"),
        checked("cluster", "a100_64"),
        checked("model", "gpt_7b"),
    )
    assert plain.sharding is None
    traffic = ShardingTraffic(gb_s=20.0, parameter_bytes=2, gradient_bytes=4, exposed_share=1.0)
    without = build_cost_model(plain, cluster, model, 192_000)

    def priced(**changes: Any) -> CostModel:
        settings = replace(plain, sharding=replace(traffic, **changes))
        return build_cost_model(settings, cluster, model, 192_000)

    # Parameters there and back, gradients once, without the 1/64 that is here already.
    moved_gb = parameter_count(model, 192_000) * (2 + 2 + 4) * 63 / 64 / 1e9
    exposed = priced()
    assert exposed.sharding_ms == pytest.approx(moved_gb / 20 * 1000)
    assert exposed.constant_ms == without.constant_ms + exposed.sharding_ms
    assert replace(exposed, sharding_ms=0.0, constant_ms=without.constant_ms) == without
    assert priced(exposed_share=0.25).sharding_ms == pytest.approx(exposed.sharding_ms / 4)
    assert priced(exposed_share=0.0) == without
    for lengths, degree in (([5000], 1), ([9000, 40], 8)):
        more = exposed.group_time_ms(lengths, degree)
        less = without.group_time_ms(lengths, degree)
        assert more.total_ms - less.total_ms == pytest.approx(exposed.sharding_ms)
    alone = replace(cluster, devices=1, memory_gib=200.0)
    assert build_cost_model(
        replace(plain, sharding=traffic), alone, model, 4096
    ).sharding_ms == 0.0  # fmt: skip
    with pytest.raises(
        SettingsError, match=r"^cost_model\.sharding: .* zero_stage 2; allowed: zero"
    ):
        build_cost_model(replace(plain, sharding=traffic, zero_stage=2), cluster, model, 4096)
    assert checked("cost_model", "flexsp_7b_zero3").sharding is not None


@pytest.mark.parametrize(("size", "layers"), [("7b", 32), ("13b", 40)])
def test_recomputed_layers_take_their_forward_pass_again_and_keep_their_input(
    size: str, layers: int
) -> None:
    model, cluster = checked("model", f"gpt_{size}"), checked("cluster", "a100_64")
    plain = checked("cost_model", f"flexsp_{size}")
    none, half, every = (
        build_cost_model(replace(plain, checkpoint_layers=count), cluster, model, 192_000)
        for count in (0, layers // 2, layers)
    )
    assert none == _cost(size, 192_000)
    for cost, share in ((half, 0.5), (every, 1.0)):
        more = 1 + share / 3
        assert cost.quadratic_ms == pytest.approx(none.quadratic_ms * more)
        assert cost.linear_ms == pytest.approx(none.linear_ms * more)
        assert cost.constant_ms == pytest.approx(none.constant_ms * more)
        assert cost.forward_share == pytest.approx(1 / 3 / more)
        assert cost.all_to_all_ms[8] == pytest.approx(none.all_to_all_ms[8] * (1 + share / 2))
        whole, inputs = plain.activation_mib_per_token, 2 * layers * model.hidden / 2**20
        kept = (1 - share) * whole + share * inputs
        states = model_state_mib(plain, cluster, model, 192_000)
        assert cost.tokens_per_device == int((30 * 1024 - states) / kept)
        assert cost.split_memory == pytest.approx(1 + 2 * inputs / kept)
    with pytest.raises(
        SettingsError, match=rf"^cost_model\.checkpoint_layers: got 99; allowed: at most {layers}"
    ):
        build_cost_model(replace(plain, checkpoint_layers=99), cluster, model, 192_000)


def test_groups_pay_the_latency_of_every_layer_where_it_is_asked_for() -> None:
    settings, model = checked("cost_model", "flexsp_7b"), checked("model", "gpt_7b")
    cluster = replace(checked("cluster", "a100_64"), all_to_all_latency_ms={"2": 0.5, "8": 1.25})

    def built(**changes: Any) -> CostModel:
        return build_cost_model(replace(settings, **changes), cluster, model, 192_000)

    plain, latent = built(), built(group_latency=True)
    assert plain.latency_ms == {}
    for degree, latency in ((1, 0.0), (2, 0.5), (3, 1.25), (4, 0.0), (8, 1.25), (9, 0.0)):
        more = latent.group_time_ms([4000, 300], degree).all_to_all_ms
        less = plain.group_time_ms([4000, 300], degree).all_to_all_ms
        assert more - less == pytest.approx(model.layers * latency)
    # Layers that are recomputed exchange in their forward pass once more.
    again = built(group_latency=True, checkpoint_layers=model.layers)
    assert again.latency_for(2) == pytest.approx(1.5 * latent.latency_for(2))


def test_latency_that_nobody_knows_is_refused() -> None:
    settings = replace(checked("cost_model", "flexsp_7b"), group_latency=True)
    with pytest.raises(SettingsError, match=r"^cost_model\.group_latency: got true without a lat"):
        build_cost_model(
            settings, checked("cluster", "a100_64"), checked("model", "gpt_7b"), 192_000
        )


def test_unsuitable_cost_models_name_the_key() -> None:
    cluster, fitted = (
        checked("cluster", "a100_64"),
        checked("cost_model", "flexsp_7b"),
    )
    with pytest.raises(
        SettingsError, match=r"^cost_model\.model: fitted for gpt_7b; allowed: gpt_13b"
    ):
        build_cost_model(fitted, cluster, checked("model", "gpt_13b"), 192_000)
    with pytest.raises(
        SettingsError, match=r"^cluster\.memory_gib: got 1\.0; allowed: more than 1\.78374, f"
    ):
        build_cost_model(
            fitted, replace(cluster, memory_gib=1.0), checked("model", "gpt_7b"), 192_000
        )
    for degree in ("3", "02", "\u00b2", "1"):
        with pytest.raises(SettingsError, match=f"all_to_all_gb_s.{degree}: unknown degree"):
            replace(cluster, all_to_all_gb_s={"2": 7.0, degree: 1.0})
