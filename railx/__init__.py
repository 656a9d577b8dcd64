"""RailX Lab: the science of reconfigurable networks for training large models (no torch
in here).
"""

__version__ = "0.1.0"
