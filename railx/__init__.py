"""RailX Lab: the science of reconfigurable networks for training large models.

Nothing in here needs torch.
"""

__version__ = "0.1.0"
