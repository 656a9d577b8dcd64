"""Claims of the papers as data, published numbers with their sources, and verdicts
computed from result tables.
"""

from railx.evidence.claims import (
    Claim,
    ClaimSettings,
    Ours,
    PublishedReference,
    Selection,
    load_claims,
)
from railx.evidence.errors import ClaimError
from railx.evidence.judge import CLAIM_COLUMNS, claims_table, judge
from railx.evidence.published import Published, read_published
from railx.evidence.verdicts import VERDICTS, Verdict

__all__ = [
    "CLAIM_COLUMNS",
    "VERDICTS",
    "Claim",
    "ClaimError",
    "ClaimSettings",
    "Ours",
    "Published",
    "PublishedReference",
    "Selection",
    "Verdict",
    "claims_table",
    "judge",
    "load_claims",
    "read_published",
]
