"""Plans: the ranks and the time of every token of a training step.

Rooms, each importing only those before it: ``format``; ``sequence`` and ``pipeline``;
``rivals``. ``planners`` lists all planners, ``make`` makes plans with them. Importing
any of these loads no solver and no Numba: a planner loads them when it plans.
"""
