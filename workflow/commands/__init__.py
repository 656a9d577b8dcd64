"""Commands besides the stages; each module adds its command to ``railx``."""
