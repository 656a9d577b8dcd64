"""Elastic pipelines of chunks: InfiniPipe, schedules and recomputed layers."""
