"""Success by other rules than the strict one, and the environment's own score, from the same episodes.

Success rates reported for one environment differ by rule. The log keeps how an episode stopped and the score it had, so
that the lenient rules (the environment ended the episode; it did so with a score above 0) are counted beside the
strict one.
"""

from __future__ import annotations

import pandas as pd

from divopd.analysis import metrics
from divopd.analysis.labels import label, ordered
from divopd.analysis.table import DASH, Table, few, few_note, fewest
from divopd.types import StopReason

# name of the rate in a curve -> what its column is called
RULES = {"rate_done": "Ended by the environment", "rate_done_positive": "Ended with a score above 0"}
SCORE = "mean_score"
_ENDED = (StopReason.SUCCESS.value, StopReason.DONE.value)


def by_rule(evals: pd.DataFrame) -> pd.DataFrame:
    """A row an episode: the lenient rules' verdicts, and max(0, score), NaN where the environment has no score."""
    done = evals["stop"].isin(_ENDED)
    score = evals["score"].astype(float)
    return pd.DataFrame({"rate_done": done, "rate_done_positive": done & (score > 0), SCORE: score.clip(lower=0)})


def scores_table(summary: pd.DataFrame) -> Table:
    """Final-5 under each rule, a row a (setting, method), means over seeds."""
    rows, numbers = [], []
    names = ["final5_mean", *(f"final5_{name}" for name in (*RULES, SCORE))]
    for setting in summary["setting"].unique():
        part = summary[summary["setting"] == setting]
        for method in ordered(part["method"]):
            means = part.loc[part["method"] == method, names].mean()
            numbers.append({"setting": setting, "method": method, **means})
            shown = [DASH if pd.isna(value) else f"{100 * value:.1f}" for value in means]
            if pd.isna(means[f"final5_{SCORE}"]):
                shown[2] = DASH  # no score, so nothing to be above 0
            shown[0] += few(fewest(part[part["method"] == method]))
            rows.append([setting, label(method), *shown])
    header = ["Setting", "Method", "Success (strict)", *RULES.values(), "Mean score"]
    notes = [
        "Means of the last five evaluations after training began, in percent. Strict: ALFWorld won, ScienceWorld score "
        "100, WebShop reward 1. Mean score: max(0, the environment's score), of 100."
    ]
    notes += few_note(summary)
    return Table("Success by rule, and score", header, rows, pd.DataFrame(numbers), notes)


def final_of(curve: pd.DataFrame) -> dict[str, float]:
    """Summary columns: each rate's and the score's mean over the last five evaluations of this curve."""
    return {f"final5_{name}": metrics.final(curve[name])[0] for name in (*RULES, SCORE)}
