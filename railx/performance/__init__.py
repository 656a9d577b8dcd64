"""One model of a training step: models, devices, networks, plans, memory and time.

The closed form (:mod:`railx.performance.closed`) prices many plans at once; the replay
of :mod:`railx.steps.referee` runs one plan's ranks on a virtual clock and judges it.
The published equations of FlexSP and InfiniPipe, with fitted or profiled coefficients,
are :mod:`railx.performance.sequence_cost` and :mod:`railx.performance.pipeline_cost`.
``docs/performance.md`` has the equations, constants and errors.
"""
