"""Commands that are no stage: each module adds its own to ``railx``."""
