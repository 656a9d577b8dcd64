"""Drivers of the optical switches, behind one interface.

A driver carries out the core's commands and reports when the light is there, and what
has failed. ``emulated`` moves circuits in memory, ``netconf`` speaks to real switches.
"""

from __future__ import annotations

from railx.fabric.switches.choice import make_switch
from railx.fabric.switches.emulated import EmulatedSwitch
from railx.fabric.switches.interface import (
    FaultySwitch,
    Switch,
    SwitchCallbacks,
    SwitchFault,
    parse_port,
    port_name,
)
from railx.fabric.switches.settings import (
    EmulatedSwitchSettings,
    NetconfSwitchSettings,
    PortFailureSettings,
    SwitchSettings,
)

__all__ = [
    "EmulatedSwitch",
    "EmulatedSwitchSettings",
    "FaultySwitch",
    "NetconfSwitchSettings",
    "PortFailureSettings",
    "Switch",
    "SwitchCallbacks",
    "SwitchFault",
    "SwitchSettings",
    "make_switch",
    "parse_port",
    "port_name",
]
