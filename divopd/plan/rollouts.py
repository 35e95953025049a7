"""What a setting's rollouts look like on average, from the stream that was calibrated to the paper (docs/replay.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from divopd.config import RunConfig
from divopd.provenance import ROOT
from divopd.streams import StreamSpec, Synthetic, read_stream

_STEPS = 64  # explorer steps that the averages are taken over


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """Means: `turns` a rollout, `row_tokens` (prompt + response) and `response` tokens a turn, a rollout's `first` row
    and its `end` (both tokens), and the tokens that an observation `added` to a prompt.
    """

    turns: float
    row_tokens: float
    response: float
    first: float
    end: float
    added: float

    def computed(self, taken: float) -> float:
        """Tokens of one pass up to the last of `taken` turns drawn from a rollout: its place is taken / (taken + 1)."""
        return self.first + (self.end - self.first) * taken / (taken + 1)


def stream_of(cell: RunConfig) -> StreamSpec:
    """The environment's stream under the cell's own limits, its batch, and halfway through its training."""
    spec = read_stream(Path(ROOT) / "experiments" / "streams" / f"{cell.env.name}.yaml")
    prompt, train = cell.prompt, cell.train
    tokens = spec.tokens.model_copy(
        update={"max_prompt": prompt.max_prompt_tokens, "max_response": prompt.max_response_tokens}
    )
    queue = spec.queue.model_copy(
        update={
            "batch_rows": train.batch_rows,
            "pool_factor": train.pool_factor,
            "max_staleness": train.max_staleness,
            "retention": train.retention,
        }
    )
    return spec.model_copy(update={"max_turns": cell.env.max_turns, "tokens": tokens, "queue": queue})


def stats_of(cell: RunConfig) -> RolloutStats:
    """Averages over rollouts of the policy that is halfway through the cell's updates."""
    return _stats(stream_of(cell).model_dump_json(), cell.train.updates // 2)


@lru_cache(maxsize=64)
def _stats(stream: str, version: int) -> RolloutStats:
    source = Synthetic(StreamSpec.model_validate_json(stream))
    parts = [source.block(step, version) for step in range(_STEPS)]
    prompt, response = (np.concatenate([block[name] for block, _ in parts]) for name in
                        ("prompt_tokens", "response_tokens"))  # fmt: skip
    lengths = np.concatenate([lengths for _, lengths in parts])
    last = np.cumsum(lengths) - 1
    rows = prompt + response
    first, end = rows[last - lengths + 1].mean(), rows[last].mean()
    turns = float(lengths.mean())
    grown = (end - first) / max(turns - 1, 1.0)
    return RolloutStats(turns, float(rows.mean()), float(response.mean()), float(first), float(end),
                        max(0.0, float(grown - response.mean())))  # fmt: skip
