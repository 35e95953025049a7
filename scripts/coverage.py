"""How often the bootstrap's 95 % intervals hold the truth, at a suite's own means: the table in docs/metrics.md.

    python scripts/coverage.py results/laptop-reference

Success in each setting is drawn around the suite's means of baseline and method, with normal noise whose covariance is
that of the suite's pairs: each setting's own, or pooled over them. The truth is what the statistic tends to with many
seeds. Counted are REPEATS suites a method and number of seeds, from generators with names: the same at every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import click
import numpy as np
import pandas as pd

from divopd.analysis.compare import paired_scores
from divopd.analysis.labels import ordered
from divopd.analysis.uncertainty import improvement_probability, iqm_by_method, mean_gain, paired_bootstrap
from divopd.seeds import rng

REPEATS, DRAWS, MANY = 400, 1000, 20_000
STATISTICS: dict[str, Callable[[Sequence[np.ndarray]], np.ndarray]] = {
    "IQM": iqm_by_method, "gain": mean_gain, "P(better)": improvement_probability,
}  # fmt: skip
World = tuple[np.ndarray, np.ndarray]
"""(settings, 2) means of baseline and method, and the (settings, 2, 2) covariance of a pair."""


def world(summary: pd.DataFrame, method: str, baseline: str, pooled: bool) -> World:
    """What a suite's summary says of a method and its baseline; `pooled`: one noise for all settings."""
    pairs = list(paired_scores(summary, method, baseline).values())
    own = np.array([np.cov(each, rowvar=False) for each in pairs])
    return np.array([each.mean(axis=0) for each in pairs]), np.broadcast_to(
        own.mean(axis=0), own.shape
    ) if pooled else own


def draw(of: World, seeds: int, source: np.random.Generator) -> dict[str, np.ndarray]:
    """Setting -> (seeds, 2) scores of a suite that might have been."""
    cells = enumerate(zip(*of, strict=True))
    return {str(i): source.multivariate_normal(mean, noise, size=seeds) for i, (mean, noise) in cells}


def truth(name: str, of: World) -> float:
    """The method's side of a statistic with many seeds; runs of different seeds are independent."""
    means, covariance = of
    gains = means[:, 1] - means[:, 0]
    if name == "gain":
        return float(gains.mean())
    if name == "P(better)":
        spreads = np.sqrt(2 * np.trace(covariance, axis1=1, axis2=2))
        return float(
            np.mean([0.5 + 0.5 * math.erf(gain / spread) for gain, spread in zip(gains, spreads, strict=True)])
        )
    return float(iqm_by_method(list(draw(of, MANY, rng("coverage", "truth")).values()))[1])


def coverage(name: str, of: World, seeds: int, *names: object) -> tuple[float, float, float]:
    """Shares of intervals that hold the truth, of n - 1 seeds drawn and of n; mean length of the first over the second.

    `names`: what else its draws are named after.
    """
    wanted, source = truth(name, of), rng("coverage", name, seeds, *names)
    hits, lengths = np.zeros(2), np.zeros(2)
    for _ in range(REPEATS):
        scores = draw(of, seeds, source)
        for k, fewer in enumerate((1, 0)):
            _, low, high = paired_bootstrap(
                scores, STATISTICS[name], source, DRAWS, batched=True, paired=name != "P(better)", fewer=fewer
            )
            hits[k] += low[1] <= wanted <= high[1]
            lengths[k] += high[1] - low[1]
    return float(hits[0]) / REPEATS, float(hits[1]) / REPEATS, float(lengths[0] / lengths[1])


def row(summary: pd.DataFrame, pooled: bool, name: str, seeds: int) -> str:
    """A row of the table: mean, least and largest over the summary's methods."""
    baseline = str(summary["baseline"].iloc[0])
    methods = [method for method in ordered(summary["method"]) if method != baseline]
    worlds = {method: world(summary, method, baseline, pooled) for method in methods}
    found = np.array([coverage(name, of, seeds, method, pooled) for method, of in worlds.items()])
    least, most, mean = found.min(axis=0), found.max(axis=0), found.mean(axis=0)
    cells = [f"{100 * mean[k]:.0f} ({100 * least[k]:.0f}–{100 * most[k]:.0f})" for k in (0, 1)]
    cells += [f"{mean[2]:.2f} ({least[2]:.2f}–{most[2]:.2f})"]
    return f"| {'pooled' if pooled else 'own'} | {name} | {seeds} | {' | '.join(cells)} |"


@click.command()
@click.argument("results", type=click.Path(path_type=Path))
def main(results: Path) -> None:
    """Print the table, a row a noise, statistic and number of seeds."""
    summary = pd.read_csv(results / "summary.csv")
    click.echo("| noise | statistic | seeds | n − 1 drawn hold the truth (%) | n drawn (%) | length, n − 1 over n |")
    click.echo("|---|---|--:|--:|--:|--:|")
    for pooled, name, seeds in product((True, False), STATISTICS, (3, 5)):
        click.echo(row(summary, pooled, name, seeds))


if __name__ == "__main__":
    main()
