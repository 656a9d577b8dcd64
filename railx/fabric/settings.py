"""Settings of the fabric between the GPUs: electrical, or optical with one of two ways
of asking for circuits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from railx.settings import AtLeast, Between, NonNegative, NotEmpty, Positive, SettingsError

__all__ = ["FabricSettings", "Mode"]

Mode = Literal["electrical", "on_demand", "provisioned"]


@dataclass(frozen=True)
class FabricSettings:
    """One fabric setting of a training run (the modes of Opus, arXiv 2602.12521)."""

    mode: Mode
    """``electrical``: packet switches join every pair of GPUs, nothing waits and no
    controller runs. ``on_demand``: circuits are asked for when the first operation that
    needs them is about to start. ``provisioned``: they are asked for when the last
    operation before it has ended, from a recorded schedule.
    """
    reconfiguration_latency_ms: Annotated[float, NonNegative()]
    """From a switch command to light; 0 where mode is electrical."""
    gpus_per_server: Annotated[int, AtLeast(1)]
    """GPUs that share a server, one on each of its rails; ranks fill the servers in
    order.
    """
    ports_per_gpu: Literal[2]
    """Optical ports of a GPU, one to each neighbour of a ring."""
    host: Annotated[str, NotEmpty()]
    """Address where the controller listens."""
    port: Annotated[int, Between(0, 65535)]
    """Port where the controller listens; 0 takes any free one."""
    timeout_s: Annotated[float, Positive()]
    """How long a rank waits for circuits, or for the controller, before the run ends in
    an error.
    """

    def __post_init__(self) -> None:
        if self.mode == "electrical" and self.reconfiguration_latency_ms != 0:
            raise SettingsError(
                "reconfiguration_latency_ms",
                f"got {self.reconfiguration_latency_ms}; allowed: 0 where mode is electrical"
                " (packet switches do not reconfigure)",
            )
