"""Tracked runs in MLflow and W&B, and the comparison of two invocations.

One caller writes them, from the files of all stages.
"""
