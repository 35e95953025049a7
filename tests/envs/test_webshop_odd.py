"""Odd products and goals: what is wrong is one line with file, entry and field, the rest is sold."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from divopd.config import EnvConfig
from divopd.envs.base import EnvError
from divopd.envs.registry import make_envs
from divopd.envs.webshop import STRICT, Catalog, Goal, WebshopEnv, load_catalog, tasks_of

FIXTURE = Path(__file__).resolve().parent / "webshop_fixture"
FILES = {"items": "items_shuffle.json", "attributes": "items_ins_v2.json", "human": "items_human_ins.json"}
ASIN = "B000000001"


def read(name: str) -> Any:
    return json.loads((FIXTURE / f"{name}.json").read_text())


def read_goal() -> dict[str, Any]:
    catalog = load_catalog(read("items")[:1], read("attributes"), nouns=read("nouns"))
    return catalog.goals[0].record()


# --- files that are wrong --------------------------------------------------------------------------------------------


def folder(tmp_path: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """The fixture as the official files, one of them changed."""
    for kind, file in FILES.items():
        content = read(kind)
        if kind == name:
            changed = change(content)
            content = content if changed is None else changed
        (tmp_path / file).write_text(json.dumps(content))
    (tmp_path / "title_nouns.json").write_text((FIXTURE / "nouns.json").read_text())
    return tmp_path


def set_item(**fields: Any) -> Callable[[Any], None]:
    return lambda items: items[0].update(fields)


def drop_item(key: str) -> Callable[[Any], None]:
    def change(items: Any) -> None:
        del items[0][key]

    return change


def values(given: Any) -> dict[str, Any]:
    return {"customization_options": {"Color": given}}


PRODUCTS = [
    (drop_item("asin"), "product 0: asin is missing"),
    (set_item(asin=5), "product 0: asin is 5 where text is due"),
    (lambda items: ["B1"], "product 0: 'B1' where an object is due"),
    *(
        (drop_item(key), f"product 0 (B000000001): {key} is missing")
        for key in ("name", "full_description", "small_description", "category", "query", "product_category",
                    "customization_options")
    ),
    *(
        (set_item(**{key: None}), f"product 0 (B000000001): {key} is None where text is due")
        for key in ("name", "full_description", "category", "query", "product_category")
    ),
    (set_item(small_description=["a", 3]), "small_description[1] is 3 where text is due"),
    (set_item(small_description=None), "small_description[0] is None where text is due"),
    (set_item(pricing="cheap"), "pricing is 'cheap' where an amount after $ is due"),
    (set_item(pricing="$"), "pricing is '$' where an amount"),
    (set_item(pricing="$1.2.3"), "pricing is '$1.2.3' where an amount"),
    (set_item(pricing=[7]), "pricing is [7] where text is due"),
    (set_item(pricing="$" + "9" * 400), "where an amount after $ is due"),
    (set_item(customization_options="red"), "customization_options is 'red' where an object is due"),
    (set_item(**values("red")), "customization_options.Color is 'red' where a list is due"),
    (set_item(**values(["red"])), "'red' where an object is due"),
    (set_item(**values([{"value": "red"}, {"value": 7}])), "options.Color[1].value is 7 where text is due"),
    (set_item(**values([{}])), "value is missing"),
    (lambda items: [], "holds no product"),
]  # fmt: skip
ATTRIBUTES = [
    (lambda about: about | {ASIN: 5}, "B000000001: 5 where an object is due"),
    (lambda about: about | {ASIN: {"attributes": "soft"}}, "B000000001: attributes is 'soft' where a list is due"),
    (lambda about: about | {ASIN: {"attributes": None}}, "B000000001: attributes is None where a list is due"),
    (lambda about: about | {ASIN: {"attributes": [1]}}, "B000000001: attributes[0] is 1 where text is due"),
    (lambda about: about[ASIN].pop("instruction_attributes") and None, "B000000001: instruction_attributes is missing"),
    (lambda about: about[ASIN].update(instruction_attributes=[]), "B000000001: instruction_attributes is empty where"),
    (lambda about: about[ASIN].update(instruction_attributes="x"), "instruction_attributes is 'x' where a list is due"),
    (lambda about: about[ASIN].update(instruction=3), "B000000001: instruction is 3 where text is due"),
]
PEOPLE = [
    *(
        (lambda human, key=key: human["B000000004"][0].pop(key) and None, f"B000000004[0]: {key} is missing")
        for key in ("instruction", "instruction_options", "instruction_attributes")
    ),
    (lambda human: {"B000000004": human["B000000004"][0]}, "B000000004: its entry is {'asin': 'B000000004', 'ins"),
    (lambda human: {"B000000004": None}, "B000000004: its entry is None where a list is due"),
    (lambda human: {"B000000004": ["buy"]}, "B000000004[0]: 'buy' where an object is due"),
    *(
        (lambda human, key=key, odd=odd: human["B000000004"][0].update({key: odd}), f"B000000004[0]: {key}{said}")
        for key, odd, said in (
            ("instruction", None, " is None where text is due"),
            ("instruction_attributes", None, " is None where a list is due"),
            ("instruction_attributes", "soft", " is 'soft' where a list is due"),
            ("instruction_attributes", [{"a": 1}], "[0] is {'a': 1} where text is due"),
            ("instruction_options", None, " is None where a list is due"),
            ("instruction_options", "red", " is 'red' where a list is due"),
            ("instruction_options", [{"color": "red"}], "[0] is {'color': 'red'} where text is due"),
            ("instruction_options", {"color": 5}, ".color is 5 where text is due"),
        )
    ),
]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [(kind, *case) for kind, cases in (("items", PRODUCTS), ("attributes", ATTRIBUTES), ("human", PEOPLE))
     for case in cases],
)  # fmt: skip
def test_a_wrong_entry_is_named(kind: str, change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    source = folder(tmp_path, kind, change)
    options = {"goals": "people" if kind == "human" else "synthetic"}
    with pytest.raises(EnvError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_envs(EnvConfig(name="webshop", source=str(source), options=options), 1)
    said = str(caught.value)
    assert said.startswith(f"{source / FILES[kind]}") and message in said and "\n" not in said and len(said) < 400


@pytest.mark.parametrize(
    "key", ["asin", "query", "name", "product_category", "attributes", "price_upper", "goal_options"]
)
def test_a_frozen_goal_that_lacks_a_field_is_named(key: str) -> None:
    good = read_goal()
    with pytest.raises(EnvError, match=f"^goal 1: {key} is missing$"):
        load_catalog(read("items")[:1], {}, goals=[good, {k: v for k, v in good.items() if k != key}])
    with pytest.raises(EnvError, match=f"^goal 0: {key}.* is "):
        load_catalog(read("items")[:1], {}, goals=[good | {key: None}])


def test_a_nouns_file_with_something_else_is_named(tmp_path: Path) -> None:
    source = folder(tmp_path, "items", lambda items: None)
    (source / "title_nouns.json").write_text(json.dumps({"red tea": ["tea", 5]}))
    with pytest.raises(EnvError, match=r"^the nouns file .*title_nouns.json: 'red tea'\[1\] is 5 where text is due$"):
        make_envs(EnvConfig(name="webshop", source=str(source)), 1)


def test_a_shop_without_a_goal_says_so(tmp_path: Path) -> None:
    source = folder(tmp_path, "human", lambda human: {})
    with pytest.raises(EnvError, match="none of its products has a goal"), pytest.warns(UserWarning, match="left out"):
        make_envs(EnvConfig(name="webshop", source=str(source), options={"goals": "people"}), 1)


def test_files_that_are_no_text_or_begin_with_a_mark(tmp_path: Path) -> None:
    marked = tmp_path / "items.json"
    marked.write_bytes(b"\xef\xbb\xbf" + (FIXTURE / "items.json").read_bytes())
    about = tmp_path / "about.json"
    about.write_bytes(b"\xef\xbb\xbf" + (FIXTURE / "attributes.json").read_bytes())
    with pytest.warns(UserWarning, match="left out"):
        catalog = load_catalog(marked, about)
        plain = load_catalog(FIXTURE / "items.json", FIXTURE / "attributes.json")
    assert catalog.digest == plain.digest
    marked.write_bytes(b"[\xff\xfe")
    with pytest.raises(EnvError, match=r"^cannot read .*items.json: .*can't decode byte"):
        load_catalog(marked, about)


# --- odd, and not wrong ----------------------------------------------------------------------------------------------


def test_what_the_original_leaves_out_is_counted(tmp_path: Path) -> None:
    source = folder(tmp_path, "items", lambda items: None)
    paths = [source / FILES[kind] for kind in ("items", "attributes", "human")]
    with pytest.warns(UserWarning) as caught:
        load_catalog(paths[0], paths[1], paths[2])
    assert [str(one.message) for one in caught] == [
        f"{paths[0]}: products whose asin is nan, too long or repeated: 3 left out, as the original does",
        f"{paths[2]}: instructions with no attribute: 1 left out, as the original does",
    ]


def whole_shop(change: Callable[[Any], Any], people: Any = None) -> Catalog:
    items = copy.deepcopy(read("items"))
    change(items)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_catalog(items, read("attributes"), people, nouns=read("nouns"))


@pytest.mark.parametrize(
    "change",
    [
        set_item(pricing=None),
        set_item(pricing=""),
        drop_item("pricing"),
        set_item(small_description=[]),
        set_item(small_description=""),
        set_item(name=""),
        set_item(customization_options=None),
        set_item(customization_options=[]),
        set_item(customization_options={"Color": None, "": [{"value": "x"}]}),
        set_item(customization_options={"Color": [], "Size": [{"value": ""}]}),
        set_item(customization_options={"Color": [{"value": "a"}], "COLOR": [{"value": "b"}, {"value": "B "}]}),
    ],
)
def test_odd_products_are_sold(change: Callable[[Any], Any]) -> None:
    catalog = whole_shop(change)
    tasks = tasks_of(catalog, STRICT)
    env = WebshopEnv(catalog, tasks, fixes=STRICT)
    for task in tasks:
        env.reset(task)
        env.step("search[oak desk]")
        step = env.step(f"click[{ASIN}]")
        for action in step.allowed:
            assert env.step(action).valid
            env.step("search[oak desk]")
            env.step(f"click[{ASIN}]")
        assert env.step("click[buy now]").done


def test_a_persons_options_may_be_named() -> None:
    people = read("human")
    people["B000000004"][0]["instruction_options"] = {"color": "wine red", "size": "10"}
    [goal] = whole_shop(lambda items: None, people).goals
    assert goal.options == (("color", "wine red"), ("size", "10"))
    assert Goal.from_record(goal.record()) == goal
