"""Devices of the catalogue: a source for every number, published totals of nodes, and
names and precisions that do not exist.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import fields

import pytest

from railx.errors import UserError
from railx.performance.devices import BYTES, Device, device_named
from railx.performance.resources import catalogue
from tests.builders import ROOT

DEVICES: Mapping[str, Device] = catalogue("devices.yaml", Device)
#: Numbers that one source covers.
NODE = ("node_devices", "fast_gb_s", "slow_gb_s")
#: Their source is in the field's docstring.
LATENCIES = ("fast_latency_s", "slow_latency_s")


@pytest.mark.parametrize("name", DEVICES)
def test_every_number_has_a_source_and_every_source_a_number(name: str) -> None:
    device = DEVICES[name]
    numbers = {
        "node" if field.name in NODE else field.name
        for field in fields(Device)
        if field.name not in ("name", "sources", *LATENCIES) and getattr(device, field.name)
    }
    assert set(device.sources) == numbers
    assert all(device.sources.values())


@pytest.mark.parametrize("name", DEVICES)
def test_latencies_are_those_that_the_class_names_a_source_for(name: str) -> None:
    device = DEVICES[name]
    assert (device.fast_latency_s, device.slow_latency_s) == (2.5e-6, 5e-6)


@pytest.mark.parametrize("name", DEVICES)
def test_narrower_operands_are_no_slower(name: str) -> None:
    peaks = DEVICES[name].peak_tflops
    assert set(peaks) <= set(BYTES)
    ordered = [peaks[precision] for precision in BYTES if precision in peaks]
    assert ordered == sorted(ordered)
    assert peaks.get("fp16", peaks["bf16"]) == peaks["bf16"]


@pytest.mark.parametrize("name", DEVICES)
def test_the_fast_domain_is_the_faster_one(name: str) -> None:
    device = DEVICES[name]
    assert device.memory_gb_s > device.fast_gb_s > device.slow_gb_s


def test_totals_of_a_node_are_the_published_ones() -> None:
    """DGX B200: 1,440 GB, 64 TB/s, 14.4 TB/s. GB200 NVL72: 13.4 TB, 576 TB/s, 130 TB/s,
    360 PFLOPS of FP8. GB300 NVL72: 20 TB, 1,080 PFLOPS of FP4. MI300X: 7 links of
    128 GB/s. TPU v5p: 1,200 GB/s over three axes, 95 GiB.
    """

    def total(name: str, field: str, unit: float) -> float:
        device = DEVICES[name]
        value: float = getattr(device, field)
        return round(value * device.node_devices / unit, 1)

    assert total("b200", "capacity_gb", 1) == 1440
    assert total("b200", "memory_gb_s", 1e3) == 64
    assert total("b200", "fast_gb_s", 1e3) * 2 == 14.4
    assert total("gb200", "capacity_gb", 1e3) == 13.4
    assert total("gb200", "memory_gb_s", 1e3) == 576
    assert int(total("gb200", "fast_gb_s", 1e3) * 2) == 129  # printed as 130
    assert DEVICES["gb200"].peak_tflops["fp8"] * 72 == 360e3
    assert int(total("gb300", "capacity_gb", 1e3)) == 20
    assert DEVICES["gb300"].peak_tflops["fp4"] * 72 == 1080e3
    assert DEVICES["mi300x"].fast_gb_s * 2 == 7 * 128
    assert DEVICES["tpu_v5p"].fast_gb_s * 2 * 3 == 1200
    assert round(DEVICES["tpu_v5p"].capacity_gb * 1e9 / 2**30) == 95


@pytest.mark.parametrize("name", [name for name in DEVICES if DEVICES[name].all_reduce])
def test_measured_all_reduces_are_there(name: str) -> None:
    file, device = DEVICES[name].all_reduce.split(":")
    with (ROOT / "resources" / "measured" / file).open(newline="") as table:
        assert any(device in row.values() for row in csv.DictReader(table))


def test_peak_is_in_operations_per_second() -> None:
    assert device_named("a100_80gb").peak_flops("bf16") == 312e12


def test_a_familys_name_is_its_first_entry() -> None:
    assert device_named("h100") == DEVICES["h100_80gb"]
    assert device_named("a100") == DEVICES["a100_80gb"]
    assert device_named("a100_40gb") == DEVICES["a100_40gb"]
    assert device_named("b200") == DEVICES["b200"]


def test_a_precision_that_the_device_lacks_ends_in_one_line() -> None:
    message = "precision: got fp8 on a100_80gb; allowed: fp16, bf16"
    with pytest.raises(UserError, match=f"^{message}$"):
        device_named("a100_80gb").peak_flops("fp8")


@pytest.mark.parametrize("name", ["v100", "h10", "b2000"])
def test_unknown_names_list_the_devices(name: str) -> None:
    allowed = re.escape(", ".join(DEVICES))
    with pytest.raises(UserError, match=f"^devices: got {name}; allowed: {allowed}$"):
        device_named(name)
