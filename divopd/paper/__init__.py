"""Numbers that the paper reports (arXiv 2609.34838), for showing beside ours. They steer nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "arXiv 2609.34838"
TABLES = (
    "main_results",
    "batch_diagnostics",
    "utilization",  # a row a (composer, environment): never-selected rollouts in percent, Gini of selected turns
    "selected_turn_depth",  # percent of selected turns by depth and outcome; the environment is not named
    "staleness",  # mean age in versions of vanilla, by allowed staleness
    "teacher_tokens",  # tokens scored over tokens trained
    "producer_load",  # by rollouts an explorer step; the setting is not named
    "cap",  # by k; no k is none
    "matched_access",
    "gradient_alignment",  # a row an (environment, rule)
    "wall_speedup",  # DivOPD over vanilla by resource, a row a setting
)


def reported(table: str) -> pd.DataFrame:
    """One of TABLES, a row a (setting, method) where nothing else is said: success in percent, shares as fractions, KL
    in nats a token.

    Raises KeyError for another name.
    """
    import pandas as pd

    if table not in TABLES:
        raise KeyError(f"no reported table {table!r}; one of {TABLES}")
    return pd.read_csv(Path(__file__).parent / f"{table}.csv", comment="#")
