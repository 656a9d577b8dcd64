"""Commands besides the stages; ``add`` of each module adds its command to ``railx``."""
