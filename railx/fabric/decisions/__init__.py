"""The functions of the controller's core (:mod:`railx.fabric.core`), from the base up.

All of them take its one state.

* ``state``: the data, actions, and the same as plain values, from outside.
* ``queueing``: refusals, hints, operations, queue, tombstones, leases.
* ``granting``: what ran under lasting leases, switching and grants after every event,
  and the events of switches. ``ranks``: the events of ranks.
"""
