"""The optical control plane: circuits, the controller that switches them, its clients.

It also replays a latency. It needs the standard library alone, so that it runs on a
bare GPU node.
"""

from __future__ import annotations

from railx.fabric.circuits import SCALE_UP, Circuit, Configuration, Layout, Port
from railx.fabric.client import FabricClient, FabricError, Grant, OperationTimeout
from railx.fabric.cycle import CircuitSchedule
from railx.fabric.launch import Controller, launch_controller
from railx.fabric.settings import FabricSettings, Mode, RailSettings

__all__ = [
    "SCALE_UP",
    "Circuit",
    "CircuitSchedule",
    "Configuration",
    "Controller",
    "FabricClient",
    "FabricError",
    "FabricSettings",
    "Grant",
    "Layout",
    "Mode",
    "OperationTimeout",
    "Port",
    "RailSettings",
    "launch_controller",
]
