"""Texts of rules, and a pool of six turns, for the tests of the rules' interface."""

from __future__ import annotations

import numpy as np

from divopd.selection import Candidates
from divopd.types import Turn


def six(update: int = 9) -> Candidates:
    """Six turns of one rollout, s(u) = 0, by arrival."""
    scores, mask = np.array([-1.0], np.float32), np.ones(1, bool)
    turns = [Turn((0, 0, 0), i, 9, np.arange(4), 2, 3, scores, scores, mask, arrival=i) for i in range(6)]
    return Candidates.from_turns(turns, update)


FUNCTION = '''
import numpy as np
from pydantic import PositiveInt
from divopd.selection import Candidates

def _helper(pool): return pool.arrival

def mine(pool: Candidates, budget: int, seed: int, *, skip: PositiveInt = 2, back: bool = False) -> np.ndarray:
    """From the row `skip` on."""
    order = np.roll(np.argsort(_helper(pool)), -skip)
    return (order[::-1] if back else order)[:budget]
'''

STATEFUL = '''
import numpy as np
from divopd.selection import Rule

class Mine(Rule):
    """The next two rows at each update."""
    at: int = 0

    def initial_state(self):
        return {"next": self.at}

    def advance(self, pool, budget, seed, state):
        rows = (state["next"] + np.arange(budget)) % len(pool)
        return (rows, np.ones(len(rows))), {"next": state["next"] + budget}
'''
