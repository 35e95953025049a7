"""ALFWorld's one-line errors: each names what is wrong and the mend."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from divopd.config import EnvConfig
from divopd.envs.alfworld import AlfworldEnv, GeneratedGames, OfficialGames, plugin, store, translate
from divopd.envs.alfworld.generate import GameSize
from divopd.envs.base import EnvError


def test_official_errors(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="alfworld-download"):
        OfficialGames(tmp_path / "none")
    games = OfficialGames(tmp_path)
    with pytest.raises(EnvError, match="valid_seen"):
        games.tasks("valid_sen")
    for task in ("valid_seen/a/b", "../other"):
        with pytest.raises(EnvError, match="unknown ALFWorld task"):
            games.load(task)
    (tmp_path / "s" / "a-b" / "t").mkdir(parents=True)
    (tmp_path / "s" / "a-b" / "t" / "game.tw-pddl").write_text("{")
    with pytest.raises(EnvError, match="not an ALFWorld game"):
        games.load("s/a-b/t")


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    pytest.importorskip("alfworld")
    return dict(GeneratedGames(GameSize((7, 7), (10, 10))).load("gen/eval/0"))


def official(root: Path, content: Any, task: str = "s/pick-x/trial") -> OfficialGames:
    folder = root / task
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return OfficialGames(root)


FILES = [
    ([1], r"is not an ALFWorld game \(no JSON object\): unpack it again"),
    ("text", "no JSON object"),
    (b"\xff\xfe", "is not an ALFWorld game .*can't decode"),
    (b"", "is not an ALFWorld game"),
    *(({key: None}, f"{key} is None where text is due") for key in ("pddl_domain", "pddl_problem", "grammar")),
    ({"grammar": {"intro": 1}}, "grammar is {'intro': 1} where text is due"),
    ({"grammar": '"rhs": "Your task is to: a \\q"'}, "the task's sentence in its grammar is no JSON text"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_file_that_is_no_game_is_named(content: Any, message: str, tmp_path: Path, good: dict[str, Any]) -> None:
    games = official(tmp_path, good | content if isinstance(content, dict) else content)
    with pytest.raises(EnvError, match=message) as caught:
        games.load("s/pick-x/trial")
    assert str(tmp_path / "s/pick-x/trial/game.tw-pddl") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["pddl_domain", "pddl_problem", "grammar"])
def test_a_game_that_lacks_a_part_is_named(key: str, tmp_path: Path, good: dict[str, Any]) -> None:
    games = official(tmp_path, {k: v for k, v in good.items() if k != key})
    with pytest.raises(EnvError, match=f"game.tw-pddl .*: {key} is missing"):
        games.load("s/pick-x/trial")


@pytest.mark.parametrize("engine", ["fast", "stock"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("grammar", ""),
        ("grammar", "xyz"),
        ("grammar", 'grammar :: """ {"intro": [{"rh": "#nope#"}]} """;'),
        ("pddl_problem", ""),
        ("pddl_problem", "(define (problem x))"),
        ("pddl_domain", "(define (domain x))"),
    ],
)
def test_a_game_that_cannot_be_played_is_named(
    engine: Any, key: str, value: str, tmp_path: Path, good: dict[str, Any]
) -> None:
    env = AlfworldEnv(official(tmp_path, good | {key: value}), None, engine)
    argv, stdout = sys.argv, sys.stdout
    with pytest.raises(EnvError, match="^task 's/pick-x/trial' is no game that TextWorld can play") as caught:
        env.reset("s/pick-x/trial")
    assert "\n" not in str(caught.value) and (sys.argv, sys.stdout) == (argv, stdout)
    with pytest.raises(EnvError, match="call reset first"):
        env.step("look")
    official(tmp_path, good, "s/pick-x/other")
    assert env.reset("s/pick-x/other").goal == good["task"]
    env.close()


@pytest.mark.parametrize(
    ("odd", "message"),
    [("look", "walkthrough is 'look' where a list is due"), ([1], r"walkthrough\[0\] is 1 where text is due"),
     ([], "has no walkthrough")],
)  # fmt: skip
def test_an_odd_walkthrough_is_named(odd: Any, message: str, tmp_path: Path, good: dict[str, Any]) -> None:
    games = official(tmp_path, good | {"walkthrough": odd})
    with pytest.raises(EnvError, match=f"the game file of s/pick-x/trial.*{message}"):
        plugin.expert_path(EnvConfig(source=str(games.root)), AlfworldEnv(games), "s/pick-x/trial")


def test_games_not_said_to_be_solvable_are_counted(tmp_path: Path, good: dict[str, Any]) -> None:
    for i, flag in enumerate((True, False, None, "yes")):
        games = official(tmp_path, good | {"solvable": flag}, f"s/pick-x/{i}")
    with pytest.warns(UserWarning, match=r"s: games that are not said to be solvable: 3 left out, as the original"):
        assert games.tasks("s") == ["s/pick-x/0"]
    official(tmp_path, b"[]", "s/pick-x/bad")
    with pytest.raises(EnvError, match="s/pick-x/bad/game.tw-pddl is not an ALFWorld game"):
        games.tasks("s")


def test_missing_or_other_engine_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("alfworld")
    env = AlfworldEnv(GeneratedGames())
    for versions, message in (({"textworld": "9.9"}, "needs textworld 9.9, found"), ({"no-such": "1"}, "pip install")):
        monkeypatch.setattr(store, "VERSIONS", versions)
        store.check_versions.cache_clear()
        with pytest.raises(EnvError, match=message):
            env.reset("gen/test/0")
    monkeypatch.undo()
    store.check_versions.cache_clear()
    monkeypatch.setitem(sys.modules, "fast_downward", None)
    with pytest.raises(EnvError, match="pip install fast-downward-textworld"):
        translate.translate({})
