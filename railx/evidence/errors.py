"""Why a claim cannot be judged: a wrong file or query, or tables that are lacking."""

from __future__ import annotations

from railx.errors import UserError


class ClaimError(UserError):
    """A mistake in a claim file, a query or the published number that it points to.

    The message is one line that names the claim and the key.
    """


class NotAvailable(UserError):
    """The results hold nothing to judge a claim by; the message is the reason.

    A finding ("not here"), not a failure. Where a table is missing, ``there_is``
    names those of its stage, or all of them where the stage has none;
    ``table_is_missing`` tells this from a table without rows.
    """

    def __init__(self, reason: str, there_is: tuple[str, ...] | None = None) -> None:
        super().__init__(reason)
        self.table_is_missing = there_is is not None
        self.there_is = there_is or ()
