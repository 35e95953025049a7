"""report.html from CSVs, tables and run logs: texts and tables as HTML, the rest as data for the scripts in assets/."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from divopd import runlog
from divopd.analysis.html import data
from divopd.analysis.labels import label, ordered
from divopd.analysis.table import few
from divopd.files import atomic_write
from divopd.provenance import ROOT
from divopd.runlog import STAGES, RunLogError
from divopd.suite import read_yaml

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("chart.js", "app.js", "run.js", "episode.js")
FIRST = ("main", "aggregate")
SUMMARY = {
    "status": "Status", "start": "Start", "peak": "Peak", "peak_version": "at version", "final5_mean": "Final-5",
    "nauc": "nAUC", "target": "Target", "reached": "Reached",
}  # fmt: skip
NUMBER = re.compile(r"[<>≤≥~+−-]?\s*\d|–|\?")
SHARES = ("start", "peak", "final5_mean", "nauc", "target")


def write_page(
    results: Path, out: Path, csvs: Mapping[str, pd.DataFrame], left_out: Mapping[str, str] | None = None
) -> Path:
    """Write `out`/report.html and return its path.

    `csvs`: curves, summary and timings as collected; tables come from `out`/tables, runs from the folders below
    `results`; `left_out`: runs that the CSVs are without, and why. Raises RunLogError where there are no tables.
    """
    tables = sorted((out / "tables").glob("*.csv"), key=lambda path: (place(path.stem), path.stem))
    if not tables:
        raise RunLogError(f"{out / 'tables'} holds no CSV; run `divopd report ... --stage tables` first")
    summary = csvs["summary"]
    folders = [data.folder_of(results, row) for row in summary.to_dict("records")]
    room = min(data.ROOM_OF_ONE, data.ROOM // len(folders))
    blocks = {"suite": data.pack(data.suite(csvs["curves"], summary))}
    blocks |= {f"run-{i}": data.run_details(folder, room) for i, folder in enumerate(folders)}
    settings = list(summary["setting"].unique())
    name = ", ".join(map(str, summary["suite"].unique()))
    parts = {
        "title": escape(f"DivOPD report: {name}"),
        "style": (ASSETS / "style.css").read_text(encoding="utf-8"),
        "links": " ".join(f'<a href="{address("setting", s)}">{escape(s)}</a>' for s in settings),
        "overview": overview(summary, csvs["timings"], folders, tables[0], left_out or {}),
        "settings": "\n".join(setting_view(setting, summary) for setting in settings),
        "tables": "\n".join(map(table_view, tables)),
        "footer": "One file, complete in itself: it loads nothing. Made by <code>divopd report</code>.",
        "blocks": "\n".join(f'<script type="text/plain" id="{key}">{text}</script>' for key, text in blocks.items()),
        "scripts": "\n".join((ASSETS / script).read_text(encoding="utf-8") for script in SCRIPTS),
    }
    # in one pass: what is filled in is not searched for places itself
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], (ASSETS / "page.html").read_text(encoding="utf-8"))
    atomic_write(out / "report.html", page.encode())
    return out / "report.html"


def place(table: str) -> int:
    return FIRST.index(table) if table in FIRST else len(FIRST)


def address(*parts: Any) -> str:
    """Where the scripts show a view."""
    return "#/" + "/".join(quote(str(part), safe="") for part in parts)


# views ---------------------------------------------------------------------------------------------------------------


def overview(
    summary: pd.DataFrame,
    timings: pd.DataFrame,
    folders: Sequence[Path | None],
    main: Path,
    left_out: Mapping[str, str],
) -> str:
    """What the suite is, its main table, small curves, runs, hardware and hashes."""
    diverged = int((summary["status"] != "done").sum())
    counts = [(len(summary), "run"), (summary["setting"].nunique(), "setting"), (summary["method"].nunique(), "method"),
              (summary["seed"].nunique(), "seed")]  # fmt: skip
    said = ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)
    minutes = timings[[stage for stage in STAGES if stage in timings]].to_numpy().sum() / 60
    charts = "".join(
        f'<figure><h3><a href="{address("setting", setting)}">{escape(setting)}</a></h3>'
        f'<div class="plot" data-curves="{escape(setting)}" data-height="230"></div></figure>'
        for setting in summary["setting"].unique()
    )
    return "\n".join([
        *(f"<p>{escape(text)}.</p>" for text in descriptions(summary["suite"].unique())),
        f"<p>{said}; {diverged or 'none'} diverged; {minutes:.1f} core-minutes in timed stages.</p>",
        f"<h2>Learning curves</h2>\n<p>Success on the evaluation panel. {HOVER}</p>",
        f'<div class="charts">{charts}</div>',
        "<h2>Main table</h2>", table_view(main, titled=False),
        "<h2>Runs</h2>", runs_table(summary), without(left_out),
        "<h2>What it ran on, and what it was made from</h2>", hardware(folders), hashes(summary),
    ])  # fmt: skip


def without(left_out: Mapping[str, str]) -> str:
    """The runs that this report does without."""
    items = "".join(f"<li>{escape(run)}: {escape(why)}</li>" for run, why in left_out.items())
    return f"<p>Runs left out:</p><ul>{items}</ul>" if items else ""


HOVER = ("Point at a line, or go to a chart with the Tab key and use the arrow keys, for seed, version and 95 % Wilson "
         "interval.")  # fmt: skip


def setting_view(setting: str, summary: pd.DataFrame) -> str:
    part = summary[summary["setting"] == setting]
    first = part.iloc[0]
    target = "no target" if pd.isna(first["target"]) else f"target {100 * first['target']:g} %"
    horizon = "" if pd.isna(first["horizon"]) else f"; nAUC to version {first['horizon']:g}"
    about = f"{first['env']}; {target} ({first['target_rule']}); baseline {label(first['baseline'])}{horizon}."
    return (
        f'<section data-view="setting" data-setting="{escape(setting)}">\n<h1>{escape(setting)}</h1>\n'
        f'<p>{escape(about)}</p>\n<p>{HOVER}</p>\n<div class="charts" style="grid-template-columns: 1fr">'
        f'<figure><div class="plot" data-curves="{escape(setting)}" data-height="420"></div></figure></div>\n'
        f"<h2>Runs</h2>\n{runs_table(part)}\n</section>"
    )


def runs_table(summary: pd.DataFrame) -> str:
    rows = []
    places = {method: i for i, method in enumerate(ordered(summary["method"]))}
    by_method = summary.sort_values("method", key=lambda m: m.map(places), kind="stable")
    for row in by_method.sort_values("setting", kind="stable").to_dict("records"):
        link = address("run", row["setting"], row["method"], row["seed"])
        cells = [cell(row["setting"], text=True), cell(label(row["method"]), text=True, link=link), cell(row["seed"])]
        for name in SUMMARY:
            value = row.get(name)
            shown = f"{100 * value:.1f}" if name in SHARES and not pd.isna(value) else value
            if name == "final5_mean" and not pd.isna(value):
                shown += few(int(row["final5_count"]))
            if name == "reached" and not pd.isna(value):
                shown = "yes" if value else "no"
            cells.append(cell(shown, exact=value, text=name == "status"))
        rows.append(f'<tr data-method="{escape(str(row["method"]))}" data-seed="{row["seed"]}">{"".join(cells)}</tr>')
    return table(["Setting", "Method", "Seed", *SUMMARY.values()], rows, "Runs; success in percent", words=(0, 1, 3))


def hardware(folders: Sequence[Path | None]) -> str:
    """Distinct machines and package versions of the runs whose folders are there."""
    machines, packages = [], []
    for folder in folders:
        try:
            meta = None if folder is None else runlog.read_json(folder, "meta.json")
        except RunLogError:  # since it was collected: the run's own view says it
            meta = None
        if meta is None:
            continue
        hw = meta["hardware"]
        gpus = ", ".join(hw["gpus"]) or "no GPU"
        machines.append(f"{hw['cpu']}, {hw['cores']} cores, {gpus}, {hw['system']}")
        packages.append(", ".join(f"{name} {version}" for name, version in meta["packages"].items() if version))
    if not machines:
        return "<p>The runs' folders are not beside this report.</p>"
    entries = [("Machine", machines), ("Packages", packages)]
    lines = "".join(
        f"<dt>{name}</dt><dd>{escape(value)} ({values.count(value)} runs)</dd>"
        for name, values in entries
        for value in dict.fromkeys(values)
    )
    return f"<dl>{lines}</dl>"


def hashes(summary: pd.DataFrame) -> str:
    made_of = summary.filter(regex="^(setting|method|schema|git|hash_)").drop(columns="hash_config", errors="ignore")
    distinct = made_of.drop_duplicates()
    rows = [f"<tr>{''.join(cell(v, text=True) for v in row)}</tr>" for row in distinct.itertuples(index=False)]
    heads = [name.removeprefix("hash_").replace("_", " ") for name in distinct]
    caption = "Source commit, and the first 12 digits of SHA-256 of what went in"
    made = table(heads, rows, caption, words=range(len(heads)))
    return f"<details><summary>Hashes</summary>{made}</details>"


def descriptions(suites: Iterable[str]) -> list[str]:
    """What the suites' files say that they are, where this source tree has them."""
    out = []
    for name in suites:
        path = ROOT / "experiments" / f"{name}.yaml"
        content = read_yaml(path) if path.is_file() else {}
        if content.get("description"):
            out.append(str(content["description"]).rstrip("."))
    return out


# tables --------------------------------------------------------------------------------------------------------------


def table_view(path: Path, titled: bool = True) -> str:
    """A table as it is read (from its .md) and, folded, every column of its CSV with exact values."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    heads = [str(name).replace("_", " ") for name in frame]
    exact = grid(heads, frame.values.tolist(), f"{path.stem}.csv", source=path.stem)
    folded = f"<details><summary>Every column of {escape(path.stem)}.csv, exact</summary>{exact}</details>"
    beside = path.with_suffix(".md")
    if not beside.exists():
        return f"<h2>{escape(path.stem)}</h2>\n{exact}"
    title, heads, cells, notes = markdown(beside.read_text(encoding="utf-8"))
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    shown = f'<div class="titled">{grid(heads, cells, title)}</div>'
    return "\n".join([f"<h2>{escape(title)}</h2>" if titled else "", shown, said, folded])


def grid(heads: Sequence[str], cells: Sequence[Sequence[str]], caption: str, source: str = "") -> str:
    """A table of texts; its columns without a number are set as words. With a `source`, cells keep their exact text."""
    words = [i for i in range(len(heads)) if all(not NUMBER.match(row[i]) or row[i] == "–" for row in cells)]
    rows = [
        "".join(cell(v, exact=v if source else None, text=i in words) for i, v in enumerate(row)) for row in cells
    ]  # fmt: skip
    return table(heads, [f"<tr>{row}</tr>" for row in rows], caption, words, source)


def markdown(text: str) -> tuple[str, list[str], list[list[str]], list[str]]:
    """Title, header, rows and notes of a table that tables.Table.markdown wrote."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    bars = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    notes = [line for line in lines[1:] if not line.startswith("|")]
    return lines[0].strip("*"), bars[0], bars[2:], notes


def table(heads: Sequence[str], rows: Sequence[str], caption: str, words: Iterable[int] = (), source: str = "") -> str:
    """A table that the scripts make sortable; `words`: columns that hold texts; `source`: the CSV that it shows."""
    head = "".join(
        f'<th scope="col"{" class=text" if i in words else ""}>{escape(h)}</th>' for i, h in enumerate(heads)
    )
    named = f' data-csv="{escape(source)}"' if source else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="sortable"{named}>'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def cell(value: Any, exact: Any = None, text: bool = False, link: str = "") -> str:
    """One cell: a number that is longer than six digits is shown shorter; `exact` is what it sorts by."""
    missing = value is None or value == "" or (isinstance(value, float) and pd.isna(value))
    shown = "–" if missing else str(value)
    if re.fullmatch(r"-?\d+\.\d{4,}(e[-+]?\d+)?", shown):
        shown = f"{float(shown):.4g}"
    inner = f'<a href="{escape(link)}">{escape(shown)}</a>' if link else escape(shown)
    known = exact is not None and not (isinstance(exact, float) and pd.isna(exact))
    kept = f' data-value="{escape(str(exact))}"' if known else ""
    kind = ' class="text"' if text else ""
    return f"<td{kind}{kept}>{inner}</td>"
