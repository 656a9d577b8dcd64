"""The report of an experiment: one HTML file with verdicts, figures, tables, config and
provenance, which needs no network.
"""

from railx.report.entries import ReportFigure, ReportTable, caption_html, figure_entry
from railx.report.page import write_report

__all__ = ["ReportFigure", "ReportTable", "caption_html", "figure_entry", "write_report"]
