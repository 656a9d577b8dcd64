"""Sequence-parallel groups: FlexSP, its published programme and static groups."""
