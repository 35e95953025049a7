"""Every random draw has a named seed: `rng(run_seed, "explorer", step)` never depends on order."""

from __future__ import annotations

import hashlib

import numpy as np


def seed(*names: object) -> int:
    """A 63-bit integer that depends on nothing but the names (compared by their text)."""
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def rng(*names: object) -> np.random.Generator:
    """A NumPy generator of its own for this name."""
    return np.random.Generator(np.random.PCG64(seed(*names)))


def task_order(run_seed: int, number: int, tasks: int) -> np.ndarray:
    """(tasks,) the order in which a run's pass `number` over its training tasks draws them."""
    return rng(run_seed, "tasks", number).permutation(tasks)
