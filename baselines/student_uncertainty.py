import numpy as np

from divopd.selection import Candidates, best_first, per_token


def student_uncertainty(pool: Candidates, budget: int, seed: int) -> np.ndarray:
    """The B turns of which the student was least sure.

    By the mean over valid tokens of -log pi_student under the generating weights, descending, ties by (rollout, turn):
    a one-sample estimate of the student's entropy. Source: ours, after the entropy axis of TIP (arXiv 2604.14084),
    which ranks tokens by entropy; only its summary was read.
    """
    return best_first(pool, per_token(pool, pool.student_nll))[:budget]
