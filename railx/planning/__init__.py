"""Plans: which ranks process which tokens, and when.

Rooms, each importing only those before it: ``format``; ``sequence`` and ``pipeline``;
``rivals``. ``planners`` lists all planners, ``make`` makes plans with them. Importing
any of it loads no solver and no Numba: a planner loads what it needs when it plans.
"""
