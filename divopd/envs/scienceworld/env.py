"""ScienceWorld behind the project's environment protocol."""

from __future__ import annotations

import re
from pathlib import Path

from divopd.config import EnvConfig
from divopd.envs.base import EnvError, Observation, Step
from divopd.envs.scienceworld.episode import Episode
from divopd.envs.scienceworld.game import AMBIGUOUS, CRASHED, EMPTY, UNPARSED, Game
from divopd.envs.scienceworld.games import parse_task
from divopd.envs.scienceworld.java import JavaGone, share
from divopd.envs.scienceworld.options import Options
from divopd.envs.scienceworld.transcripts import Answer, shared_store

MAX_ACTION = 300
"""Characters of an action that reach the game; its longest commands are shorter."""
_REFUSED = (UNPARSED, EMPTY, CRASHED)
_CHOICE = re.compile(r"^(\d+):\t(.*)$", re.MULTILINE)
_WHERE = re.compile(r"\s*\([^()]*\)")


class ScienceWorldEnv:
    """ScienceWorld; one task at a time, reused for many. Task ids: "find-animal/17". Not thread-safe: use processes.

    Actions are sent in lower case with single spaces. `Step.score` is the game's, in hundredths rounded as its own
    Python wrapper rounds: 0 to 1, and -1 after a wrong focus; `reward` is its change. `done`: the game's own end of
    the episode, or a score below 0. `success`: the rule that `options.success` names. `valid`: false for text that is
    no command here ("No known action matches that input.", "Unknown action...", a number that no choice has, a
    failure inside the game); commands that are understood and have no effect are valid. `progress`: valid, and not
    the previous action again with the same text and score. Steps are not limited here.
    """

    name = "scienceworld"

    def __init__(self, options: Options | None = None, cache_dir: Path | None = None) -> None:
        """`cache_dir`: where transcripts stay between processes (None: nowhere). Java starts when it is first needed.

        All environments of a process with the same options share one Java process and one store of transcripts.
        """
        self.options = options or Options()
        self._store = shared_store(cache_dir, self.options.simplifications, self.options.listing)
        self._share = share(self.options.java, self.options.memory_mb)
        self._episode: Episode | None = None
        self._over = False
        self._asked = False  # the game waits for the number of a choice
        self._score = 0.0
        self._last: tuple[str, str, float] = ("", "", 0.0)

    def reset(self, task: str) -> Observation:
        """Start a task from its beginning. Raises `EnvError` for an unknown task or where Java does not start."""
        name, variation = parse_task(task)
        self._end()
        episode = Episode(self._store, self._share, self, name, variation, self.options)
        first = episode.first
        self._episode, self._over, self._score = episode, False, _score(first)
        self._asked, self._last = False, ("", "", self._score)
        return Observation(text=first.text, goal=episode.goal, allowed=first.allowed)

    def step(self, action: str) -> Step:
        """Do one action. Raises `EnvError` where no episode runs or this one is over."""
        if self._episode is None or self._over:
            state = "this ScienceWorld episode is over" if self._over else "no ScienceWorld episode is running"
            raise EnvError(f"{state}: call reset first")
        action = " ".join(action.split()).lower()[:MAX_ACTION]
        if self._asked and self.options.ambiguity != "ask" and not action.isdigit():
            self._episode.act("")  # the game would take any text for a cancelled choice and lose the action
        answer = self._episode.act(action)
        if answer.text.startswith(AMBIGUOUS) and self._chooses(answer.text):
            answer = self._episode.act("0")
        self._asked = answer.text.startswith(AMBIGUOUS)
        score = _score(answer)
        done = answer.completed or score < 0
        reward, self._score, self._over = score - self._score, score, done
        valid = not answer.text.startswith(_REFUSED)
        repeat = self._last == (action, answer.text, score)
        self._last = (action, answer.text, score)
        success = {"strict": score == 1.0, "done": done, "done_positive": done and score > 0}[self.options.success]
        return Step(answer.text, round(reward, 2), done, success, valid, valid and not repeat, answer.allowed, score)

    def _chooses(self, prompt: str) -> bool:
        """Whether the first of the choices is taken without asking."""
        names = {_WHERE.sub("", choice) for _, choice in _CHOICE.findall(prompt)}
        return self.options.ambiguity == "first" or (self.options.ambiguity == "same" and len(names) == 1)

    def close(self) -> None:
        """End the episode and keep what was learnt; the last environment to close ends Java. `reset` starts anew."""
        self._end()
        self._store.save()
        self._share.leave(self)

    def _end(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.end()


def _score(answer: Answer) -> float:
    return round(100 * answer.score) / 100


def make_scienceworld(config: EnvConfig, count: int) -> list[ScienceWorldEnv]:
    """`count` environments as `config.options` says."""
    options = Options.model_validate(config.options)
    return [ScienceWorldEnv(options, Path(config.cache_dir)) for _ in range(count)]


def gold_path(task: str, options: Options | None = None) -> list[str]:
    """The game's own winning actions, through doors and without teleport. Seconds to minutes: for making data only."""
    options = options or Options()
    name, variation = parse_task(task)
    java, user = share(options.java, options.memory_mb), object()
    try:
        game = Game(java.get(user))
        game.load(name, variation, options.simplifications, gold=True)
        return game.gold_path()
    except JavaGone as error:
        raise EnvError(f"ScienceWorld's Java process ended while it made the gold path: {error}") from error
    finally:
        java.leave(user)
