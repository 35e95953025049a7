"""What every environment must do, checked on the laptop settings: a new one is tested by having a setting file."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from divopd.cloning.tokenizer import build_tokenizer
from divopd.config import EnvConfig
from divopd.envs.base import EnvError, TextEnv
from divopd.envs.registry import environments, make_envs, plugin, read_panel, train_tasks
from divopd.seeds import rng
from divopd.suite import read_setting

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENTS = environments()
OFFICIAL = ROOT.parent / "shared" / "data"
ENGINES: dict[str, dict[str, Any]] = {
    **{name: {} for name in ENVIRONMENTS},
    "alfworld, stock": {"engine": "stock", "size": {"receptacles": [7, 7], "objects": [10, 10]}},
    "scienceworld, sketch": {"source": "sketch"},
    "webshop, official": {"source": str(OFFICIAL / "webshop"), "options": {"observation_mode": "text_rich"}},
    "webshop, as published": {"options": {"fixes": []}},
}
"""Everything that `make_envs` can make: environment, and what a setting would say of it."""
NONSENSE = (
    "",
    " ",
    "xyzzy",
    "click[",
    "search[]",
    "search",
    "click[no such button]",
    "take \u00e9\u00df\u4e2d",
    "look " * 400,
)
TURNS = 12


def config_of(name: str, cache: Path | str) -> EnvConfig:
    """The environment as the small laptop setting has it."""
    section = read_setting(ROOT / "experiments" / "settings" / f"{name}-0.5m.yaml").config["env"]
    config = EnvConfig.model_validate(section | {"cache_dir": str(cache)})
    return config.model_copy(update={"eval_panel": str(ROOT / config.eval_panel)})


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def config(request: pytest.FixtureRequest, game_cache: Path) -> EnvConfig:
    return config_of(request.param, game_cache)


@pytest.fixture(scope="module")
def tasks(config: EnvConfig) -> list[str]:
    return read_panel(config.eval_panel)


@pytest.fixture(scope="module")
def envs(config: EnvConfig) -> Iterator[list[TextEnv]]:
    made = make_envs(config, 2)
    yield made
    for env in made:
        env.close()


class Stroller:
    """A player of goals that no expert knows: anything that is listed, or a search for the goal's own words."""

    def reset(self, goal: str, text: str) -> None:
        self._search = f"search[{goal.rpartition(', and price')[0]}]"

    def distribution(self, allowed: tuple[str, ...]) -> dict[str, float]:
        return dict.fromkeys([self._search, *(name for name in allowed if "<query>" not in name)], 1.0)

    def observe(self, action: str, text: str) -> None:
        pass


def episode(env: TextEnv, task: str, turns: int = TURNS) -> Iterator[list[Any]]:
    """What a player sees who follows the expert with some nonsense between, step by step."""
    draws, seen = rng("contract", task), env.reset(task)
    official = env.name == "webshop" and not task.startswith("gen/")
    expert = Stroller() if official else plugin(env.name).players(())["expert"]()
    expert.reset(seen.goal, seen.text)
    allowed = seen.allowed
    yield [seen.goal, seen.text, list(allowed)]
    for _ in range(turns):
        opinion = expert.distribution(allowed)
        best = max(opinion, key=opinion.__getitem__)
        names = [
            best,
            best,
            list(opinion)[int(draws.integers(len(opinion)))],
            NONSENSE[int(draws.integers(len(NONSENSE)))],
        ]
        action = names[int(draws.integers(len(names)))]
        step = env.step(action)
        expert.observe(action, step.text)
        allowed = step.allowed
        yield [action, step.text, step.reward, step.done, step.success, step.valid, step.progress, list(allowed)]
        if step.done or step.success:
            return


def interleaved(envs: list[TextEnv], tasks: list[str]) -> list[list[Any]]:
    """The episodes of all environments, one step of one of them at a time, in an order that is drawn."""
    playing = {i: episode(env, task) for i, (env, task) in enumerate(zip(envs, tasks, strict=True))}
    seen: list[list[Any]] = [[] for _ in envs]
    draws = rng("contract", "order")
    while playing:
        i = sorted(playing)[int(draws.integers(len(playing)))]
        try:
            seen[i].append(next(playing[i]))
        except StopIteration:
            del playing[i]
    return seen


def transcripts(name: str, cache: str) -> str:
    """Digest of some episodes, for other processes to compare."""
    config = config_of(name, cache)
    [env] = make_envs(config, 1)
    told = [list(episode(env, task)) for task in read_panel(config.eval_panel)[:4]]
    env.close()
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def test_another_process_and_hash_seed_see_the_same(config: EnvConfig, tmp_path: Path) -> None:
    here = transcripts(config.name, config.cache_dir)
    code = "import sys, test_contract as t; print(t.transcripts(*sys.argv[1:]))"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "envs")])
    # a cache of its own: nothing is remembered from this process
    command = [sys.executable, "-c", code, config.name, str(tmp_path)]
    environ = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": path}
    run = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT, timeout=180)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == here
    assert "rror" not in run.stderr


def test_no_state_leaks_between_episodes(envs: list[TextEnv], tasks: list[str]) -> None:
    """Twice the same, with another episode between, with an unfinished one before, and beside another environment."""
    first, other = envs
    alone = list(episode(first, tasks[0]))
    list(episode(first, tasks[1]))
    for _ in zip(range(3), episode(first, tasks[2]), strict=False):
        pass
    assert list(episode(first, tasks[0])) == alone
    together = list(zip(episode(first, tasks[0]), episode(other, tasks[3]), strict=False))
    assert [mine for mine, _ in together] == alone[: len(together)]
    assert [theirs for _, theirs in together] == list(episode(first, tasks[3]))[: len(together)]


@pytest.mark.parametrize("kind", ENGINES)
def test_environments_share_no_state(kind: str, tmp_path: Path) -> None:
    """Four at once, two of them on one task: each sees what it sees alone. Then in other seats, one reopened."""
    config = config_of(kind.partition(",")[0], tmp_path / "alone").model_copy(update=ENGINES[kind])
    if "official" in kind and not OFFICIAL.is_dir():
        pytest.skip("the official files are not beside the checkout")
    names = train_tasks(config.model_copy(update={"train_tasks": "eval"})) if "official" in kind else None
    tasks = (names or read_panel(config.eval_panel))[:3]
    [env] = make_envs(config, 1)
    alone = [list(episode(env, task)) for task in tasks]
    env.close()
    config = config.model_copy(update={"cache_dir": str(tmp_path / "together")})  # the game plays, no transcript does
    envs = [*make_envs(config, 3), *make_envs(config, 1)]
    assert interleaved(envs, [*tasks, tasks[0]]) == [*alone, alone[0]]
    envs[0].reset(tasks[0])
    envs[0].close()
    assert interleaved(envs, [*tasks[1:], *tasks[:2]]) == [*alone[1:], *alone[:2]]
    for env in envs:
        env.close()


def test_nonsense_is_answered_and_is_no_turn_won(envs: list[TextEnv], tasks: list[str]) -> None:
    env = envs[0]
    env.reset(tasks[0])
    for action in NONSENSE:
        step = env.step(action)
        assert not (step.success or step.done or step.valid or step.progress), action
        assert isinstance(step.text, str) and step.reward == 0


def test_steps_are_not_counted_by_the_environment(envs: list[TextEnv], tasks: list[str]) -> None:
    env = envs[0]
    env.reset(tasks[0])
    assert not any(env.step("xyzzy").done for _ in range(120))


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if "official" not in kind])
def test_a_step_before_a_task_is_an_error(kind: str, game_cache: Path) -> None:
    [env] = make_envs(config_of(kind.partition(",")[0], game_cache).model_copy(update=ENGINES[kind]), 1)
    with pytest.raises(EnvError, match="call reset first"):
        env.step("look")
    env.close()


def test_unknown_tasks_are_errors_of_one_line(config: EnvConfig) -> None:
    [env] = make_envs(config, 1)
    for task in ("", "no such task", "gen/eval/-1", "gen/eval/x", "../../etc/passwd"):
        with pytest.raises(EnvError) as error:
            env.reset(task)
        assert "\n" not in str(error.value)
    env.close()


def test_the_expert_wins_and_its_words_survive_the_small_tokenizer(envs: list[TextEnv], tasks: list[str]) -> None:
    env, kind = envs[0], plugin(envs[0].name)
    tokenizer, style, won = build_tokenizer(*kind.words()), kind.style(), 0
    for task in tasks[:10]:
        seen, expert = env.reset(task), kind.players(())["expert"]()
        expert.reset(seen.goal, seen.text)
        shown, allowed = style.first(seen), seen.allowed
        for _ in range(30):
            opinion = expert.distribution(allowed)
            assert abs(sum(opinion.values()) - 1) < 1e-9
            for command in opinion:
                assert style.action(kind.short(command, allowed), allowed) == command
            action = max(opinion, key=opinion.__getitem__)
            said = kind.short(action, allowed)
            tokens = tokenizer.encode(f"{shown} {said}", add_special_tokens=False)
            assert tokenizer.unk_token_id not in tokens, shown
            assert tokenizer.decode(tokenizer.encode(said)) == said
            step = env.step(action)
            expert.observe(action, step.text)
            shown, allowed = style.follow(action, step), step.allowed
            if step.done or step.success:
                won += step.success
                break
    assert won >= 9


def test_reopening_two_hundred_times_grows_nothing(config: EnvConfig, tasks: list[str]) -> None:
    def open_and_close() -> None:
        [env] = make_envs(config, 1)
        env.reset(tasks[0])
        env.step("look around")
        env.close()

    def size() -> tuple[int, int, int]:
        gc.collect()
        kib = next(
            int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line
        )
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return kib, len(os.listdir("/proc/self/fd")), len(children)

    for _ in range(20):
        open_and_close()
    before = size()
    for _ in range(200):
        open_and_close()
    after = size()
    assert after[0] - before[0] < 20_000  # KiB
    assert after[1] <= before[1] + 1 and after[2] <= before[2]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_panel_and_training_tasks_share_nothing(name: str, game_cache: Path) -> None:
    for size in ("0.5m", "2m"):
        section = read_setting(ROOT / "experiments" / "settings" / f"{name}-{size}.yaml").config["env"]
        config = EnvConfig.model_validate(section)
        trained = set(train_tasks(config.model_copy(update={"train_tasks": _rooted(config.train_tasks)})))
        assert len(trained) >= 100
        assert not trained & set(read_panel(ROOT / config.eval_panel))


def _rooted(spec: str) -> str:
    return str(ROOT / spec) if spec.endswith(".txt") else spec


def test_panels_are_those_that_were_frozen() -> None:
    folder = ROOT / "experiments" / "panels"
    lines = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    have = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.txt"))}
    assert {name: digest for digest, name in lines} == have
