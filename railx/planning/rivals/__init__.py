"""Planners of others whose groups or layouts FlexSP and InfiniPipe are compared with.

Those of pipelines, with whose chunks elastic pipelines plan too, are in ``pipeline``.
"""
