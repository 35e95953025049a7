"""The cost model of the virtual clock: tokens to seconds. Only ratios matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import PipelineConfig, TrainConfig
from ..types import Actor, Rollout, Turn, by_context


@dataclass(slots=True)
class CostModel:
    """Seconds of a rollout and of an update. `slowdown` scales everything that explorers do."""

    config: PipelineConfig
    slowdown: float = 1.0

    def generation(self, rollout: Rollout) -> float:
        """Virtual seconds from a rollout's first turn to its last, without what the teacher spends on its own turns."""
        config = self.config
        tokens = sum(turn.response_tokens for turn in rollout.turns if turn.actor is Actor.STUDENT)
        return self.slowdown * (config.turn_seconds * len(rollout.turns) + config.response_token_seconds * tokens)

    def takeovers(self, rollout: Rollout) -> float:
        """Virtual seconds of the teacher's own turns: it reads what is before a context's last, and decodes them."""
        turns = [turn for turn in rollout.turns if turn.actor is Actor.TEACHER]
        if not turns:
            return 0.0
        decoded = sum(turn.response_tokens for turn in turns)
        read = self.config.teacher_token_seconds * (_tokens(turns) - decoded)
        return self.slowdown * (read + self.config.teacher_response_token_seconds * decoded)

    def scoring(self, rollout: Rollout) -> float:
        """Virtual seconds of the teacher on one finished rollout."""
        tokens = _tokens([turn for turn in rollout.turns if turn.actor is Actor.STUDENT])
        return self.slowdown * self.config.teacher_token_seconds * tokens

    def update(self, batch: Sequence[Turn]) -> float:
        """Virtual seconds of one learner update. Row tokens, as the paper's learner computes rows apart."""
        return self.config.update_seconds + self.config.update_token_seconds * sum(turn.row_tokens for turn in batch)

    def aim(self, rollouts: Sequence[Rollout], train: TrainConfig) -> None:
        """Set `slowdown` so that these rollouts, one explorer step, arrive at `load` times the learner's drain.

        They are the student's own, to full depth, whatever the method: explorers are equally fast under all. The drain
        is B rows per update of rows as long as theirs on average. Called once, with the run's first step: the load then
        moves as the student changes, and what it was is logged.
        """
        if self.config.load is None:
            return
        turns = [turn for rollout in rollouts for turn in rollout.turns]
        step = max(self.generation(r) + self.scoring(r) for r in rollouts) / self.slowdown
        row_tokens = sum(turn.row_tokens for turn in turns) / len(turns)
        update = self.config.update_seconds + self.config.update_token_seconds * row_tokens * train.batch_rows
        arrival = self.config.steps_in_flight * len(turns) / step
        self.slowdown = arrival / (self.config.load * train.batch_rows / update)


def arrivals(config: PipelineConfig, seconds: Sequence[float]) -> list[tuple[float, list[int]]]:
    """When which rollouts of an explorer step join the queue, in this order: (seconds after the step's start, numbers).

    `seconds`: from the step's start until each has ended and been scored, in the order of rollout ids.
    """
    numbers = range(len(seconds))
    if config.arrives == "rollout":
        return [(seconds[i], [i]) for i in numbers]
    return [(max(seconds), list(numbers) if config.order == "task" else sorted(numbers, key=lambda i: seconds[i]))]


def _tokens(turns: Sequence[Turn]) -> int:
    """Tokens that one pass over the turns holds: of each context, all up to its last turn's end."""
    return sum(max(turn.end for turn in run) for run in by_context(turns))
