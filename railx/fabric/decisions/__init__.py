"""The modules of the controller's core (:mod:`railx.fabric.core`), from the base up.

* ``state``: the data; ``account``: the same as plain values, from outside.
* ``refusals``: texts of refusals. ``operations``: hints, indices, queue, tombstones.
* ``leases``: receives from any source, leases of operations and lasting ones.
* ``handed_back``: what ran under lasting leases. ``granting``: switching and grants
  after every event, and the events of switches.
* ``identity``: registration, loss and return of ranks, and a restart of the controller.
* ``questions``: the events of ranks.
"""
