"""What a cell reads is looked at before it trains: each malformed input is one line of `doctor`, and of `train`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from divopd import preflight
from divopd.cli import main
from divopd.config import EnvConfig
from divopd.doctor import SetupError, examine, require
from divopd.envs.base import EnvError
from divopd.envs.registry import eval_tasks, plugin, read_panel, require_tasks
from divopd.evaluate import Evaluator
from divopd.suite import load_suite, read_config_file
from divopd.templates import read_template

ROOT = Path(__file__).resolve().parent.parent
Change = Callable[[dict[str, Any], Path], None]


def panel(text: str | bytes) -> Change:
    def change(cell: dict[str, Any], models: Path) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        Path(cell["env"]["eval_panel"]).write_bytes(data)

    return change


def field(section: str, key: str, value: Any) -> Change:
    return lambda cell, models: cell[section].update({key: value})


def edited(name: str, **keys: Any) -> Change:
    """Of both checkpoints; None takes a key out."""

    def change(cell: dict[str, Any], models: Path) -> None:
        for path in models.glob(f"*/{name}"):
            content = json.loads(path.read_text()) | keys
            path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def written(name: str, text: str | None, who: str = "*") -> Change:
    """A file of a checkpoint; None takes it away."""

    def change(cell: dict[str, Any], models: Path) -> None:
        for path in models.glob(f"{who}/{name}"):
            path.unlink() if text is None else path.write_text(text)

    return change


def cut(cell: dict[str, Any], models: Path) -> None:
    path = models / "teacher" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def sharded(cell: dict[str, Any], models: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (models / "student" / "model.safetensors.index.json").write_text(json.dumps(index))


def silent(cell: dict[str, Any], models: Path) -> None:
    edited("tokenizer_config.json", eos_token=None)(cell, models)
    edited("config.json", eos_token_id=None)(cell, models)
    edited("generation_config.json", eos_token_id=None)(cell, models)
    written("chat_template.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}")(cell, models)


TEACHERS = "{% for m in messages %}{{ m.content }}{{ '<pad>' if m.role == 'assistant' else '<act>' }}{% endfor %}"
BAD: dict[str, tuple[Change, str]] = {
    "no panel": (field("env", "eval_panel", "no.txt"), "panel no.txt: cannot be read (No such file or directory)"),
    "a folder": (field("env", "eval_panel", "."), "panel .: cannot be read (Is a directory)"),
    "an empty panel": (panel(""), "is empty: it lists task ids"),
    "comments alone": (panel("# gen/eval/0\n  # gen/eval/1\n"), "is empty"),
    "not text": (panel(b"\xff\xfeg\0e\0n\0"), "cannot be read (not UTF-8 text)"),
    "twice": (panel("gen/eval/0\ngen/eval/1\ngen/eval/2\ngen/eval/1\n"), "it has gen/eval/1 2 times"),
    "too few": (field("evaluation", "episodes", 4), "has 3 tasks, evaluation asks for 4: lower evaluation.episodes"),
    "of another environment": (panel("find-animal/1\nfind-animal/2\nfind-animal/3\n"), "not a generated task id"),
    "of another source": (panel("valid_seen/a/b\ngen/eval/1\ngen/eval/2\n"), "task id: 'valid_seen/a/b'"),
    "training tasks": (field("env", "train_tasks", "test/train/0:4"), "env.train_tasks: not a generated task id"),
    "none to train on": (field("env", "train_tasks", "gen/train/4:4"), "env.train_tasks: gen/train/4:4 is empty"),
    "no chat template": (written("chat_template.jinja", None), "has no chat template"),
    "a template that raises": (written("chat_template.jinja", "{{ raise_exception('tools') }}"), "raises tools"),
    "a malformed template": (written("chat_template.jinja", "{% for m in %}"), "chat template of"),
    "a template without words": (written("chat_template.jinja", "hello"), "changes the words of a user message"),
    "no end": (silent, "nothing says how a response of"),
    "another end": (written("chat_template.jinja", TEACHERS, "teacher"), "with '<pad>', the student's with '<end>'"),
    "a malformed tokenizer": (written("tokenizer.json", "{"), "tokenizer of"),
    "no config": (written("config.json", "[]"), "config.json is not a JSON object"),
    "weights cut short": (cut, "model.safetensors is cut short or damaged"),
    "a Git LFS pointer": (written("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), "is cut short"),
    "a shard missing": (sharded, "model-00002-of-00002.safetensors is missing"),
    "few embeddings": (edited("config.json", vocab_size=3), "and the model has 3 embeddings"),
}  # fmt: skip


@pytest.fixture
def cell(tiny_cell, tiny_models, tmp_path, monkeypatch) -> tuple[dict[str, Any], Path]:
    """A resolved cell as plain data, and the folder of its own copy of the models."""
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models"
    shutil.copytree(tiny_models, models)
    made = tiny_cell(**{who: {"path": str(models / who)} for who in ("student", "teacher")})
    return made.model_dump(mode="json"), models


def run(*args: Any) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    return result.exit_code, result.output.splitlines()


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_before_training(cell, tmp_path, name):
    content, models = cell
    change, words = BAD[name]
    change(content, models)
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(content))
    code, lines = run("train", "--config", "cell.yaml", "--out", "out")
    assert code == 1 and len(lines) == 1 and words in lines[0] and "(unexpected)" not in lines[0], lines
    assert not (tmp_path / "out").exists()
    with pytest.raises(SetupError) as caught:
        require(read_config_file(tmp_path / "cell.yaml"), tmp_path)
    found = [
        check
        for check in examine(tmp_path, [read_config_file(tmp_path / "cell.yaml")])
        if check.needed and not check.ok
    ]
    assert f"{found[0].name}: {found[0].detail}" == str(caught.value)
    assert all("\n" not in check.detail for check in found)


def test_doctor_says_it_of_a_suite(cell, tmp_path):
    content, models = cell
    written("chat_template.jinja", None)(content, models)
    content["evaluation"]["episodes"] = 9
    (tmp_path / "settings").mkdir()
    sections = ("student", "teacher", "env", "prompt", "train", "pipeline", "evaluation")
    (tmp_path / "settings" / "one.yaml").write_text(yaml.safe_dump({key: content[key] for key in sections}))
    suite = {"name": "s", "settings": ["one"], "methods": {"vanilla": {}}}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    code, lines = run("doctor", "suite.yaml")
    bad = [line for line in lines if line.startswith("MISSING")]
    assert code == 1 and len(bad) == 2, lines
    assert "has 3 tasks, evaluation asks for 9" in bad[0] and "has no chat template" in bad[1]


def test_evaluation_stops_before_it_loads_a_model(cell, tmp_path, monkeypatch):
    content, _ = cell
    panel("gen/eval/0\ngen/eval/1\nfind-animal/1\n")(content, tmp_path)
    monkeypatch.setattr("divopd.evaluate.make_policy", lambda *_: pytest.fail("a model was loaded"))
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(EnvError, match=r"panel .*panel.txt: not a generated task id: 'find-animal/1'"):
        Evaluator(read_config_file(tmp_path / "cell.yaml"))


# files as editors write them -----------------------------------------------------------------------------------------

PANEL = "# a title\ngen/eval/0\ngen/eval/1\ngen/eval/2\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + PANEL.encode(),
        PANEL.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbfgen/eval/0\r\ngen/eval/1\r\n\r\ngen/eval/2",
        b"  # a title\n\tgen/eval/0\n  gen/eval/1 # the second\n\ngen/eval/2  \n",
    ],
)
def test_a_panel_as_editors_write_it(tmp_path, data):
    (tmp_path / "panel.txt").write_bytes(data)
    config = EnvConfig(eval_panel=str(tmp_path / "panel.txt"))
    assert eval_tasks(config, 3) == ["gen/eval/0", "gen/eval/1", "gen/eval/2"]


def test_a_template_as_editors_write_it(tmp_path):
    for name, text in (("a.txt", "{task}\n{observation}\n"), ("b.yaml", 'rewrite: "{task}"\n')):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_template(tmp_path / "a.txt").rewrite == "{task}\n{observation}\n"
    assert read_template(tmp_path / "b.yaml").rewrite == "{task}"


# every environment knows its tasks -----------------------------------------------------------------------------------

SHIPPED = {
    "alfworld": "alfworld_eval.txt",
    "scienceworld": "scienceworld_short_eval.txt",
    "webshop": "webshop_eval.txt",
}


@pytest.mark.parametrize("env", SHIPPED)
def test_an_environment_refuses_what_its_source_has_not(env):
    config, panels = EnvConfig(name=env), ROOT / "experiments" / "panels"
    require_tasks(config, read_panel(panels / SHIPPED[env]), "here")
    others = [
        read_panel(panels / file) for other, file in SHIPPED.items() if other != env and "scienceworld" in (env, other)
    ]
    for tasks in [*others, ["nowhere/0"], ["gen/eval/-1"], ["gen/eval"], [""]]:
        with pytest.raises(EnvError, match=r"^here: "):
            require_tasks(config, tasks[:1], "here")


def test_webshop_counts_its_tasks():
    config = EnvConfig(name="webshop")
    last = plugin("webshop").tasks(config, "gen/eval")[-1]
    require_tasks(config, [last], "here")
    number = int(last.rpartition("/")[2]) + 1
    with pytest.raises(EnvError, match=f"unknown WebShop task 'gen/eval/{number}'"):
        require_tasks(config, [f"gen/eval/{number}"], "here")


def test_official_files(tmp_path, monkeypatch):
    with pytest.raises(EnvError, match="no such file: items_shuffle"):
        require_tasks(EnvConfig(name="webshop", source=str(tmp_path)), ["eval/0"], "here")
    names = {"items": "items_shuffle", "attributes": "items_ins_v2", "human": "items_human_ins", "nouns": "title_nouns"}
    for name, stem in names.items():
        shutil.copy(ROOT / "tests" / "envs" / "webshop_fixture" / f"{name}.json", tmp_path / f"{stem}.json")
    shop = EnvConfig(name="webshop", source=str(tmp_path), options={"goals": "people"})
    first = plugin("webshop").tasks(shop, "train")[0]
    for limit in (plugin("webshop")._LARGE, 0):  # the catalogue is read, and is too large to be read
        monkeypatch.setattr(plugin("webshop"), "_LARGE", limit)
        require_tasks(shop, [first], "here")
        for task in ("gen/eval/0", "train/x", "find-animal/1", *(["train/99999"] if limit else [])):
            with pytest.raises(EnvError, match="here: unknown WebShop task"):
                require_tasks(shop, [task], "here")
    game = tmp_path / "valid_seen" / "a" / "b" / "game.tw-pddl"
    game.parent.mkdir(parents=True)
    game.write_text("{}")
    official = EnvConfig(source=str(tmp_path))
    require_tasks(official, ["valid_seen/a/b"], "here")
    for task in ("valid_seen/a/c", "../valid_seen/a/b", str(game.parent), "gen/eval/0"):
        with pytest.raises(EnvError, match="here: unknown ALFWorld task"):
            require_tasks(official, [task], "here")


@pytest.mark.slow
def test_the_demo_s_cells_take_a_second(monkeypatch):
    monkeypatch.chdir(ROOT)
    cells = {cell.setting: cell for cell in load_suite("experiments/demo.yaml")}
    for _ in range(2):  # the first time imports transformers
        begin = time.process_time()
        assert all(check.ok for cell in cells.values() for check in preflight.of_cell(cell, playable=True))
        spent = time.process_time() - begin
    assert spent < 1.0
