"""The compiled engine of the replay: the same decisions, event by event.

It is what :mod:`railx.replay.engine` does with the controller's state machine
(:mod:`railx.fabric.core`) and with the ranks' leases (:mod:`railx.fabric.holdings`),
for runs without faults. Tests hold the two equal on random programs: grants, switch
commands, times.

An event costs as much as what it changes, whatever the number of ranks. Queued
operations stand in one queue for each port, and one is served where it is the first on
all its ports. What cannot go on watches the one port that stops it, and is looked at
again when something changes there: an operation in the order of the queue, then a
hinted configuration in the order in which they became ready.

From below: :mod:`state` (the records), :mod:`containers`, :mod:`circuits` (ports),
:mod:`requests` (operations and hints at the controller), :mod:`leases` (those that
last), :mod:`controller` (messages and decisions), :mod:`ranks` (programs), :mod:`loop`.
"""

from railx.replay.kernels.account import account
from railx.replay.kernels.compiling import SOURCES
from railx.replay.kernels.loop import run
from railx.replay.kernels.state import EngineState

__all__ = ["SOURCES", "EngineState", "account", "run"]
