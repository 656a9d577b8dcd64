"""Claims of the papers as data, and verdicts on them.

Published numbers stand with their sources. Verdicts are computed by queries over the
result tables.
"""

from railx.evidence.claims import KINDS, Claim, check_rows_judged, load_claims
from railx.evidence.database import Database, open_database, open_schemas, table_name
from railx.evidence.errors import ClaimError, NotAvailable
from railx.evidence.expected import Recorded, flipped, read_expected, recorded_lines
from railx.evidence.judge import CLAIM_COLUMNS, check_queries, claims_table, count_verdicts, judge
from railx.evidence.lineage import Lineage, read_lineage
from railx.evidence.papers import Paper, read_papers, read_yaml
from railx.evidence.published import PublishedNumbers, PublishedTable, published_tables
from railx.evidence.verdicts import POSITIVE, VERDICT_GROUPS, VERDICTS, number_text

__all__ = [
    "CLAIM_COLUMNS",
    "KINDS",
    "POSITIVE",
    "VERDICTS",
    "VERDICT_GROUPS",
    "Claim",
    "ClaimError",
    "Database",
    "Lineage",
    "NotAvailable",
    "Paper",
    "PublishedNumbers",
    "PublishedTable",
    "Recorded",
    "check_queries",
    "check_rows_judged",
    "claims_table",
    "count_verdicts",
    "flipped",
    "judge",
    "load_claims",
    "number_text",
    "open_database",
    "open_schemas",
    "published_tables",
    "read_expected",
    "read_lineage",
    "read_papers",
    "read_yaml",
    "recorded_lines",
    "table_name",
]
