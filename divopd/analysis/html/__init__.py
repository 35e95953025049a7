"""report.html: one file that shows a suite's results in a browser, without server or network."""

from divopd.analysis.html.page import write_page

__all__ = ["write_page"]
