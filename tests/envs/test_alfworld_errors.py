"""ALFWorld's one-line errors: each names what is wrong and the mend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from divopd.envs.alfworld import AlfworldEnv, GeneratedGames, OfficialGames, store, translate
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
