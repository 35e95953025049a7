"""Write transcripts.json: episodes on the fixture's products, as the engine plays them now.

    python tests/envs/webshop_fixture/record.py

Record only while tests/envs/test_webshop_golden.py passes: the transcripts then stand for the original's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from divopd.envs.webshop import STRICT, Catalog, Fixes, WebshopEnv, load_catalog, tasks_of
from divopd.envs.webshop.pages import MODES, Mode

HERE = Path(__file__).resolve().parent
EPISODES = [
    (
        "B000000001",
        "search[oak desk];click[b000000001];click[dark oak];click[60 inch];click[white | grey];click[buy now]",
    ),
    (
        "B000000001",
        "search[desk];click[next >];click[next >];click[< prev];click[< prev];click[B000000007];click[features]",
    ),
    (
        "B000000002",
        "click[search];search[];go north;search[ ];click[back to search];search[<q> desks];search[<c> garden]",
    ),
    (
        "B000000003",
        "search[shoes];click[b000000003];click[7];click[6];click[description];click[< prev];click[buy now]",
    ),
    (
        "B000000003",
        "search[search_results shoes];click[b000000003];click[wide];click[< prev];click[b000000004]",
    ),
    (
        "B000000004",
        'search["10"];search[trail];click[b000000004];click[10];click[café "noir"];click[< prev]',
    ),
    (
        "B000000004",
        "search[trail item_page];click[b000000004];click[9];click[reviews];click[< prev];click[buy now]",
    ),
    (
        "B000000005",
        "search[green tea];click[b000000005];click[description];click[< prev];click[buy now];search[tea]",
    ),
    (
        "B000000006",
        "search[tea];click[b000000006];click[attributes];click[description];click[< prev];click[assam];click[buy now]",
    ),
]


def fixture(**changes: Any) -> Catalog:
    """The catalogue of this folder."""
    files = {name: json.loads((HERE / f"{name}.json").read_text()) for name in ("items", "attributes", "nouns")}
    return load_catalog(**(files | changes))


def play(asin: str, actions: list[str], mode: Mode, attributes: bool, fixes: Fixes) -> list[dict[str, Any]]:
    """One episode on the product's first goal."""
    catalog = fixture()
    goal = next(goal for goal in tasks_of(catalog, STRICT).values() if goal.asin == asin)
    env = WebshopEnv(catalog, {"fixture/0": goal}, mode, fixes, attributes)
    first = env.reset("fixture/0")
    lines: list[dict[str, Any]] = [{"text": first.text, "allowed": list(first.allowed)}]
    for action in actions:
        step = env.step(action)
        fields = ("text", "reward", "done", "success", "valid", "progress", "score")
        line = {name: getattr(step, name) for name in fields}
        lines.append({"action": action, **line, "allowed": list(step.allowed)})
    return lines


def record() -> list[dict[str, Any]]:
    """Every episode in both modes, strict and mended."""
    return [
        {"asin": asin, "mode": mode, "attributes": number % 2 == 0, "strict": strict, "lines": lines}
        for number, (asin, actions) in enumerate(EPISODES)
        for mode in MODES
        for strict in (False, True)
        for lines in [play(asin, actions.split(";"), mode, number % 2 == 0, STRICT if strict else Fixes())]
    ]


if __name__ == "__main__":
    (HERE / "transcripts.json").write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n")
