"""Stage economics: prices -> bills of materials, costs over scale, claims that hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from railx.effort import LimitSettings
from workflow.outputs import Table, columns
from workflow.stage import ByHand, Job, Stage, Summary, Tracked


def run(job: Job) -> Summary:
    """Price every network of the settings; return the summary by network."""
    from railx import economics as priced

    economics: priced.EconomicsSettings = job.load(priced.EconomicsSettings)
    summary = priced.cost_summary(economics)
    for name, table in (
        ("bill", priced.bill_of_materials),
        ("sensitivity", priced.price_sensitivity),
        ("scale", priced.cost_by_scale),
        ("claim_map", priced.claim_map),
        ("rails", priced.rail_economics),
        ("rail_map", priced.rail_map),
    ):
        if name in job.outputs:
            job.write_table(name, table(economics))
    job.write_table("summary", summary)
    return {
        f"{row['topology']}.{key}": value
        for row in summary
        for key, value in row.items()
        if key not in ("topology", "fidelity")
    }


_PRICES = "real transceiver_usd ocs_port_usd electrical_switch_port_usd"
_BILL = columns(
    "text topology, integer chips, text component, integer count,"
    " real unit_usd total_usd total_low_usd total_high_usd unit_watts total_watts,"
    " text charges source fidelity"
)
_SUMMARY = columns(
    "text topology, integer chips,"
    " real injection_gb_s_per_chip all_to_all_gb_s_per_chip cost_usd cost_per_chip_usd"
    " usd_per_injection_gb_s usd_per_all_to_all_gb_s power_watts, text charges fidelity"
)
_SENSITIVITY = columns(
    f"text view prices topology reference all_to_all, {_PRICES},"
    " real cost_usd injection_cost_ratio all_to_all_cost_ratio,"
    " flag injection_claim_holds all_to_all_claim_holds absolute_claim_holds,"
    " real break_even_switch_port_usd break_even_in_node_lane_usd, text source fidelity"
)
_SCALE = columns(
    "text topology, integer target_chips, text price_set, integer chips,"
    " real injection_gb_s_per_chip all_to_all_gb_s_per_chip bisection_gb_s_per_chip cost_usd"
    " cost_per_chip_usd usd_per_injection_gb_s usd_per_all_to_all_gb_s power_watts watts_per_chip,"
    " text reference,"
    " real injection_cost_over_reference all_to_all_cost_over_reference watts_over_reference,"
    " text fidelity"
)
_CLAIM_MAP = columns(
    f"text view factor, real level, text claim prices, {_PRICES},"
    " real ocs_port_over_transceiver switch_port_over_transceiver value limit tolerance,"
    " flag holds, real boundary_slope boundary_intercept switch_port_at_boundary, flag binding,"
    " text source fidelity"
)

_RAILS = columns(
    "text platform, integer gpus servers, text network counting,"
    " integer transceivers_per_gpu tiers, text switch, integer switch_ports, text arrangement,"
    " integer switches_per_rail, real ocs_ports_per_gpu, integer switch_passes,"
    " real ocs_port_price_factor, text ocs_port_price,"
    " integer transceivers electrical_switch_ports ocs_ports,"
    " real cost_usd power_watts cost_per_gpu_usd watts_per_gpu gb_s_per_gpu cost_ratio power_ratio"
    " equal_bandwidth_cost_ratio equal_bandwidth_power_ratio, text fidelity"
)
_RAIL_MAP = columns(
    "text platform, integer transceivers_per_gpu, text claim,"
    " real transceiver switch_ports_per_gpu ratio limit, flag holds, real ports_at_boundary,"
    " text fidelity"
)


def check_economics(settings: Any, _key: str, _limits: LimitSettings) -> None:
    """Refuse missing price sets and catalogues."""
    from railx.economics.bill import check_prices

    check_prices(settings)


def check_price_set(settings: Any, key: str, _limits: LimitSettings) -> None:
    """Refuse a missing price set or catalogue; other stages name them too."""
    from railx.economics.bill import check_price_set

    check_price_set(settings, key)


STAGE = Stage(
    name="economics",
    help="bill of materials, cost and power of networks",
    message="Bill of materials",
    settings=lambda experiment, _: experiment["economics"],
    inputs=lambda experiment, _: {"catalogue": Path(experiment["economics"]["catalogue"])},
    outputs={
        "bill": Table(_BILL, printed="Bill of materials"),
        "summary": Table(_SUMMARY, printed="Cost and power of networks"),
        "sensitivity": Table(_SENSITIVITY),
        "scale": Table(_SCALE),
        "claim_map": Table(_CLAIM_MAP),
        "rails": Table(_RAILS),
        "rail_map": Table(_RAIL_MAP),
    },
    run=run,
    by_hand=ByHand(
        groups=("economics",),
        example="railx economics economics=full_scale --json",
        out="the bill of materials to write (.parquet)",
        writes={".parquet": "bill"},
    ),
    tracked=Tracked("summary", ("summary", "bill"), name="costs", fidelity="analytic"),
    check_settings={"economics": check_economics},
)
