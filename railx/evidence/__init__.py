"""Claims of the papers as data, and verdicts on them.

Published numbers stand with their sources. Verdicts are computed by queries over the
result tables.
"""

from railx.evidence.claims import (
    KINDS,
    Claim,
    ClaimSettings,
    NotAttempted,
    PublishedReference,
    load_claims,
)
from railx.evidence.database import Database, open_database, table_name
from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.expected import flipped, read_expected, rests_on_timing
from railx.evidence.judge import CLAIM_COLUMNS, claims_table, count_verdicts, judge
from railx.evidence.papers import Paper, read_papers, read_yaml
from railx.evidence.published import Published, read_published
from railx.evidence.static import check_published, check_queries
from railx.evidence.verdicts import REPEATED, VERDICTS, Verdict

__all__ = [
    "CLAIM_COLUMNS",
    "KINDS",
    "REPEATED",
    "VERDICTS",
    "Claim",
    "ClaimError",
    "ClaimSettings",
    "Database",
    "NotAttempted",
    "NotAvailable",
    "Paper",
    "Published",
    "PublishedReference",
    "Verdict",
    "check_published",
    "check_queries",
    "claims_table",
    "count_verdicts",
    "flipped",
    "judge",
    "load_claims",
    "open_database",
    "read_expected",
    "read_papers",
    "read_published",
    "read_yaml",
    "rests_on_timing",
    "table_name",
]
