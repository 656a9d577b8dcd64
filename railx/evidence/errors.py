"""The two ways in which a claim cannot be judged: its file is wrong, or what it needs
is not among the results.
"""

from __future__ import annotations

__all__ = ["ClaimError", "NotAvailable"]


class ClaimError(ValueError):
    """A mistake in a claim file or in the published number it points to: one line that
    names the claim and the key.
    """


class NotAvailable(Exception):
    """The results hold nothing to judge a claim by; the message is the reason. A
    finding ("not attempted"), not a failure.
    """
