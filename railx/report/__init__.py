"""The report of an experiment: one HTML file, which needs no network.

It holds verdicts, figures, tables, config and provenance.
"""

from railx.report.entries import ReportFigure, ReportTable, caption_html, figure_entry
from railx.report.page import write_report

__all__ = ["ReportFigure", "ReportTable", "caption_html", "figure_entry", "write_report"]
