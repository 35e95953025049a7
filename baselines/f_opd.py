import numpy as np
from pydantic import NonNegativeFloat

from divopd.selection import Candidates, best_first, per_token, rollout_sum


def f_opd(
    pool: Candidates, budget: int, seed: int, *, a: NonNegativeFloat = 1.0, b: NonNegativeFloat = 1.0
) -> np.ndarray:
    """Freshest turns first, where freshness falls with drift and with lag.

    By exp(-a sqrt(D_roll) - b sqrt(D_sup)) / (lag + 1), descending, ties by (rollout, turn); lag = q - version. Source:
    f-OPD (arXiv 2605.17862), of which only a summary was read. Ours: it weighs samples, this selects; the drifts are
    read off cached scores, no model call: D_sup = s(u) / |V_u| of the turn, D_roll = the same over its rollout's turns
    in the pool, both cut off at 0; a = b = 1.
    """
    known = ~np.isnan(pool.disagreement)
    gap = rollout_sum(pool, np.where(known, pool.disagreement, 0.0))
    tokens = rollout_sum(pool, np.where(known, pool.valid_tokens, 0))
    roll = np.maximum(gap / np.maximum(tokens, 1), 0.0)
    supervision = np.maximum(per_token(pool, pool.disagreement), 0.0)
    freshness = np.exp(-a * np.sqrt(roll) - b * np.sqrt(supervision)) / (pool.age + 1)
    return best_first(pool, freshness)[:budget]
