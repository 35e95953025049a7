"""Record short ScienceWorld tasks as the game plays them: python tests/envs/record_scienceworld_short.py (needs Java).

Of two tasks a type: a look around each room, the thermometer's reading, and an episode by a clumsy player.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from divopd.envs.base import TextEnv
from divopd.envs.scienceworld.env import ScienceWorldEnv
from divopd.envs.scienceworld.expert_beliefs import parse_goal
from divopd.envs.scienceworld.knowledge import KITCHEN, ROOMS, THERMOMETER
from divopd.envs.scienceworld.novice import Novice
from divopd.envs.scienceworld.split import short_split
from divopd.seeds import rng

GOLDEN = Path(__file__).parent / "golden" / "scienceworld_short.json.xz"
TURNS = 40


def record(env: TextEnv, task: str) -> dict[str, object]:
    first, looks = env.reset(task), {}
    for room in ROOMS:
        env.step(f"teleport to {room}")
        looks[room] = env.step("look around").text
    return {
        "task": task,
        "goal": first.goal,
        "first": first.text,
        "looks": looks,
        "reading": reading(env, task, first.goal),
        "turns": episode(env, task),
    }


def reading(env: TextEnv, task: str, goal: str) -> str:
    """What the thermometer says of the thing to be measured, where one is."""
    wanted = parse_goal(goal)
    if wanted.kind != "measure":
        return ""
    env.reset(task)
    for action in (f"teleport to {KITCHEN}", f"pick up {THERMOMETER}", f"teleport to {wanted.room}"):
        env.step(action)
    return env.step(f"use {THERMOMETER} on {wanted.what}").text


def episode(env: TextEnv, task: str) -> list[list[object]]:
    """(action, answer, score) of a novice who errs in every way, with a few commands that are none."""
    first, player, draws, turns = env.reset(task), Novice(0.35, 0.35, 0.25, 0.1), rng("record", task), []
    player.reset(first.goal, first.text)
    for _ in range(TURNS):
        wish = player.distribution(())
        names = [*wish, "put it away", "pick up axe", "move axe to red box"]
        weights = [0.95 * mass for mass in wish.values()] + [0.05 / 3] * 3
        action = str(draws.choice(names, p=[weight / sum(weights) for weight in weights]))
        step = env.step(action)
        player.observe(action, step.text)
        turns.append([action, step.text, step.score])
        if step.done or step.success:
            break
    return turns


def main() -> None:
    env = ScienceWorldEnv()
    records = [record(env, task) for task in short_split()[1][:24]]
    env.close()
    GOLDEN.write_bytes(lzma.compress(json.dumps(records, indent=0).encode(), preset=9))


if __name__ == "__main__":
    main()
