"""The WebShop engine on a small catalogue of our own: hand-computed pages, rewards, goals, and frozen transcripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from divopd.envs.base import EnvError, TextEnv
from divopd.envs.webshop import STRICT, Catalog, Fixes, Goal, WebshopEnv, load_catalog, tasks_of
from divopd.envs.webshop.nouns import NounSource
from divopd.envs.webshop.reward import meets, near, plain_color, purchase_reward
from divopd.envs.webshop.splits import Reach

FIXTURE = Path(__file__).resolve().parent / "webshop_fixture"
sys.path.insert(0, str(FIXTURE))
import record  # noqa: E402


def read(name: str) -> Any:
    return json.loads((FIXTURE / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return record.fixture()


def goal_of(catalog: Catalog, asin: str, *values: str) -> Goal:
    """The product's goal with these option values."""
    return next(goal for goal in catalog.goals if (goal.asin, *[value for _, value in goal.options]) == (asin, *values))


def test_products_are_read_as_the_original_reads_them(catalog: Catalog) -> None:
    assert [product.asin[-1] for product in catalog.products] == list("12345678")  # nan, long and second ids are out
    desk, folding, shoes, tea = (catalog.by_asin[f"B00000000{number}"] for number in (1, 2, 3, 5))
    assert desk.options == {"color": ("dark oak", "white | grey", "black"), "size": ("40 inch", "60 inch")}
    assert (desk.price_tag, desk.price, desk.query) == ("$120.5", 120.5, "desks")
    assert folding.price_tag == "$40.0 to $80.0" and 40 <= folding.price <= 80
    assert (shoes.title, shoes.bullets, shoes.price_tag) == ("Women's Running Shoes", ("Rubber sole",), "$100.0")
    assert shoes.options == {"size": ("6", "6.5", "7"), "width": ("7", "wide")}
    assert (tea.price_tag, tea.price) == ("$1005.0", 1005.0)
    assert catalog.by_asin["B000000008"].attributes == ("DUMMY_ATTR",)
    assert desk.indexed_text().endswith(
        "solid wood top  color: dark oak, white | grey, black, and size: 40 inch, 60 inch"
    )


def test_goals_are_all_combinations_with_a_bound_above_the_price(catalog: Catalog) -> None:
    counts = {f"B00000000{number}": count for number, count in ((1, 6), (2, 2), (3, 6), (4, 4), (5, 1), (6, 3))}
    assert {asin: sum(goal.asin == asin for goal in catalog.goals) for asin in counts} == counts
    assert len(catalog.goals) == sum(counts.values())
    goal = goal_of(catalog, "B000000001", "white | grey", "60 inch")
    # 120.5: the next four limits are 130 to 160; the larger of two of them is no 130
    assert goal.price_upper in (140, 150, 160)
    assert goal.instruction == (
        "Find me easy clean desks with solid wood with color: white | grey, and size: 60 inch, "
        f"and price lower than {goal.price_upper:.2f} dollars"
    )
    assert goal.attributes == ("easy clean", "solid wood")
    tea = goal_of(catalog, "B000000005")  # no limit lies above 1005
    assert (tea.instruction, tea.price_upper) == ("Find me gluten free, non gmo tea", 1_000_000)


def test_peoples_goals_replace_the_made_ones() -> None:
    (goal,) = record.fixture(human=read("human")).goals  # the one without attributes is left out
    assert goal.options == (("", "wine red"), ("", "10"))
    assert goal.instruction.startswith("i need wine colored trail shoes in size 10, and price lower than ")
    assert Goal.from_record(json.loads(json.dumps(goal.record()))) == goal


def reward(catalog: Catalog, goal: Goal, asin: str, **options: str) -> float:
    assert catalog.nouns is not None
    return purchase_reward(catalog.by_asin[asin], goal, options, catalog.nouns).total


def test_rewards_by_hand(catalog: Catalog) -> None:
    goal = goal_of(catalog, "B000000001", "white | grey", "60 inch")  # 2 attributes + 2 options + price = 5 parts
    assert reward(catalog, goal, "B000000001", color="white | grey", size="60 inch") == 1
    assert reward(catalog, goal, "B000000001", color="white | grey", size="40 inch") == pytest.approx(4 / 5)
    assert reward(catalog, goal, "B000000001") == pytest.approx(3 / 5)
    # Same query; 3 of 4 nouns (desk, writing; not drawer, oak) -> 2/4; neither attribute; price below the bound.
    assert reward(catalog, goal, "B000000002", color="black") == pytest.approx(1 / 5)
    # A lamp: other query, two shared category steps? only Home & Kitchen; desk is 1 of 4 nouns -> kind 1; price met.
    assert reward(catalog, goal, "B000000007") == pytest.approx(1 / 5)
    # Shoes share no noun: kind 0.
    assert reward(catalog, goal, "B000000003") == 0
    # A tea table has no noun of the green tea's 2 but tea: 1/2 -> kind 1; other attributes; price met: 1/3.
    assert reward(catalog, goal_of(catalog, "B000000005"), "B000000008") == pytest.approx(1 / 3)


def test_kind_of_product_by_shares_of_nouns(catalog: Catalog) -> None:
    """0.5 up to a share of 0.2, 0.1 below 0.1, 0 for none; a query or two category steps make it 1 again."""
    product, other = catalog.by_asin["B000000008"], catalog.by_asin["B000000003"]
    base = goal_of(catalog, "B000000005")
    for nouns, expected in ((5, 0.5), (10, 0.5), (11, 0.1)):
        wanted = ["tea"] + [f"noun{number}" for number in range(nouns - 1)]
        source = NounSource.of({product.title: ["tea"], base.title: wanted, other.title: []})
        assert purchase_reward(product, base, {}, source).kind == expected
        assert purchase_reward(other, base, {}, source).kind == 0
    same = NounSource.of({product.title: ["tea"], base.title: []})
    assert purchase_reward(product, base, {}, same).title_score == 0.2


def test_option_and_attribute_texts() -> None:
    assert plain_color("wine red") == "red" and plain_color("dark oak") == "dark" and plain_color("xl") == "xl"
    assert near("machine washable", "machine wash") and not near("gluten free", "sugar free")
    assert near("Easy  CLEAN", "easy clean") and not near("", "")
    assert meets("wine red", ("", "cherry red")), "both are red"
    assert meets("wine red", ("color", "wine red")) and not meets("1877brown", ("color", "1877brown"))
    assert not meets("x-large", ("size", "xx-large")) and meets("large", ("size", "x-large"))


def test_unreachable_goals_are_left_out(catalog: Catalog) -> None:
    """`7` is a size and a width, and a click sets the width; `description` opens the page of that name."""
    reachable = Reach(catalog)
    out = {goal.asin + str(goal.options) for goal in catalog.goals if not reachable(goal)}
    sizes = [goal for goal in catalog.goals if goal.asin == "B000000003"]
    assert {asin[:10] for asin in out} == {"B000000003", "B000000006"}
    assert {dict(goal.options)["size"] for goal in sizes if reachable(goal)} >= {"6", "6.5"}
    assert not reachable(goal_of(catalog, "B000000006", "description"))
    assert all(reachable(goal) for goal in tasks_of(catalog, Fixes()).values())
    assert len(tasks_of(catalog, STRICT)) == len(catalog.goals)


def test_every_reachable_goal_can_be_bought(catalog: Catalog) -> None:
    """Search the title, open the product, click the wanted options, buy: reward 1 and success."""
    tasks = tasks_of(catalog, Fixes())
    env = WebshopEnv(catalog, tasks)
    for task, goal in tasks.items():
        env.reset(task)
        assert f"click[{goal.asin.lower()}]" in env.step(f"search[{goal.title}]").allowed
        env.step(f"click[{goal.asin}]")
        for _, value in goal.options:
            assert env.step(f"click[{value}]").valid
        step = env.step("click[buy now]")
        assert (step.reward, step.score, step.success, step.done, step.allowed) == (1, 1, True, True, ()), task


def test_transcripts() -> None:
    """Texts, allowed actions, rewards and flags of 36 episodes, in both modes, with and without fixes."""
    assert record.record() == read("transcripts")


def test_pages_by_hand(catalog: Catalog) -> None:
    goal = goal_of(catalog, "B000000006", "assam")
    env: TextEnv = WebshopEnv(catalog, {"hand/0": goal})
    first = env.reset("hand/0")
    assert first.goal == goal.instruction and first.allowed == ("search[<query>]",)
    assert first.text == f"WebShop [SEP] Instruction: [SEP] {goal.instruction} [SEP] Search"
    head = f"Instruction: [SEP] {goal.instruction} [SEP] Back to Search [SEP] "
    step = env.step("search[black tea]")  # tea stands in three products, black in that and as a colour of two desks
    assert step.text.startswith(
        head + "Page 1 (Total results: 5) [SEP] Next > [SEP] B000000006 [SEP] Black Tea, 20 Bags"
    )
    assert step.allowed[:3] == ("click[back to search]", "click[next >]", "click[b000000006]")
    step = env.step("click[B000000006]")
    assert step.text == head + (
        "< Prev [SEP] flavor [SEP] earl grey [SEP] description [SEP] assam [SEP] Black Tea, 20 Bags [SEP] Price: $4.0 "
        "[SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    names = ["back to search", "< prev", "description", "features", "reviews", "buy now", "earl grey", "assam"]
    assert list(step.allowed) == [f"click[{name}]" for name in names]
    before = step.text
    step = env.step("click[assam]")
    assert step.text == before and step.progress, "the choice changes the state, not the text"
    assert not env.step("click[assam]").progress
    assert env.step("click[features]").text == head + "< Prev [SEP] Gluten free"
    assert env.step("click[< prev]").text == before
    assert env.step("click[buy now]").success


@pytest.mark.parametrize(
    "action", ["", "click", "click[]", "Click[search]", "search", "search[]", "go", "click[buy now]", "\n"]
)
def test_what_cannot_be_done_changes_nothing(catalog: Catalog, action: str) -> None:
    env = WebshopEnv(catalog, tasks_of(catalog, Fixes()))
    first = env.reset("train/0")
    step = env.step(action)
    assert (step.text, step.allowed) == (first.text, first.allowed)
    assert (step.reward, step.done, step.success, step.valid, step.progress) == (0, False, False, False, False)


def test_each_fix_can_be_switched_alone(catalog: Catalog) -> None:
    def last(actions: list[str], asin: str, mode: Any, *names: str) -> str:
        goal = next(goal for goal in catalog.goals if goal.asin == asin)
        env = WebshopEnv(catalog, {"x/0": goal}, mode, Fixes.only(names))
        env.reset("x/0")
        return [env.step(action).text for action in actions][-1]

    shelf = ["search[<q> tea]"]
    assert "Total results: 2" in last(shelf, "B000000005", "text")
    assert "WebShop" in last(shelf, "B000000005", "text", "block_backdoors")
    again = ["search[tea]", "click[b000000005]", "click[buy now]", "search[tea]"]
    assert "Total results" in last(again, "B000000005", "text")
    assert "Thank you" in last(again, "B000000005", "text", "end_is_final")
    astray = ["search[item_page lamp]", "click[b000000007]", "click[features]", "click[< prev]"]
    assert "Total results" in last(astray, "B000000001", "text")
    assert "Price: $25.0" in last(astray, "B000000001", "text", "route_by_page")
    marked = ['search["10" shoes]', "click[b000000004]"]
    assert "You have clicked 10." in last(marked, "B000000004", "text_rich")
    assert "clicked" not in last(marked, "B000000004", "text_rich", "marks_by_state")
    accent = ["search[trail]", "click[b000000004]", 'click[café "noir"]']
    assert "clicked" not in last(accent, "B000000004", "text_rich")
    assert 'You have clicked café "noir".' in last(accent, "B000000004", "text_rich", "marks_by_state")
    strict, reach, split = (
        tasks_of(catalog, Fixes.only(n)) for n in ([], ["reachable_goals_only"], ["split_by_product"])
    )
    assert set(reach.values()) < set(strict.values()) and {task.split("/")[0] for task in reach} == {"test"}
    assert set(split.values()) == set(strict.values()) and {task.split("/")[0] for task in split} == {"train", "eval"}


def test_crashes_of_the_original_are_no_ops(catalog: Catalog) -> None:
    """Too few products to draw 50 from, no word after the mark, no attribute table: the original raises."""
    env = WebshopEnv(catalog, tasks_of(catalog, STRICT), "text", STRICT)
    env.reset("test/0")
    assert not any(env.step(action).valid for action in ("search[<r>]", "search[<c>]", "search[<a> tea]"))
    assert env.step("search[<c> grocery]").valid


def test_splits_by_product_go_round_the_products(catalog: Catalog) -> None:
    tasks = tasks_of(catalog, Fixes(), eval_share=0.34)
    sides: dict[str, list[str]] = {"train": [], "eval": []}
    for task, goal in tasks.items():
        sides[task.split("/")[0]].append(goal.asin)
    assert set(sides["train"]).isdisjoint(sides["eval"]) and len(set(sides["eval"])) == 2
    assert len(set(sides["train"][:4])) == 4
    assert tasks_of(catalog, Fixes(), 0.34, "other").keys() != tasks.keys() or list(tasks) != []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prices": {"B000000001": 5.0}}, "no price for product B000000002 among the frozen ones"),
        ({"items": FIXTURE / "nouns.json"}, "is no JSON array of products"),
        ({"items": FIXTURE / "none.json"}, "cannot read"),
        ({"attributes": FIXTURE / "items.json"}, "is no JSON object keyed by product"),
        ({"nouns": FIXTURE / "attributes.json"}, "is no JSON object title -> list of nouns"),
    ],
)
def test_bad_files_give_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        record.fixture(**changes)
    assert "\n" not in str(caught.value)


def test_bad_settings_give_one_clear_line(catalog: Catalog) -> None:
    tasks = tasks_of(catalog, Fixes())
    for call, message in (
        (lambda: WebshopEnv(catalog, tasks, "html"), "unknown observation mode 'html'"),  # type: ignore[arg-type]
        (lambda: WebshopEnv(record.fixture(nouns=None), tasks), "load it with nouns="),
        (lambda: WebshopEnv(catalog, tasks).reset("train/900"), "unknown WebShop task 'train/900'.*train/0"),
        (lambda: WebshopEnv(catalog, tasks).step("search[a]"), "call reset first"),
        (lambda: Fixes.only(["magic"]), "unknown WebShop fix 'magic': expected some of block_backdoors, "),
    ):
        with pytest.raises(EnvError, match=message):
            call()


def test_titles_without_nouns_ask_for_spacy(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    source = NounSource.of({"known": ["a"]})
    assert source("known") == ["a"]
    with pytest.raises(EnvError, match="give a nouns file .* or install spaCy with en_core_web_lg"):
        source("unknown title")
    assert NounSource.of(str.split)("red tea") == ["red", "tea"]


def test_streamed_files_give_the_same_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: Catalog
) -> None:
    """Whatever the size of the pieces that are read; a file that ends early is told apart."""
    for size in (1, 7, 1000):
        monkeypatch.setattr("divopd.envs.webshop.catalog._CHUNK", size)
        paths = {name: FIXTURE / f"{name}.json" for name in ("items", "attributes", "nouns")}
        assert load_catalog(**paths).digest == catalog.digest  # type: ignore[arg-type]
    cut = tmp_path / "cut.json"
    cut.write_text((FIXTURE / "items.json").read_text()[:-40])
    with pytest.raises(EnvError, match="ends within a product"):
        record.fixture(items=cut)
    assert len(record.fixture(items=FIXTURE / "items.json", limit=3).products) == 3
