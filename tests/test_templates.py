"""Prompt templates: fields checked at the start, growing and rewritten histories, and what they do to rows."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from divopd.blank import byte_tokenizer, write_model
from divopd.candidates import gate
from divopd.config import EnvConfig, PolicyConfig, PromptConfig, TrainConfig
from divopd.envs.base import Observation, Step
from divopd.envs.registry import make_envs
from divopd.learner import Learner, merge_rows
from divopd.plan.shapes import Shape
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, load_model
from divopd.prompts import PromptError, Renderer, make_style
from divopd.provenance import config_hash, identity
from divopd.rollout import PlaySettings, play, score
from divopd.runlog import read_table
from divopd.seeds import rng
from divopd.templates import SHIPPED, Past, Template, TemplateStyle, read_template
from divopd.timing import Stopwatch
from divopd.train import check_tokenizers, train
from divopd.types import DropReason

TINY = Shape(32, 2, 2, 1, 48, 320, False, 16)
FIRST = Observation("You see a desk.", "put a mug in desk.", ("look", "help", "go to desk 1"))


def step(text: str, allowed: tuple[str, ...] = ()) -> Step:
    return Step(text, 0.0, False, False, True, True, allowed)


def style(name: str, history: str = "chat", turns: int = 2) -> TemplateStyle:
    made = make_style(PromptConfig(style="chat", template=name, history=history, history_turns=turns), "alfworld")
    assert isinstance(made, TemplateStyle)
    return made


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Student and teacher with one tokenizer of 290 ids, embeddings padded to 300 and 320 rows, as Qwen's sizes are."""
    root, tokenizer = tmp_path_factory.mktemp("bytes"), byte_tokenizer(290)
    for name, rows, seed in (("student", 300, 0), ("teacher", 320, 1)):
        shape = Shape(32, 2, 2, 1, 48, rows, False, 16)
        write_model(root / name, shape, tokenizer, seed)
    return root / "student", root / "teacher"


def test_a_rewritten_prompt_shows_the_last_observations_and_actions(tmp_path: Path):
    text = "{task}|{step}|{history_length}|{history}|{current_step}|{observation}|{admissible}|{{x}}"
    template = Template(
        rewrite=text, exchange="{step}:{observation}>{action}", exchange_between=";", admissible="<{action}>",
        admissible_between=",", leave_out=["help"],
    )  # fmt: skip
    made = TemplateStyle(template, turns=2)
    assert made.first(FIRST) == "put a mug in desk.|0|0||1|You see a desk.|<look>,<go to desk 1>|{x}"
    past = Past("g {task}", "o1")
    for action, answer in (("a1", "o2"), ("a2", "o3 {history}"), ("a3", "o4")):
        past.add(action, answer)
    # braces of the game's own are no fields
    assert made.again(past, ("look",)) == "g {task}|3|2|2:o2>a2;3:o3 {history}>a3|4|o4|<look>|{x}"


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_shipped_templates_show_what_a_teacher_saw(name: str):
    grows, rewrites = style(name), style(name, "rewrite")
    for text in (grows.first(FIRST), rewrites.first(FIRST)):
        assert FIRST.goal in text and FIRST.text in text and "go to desk 1" in text
    follow = grows.follow("look", step("You see a pen.", ("take pen 1",)))
    assert "You see a pen." in follow and FIRST.goal not in follow
    past = Past(FIRST.goal, FIRST.text)
    for action, answer in (("look", "Two."), ("dance", "Three."), ("wait", "Four.")):
        past.add(action, answer)
    again = rewrites.again(past, ("take pen 1",))
    assert all(part in again for part in (FIRST.goal, "Two.", "dance", "Three.", "wait", "Four.", "take pen 1"))
    assert FIRST.text not in again  # three steps back


@pytest.mark.parametrize(
    ("name", "response", "action"),
    [
        ("alfworld", "<think>a</think><action>look</action> or\n<action> go to\ndesk 1 </action>", "go to\ndesk 1"),
        ("webshop", "<think>x</think><action>click[b0]</action>", "click[b0]"),
        ("scienceworld", "Thought: Action: no\nAction:  open door  \n", "open door"),
        ("scienceworld", "Thought: two\nAction: look\n  Action: wait", "wait"),
        ("alfworld", "hm\ngo to desk 1 \n", "go to desk 1"),
        ("scienceworld", " \n", ""),
    ],
)
def test_the_action_of_a_response(name: str, response: str, action: str):
    assert style(name).action(response, ()) == action


def wrong(folder: Path, content: str, *words: str, suffix: str = ".yaml", **config: str) -> None:
    path = folder / f"mine{suffix}"
    path.write_text(content)
    with pytest.raises(PromptError) as caught:
        make_style(PromptConfig(style="chat", template=str(path), **config), "alfworld")
    text = str(caught.value)
    assert "\n" not in text and str(path) in text
    assert all(word in text for word in words), text


def test_a_template_is_checked_before_anything_runs(tmp_path: Path):
    wrong(tmp_path, "first: '{taks}'", "first", "unknown field {taks}", "did you mean {task}?")
    wrong(tmp_path, "first: '{task}'\nfollow: '{history}'", "follow", "unknown field {history}")
    wrong(tmp_path, "first: '{observation.text}'", "unknown field {observation.text}")
    wrong(tmp_path, "first: '{task:>9}'", "unknown field {task}")
    wrong(tmp_path, "first: 'a { b'", "first", "{{ and }}")
    wrong(tmp_path, "frist: a", "unknown key 'frist'", "'first'")
    wrong(tmp_path, "first: a\nfollow: b\naction: '<a>.*</a>'", "action", "0 groups")
    wrong(tmp_path, "first: a\nfollow: b\naction: '('", "action", "regular expression")
    wrong(tmp_path, "first: a", "no text 'follow'", "history: chat")
    wrong(tmp_path, "first: a\nfollow: b", "no text 'rewrite'", history="rewrite")
    wrong(tmp_path, "{task} {observation}", "set prompt.history: rewrite", suffix=".txt")
    wrong(tmp_path, "{tsk}", "rewrite", "{task}", suffix=".txt", history="rewrite")
    wrong(tmp_path, "- a", "expected a mapping")
    for name, words in (("alfwold", "alfworld, scienceworld, webshop"), ("none/x.yaml", "No such file")):
        with pytest.raises(PromptError, match=words):
            make_style(PromptConfig(style="chat", template=name), "alfworld")
    for config in ({"style": "chat", "history": "rewrite"}, {"template": "alfworld"}):
        with pytest.raises(PromptError, match="needs"):
            make_style(PromptConfig(**config), "alfworld")


def test_a_text_file_is_one_prompt_for_every_turn(tmp_path: Path):
    path = tmp_path / "mine.txt"
    path.write_text("{task} {history} {observation}")
    made = style(str(path), "rewrite", turns=1)
    assert made.first(FIRST) == "put a mug in desk.  You see a desk."
    assert made.action("<action>look</action>", ()) == "look"


def test_a_grown_chat_is_the_chat_templates_whole_conversation():
    """With a system message and an argument of the chat template, both of which the paper's teachers may need."""
    tokenizer = byte_tokenizer()
    template = read_template(SHIPPED / "alfworld.yaml")
    made = TemplateStyle(template.model_copy(update={"system": "Be brief.", "chat": {"enable_thinking": False}}))
    renderer, answer = Renderer(tokenizer, made), step("You see a pen.", ("look",))
    said = "<action>look</action>"
    tokens = renderer.first(FIRST).tolist()
    tokens += [*tokenizer.encode(said), renderer.eos, *renderer.follow("look", answer, False).tolist()]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": made.first(FIRST)},
        {"role": "assistant", "content": "<think>\n\n</think>\n\n" + said},
        {"role": "user", "content": made.follow("look", answer)},
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert tokenizer.decode(tokens) == whole


def test_configurations_without_a_template_are_what_they_were(tiny_cell, tmp_path: Path):
    assert PromptConfig(style="chat").model_dump(mode="json") == {
        "style": "chat", "max_prompt_tokens": 10_240, "max_response_tokens": 512, "score_unknown_ids": False,
    }  # fmt: skip
    assert "template" not in identity(tiny_cell())
    path = tmp_path / "mine.yaml"
    path.write_text("{first: a, follow: b}")
    cell = tiny_cell(prompt={"style": "chat", "template": str(path)})
    before = identity(cell)
    path.write_text("{first: a, follow: c}")
    assert identity(cell)["template"] != before["template"] and identity(cell)["config"] == before["config"]
    assert config_hash(cell) != config_hash(tiny_cell(prompt={"style": "chat"}))


def rewriting(models: tuple[Path, Path], path: Path, text: str):
    path.write_text(text)
    made = style(str(path), "rewrite", turns=2)
    renderer = Renderer(byte_tokenizer(290), made)
    policies = [HFPolicy(load_model(PolicyConfig(path=str(folder))), renderer.eos) for folder in models]
    return renderer, policies


def rollouts_of(renderer: Renderer, policies: list[HFPolicy], game_cache: Path, limit: int, turns: int = 4):
    envs = make_envs(EnvConfig(cache_dir=str(game_cache)), 2)
    tasks = [((0, i, 0), f"gen/train/{i}", rng("s", i)) for i in range(2)]
    rollouts = play(policies[0], renderer, envs, tasks, 3, PlaySettings(turns, limit, 3, 1.0), Stopwatch())
    return rollouts, score(policies[1], rollouts, 290, Stopwatch())


SHORT = "{history}#{observation}"


def test_rewritten_turns_are_rows_of_their_own(models, tmp_path: Path, game_cache: Path):
    renderer, policies = rewriting(models, tmp_path / "p.txt", SHORT)
    rollouts, scored = rollouts_of(renderer, policies, game_cache, 2000)
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    assert scored == sum(turn.end for turn in turns)
    for rollout in rollouts:
        env = make_envs(EnvConfig(cache_dir=str(game_cache)), 1)[0]
        observation = env.reset(rollout.task)
        past, allowed = Past(observation.goal, observation.text), observation.allowed
        for turn in rollout.turns:  # the prompt is what the template says of the episode so far, and nothing else
            assert turn.context[: turn.start].tolist() == renderer.again(past, allowed).tolist()
            assert len(turn.context) == turn.end
            for policy, name in zip(policies, ("student_logprobs", "teacher_logprobs"), strict=True):
                context = np.where(turn.context < 290, turn.context, 0) if name == "teacher_logprobs" else turn.context
                [[want]] = policy.score([context], [[(turn.start, turn.end)]])
                np.testing.assert_allclose(getattr(turn, name), want, atol=2e-5)
            answer = env.step(turn.action)
            past.add(turn.action, answer.text)
            allowed = answer.allowed
    assert len({id(turn.context) for turn in turns}) == len(turns)
    assert len(merge_rows(turns)) == sum(gate(turn) is None for turn in turns)


def test_the_gradient_of_rewritten_rows_is_that_of_each_row_alone(models, tmp_path: Path, game_cache: Path):
    renderer, policies = rewriting(models, tmp_path / "p.txt", SHORT)
    rollouts, _ = rollouts_of(renderer, policies, game_cache, 2000, turns=2)
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    base = policies[0].model

    def gradient(batch: list) -> torch.Tensor:
        learner = Learner(copy.deepcopy(base), TrainConfig(learning_rate=1e-9, grad_clip=1e9))
        learner.optimizer.step = lambda *_: None
        learner.update(batch)
        return torch.cat([p.grad.flatten() for p in learner.parameters])

    alone = torch.stack([gradient([turn]) for turn in turns]).mean(0)
    torch.testing.assert_close(gradient(turns), alone, atol=1e-6, rtol=1e-4)


def test_a_rewritten_prompt_may_fit_again_after_one_that_did_not(models, tmp_path: Path, game_cache: Path):
    """The first observation lists the room and is past the limit; "Nothing happens." is not."""
    renderer, policies = rewriting(models, tmp_path / "p.txt", "{observation}")
    [rollout, other], scored = rollouts_of(renderer, policies, game_cache, 90)
    first, *later = rollout.turns
    assert gate(first) is DropReason.PROMPT_TRUNCATED and first.response_tokens == 0 and first.row_tokens == 90
    assert first.action == "" and [gate(turn) for turn in later] == [None] * 3
    assert scored == sum(turn.end for turn in [*later, *other.turns[1:]])


def test_padded_vocabularies_of_two_sizes(models, tmp_path: Path, game_cache: Path):
    """Rows of an embedding that no token uses: a student may sample them, a teacher says nothing of them."""
    renderer, policies = rewriting(models, tmp_path / "p.txt", SHORT)
    with torch.no_grad():
        policies[0].model.get_output_embeddings().weight[290:] *= 20  # so that it does
    rollouts, _ = rollouts_of(renderer, policies, game_cache, 2000)
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    responses = [turn.context[turn.start : turn.end] for turn in turns]
    assert any((tokens >= 290).any() for tokens in responses)
    for turn, tokens in zip(turns, responses, strict=True):
        np.testing.assert_array_equal(turn.teacher_mask, tokens < 290)
        assert gate(turn) is (None if (tokens < 290).any() else DropReason.NO_VALID_TOKEN)
    stats = Learner(policies[0].model, TrainConfig()).update(turns)
    assert stats["valid_tokens"] == sum(int((tokens < 290).sum()) for tokens in responses)


def test_tokenizers_that_share_ids():
    thinks, plain = byte_tokenizer(292, ("<think>", "</think>")), byte_tokenizer(290)
    assert check_tokenizers(thinks, plain) == 290  # Qwen3's marks are ids that a Qwen2.5 teacher lacks
    assert check_tokenizers(plain, thinks) == 292
    with pytest.raises(PolicyError, match=r"tokenizers differ \(\d+ ids, such as .*one family"):
        check_tokenizers(byte_tokenizer(291), plain)


def test_a_cell_with_rewritten_history(models, tiny_cell, tmp_path: Path):
    """The trainer itself: selection, learner, evaluation checkpoints and resume points over rows that share nothing."""
    student, teacher = ({"path": str(folder)} for folder in models)
    prompt = {"style": "chat", "template": "alfworld", "history": "rewrite", "max_prompt_tokens": 3000,
              "max_response_tokens": 3}  # fmt: skip
    cell = tiny_cell(
        "divopd", student=student, teacher=teacher, prompt=prompt,
        train={"updates": 2, "batch_rows": 4, "learning_rate": 1e-3}, pipeline={"tasks_per_step": 2, "save_every": 1},
    )  # fmt: skip
    cell = cell.model_copy(update={"env": cell.env.model_copy(update={"max_turns": 3})})
    assert train(cell, tmp_path / "run", lambda *_: None) == "done"
    updates = read_table(tmp_path / "run", "updates").to_pylist()
    for row in updates:  # computed apart: all that padding leaves is the rows' own tokens, less their last
        assert row["computed_tokens"] >= row["row_tokens"] - row["rows"]


REAL = os.environ.get("DIVOPD_TOKENIZER")


@pytest.mark.skipif(not REAL, reason="DIVOPD_TOKENIZER names no folder with a tokenizer that has a chat template")
def test_with_a_real_tokenizer():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(REAL)
    for name in ("alfworld", "webshop", "scienceworld"):
        made = style(name)
        renderer, answer = Renderer(tokenizer, made), step("You see a pen.", ("look",))
        tokens = renderer.first(FIRST).tolist() + tokenizer.encode("look", add_special_tokens=False) + [renderer.eos]
        tokens += renderer.follow("look", answer, False).tolist()
        messages = [
            {"role": "user", "content": made.first(FIRST)},
            {"role": "assistant", "content": "look"},
            {"role": "user", "content": made.follow("look", answer)},
        ]
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert tokens == tokenizer.encode(whole, add_special_tokens=False)
