"""Figures from tables: one module per figure, a common theme, a registry that names what each figure needs.

Nothing is imported here, so that a changed figure redraws itself alone.
"""
