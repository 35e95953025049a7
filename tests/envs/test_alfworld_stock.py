"""TextWorld's own engine: a game for each player, few engines, and a batch that wins what its tasks win alone."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from divopd.config import EnvConfig, PolicyConfig, PromptConfig
from divopd.envs.alfworld import stock
from divopd.envs.alfworld.games import GeneratedGames
from divopd.envs.alfworld.generate import GameSize
from divopd.envs.alfworld.stock import StockPlayer
from divopd.envs.base import EnvError
from divopd.envs.registry import make_envs
from divopd.policies.hf import HFPolicy, load_model, load_tokenizer
from divopd.prompts import Renderer, make_style
from divopd.rollout import PlaySettings, play
from divopd.seeds import rng
from divopd.timing import Stopwatch

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = GameSize((7, 7), (10, 10))


def test_two_players_play_two_games() -> None:
    games = [GeneratedGames(TINY).load(f"gen/eval/{i}") for i in range(2)]
    players = [StockPlayer(), StockPlayer()]
    commands = [player.start(game)[1] for player, game in zip(players, games, strict=True)]
    for player, allowed in zip(players, commands, strict=True):
        text, _, _ = player.act(allowed[0])
        assert text.startswith("You arrive at ") and allowed[0].removeprefix("go to ") in text


def test_engines_are_reused_and_never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    game = GeneratedGames(TINY).load("gen/eval/0")
    monkeypatch.setattr(stock, "_IDLE", [])  # those of other tests come back whenever they are collected
    first, second = StockPlayer(), StockPlayer()
    first.start(game)
    second.start(game)
    one, other = first._engine, second._engine
    assert one is not other and not stock._IDLE
    first.close()
    first.close()
    assert list(stock._IDLE) == [one]
    with pytest.raises(EnvError, match="call start first"):
        first.act("look")
    first.start(game)
    assert first._engine is one and not stock._IDLE
    del second  # without having been closed; TextWorld's parsers keep their last caller's frame until they parse again
    first.start(game)
    gc.collect()
    assert list(stock._IDLE) == [other]


@pytest.mark.slow
def test_a_teacher_wins_in_a_batch_what_it_wins_alone(tmp_path: Path) -> None:
    """The shipped teacher on four games: one environment a game, then all at once."""
    config = EnvConfig(engine="stock", cache_dir=str(tmp_path), size={"receptacles": (7, 7), "objects": (10, 10)})
    policy = PolicyConfig(path=str(ROOT / "models" / "alfworld" / "teacher"))
    renderer = Renderer(load_tokenizer(policy), make_style(PromptConfig(style="compact"), "alfworld"))
    teacher, limits = HFPolicy(load_model(policy), renderer.eos), PlaySettings(16, 160, 4, 1.0)

    def won(tasks: list[int]) -> list[tuple[bool, list[str]]]:
        envs = make_envs(config, len(tasks))
        asked = [((0, i, 0), f"gen/eval/{i}", rng("batch", i)) for i in tasks]
        rollouts = play(teacher, renderer, envs, asked, 0, limits, Stopwatch())
        for env in envs:
            env.close()
        return [(rollout.success, [turn.action for turn in rollout.turns]) for rollout in rollouts]

    alone = [one for i in range(4) for one in won([i])]
    assert won([0, 1, 2, 3]) == alone
    assert sum(success for success, _ in alone) >= 2
