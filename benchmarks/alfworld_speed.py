"""ALFWorld's speed: TextWorld's own engine and ours on the same games and actions, in one process and one thread.

    python benchmarks/alfworld_speed.py [--games 12] [--steps 30] [--official DIR]

Times are CPU milliseconds of this process (median over games or steps): other programs disturb them least.
`times faster` is the median over games or steps of the ratio of the two.
`cold`: first load and reset of a game; `disk`: the same with the translated game on disk; `memory`: with it loaded.
Every text, command list and win flag of the two engines is compared; a difference ends the run with an error.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import TypeVar

from divopd.envs.alfworld import GameSource, GeneratedGames, OfficialGames
from divopd.envs.alfworld.env import FastPlayer
from divopd.envs.alfworld.games import Game
from divopd.envs.alfworld.stock import StockPlayer
from divopd.envs.alfworld.store import WorldStore

T = TypeVar("T")
Times = dict[str, list[float]]


def timed(times: Times, name: str, call: Callable[[], T]) -> T:
    """Call, and note the CPU milliseconds it took."""
    start = process_time()
    result = call()
    times.setdefault(name, []).append(1e3 * (process_time() - start))
    return result


def compare(game: Game, steps: int, folder: Path, times: Times) -> None:
    """Load and play one game on both engines. Exits where they differ."""
    stock, fast = StockPlayer(), FastPlayer(WorldStore(folder))
    answer = timed(times, "stock load", lambda: stock.start(game))
    ours = timed(times, "cold load", lambda: fast.start(game))
    fast = FastPlayer(WorldStore(folder))
    timed(times, "disk load", lambda: fast.start(game))
    timed(times, "memory load", lambda: fast.start(game))
    if ours != answer:
        sys.exit(f"the engines differ at the start: {answer!r} {ours!r}")
    rng, commands = random.Random(game["pddl_problem"]), answer[1]
    for _ in range(steps):
        near = [command for command in commands if not command.startswith("go to")]
        action = rng.choice(near if rng.random() < 0.5 else commands)
        expected = timed(times, "stock step", lambda: stock.act(action))  # noqa: B023  (called at once)
        found = timed(times, "step", lambda: fast.act(action))  # noqa: B023
        if found != expected:
            sys.exit(f"the engines differ after {action!r}: {expected!r} {found!r}")
        commands = expected[1]


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--official", type=Path, help="folder that holds json_2.1.1/valid_seen (default: generated games)"
    )
    args = parser.parse_args()
    source: GameSource = GeneratedGames()
    tasks = [f"gen/speed/{index}" for index in range(args.games)]
    if args.official:
        source = OfficialGames(args.official / "json_2.1.1")
        tasks = source.tasks("valid_seen")
        tasks = tasks[:: max(1, len(tasks) // args.games)][: args.games]
    times: Times = {}
    with tempfile.TemporaryDirectory() as folder:
        # The imports of both engines and the one parse of the grammar are paid once a process; not counted here.
        compare(source.load(tasks[0]), 2, Path(folder) / "first", {})
        for task in tasks:
            compare(source.load(task), args.steps, Path(folder) / "cache", times)
    middle = {name: median(values) for name, values in times.items()}
    pairs = [
        ("cold load", "stock load"),
        ("disk load", "stock load"),
        ("memory load", "stock load"),
        ("step", "stock step"),
    ]
    ratio = {
        ours: median(slow / quick for slow, quick in zip(times[stock], times[ours], strict=True))
        for ours, stock in pairs
    }
    result = {
        "games": len(tasks),
        "steps": len(times["step"]),
        "milliseconds": {name: round(value, 3) for name, value in middle.items()},
        "times faster": {name: round(value, 1) for name, value in ratio.items()},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
