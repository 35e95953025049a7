"""Record what TextWorld's own engine says, for tests/envs/test_alfworld.py to hold ours to (minutes).

    python tests/envs/record_alfworld.py tests/envs/golden/alfworld.json --official DIR

For each game: its hash, 30 actions (the walkthrough mixed with wandering and nonsense), and a digest of the text, the
accepted commands and the win flag after the start and after each action. DIR is a folder with json_2.1.1/valid_seen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from divopd.envs.alfworld import GameSource, GeneratedGames, OfficialGames
from divopd.envs.alfworld.generate import GameSize
from divopd.envs.alfworld.stock import StockPlayer

STEPS = 30
SIZES = {"default": GameSize(), "large": GameSize((12, 15), (18, 24), max_same=4, max_number=6, shared_spots=True)}
JUNK = ("", "Look", "go to mars 1", "take everything", "open")


def digest(text: str, commands: tuple[str, ...], won: bool) -> str:
    """Eight hex digits for one answer."""
    return hashlib.sha256(json.dumps([text, commands, won]).encode()).hexdigest()[:8]


def game_hash(game: Any) -> str:
    """Of all that the engine reads."""
    parts = [game["pddl_domain"], game["pddl_problem"], game["grammar"]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def record(source: GameSource, task: str) -> dict[str, Any]:
    """Play one game on the stock engine."""
    game, player, rng = source.load(task), StockPlayer(), random.Random(task)
    text, commands = player.start(game)
    answers, actions, plan = [digest(text, commands, False)], [], list(game["walkthrough"])
    for _ in range(STEPS):
        draw = rng.random()
        busy = [command for command in commands if not command.startswith("go to")]
        if draw < 0.5 and plan:
            action = plan.pop(0)
        else:
            action = rng.choice(JUNK if draw > 0.95 else commands if draw > 0.8 else busy)
        text, commands, won = player.act(action)
        actions.append(action)
        answers.append(digest(text, commands, won))
    return {"task": task, "game": game_hash(game), "actions": actions, "answers": answers}


def official_tasks(source: OfficialGames) -> list[str]:
    """Of each type the smallest game of valid_seen and the one in the middle."""
    by_type: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for task in source.tasks("valid_seen"):
        game = source.load(task)
        by_type[game["task_type"]].append((len(game["pddl_problem"]), task))
    return [task for games in by_type.values() for _, task in (sorted(games)[0], sorted(games)[len(games) // 2])]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--official", type=Path, required=True, help="folder that holds json_2.1.1")
    args = parser.parse_args()
    golden: dict[str, list[dict[str, Any]]] = {}
    for name, size in SIZES.items():
        golden[name] = [record(GeneratedGames(size), f"gen/golden/{index}") for index in range(12)]
    official = OfficialGames(args.official / "json_2.1.1")
    golden["official"] = [record(official, task) for task in official_tasks(official)]
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
