"""Design points by their numbers, for the front, the prices and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from railx.design.front import Design, decided
from railx.design.point import DesignPoint, NetworkCost
from railx.design.settings import DesignSettings
from railx.design.sizes import Usable
from railx.performance.closed import PARTS
from railx.performance.plans import Plan
from tests.builders import topology_settings

PRICES = {"transceiver": 800.0, "ocs_port": 500.0, "electrical_switch_port": 600.0}


def drawn(
    name: str,
    step_s: float,
    counts: Mapping[str, int],
    watts: float | None = 30.0,
    usable: float = 0.9,
    gpus: int = 100,
) -> DesignPoint:
    """A point of 100 chips with counts of components for each chip."""
    usd = sum(PRICES[key] * count for key, count in counts.items())
    parts = dict.fromkeys(PARTS, 0.0) | {"compute": 0.7 * step_s, "data": 0.3 * step_s}
    prices = {key: PRICES[key] for key in counts}
    components = {key: 100 * count for key, count in counts.items()}
    network = topology_settings("torus_2d")
    return DesignPoint(
        name=name,
        family="torus_2d",
        network=network,
        graph=network,
        chips=100,
        gpus=gpus,
        plan=Plan(data=gpus),
        step_s=step_s,
        step_low_s=step_s / 1.03,
        step_high_s=step_s * 1.03,
        expected_error=0.03,
        parts_s=parts,
        memory_share=0.5,
        cost=NetworkCost(
            usd, usd / 2, usd, watts, watts, watts, components, prices, ("opus_400g",)
        ),
        device_watts=700.0,
        all_to_all_gb_s=50.0,
        injection_gb_s=400.0,
        usable=Usable(usable, "lines"),
        network_words="drawn",
        notes=("drawn",),
    )


def designed(points: list[DesignPoint], **changes: Any) -> Design:
    """The design that these points give."""
    settings = DesignSettings(gpus=100, networks={"x": points[0].network}, **changes)
    return decided(settings, points)


#: A dear and fast, a middle, a cheap and a beaten network.
SAMPLE = [
    drawn("fast", 1.0, {"transceiver": 40, "electrical_switch_port": 40}, 1200.0, 0.99),
    drawn("middle", 1.5, {"transceiver": 8, "ocs_port": 8}, 80.0, 0.8),
    drawn("cheap", 2.0, {"transceiver": 2, "electrical_switch_port": 2}, 60.0, 0.99),
    drawn("beaten", 2.5, {"transceiver": 9, "ocs_port": 9}, 90.0, 0.7),
]
