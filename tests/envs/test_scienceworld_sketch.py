"""The sketched rules are the game's: recorded episodes of the game, and episodes drawn on sketches alone."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from divopd.envs.scienceworld.compact import compact_action, compact_observation
from divopd.envs.scienceworld.expert_beliefs import READS
from divopd.envs.scienceworld.knowledge import SHORT, STAGES
from divopd.envs.scienceworld.sketch import SketchEnv, world_of

RECORDS: list[dict[str, Any]] = json.loads(
    lzma.decompress((Path(__file__).parent / "golden" / "scienceworld_short.json.xz").read_bytes())
)


def like(text: str) -> str:
    """The compact form, without what a sketch leaves out: life stages, cooling."""
    words = compact_observation(text).split()
    if words[0] == "reads":
        return "reads"
    return " ".join(sorted(SHORT[STAGES[word]] if word in STAGES else word for word in words))


def degrees(record: dict[str, Any]) -> int:
    found = READS.search(record["reading"])
    return int(found.group(1)) if found else 20


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["task"])
def test_recorded_episodes_of_the_game(record: dict[str, Any]) -> None:
    """Every answer in short words and every end of 24 episodes, some 290 turns."""
    env = SketchEnv()
    env.play(world_of(record["goal"], record["first"], record["looks"], degrees(record)))
    for number, (action, text, score) in enumerate(record["turns"]):
        step = env.step(action)
        assert like(step.text) == like(text), (number, action, text)
        assert (step.success, step.score < 0) == (score == 1.0, score < 0), (number, action, text)


def test_records_cover_what_the_rules_say() -> None:
    turns = [turn for record in RECORDS for turn in record["turns"]]
    assert len(turns) > 250
    said = {compact_action(action).split()[0] for action, _, _ in turns}
    assert {"go", "look", "inventory", "focus", "take", "put", "measure"} <= said
    assert {compact_observation(text).split()[0] for _, text, _ in turns} >= {"ok", "fail", "hold", "reads"}
    assert {score < 0 for _, _, score in turns} == {True, False}
    assert any(score == 1.0 for _, _, score in turns)
