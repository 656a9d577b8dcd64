"""Devices: what one computes, stores and sends at its peak, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from railx.errors import UserError
from railx.performance.resources import catalogue, entry
from railx.settings import AtLeast, Fraction, NonNegative, NotEmpty, Positive

Precision = Literal["fp16", "bf16", "fp8", "fp4"]
#: Bytes of an operand of a matrix product.
BYTES = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}


@dataclass(frozen=True)
class Device:
    """One accelerator in the node that it is usually sold in."""

    name: Annotated[str, NotEmpty()]
    """Name that tables and figures show."""
    peak_tflops: Annotated[dict[str, Annotated[float, Positive()]], NotEmpty()]
    """Peak of dense matrix products by the operands' precision (10¹² operations/s)."""
    memory_gb_s: Annotated[float, Positive()]
    """Bandwidth of the memory."""
    capacity_gb: Annotated[float, Positive()]
    """Capacity of the memory, in 10⁹ bytes."""
    node_devices: Annotated[int, AtLeast(1)]
    """Devices of a node: the fast domain."""
    fast_gb_s: Annotated[float, Positive()]
    """Bandwidth of a device inside the fast domain, one direction."""
    slow_gb_s: Annotated[float, Positive()]
    """Bandwidth of a device to other nodes, one direction."""
    fast_latency_s: Annotated[float, NonNegative()] = 2.5e-6
    """Latency of a hop inside the fast domain (arXiv 2410.00273, public code)."""
    slow_latency_s: Annotated[float, NonNegative()] = 5e-6
    """Latency of a hop between nodes (the same source)."""
    watts: Annotated[float, Positive()] | None = None
    """Rated power; null where no number is public."""
    all_reduce: str = ""
    """All-reduces measured inside a node: a file of ``resources/measured`` and a device
    in it, FILE:DEVICE; empty: the ring's formula."""
    sources: dict[str, str] = field(default_factory=dict)
    """Source of each number, by its key."""

    def peak_flops(self, precision: str) -> float:
        """Operations per second at the peak.

        Raises :class:`UserError` for a precision that the device lacks.
        """
        if precision not in self.peak_tflops:
            raise UserError(
                f"precision: got {precision} on {self.name}; allowed: {', '.join(self.peak_tflops)}"
            )
        return self.peak_tflops[precision] * 1e12


@dataclass(frozen=True)
class ChipSettings:
    """How fast one chip computes: one share of its peak, whatever the product."""

    peak_tflops: Annotated[float, Positive()]
    """Peak of matrix products in the training precision."""
    efficiency: Annotated[float, Fraction()]
    """Share of the peak that computation reaches (MFU without waiting)."""

    def compute_ns(self, operations: float) -> float:
        """Nanoseconds of so many operations."""
        return 1e9 * (operations / (self.peak_tflops * 1e12 * self.efficiency))


@dataclass(frozen=True)
class DeviceSettings(ChipSettings):
    """How fast one device computes and sends."""

    name: Annotated[str, NotEmpty()]
    """Name that tables and figures show."""
    memory_gb_s: Annotated[float, Positive()]
    """Memory bandwidth, the other roof."""
    scale_up_gb_s: Annotated[float, Positive()]
    """Bandwidth of a device inside its server, one direction."""
    scale_out_gb_s: Annotated[float, Positive()]
    """Bandwidth of a device on its rail, one direction, both ports together."""

    def roofline_ns(self, operations: float, moved_bytes: float) -> float:
        """The longer of operations at the reached peak and bytes over the bandwidth."""
        return max(self.compute_ns(operations), moved_bytes / self.memory_gb_s)


def device_named(name: str) -> Device:
    """The device of ``resources/performance/devices.yaml`` with this name.

    A family's name (``h100``) is its first entry.
    """
    names = catalogue("devices.yaml", Device)
    return entry(
        "devices",
        next((full for full in names if full == name or full.startswith(f"{name}_")), name),
        "devices.yaml",
        Device,
    )
