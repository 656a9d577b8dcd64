"""RailX Lab: the science of reconfigurable networks for large models, without torch."""

__version__ = "0.1.0"
