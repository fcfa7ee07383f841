"""The trust report: one self-contained HTML page about a posterior, from what the posterior keeps of its calibration pairs.

content.py   every number of the report, gathered once; `report.json` holds the same
verdict.py   the answer first: three lines and a traffic light
figures.py   pictures as inline SVG
page.py      HTML
"""

from fmcpe.diagnostics.report.content import Content, gather
from fmcpe.diagnostics.report.page import short_html, write_report

__all__ = ["Content", "gather", "short_html", "write_report"]
