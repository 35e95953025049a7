"""The tables of `divopd plan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from divopd.config import RunConfig
from divopd.plan.costs import GIB, Cost, Layout, cost
from divopd.plan.measured import Seen, nearest, seen_runs
from divopd.plan.rates import PAPER_LAYOUT, Gpu, RatesFile, StageRates, assumed, measured, paper
from divopd.plan.rollouts import stats_of
from divopd.plan.scaling import episodes_a_gpu, layout_of, scale
from divopd.plan.shapes import Shape, shape_of
from divopd.suite import SuiteError

SMALL = 10**8  # parameters: below it a model runs on a CPU core, and what it takes is read off finished runs
HEAD = ("setting", "method", "runs", "rates", "s/update", "limit", "GPU-h", "eval GPU-h", "generated", "scored",
        "trained", "computed", "GiB learner", "rollout", "teacher", "disk peak", "kept")  # fmt: skip

CORE_HEAD = ("setting", "method", "runs", "core-h", "eval core-h", "generated", "scored", "trained", "computed",
             "log MiB", "as in")  # fmt: skip
SCALING_HEAD = ("setting", "method", "GPUs", "rates", "s/update", "updates/h", "s/episode", "load", "mean age", "stale",
                "teacher busy", "learner busy", "limit", "GPU-h a run")  # fmt: skip


def shapes_of(cell: RunConfig) -> tuple[Shape, Shape]:
    """Student's and teacher's. Raises SuiteError for a model whose sizes are not known here."""
    out = []
    for policy in (cell.student, cell.teacher):
        shape = shape_of(policy)
        if shape is None:
            raise SuiteError(
                f"{cell.setting}: sizes of {policy.path} are not known: put its config.json in a folder of that name, "
                "or name a model that divopd/plan/shapes.py lists"
            )
        out.append(shape)
    return out[0], out[1]


def rates_of(cell: RunConfig, source: str | RatesFile, episodes: float) -> StageRates:
    """Stage rates from "paper", "assumed" or a rates file. The paper's need a setting that it reports."""
    student, teacher = shapes_of(cell)
    stats = stats_of(cell)
    if isinstance(source, RatesFile):
        return measured(source, student, teacher, stats, episodes)
    if source == "paper" and (found := paper(cell, cell.setting, stats)) is not None:
        return found
    return assumed(student, teacher, stats, episodes, Gpu(), "assumed")


def layout_of_cell(cell: RunConfig) -> Layout:
    """GPUs by stage as the cell's placement has them; the paper's layout where it names none."""
    place = cell.placement
    parts = [workers.count * workers.gpus for workers in (place.explorers, place.scorers, place.learners)]
    return Layout(*parts) if all(parts) else Layout(*PAPER_LAYOUT)


def big(cell: RunConfig) -> bool:
    return shapes_of(cell)[0].parameters >= SMALL


def cell_cost(cell: RunConfig, source: str | RatesFile) -> Cost:
    """A large model's cell on GPUs."""
    student, teacher = shapes_of(cell)
    layout = layout_of_cell(cell)
    pipeline = cell.pipeline
    episodes = pipeline.steps_in_flight * pipeline.tasks_per_step * pipeline.runs_per_task
    rates = rates_of(cell, source, episodes / layout.rollout)
    alone = rates_of(cell, source if isinstance(source, RatesFile) else "assumed", cell.evaluation.batch)
    return cost(cell, student, teacher, stats_of(cell), rates, layout, alone)


def gpu_table(cells: Sequence[RunConfig], source: str | RatesFile) -> list[tuple[str, ...]]:
    """A row a (setting, method), its seeds alike, and a last row of totals."""
    rows: list[tuple[str, ...]] = [HEAD]
    hours, evaluation, tokens, kept, peak = 0.0, 0.0, [0.0] * 4, 0.0, 0.0
    for group in _groups(cells):
        cell, n = group[0], len(group)
        c = cell_cost(cell, source)
        each = (c.generated, c.scored, c.trained, c.computed)
        rows.append((
            cell.setting, cell.method.name, str(n), c.source, f"{c.update_seconds:.1f}", c.limited_by,
            f"{c.train_hours:.1f}", f"{c.evaluation_hours:.1f}", *map(count, each), f"{c.learner_gib:.0f}",
            f"{c.rollout_gib:.0f}", f"{c.teacher_gib:.0f}", f"{c.peak_disk_gib:.0f}", f"{c.kept_disk_gib:.1f}",
        ))  # fmt: skip
        hours, evaluation = hours + n * c.train_hours, evaluation + n * c.evaluation_hours
        tokens = [total + n * one for total, one in zip(tokens, each, strict=True)]
        kept, peak = kept + n * c.kept_disk_gib, max(peak, c.peak_disk_gib)
    rows.append(("all cells", "", str(len(cells)), "", "", "", f"{hours:.0f}", f"{evaluation:.0f}",
                 *map(count, tokens), "", "", "", f"{peak:.0f} a run", f"{kept:.0f}"))  # fmt: skip
    return rows


def downloads(cells: Iterable[RunConfig]) -> float:
    """GiB of all models that the cells name, two bytes a parameter, once each."""
    policies = {p.path: p for cell in cells for p in (cell.student, cell.teacher) if not Path(p.path).is_dir()}
    return sum(2.0 * shape.parameters for p in policies.values() if (shape := shape_of(p))) / GIB


def core_table(cells: Sequence[RunConfig], results: Path) -> list[tuple[str, ...]]:
    """Small models: core-hours and tokens of a cell, from the nearest finished run of its setting."""
    runs = seen_runs(results)
    rows: list[tuple[str, ...]] = [CORE_HEAD]
    total, evaluation, unknown = 0.0, 0.0, 0
    for group in _groups(cells):
        cell, n = group[0], len(group)
        run = nearest(cell, runs)
        if run is None:
            unknown += n
            rows.append((cell.setting, cell.method.name, str(n), *["?"] * 7, "no run of this setting in results/"))
            continue
        updates = cell.train.updates
        train, played = updates * run.update_seconds / 3600, _evaluations(cell, run) * cell.evaluation.episodes
        after = played * run.episode_seconds / 3600
        each = (run.generated, run.scored, run.trained, run.computed)
        rows.append((
            cell.setting, cell.method.name, str(n), f"{train:.2f}", f"{after:.2f}", *(count(updates * x) for x in each),
            f"{updates * run.log_bytes / 2**20:.1f}", run.source,
        ))  # fmt: skip
        total, evaluation = total + n * train, evaluation + n * after
    note = f"{unknown} runs not counted" if unknown else ""
    rows.append(("all cells", "", str(len(cells)), f"{total:.1f}", f"{evaluation:.1f}", *[""] * 5, note))
    return rows


def _evaluations(cell: RunConfig, run: Seen) -> float:
    """Of a cell: by its own interval, or as often an update as the run that was seen."""
    every = cell.evaluation.every_updates
    return 2 + cell.train.updates // every if every else run.evaluations / run.config.train.updates * cell.train.updates


def scaling_table(
    cells: Sequence[RunConfig], source: str | RatesFile, gpus: Sequence[int], methods: Sequence[str]
) -> list[tuple[str, ...]]:
    """A row a (setting, method, number of GPUs), one seed each."""
    rows: list[tuple[str, ...]] = [SCALING_HEAD]
    for group in _groups(cells):
        cell = group[0]
        if cell.method.name not in methods:
            continue
        for n in gpus:
            rates = rates_of(cell, source, episodes_a_gpu(cell, layout_of(n)))
            s = scale(cell, stats_of(cell), rates, n)
            rows.append((
                cell.setting, cell.method.name, str(n), rates.source, f"{s.update_seconds:.1f}",
                f"{3600 / s.update_seconds:.0f}", f"{s.episode_seconds:.0f}", f"{s.load:.1f}", f"{s.mean_age:.2f}",
                f"{s.stale:.0%}", f"{s.teacher_busy:.0%}", f"{s.learner_busy:.0%}", s.limit, f"{s.hours:.0f}",
            ))  # fmt: skip
    return rows


def lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """As a Markdown table, which is also what a terminal shows well."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]]


def count(tokens: float) -> str:
    """1234567 -> "1.2M"."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.1f}{name}"
    return f"{tokens:.0f}"


def _groups(cells: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Cells that differ by their seed alone."""
    groups: dict[tuple[str, str], list[RunConfig]] = {}
    for cell in cells:
        groups.setdefault((cell.setting, cell.method.name), []).append(cell)
    return list(groups.values())
