"""Plans: which ranks process which tokens, and when.

``plan`` and ``schedule`` need the standard library, numpy and pyarrow alone, because the training runtime reads them on bare
GPU nodes. Import the modules themselves; this package imports none of them, so that reading a plan never loads a solver.
"""

__all__: list[str] = []
