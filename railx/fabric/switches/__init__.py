"""Drivers of the optical switches, behind one interface.

A driver carries out the core's commands and reports when the light is there, and what
has failed. ``emulated`` moves circuits in memory, ``netconf`` speaks to real switches.
"""

from __future__ import annotations

from railx.fabric.circuits import Layout
from railx.fabric.settings import (
    EmulatedSwitchSettings,
    NetconfSwitchSettings,
    PortFailureSettings,
    SwitchSettings,
)
from railx.fabric.switches.emulated import EmulatedSwitch
from railx.fabric.switches.interface import (
    FaultySwitch,
    Switch,
    SwitchCallbacks,
    SwitchFault,
    parse_port,
    port_name,
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


def make_switch(
    settings: SwitchSettings,
    *,
    layout: Layout,
    ranks: int,
    latency_ns: int,
    callbacks: SwitchCallbacks,
) -> Switch:
    """The switches of all rails; ``latency_ns`` is the run's, for an emulated one.

    Callbacks may come before this returns. Raises
    :class:`railx.settings.SettingsError` below "switch" where the driver cannot be had.
    """
    if isinstance(settings, EmulatedSwitchSettings):
        return EmulatedSwitch(latency_ns, callbacks, layout=layout, ranks=ranks, settings=settings)
    from railx.fabric.switches.netconf import NetconfSwitch

    return NetconfSwitch(settings, layout, ranks, callbacks)
