"""WebShop's speed: steps a second, search time, and memory a product, in one process and one thread.

    python benchmarks/webshop_speed.py [--products 1000] [--large 100000] [--steps 20000] [--official DIR]

Products are made here, of about the official ones' length (1,400 characters, 70 distinct index terms, 0.6 options of
6 values); with --official the small catalogue is the official one in DIR. Times are CPU time of this process: other
programs disturb it least. Searches are of 4 to 8 and of 25 words of a product, and no kept result answers.
Memory is the growth of the resident set; the figure for all 1,180,000 official products is extrapolated from `large`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from divopd.envs.webshop import Catalog, Fixes, WebshopEnv, load_catalog, tasks_of

OFFICIAL_PRODUCTS = 1_180_000
WORDS = [
    f"{a}{b}{c}"
    for a in ("br", "cl", "d", "fl", "gr", "m", "pl", "t", "v", "z")
    for b in "aeiou"
    for c in "bdgklmnprstvx"
]
PLENTY = [f"{first}{second}" for first in WORDS[:200] for second in WORDS[:200]]


def words(draw: random.Random, count: int) -> str:
    """Words with roughly Zipf's frequencies from a vocabulary of 40,000."""
    return " ".join(PLENTY[min(int(draw.paretovariate(0.45)) - 1, len(PLENTY) - 1)] for _ in range(count))


def items(count: int, draw: random.Random) -> Iterator[dict[str, Any]]:
    """Products in the official JSON format."""
    for number in range(count):
        options = {"color": [{"value": words(draw, 1)} for _ in range(6)]} if draw.random() < 0.6 else ""
        yield {
            "asin": f"B{number:09d}",
            "name": words(draw, 16),
            "full_description": words(draw, 70),
            "small_description": [words(draw, 22) for _ in range(5)],
            "category": draw.choice(["beauty", "electronics", "fashion", "garden", "grocery"]),
            "query": words(draw, 2),
            "product_category": " › ".join(words(draw, 1) for _ in range(4)),
            "pricing": f"${draw.uniform(5, 200):.2f}",
            "customization_options": options,
        }


def made(count: int) -> Catalog:
    """A catalogue of made products; one in a hundred carries goals."""
    about: dict[str, dict[str, Any]] = {
        f"B{number:09d}": {"attributes": [words(random.Random(number), 2)] * 3} for number in range(count)
    }
    for number in range(0, count, 100):
        asin = f"B{number:09d}"
        about[asin] |= {"instruction": "find me something", "instruction_attributes": about[asin]["attributes"]}
    return load_catalog(items(count, random.Random(1)), about, nouns=str.split)


def resident() -> int:
    """This process's memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def build(catalog: Catalog) -> dict[str, float]:
    """Index the catalogue and search in it."""
    start = process_time()
    index = catalog.index
    built = process_time() - start
    result = {"index seconds": round(built, 1)}
    draw = random.Random(2)
    for name, least, most in (("search ms", 4, 8), ("search ms, 25 words", 25, 25)):
        times = []
        for _ in range(200):
            text = draw.choice(catalog.products).indexed_text().split()
            query = " ".join(draw.sample(text, min(len(text), draw.randint(least, most))))
            start = process_time()
            index.search(query)
            times.append(1e3 * (process_time() - start))
        result |= {name: round(median(times), 3), f"slowest {name}": round(max(times), 3)}
    return result


def steps_per_second(catalog: Catalog, steps: int) -> float:
    """Random episodes of at most 15 turns: a search of the title's words first, then clicks."""
    tasks = tasks_of(catalog, Fixes())
    env = WebshopEnv(catalog, tasks)
    draw = random.Random(3)
    names = list(tasks)
    start, done, turn = process_time(), True, 0
    for _ in range(steps):
        if done or turn == 15:
            task = draw.choice(names)
            observation = env.reset(task)
            turn, allowed = 0, observation.allowed
        action = draw.choice(allowed)
        if action.startswith("search"):
            title = tasks[task].title.split()
            action = f"search[{' '.join(draw.sample(title, min(len(title), 5)))}]"
        step = env.step(action)
        done, allowed, turn = step.done, step.allowed, turn + 1
    return steps / (process_time() - start)


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument(
        "--official", type=Path, help="folder of items_shuffle_1000.json, items_ins_v2_1000.json, nouns.json"
    )
    args = parser.parse_args()
    if args.official:
        files = [args.official / name for name in ("items_shuffle_1000.json", "items_ins_v2_1000.json", "nouns.json")]
        small = load_catalog(files[0], files[1], nouns=files[2])
    else:
        small = made(args.products)
    result: dict[str, Any] = {"small": {"products": len(small.products), **build(small)}}
    result["small"]["steps a second"] = round(steps_per_second(small, args.steps))
    before = resident()
    start = process_time()
    large = made(args.large)
    loaded = process_time() - start
    products = resident() - before
    result["large"] = {"products": args.large, "make and load seconds": round(loaded, 1), **build(large)}
    each = (resident() - before) / args.large
    result["large"] |= {"bytes a product": round(each), "without index": round(products / args.large)}
    result["extrapolated GB for 1.18 M products"] = round(each * OFFICIAL_PRODUCTS / 1e9, 1)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
