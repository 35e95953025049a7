"""Numbers that the paper reports (arXiv 2609.34838), for showing beside ours. They steer nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "arXiv 2609.34838"
TABLES = ("main_results", "batch_diagnostics", "gradient_alignment", "sweeps")


def reported(table: str) -> pd.DataFrame:
    """One of TABLES, a row a (setting, method): success in percent, shares as fractions, KL in nats a token.

    Raises KeyError for another name.
    """
    import pandas as pd

    if table not in TABLES:
        raise KeyError(f"no reported table {table!r}; one of {TABLES}")
    return pd.read_csv(Path(__file__).parent / f"{table}.csv", comment="#")
