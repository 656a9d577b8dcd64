"""The functions of the controller's core (:mod:`railx.fabric.core`), from the base up.

All of them take its one state.

* ``state``: the data; ``account``: the same as plain values, from outside.
* ``refusals``: texts of refusals. ``queueing``: hints, operations, queue, tombstones.
* ``leases``: leases of operations and lasting ones, receives from any source.
* ``handed_back``: what ran under lasting leases. ``granting``: switching and grants
  after every event, and the events of switches.
* ``identity``: ranks and the controller come and go. ``questions``: ranks ask.
"""
