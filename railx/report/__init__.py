"""The page of an experiment: one HTML file, which needs no network.

It says what held, what did not and why; below stand figures, claims, published tables,
tables of the run, config and provenance. The same as PDF, and its summary for the
terminal.
"""

from railx.report.claims import count, did_not_hold, read_claims
from railx.report.entries import OtherResult, ReportFigure, ReportTable, caption_html
from railx.report.page import write_report
from railx.report.pdf import print_pdf

__all__ = [
    "OtherResult",
    "ReportFigure",
    "ReportTable",
    "caption_html",
    "count",
    "did_not_hold",
    "print_pdf",
    "read_claims",
    "write_report",
]
