"""Which driver the settings ask for."""

from __future__ import annotations

from railx.fabric.circuits import Layout
from railx.fabric.switches.emulated import EmulatedSwitch
from railx.fabric.switches.interface import Switch, SwitchCallbacks
from railx.fabric.switches.settings import EmulatedSwitchSettings, SwitchSettings

__all__ = ["make_switch"]


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
