"""One model of a training step: models, devices, networks, plans, memory and time.

The closed form (:mod:`railx.performance.closed`) prices many plans at once; the replay
(:mod:`railx.performance.replayed`) runs one plan's ranks on a virtual clock and is its
referee. ``docs/performance.md`` has the equations, constants and errors.
"""
