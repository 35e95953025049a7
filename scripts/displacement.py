"""How far training moved the student: the distance of the last checkpoint's weights from those it started with.

    python scripts/displacement.py results/laptop

A line a setting and method, mean over seeds, and its ratio to vanilla's. With clipped gradients and AdamW, a larger
gradient is not a longer step; this says what became of the steps. Needs the runs' checkpoints, which are not committed.
"""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd
import torch
from transformers.utils import logging

from divopd.policies.hf import load_model
from divopd.runlog import read_config


def displacement(run: Path) -> float:
    """Euclidean distance between the last checkpoint and the student that the run began with."""
    from safetensors.torch import load_file

    files = sorted((run / "checkpoints").glob("*.safetensors"))
    if not files:
        raise click.ClickException(f"{run} has no checkpoint: train it again")
    before = load_model(read_config(run).student).state_dict()
    after = load_file(files[-1])
    return float(sum((after[name].double() - before[name].double()).square().sum() for name in after) ** 0.5)


@click.command(help=__doc__)
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@torch.no_grad()
def main(results: Path) -> None:
    logging.disable_progress_bar()  # of loading weights
    rows = []
    for status in sorted(results.glob("*/*/*/seed*/status.json")):
        setting, _, method, seed = status.parent.relative_to(results).parts
        rows.append({"setting": setting, "method": method, "seed": seed, "distance": displacement(status.parent)})
    if not rows:
        raise click.ClickException(f"{results} holds no finished run")
    means = pd.DataFrame(rows).groupby(["setting", "method"])["distance"].mean().unstack()
    for setting, row in means.iterrows():
        for method, distance in row.dropna().items():
            ratio = f"  {distance / row['vanilla']:.2f} of vanilla's" if "vanilla" in row else ""
            click.echo(f"{setting:20s} {method:20s} {distance:.3f}{ratio}")


if __name__ == "__main__":
    main()
