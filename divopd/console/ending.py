"""What a finished suite leaves a person with: its table, and where the rest lies."""

from __future__ import annotations

import re
from pathlib import Path

COLUMNS = ("Setting", "Method", "Start", "Peak", "Final-5", "Token speedup")


def ending(name: str) -> list[str]:
    """Lines: the results' table and the places of report, tables and figures; none where there is no report."""
    results, figures = Path("results") / name, Path("figures") / name
    if not (results / "report.md").is_file():
        return []
    lines = ["", *_table(results / "tables" / "main.md"), ""]
    lines.append(f"report   {results / 'report.html'} (for a browser), {results / 'report.md'}")
    lines.append(f"tables   {results / 'tables'}/    figures   {figures}/")
    return [
        *lines,
        *_left_out("tables", results / "tables" / "left_out.md"),
        *_left_out("figures", figures / "left_out.md"),
    ]


def _table(path: Path) -> list[str]:
    """Some columns of a Markdown table, set for a terminal."""
    if not path.is_file():
        return []
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in path.read_text().splitlines()
            if line.startswith("|") and not line.startswith("|-")]  # fmt: skip
    if not rows:
        return []
    wanted = [rows[0].index(column) for column in COLUMNS if column in rows[0]]
    cells = [[row[column] for column in wanted] for row in rows]
    for above, row in reversed(list(zip(cells[1:], cells[2:], strict=False))):
        row[0] = "" if row[0] == above[0] else row[0]
    widths = [max(len(row[column]) for row in cells) for column in range(len(wanted))]
    left = 2  # words, then numbers
    return [
        "  ".join(cell.ljust(width) if i < left else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]  # fmt: skip


def _left_out(kind: str, path: Path) -> list[str]:
    from divopd.analysis.report import left_out_line

    text = path.read_text() if path.is_file() else ""
    return left_out_line(kind, dict(re.findall(r"^- ([^:]+): (.*)$", text, re.MULTILINE)), path)
