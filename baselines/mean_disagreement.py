import numpy as np

from divopd.selection import Candidates, best_first, per_token


def mean_disagreement(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """The B turns with the largest disagreement a token.

    By s(u) / |V_u| = mean over valid tokens of student - teacher log-prob, descending, ties by (rollout, turn). As
    `top_b`, without its preference for long responses. Source: ours, an ablation of s(u) of arXiv 2609.34838.
    """
    return best_first(pool, per_token(pool, pool.disagreement))[:budget]
