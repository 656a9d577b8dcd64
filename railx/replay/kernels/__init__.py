"""The compiled engine of the replay: the same decisions, event by event.

It has the rules of the controller's state machine (:mod:`railx.fabric.core`) and of the
ranks' leases (:mod:`railx.fabric.holdings`), for runs without faults. Tests hold it
equal to a replay against those on random programs: grants, switch commands, times.

The cost of an event depends on its changes, not on the number of ranks. Queued
operations wait in one queue for each port, and one is served where it is the first on
all its ports. A blocked operation or hint watches the one port that blocks it, and is
visited again when that port changes: operations in the order of the queue, then hinted
configurations in the order in which they became ready.

From below: :mod:`state` (the records), :mod:`circuits` (heaps, lists, ports, operations
and hints at the controller), :mod:`controller` (lasting leases, messages, decisions),
:mod:`ranks` (programs, graphs and the loop over events).
"""
