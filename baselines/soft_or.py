import numpy as np

from divopd.selection import Candidates, best_first, per_token, unit_ranks


def soft_or(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """Turns on which student and teacher disagree, or of which the student was unsure, or both.

    Score 1 - (1 - d)(1 - u), descending, ties by (rollout, turn): d and u are the mid-ranks in the pool, scaled into
    (0, 1), of s(u) / |V_u| and of the student's mean NLL. Source: turn-level disagreement-uncertainty reweighting of
    ATOD (arXiv 2606.27814), soft-OR of TIP (arXiv 2604.14084); only summaries were read. Ours: they reweight, this
    selects; NLL stands for entropy; mid-ranks, so that nothing saturates at 1.
    """
    d = unit_ranks(per_token(pool, pool.disagreement))
    u = unit_ranks(per_token(pool, pool.student_nll))
    return best_first(pool, 1 - (1 - d) * (1 - u))[:budget]
