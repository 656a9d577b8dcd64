"""The plan format: plans, their files, schedules, times and memory.

Imports nothing else of ``railx.planning``. It needs the standard library, numpy and
pyarrow alone, because the training runtime reads plans on bare GPU nodes.
"""
