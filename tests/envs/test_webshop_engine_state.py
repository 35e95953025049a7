"""WebShop episodes: the same in every process, independent of each other, nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divopd.envs.webshop import STRICT, Fixes, WebshopEnv, load_catalog, tasks_of

FIXTURE = Path(__file__).resolve().parent / "webshop_fixture"
CATALOG = load_catalog(FIXTURE / "items.json", FIXTURE / "attributes.json", nouns=FIXTURE / "nouns.json")
TASKS = tasks_of(CATALOG, Fixes())
DIGEST = "b59f76e7ea7598f5332c6ed7104e822160a6fef5a292ea93e3f02dd1761f49ef"

PROGRAM = """
import hashlib, json, random, sys
from pathlib import Path
from divopd.envs.webshop import Fixes, WebshopEnv, load_catalog, tasks_of
here = Path(sys.argv[1])
catalog = load_catalog(here / "items.json", here / "attributes.json", nouns=here / "nouns.json")
tasks = tasks_of(catalog, Fixes())
env, draw, seen = WebshopEnv(catalog, tasks, "text_rich"), random.Random(5), [catalog.digest, list(tasks)]
for task in tasks:
    allowed = env.reset(task).allowed
    for _ in range(12):
        action = draw.choice(allowed) if allowed else "search[tea]"
        step = env.step(action.replace("<query>", "red tea desk shoes"))
        seen.append([action, step.text, step.reward, step.allowed])
        allowed = step.allowed
print(hashlib.sha256(json.dumps(seen).encode()).hexdigest())
"""


def test_other_processes_and_hash_seeds_give_the_same_episodes() -> None:
    root = FIXTURE.parents[2]
    digests = set()
    for hash_seed in ("0", "1", "77"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(FIXTURE)], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(run.stdout)
    assert len(digests) == 1


def test_prices_and_goals_are_frozen() -> None:
    """The digest changes only where a price, a bound, a goal or their order does; then panels must be made anew."""
    assert CATALOG.digest == DIGEST
    other = load_catalog(FIXTURE / "items.json", FIXTURE / "attributes.json", draws="other")
    assert other.digest != DIGEST
    frozen = load_catalog(
        FIXTURE / "items.json",
        FIXTURE / "attributes.json",
        prices={product.asin: product.price for product in CATALOG.products},
        goals=[goal.record() for goal in CATALOG.goals],
        draws="other",
    )
    assert frozen.digest == DIGEST and frozen.goals == CATALOG.goals


def play(env: WebshopEnv, task: str, seed: int) -> list[object]:
    """Twelve random allowed actions."""
    draw = random.Random(seed)
    seen: list[object] = [env.reset(task)]
    allowed = env.reset(task).allowed
    for _ in range(12):
        action = draw.choice(allowed) if allowed else "search[tea]"
        step = env.step(action.replace("<query>", draw.choice(["tea", "desk", "shoes", "wood table"])))
        seen.append(step)
        allowed = step.allowed
    return seen


@pytest.mark.parametrize("fixes", [STRICT, Fixes()])
def test_an_episode_does_not_depend_on_those_before(fixes: Fixes) -> None:
    used = WebshopEnv(CATALOG, TASKS, "text_rich", fixes)
    for seed, task in enumerate([*TASKS, *TASKS]):
        fresh = WebshopEnv(CATALOG, TASKS, "text_rich", fixes)
        assert play(used, task, seed) == play(fresh, task, seed)


def test_two_episodes_at_once_do_not_meet() -> None:
    first, second = (WebshopEnv(CATALOG, TASKS) for _ in range(2))
    tasks = list(TASKS)[:2]
    alone = play(first, tasks[0], 1)
    first.reset(tasks[0])
    second.reset(tasks[1])
    draw = random.Random(1)
    allowed = first.reset(tasks[0]).allowed
    for expected in alone[1:]:
        second.step("search[tea]")
        action = draw.choice(allowed) if allowed else "search[tea]"
        step = first.step(action.replace("<query>", draw.choice(["tea", "desk", "shoes", "wood table"])))
        second.step("click[next >]")
        assert step == expected
        allowed = step.allowed


def test_closing_and_reopening_leaves_nothing_behind() -> None:
    def once(seed: int) -> None:
        env = WebshopEnv(CATALOG, TASKS, "text_rich")
        play(env, list(TASKS)[seed % 10], seed % 10)
        env.close()
        env.reset(next(iter(TASKS)))
        env.close()

    def many(count: int) -> int:
        for seed in range(count):
            once(seed)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        grown = -many(20) + many(200)
    finally:
        tracemalloc.stop()
    assert grown < 20_000, "bytes after 200 more environments"


NAMES = [
    "search[",
    "click[",
    "]",
    "[",
    "tea",
    "b000000001",
    "< prev",
    "next >",
    "buy now",
    "<r>",
    "<a> x",
    "<c>",
    "\n",
    "é",
    " ",
]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.sampled_from(NAMES), max_size=4).map("".join), max_size=25), st.booleans())
def test_no_action_breaks_an_episode(actions: list[str], strict: bool) -> None:
    """Whatever is sent: rewards lie in 0..1, come with the end, and an invalid action changes nothing."""
    env = WebshopEnv(CATALOG, TASKS, "text_rich", STRICT if strict else Fixes())
    first = env.reset(next(iter(TASKS)))
    text, allowed = first.text, first.allowed
    for action in ["search[tea]", *actions, "click[b000000005]", *actions]:
        step = env.step(action)
        assert 0 <= step.reward <= 1 and (step.reward == 0 or step.done)
        assert step.valid or ((step.text, step.allowed, step.reward) == (text, allowed, 0) and not step.progress)
        assert not step.success or step.score == pytest.approx(1)
        text, allowed = step.text, step.allowed


def test_the_speed_benchmark_runs() -> None:
    root = FIXTURE.parents[2]
    command = [sys.executable, "benchmarks/webshop_speed.py", "--products", "100", "--large", "200", "--steps", "200"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)
    assert result["small"]["steps a second"] > 0 and result["large"]["bytes a product"] > 0
