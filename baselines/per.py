import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from divopd.selection import Candidates, Choice, best_first, draws


def per(
    pool: Candidates, budget: int, seed: int, *,
    alpha: NonNegativeFloat = 0.6, beta: NonNegativeFloat = 0.0, epsilon: PositiveFloat = 1e-6,
) -> Choice:  # fmt: skip
    """Prioritised sampling: turns drawn without replacement, in proportion to priority^alpha.

    Priority p = |s(u)| + epsilon. The B rows with the smallest keys Exp(1) / p^alpha: successive draws without
    replacement (Efraimidis and Spirakis 2006). beta > 0 adds importance weights (n P)^-beta with P = p^alpha / sum,
    the paper's correction for draws with replacement. Source: prioritized experience replay (arXiv 1511.05952). Ours:
    |s(u)| for its |TD error|, no replacement, beta = 0 by default (the loss is everyone's).
    """
    log_priority = alpha * np.log(np.abs(pool.disagreement) + epsilon)
    with np.errstate(divide="ignore"):  # a draw of 0 is the key 0: first
        rows = best_first(pool, log_priority - np.log(-np.log1p(-draws(pool, seed))))[:budget]
    if beta == 0:
        return rows
    chosen = np.nan_to_num(log_priority[rows], nan=alpha * np.log(epsilon))  # unscored rows enter last: the least
    return rows, np.exp(-beta * (chosen - chosen.min(initial=np.inf)))
