"""Devices: what one computes, stores and sends at its peak, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from railx.errors import UserError
from railx.performance.resources import catalogue, entry
from railx.settings import AtLeast, NonNegative, NotEmpty, Positive

__all__ = ["BYTES", "Device", "Precision", "device_named"]

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
