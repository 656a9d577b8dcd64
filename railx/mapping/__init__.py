"""Training jobs on topologies: the transfers of each step and their times.

A job assigns each parallelism to axes.
"""
