from typing import Annotated

import numpy as np
from pydantic import Field

from divopd.selection import Candidates, by_rollout, focus_order, place_in_run, row_tokens, sum_in_run


def token_capped(
    pool: Candidates, budget: int, seed: int, *, share: Annotated[float, Field(gt=0, le=1)] = 1 / 16
) -> np.ndarray:
    """Coverage whose cap counts a rollout's tokens, not its turns; focus by s(u) inside a rollout.

    Cap C = share * B * (mean row tokens of the pool): `share` of an average batch, row tokens = prompt + response. In
    sweep j = 1, 2, .. a rollout gives its best turns while its tokens stay within j * C; its best turn always goes in
    sweep 1. Rollouts by oldest first-seen, ties by id; stop at B rows.

    Guarantee. Let the batch end in sweep j, T its tokens, L the largest row among best turns. A rollout's tokens are at
    most M = max(j * C, L): turns after the first were taken within j * C, and a first turn alone has at most L. So no
    token share p_r = T_r / T exceeds M / T, the batch holds at least T / M rollouts, and as sum p_r^2 <= max p_r * sum
    p_r <= M / T, its effective rollouts 1 / sum p_r^2 are at least T / M. With j = 1, L <= C and rows of average size
    (T = B * mean) that is 1 / share. A turn cap k gives no such bound: prompts grow with depth. Source: ours; the gap
    is named in arXiv 2609.34838.
    """
    rows = by_rollout(pool, focus_order(pool))
    rollout, tokens = pool.group[rows], row_tokens(pool)[rows]
    cap = max(share * budget * tokens.sum() / max(len(tokens), 1), 1.0)
    sweep = np.where(place_in_run(rollout) == 0, 1, np.ceil(sum_in_run(rollout, tokens) / cap))
    return rows[np.argsort(sweep, kind="stable")[:budget]]
