"""The rooms of the controller's core (:mod:`railx.fabric.core`), each on those before.

* ``state``: what is known; ``account``: the same as plain values, from outside.
* ``refusals``: the words of a no. ``hints``: who expects which circuits.
* ``operations``: indices, queue, tombstones. ``listeners``: receives from any source.
* ``leases``: of operations, and those that stay. ``handed_back``: what ran under those.
* ``switching``: circuits that come and go. ``granting``: what goes on after an event.
* ``identity``: who the ranks are. ``restart``: what they tell a new controller.
* ``questions`` and ``switches``: the events, of ranks and of switches.
"""
