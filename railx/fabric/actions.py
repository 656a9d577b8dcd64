"""Actions of the controller's core: answers to ranks and commands for switches.

They are never changed; the classes are not frozen, because filling a frozen one takes
three times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from railx.fabric.circuits import Circuit, Configuration
from railx.fabric.holdings import OperationKey

__all__ = [
    "Action",
    "GrantAction",
    "RecallAction",
    "RefuseAction",
    "SwitchAction",
]


@dataclass(slots=True)
class GrantAction:
    """Tell ``rank`` that the operation it asked for with ``request`` may start.

    ``request`` is None where the operation began under a held lease that was recalled
    before all members had begun it.

    * ``wait_ns``: waiting for other members and for ports in use.
    * ``stall_ns``: waiting for light after all members had asked.
    * ``reconfigured``: switch commands made for this operation, ahead of it or while it
      waited.
    * ``mispredicted``: the hint that this rank gave before was for something else.
    * ``hold``: the number of the lease that stays with the members afterwards, or None
      where each of them has to release the operation.
    """

    rank: int
    request: int | None
    key: OperationKey
    generation: int
    granted_ns: int
    wait_ns: int
    stall_ns: int
    reconfigured: int
    mispredicted: bool
    configuration: Configuration
    hold: int | None = None


@dataclass(slots=True)
class RecallAction:
    """Ask ``rank`` to give back a held lease; it answers with ``recalled``.

    ``reason`` is what befell a member or a port, for those that have an operation under
    way.
    """

    rank: int
    configuration: Configuration
    hold: int
    reason: str | None = None


@dataclass(slots=True)
class RefuseAction:
    """Tell ``rank`` that the operation cannot go on.

    ``request`` is None where it was already granted. ``reason`` is one word of the
    message, to count by.
    """

    rank: int
    request: int | None
    message: str
    reason: str = "refused"


@dataclass(slots=True)
class SwitchAction:
    """Tell the switch of ``rail`` to drop ``disconnect`` and bring up ``connect``.

    It reports with ``switched(command)``, or with ``switch_failed(command, reason)``.
    """

    command: int
    rail: int
    connect: tuple[Circuit, ...]
    disconnect: tuple[Circuit, ...]


Action = GrantAction | RecallAction | RefuseAction | SwitchAction
