"""The page of an experiment: one HTML file, which needs no network.

It begins with the verdicts of the claims and their reasons; figures, claims, published
tables, tables of the run, config and provenance follow. The page is also written as
PDF, and its summary in the terminal.
"""
