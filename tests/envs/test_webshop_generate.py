"""The generated catalogue: official format, closed vocabulary, wishes that can be met, and not by the first hit."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from divopd.config import EnvConfig
from divopd.envs.base import EnvError
from divopd.envs.registry import make_envs, read_panel
from divopd.envs.webshop import plugin
from divopd.envs.webshop.generate import SPLITS, Catalogue, generate_catalogue, split_of
from divopd.envs.webshop.lexicon import (
    ATTRIBUTE_WORDS,
    CONTENT_WORDS,
    DEPARTMENTS,
    GROUPS,
    INSTRUCTIONS,
    KIND_WORDS,
    MAKERS,
    OPTION_WORDS,
    TITLES,
)
from divopd.envs.webshop.reward import near, plain_color, purchase_reward

ROOT = Path(__file__).resolve().parents[2]
SETTING = EnvConfig(name="webshop", max_turns=15)
DIGEST = "a101e219e9c9b67c0b42f7dc02fa69bf6cb3c13289d96eea3cc87c997c1fb620"


def digest(catalogue: Catalogue) -> str:
    parts = [catalogue.products, catalogue.attributes, catalogue.instructions, catalogue.title_nouns]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@pytest.fixture(scope="module")
def made() -> Catalogue:
    return generate_catalogue()


def test_default_catalogue_is_frozen_and_the_same_in_every_process(made):
    assert digest(made) == DIGEST
    code = (
        "import hashlib, json; from divopd.envs.webshop.generate import generate_catalogue as g; c = g()\n"
        "parts = [c.products, c.attributes, c.instructions, c.title_nouns]\n"
        "print(hashlib.sha256(json.dumps(parts).encode()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7"}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == DIGEST


def test_another_seed_gives_other_products():
    first, second = generate_catalogue(1, per_kind=25), generate_catalogue(2, per_kind=25)
    assert not {p["asin"] for p in first.products} & {p["asin"] for p in second.products}
    assert digest(generate_catalogue(1, per_kind=25)) == digest(first)


def test_products_are_in_the_official_format(made):
    assert len({p["asin"] for p in made.products}) == len(made.products) == 1600
    assert len({p["category"] for p in made.products}) == 6
    assert len({p["query"] for p in made.products}) == len(KIND_WORDS) == 40
    for product in made.products:
        assert re.fullmatch(r"B0[0-9A-Z]{8}", product["asin"])
        assert product["query"].removesuffix("s") in product["name"].lower() + "s" or product["query"] == "mattresses"
        assert re.fullmatch(r"\$\d+\.\d\d( - \$\d+\.\d\d)?", product["pricing"])
        assert 2 <= len(product["customization_options"]) <= 3
        for values in product["customization_options"].values():
            assert len(values) >= 2 and all({"value", "is_selected"} <= set(value) for value in values)
        about, asked = made.attributes[product["asin"]], made.instructions[product["asin"]]
        assert len(about["attributes"]) == 3 and set(about["instruction_attributes"]) <= set(about["attributes"])
        assert len(asked) == 4
        assert all({"asin", "instruction", "instruction_attributes", "instruction_options"} <= set(a) for a in asked)
        assert product["name"] in made.title_nouns


def test_price_ranges_stay_between_two_tens(made):
    ranges = [p["pricing"] for p in made.products if " - " in p["pricing"]]
    assert len(ranges) > 30
    for text in ranges:
        low, high = map(float, re.findall(r"\d+\.\d+", text))
        assert low < high and int(low // 10) == int(high // 10)


def test_each_content_word_has_one_meaning():
    words = [*KIND_WORDS, *ATTRIBUTE_WORDS, *OPTION_WORDS]
    assert len(set(words)) == len(words) == len(CONTENT_WORDS) < 500
    assert all(re.fullmatch("[a-z]+", word) for word in words)
    others = " ".join([*TITLES, *INSTRUCTIONS, *(g.phrase for g in GROUPS.values()), *MAKERS])
    others += " ".join(place for department in DEPARTMENTS for place in department.places)
    others += " a an some a pair of they it is are and price lower than dollars"
    assert not set(re.findall("[a-z]+", others.lower())) & CONTENT_WORDS


def test_no_word_passes_for_another_in_the_reward():
    for first, second in itertools.combinations(OPTION_WORDS, 2):
        assert not near(plain_color(first), plain_color(second)), (first, second)
    for first, second in itertools.permutations(ATTRIBUTE_WORDS, 2):
        assert not near(first, second) and first not in second, (first, second)


@pytest.mark.parametrize("arguments", [{"per_kind": 24}, {"wishes": 0}])
def test_refuses_sizes_that_make_no_catalogue(arguments):
    with pytest.raises(EnvError, match="at least 25|at least one"):
        generate_catalogue(**arguments)


def test_every_wish_is_met_by_its_own_product_and_few_others():
    env = make_envs(SETTING, 1)[0]
    catalog = env.catalog  # type: ignore[attr-defined]
    goals = list(env._goals.values())  # type: ignore[attr-defined]
    assert len(goals) == 6400

    def best(asin, goal):
        product = catalog.by_asin[asin]
        wanted = {value for _, value in goal.options}
        chosen = {name: v for name, values in product.options.items() for v in values if v in wanted}
        return purchase_reward(product, goal, chosen, catalog.nouns).total

    assert all(best(goal.asin, goal) == 1.0 for goal in goals)
    sample = random.Random(0).sample(goals, 60)
    met = sum(best(product.asin, goal) == 1.0 for goal in sample[:15] for product in catalog.products)
    assert 15 < met < 15 * 8
    # the first hit: of a search for the type rarely right, of a search for all words wrong a quarter of the time
    for query, low, high in ((lambda g: g.query, 0, 10), (lambda g: g.instruction, 35, 57)):
        right = sum(best(catalog.search(query(goal))[0].asin, goal) == 1.0 for goal in sample)
        assert low <= right <= high


def test_splits_share_no_product():
    env = make_envs(SETTING, 1)[0]
    products = {name: set() for name in SPLITS}
    for task, goal in env._goals.items():  # type: ignore[attr-defined]
        products[task.split("/")[1]].add(goal.asin)
    assert {name: len(asins) for name, asins in products.items()} == {"eval": 160, "train": 700, "clone": 740}
    assert not products["eval"] & products["train"] and not (products["eval"] | products["train"]) & products["clone"]
    assert [split_of(i) for i in (0, 159, 160, 859, 860, 1599)] == ["eval", "eval", "train", "train", "clone", "clone"]


def test_panel_is_frozen_and_has_a_product_a_task():
    panel = ROOT / "experiments" / "panels" / "webshop_eval.txt"
    env = make_envs(SETTING, 1)[0]
    tasks = read_panel(panel)
    assert len(tasks) == 140 and set(tasks) <= set(plugin.tasks(SETTING, "gen/eval"))
    assert len({env._goals[task].asin for task in tasks}) == 140  # type: ignore[attr-defined]
    assert f"catalogue-sha256 {env.catalog.digest}" in panel.read_text()  # type: ignore[attr-defined]
