"""What README.md and CONTRIBUTING.md tell a newcomer to do, done in a copy of the checkout."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from divopd.selection import shipped_rules

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = "unsure_and_fresh"


class Checkout:
    """The copy, and what one runs in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, *command]
        return subprocess.run(whole, capture_output=True, text=True, cwd=self.root, env=self.environ, timeout=300)

    def divopd(self, *command: str) -> str:
        done = self.run("-m", "divopd.cli", *command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def passes(self, which: str, *files: str) -> int:
        """How many tests of these files passed; all that `which` selects."""
        done = self.run("-m", "pytest", "-p", "no:cacheprovider", "-k", which, *files)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr
        found = re.search(r"(\d+) passed", done.stdout)
        assert found and "error" not in done.stdout.splitlines()[-1] and "skipped" not in done.stdout, done.stdout
        return int(found[1])

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.root / file).read_text()
        assert old in text, f"{file} has no {old!r}"
        (self.root / file).write_text(text.replace(old, new, 1))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for part in ("divopd", "baselines", "experiments", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "test_first_steps.py")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    for part in ("README.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(ROOT / part, tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    return Checkout(tmp_path)


@pytest.mark.slow
def test_the_readmes_rule(checkout: Checkout) -> None:
    """Saved where its first line says, tested, listed, named in the demo, trained."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    saved = re.match(r"# (baselines/\w+\.py)\n", code)
    assert saved and saved[1] == f"baselines/{EXAMPLE}.py"
    (checkout.root / saved[1]).write_text(code)
    contract = "tests/test_rules_contract.py"
    one = checkout.passes(EXAMPLE, contract)
    assert checkout.passes(f"{EXAMPLE} or README or top_b", contract) == 3 * one > 40
    assert [line.split()[0] for line in checkout.divopd("rules").splitlines()] == sorted([*shipped_rules(), EXAMPLE])
    assert "decay: float = 0.5" in checkout.divopd("rules", EXAMPLE)
    checkout.edit("experiments/demo.yaml", "  vanilla: {}\n", f"  vanilla: {{}}\n  {EXAMPLE}: {{}}\n")
    checkout.edit("experiments/demo.yaml", "updates: 32", "updates: 2")
    assert EXAMPLE in checkout.divopd("plan", "experiments/demo.yaml")
    checkout.divopd("train", "--suite", "experiments/demo.yaml", "-s", "alfworld-0.5m", "-m", EXAMPLE)
    assert list((checkout.root / "results").rglob(f"{EXAMPLE}/seed0/status.json"))


@pytest.mark.slow
def test_a_new_rule_as_contributing_says(checkout: Checkout) -> None:
    said = checkout.divopd("new-rule", "my_rule")
    assert "wrote" in said and "a row in docs/rules.md" in said
    checkout.edit("docs/rules.md", "| `uniform` |", "| `my_rule` | the longest responses first | ours |\n| `uniform` |")
    assert checkout.passes("my_rule", "tests/test_rules_contract.py", "tests/test_rule_my_rule.py") > 10
    assert checkout.passes(
        "guide_lists or lists_one or hand_worked_test", "tests/test_rules_commands.py", "tests/test_rules_handworked.py"
    ) == 3  # fmt: skip
    suite = "  my_rule: {}\n  my_rule_k3: {rule: my_rule, params: {power: 3.0}}\n"
    checkout.edit("experiments/demo.yaml", "  vanilla: {}\n", "  vanilla: {}\n" + suite)
    assert "my_rule_k3" in checkout.divopd("plan", "experiments/demo.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(pool, budget, seed:\n", "cannot be imported: SyntaxError"),
        ("import sys\nsys.exit(0)\n", "cannot be imported: SystemExit: 0"),
        ("def broken(pool, budget): ...\n", "where one rule is due"),
    ],
)
def test_a_broken_rule_leaves_the_others_alone(text: str, said: str, checkout: Checkout) -> None:
    (checkout.root / "baselines" / "broken.py").write_text(text)
    listed = checkout.run("-m", "divopd.cli", "rules")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(shipped_rules())
    assert listed.returncode == 1 and "broken.py" in listed.stderr and said in listed.stderr
    assert len(listed.stderr.splitlines()) == 1
    assert "cap: int = 4" in checkout.divopd("rules", "divopd")
    assert checkout.passes("top_b and not million", "tests/test_rules_contract.py") > 10
    replayed = checkout.run("-c", "from divopd.selection import available_rules as a; print(*a())")
    assert replayed.stdout.split() == list(shipped_rules()) and replayed.stderr.count("left out: rule file broken") == 1


@pytest.mark.slow
def test_a_method_as_contributing_says(checkout: Checkout) -> None:
    (checkout.root / "experiments" / "methods" / "mine.yaml").write_text(
        "description: Vanilla with another loss\nrule: vanilla\nrollout: {policy: recovery}\nloss: {name: jsd}\n"
    )
    checkout.edit("experiments/demo.yaml", "  vanilla: {}\n", "  vanilla: {}\n  mine: {}\n")
    assert checkout.passes("mine", "tests/test_methods.py") == 1
    assert "mine" in checkout.divopd("plan", "experiments/demo.yaml")


PLUGIN = '''"""Buttons: press the one that the goal names."""

import re

from divopd.config import Strict
from divopd.envs.base import EnvError, Observation, Step

COMPILES = False
BUTTONS = tuple(f"press {n}" for n in "zero one two three four five six seven eight nine".split())


class Options(Strict):
    """There are none."""


class Buttons:
    name = "buttons"
    goal = ""

    def reset(self, task):
        found = re.fullmatch(r"gen/(train|eval)/(0|[1-9][0-9]*)", task)
        if found is None:
            raise EnvError(f"unknown task {task!r}: ids are gen/train/<number> and gen/eval/<number>")
        self.goal = BUTTONS[int(found[2]) % 10]
        return Observation("a wall", self.goal, BUTTONS)

    def step(self, action):
        if not self.goal:
            raise EnvError("no episode is running: call reset first")
        valid, won = action in BUTTONS, action == self.goal
        return Step("ok" if valid else "no", float(won), won, won, valid, valid, BUTTONS)

    def close(self):
        self.goal = ""


class Words:
    def first(self, observation):
        return f"{observation.goal} {observation.text}"

    def follow(self, action, step):
        return step.text

    def action(self, response, allowed):
        return f"press {response.strip()}"

    def response(self, action, allowed):
        return short(action, allowed)


class Expert:
    def reset(self, goal, text):
        self.goal = goal

    def observe(self, action, text):
        pass

    def distribution(self, allowed):
        return {self.goal: 1.0}


def make(config, count):
    return [Buttons() for _ in range(count)]


def tasks(config, split):
    raise EnvError(f"no split {split!r}")


def check_tasks(config, tasks):
    for task in tasks:
        Buttons().reset(task)


def style():
    return Words()


def words():
    return ["press", "a", "wall", "ok", "no", *(button.split()[1] for button in BUTTONS)], []


def players(habits):
    return {"expert": Expert, "novice": Expert}


def short(command, allowed):
    return command.split()[1]
'''


@pytest.mark.slow
def test_an_environment_as_contributing_says(checkout: Checkout) -> None:
    """A folder with a plugin.py, its name in EnvConfig.name, a frozen panel and settings: the contract runs over it."""
    folder, experiments = checkout.root / "divopd" / "envs" / "buttons", checkout.root / "experiments"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "plugin.py").write_text(PLUGIN)
    checkout.edit("divopd/config.py", '"webshop"] = "alfworld"', '"webshop", "buttons"] = "alfworld"')
    panel = experiments / "panels" / "buttons_eval.txt"
    panel.write_text("".join(f"gen/eval/{i}\n" for i in range(100)))
    with (experiments / "panels" / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(panel.read_bytes()).hexdigest()}  {panel.name}\n")
    policies = "student: {path: models/alfworld/student-0.5m}\nteacher: {path: models/alfworld/teacher}\ncap: 4\n"
    policies += "recovery: {patience: 2, max_turns: 6, warmup_updates: 0}\n"
    env = "env: {name: buttons, eval_panel: experiments/panels/buttons_eval.txt}\nprompt: {style: compact}\n"
    for size in ("0.5m", "2m"):
        (experiments / "settings" / f"buttons-{size}.yaml").write_text(policies + env)
    assert checkout.passes("buttons or frozen", "tests/envs/test_contract.py") == 11
    done = checkout.run("-c", "from divopd.cli import main; main(['play', 'buttons'])")
    assert done.returncode == 0 and "press zero" in done.stdout, done.stderr
    checkout.edit("experiments/demo.yaml", "settings: [", "settings: [buttons-0.5m, ")
    assert "panel experiments/panels/buttons_eval.txt: 100 tasks" in checkout.divopd("doctor", "experiments/demo.yaml")
    needs = checkout.run("-c", "from divopd.doctor import engine; print(engine('buttons'))")  # asked before training
    assert "no package of its own" in needs.stdout, needs.stderr
