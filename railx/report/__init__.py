"""The page of an experiment: one HTML file, which needs no network.

It begins with the verdicts of the claims and their reasons; figures, claims, published
tables, tables of the run, config and provenance follow. The page is also written as
PDF, and its summary in the terminal.
"""

from railx.report.claims import count, did_not_hold, read_claims, summary_lines
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
    "summary_lines",
    "write_report",
]
