"""The functions of the controller's core (:mod:`railx.fabric.core`), from the base up.

All of them take its one state.

* ``state``: the data; ``account``: the same as plain values, from outside.
* ``queueing``: refusals, hints, operations, queue, tombstones, leases.
* ``handed_back``: what ran under lasting leases. ``granting``: switching and grants
  after every event, and the events of switches. ``ranks``: the events of ranks.
"""
