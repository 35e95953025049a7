"""Chat templates of many shapes: which token ends a turn, what surrounds messages, one line where neither is told."""

from __future__ import annotations

import datetime
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from divopd.blank import byte_tokenizer
from divopd.config import CHAT_DATE, PolicyConfig
from divopd.envs.base import Observation, Step
from divopd.evaluate import evaluate_run
from divopd.policies import vllm
from divopd.policies.base import PolicyError
from divopd.policies.hf import HFPolicy, declared_ends, load_model
from divopd.policies.lean import LeanDecoder
from divopd.prompts import ChatStyle, PromptError, Renderer
from divopd.provenance import config_hash
from divopd.runlog import read_table
from divopd.seeds import rng
from divopd.templates import Template, TemplateStyle
from divopd.train import train
from train_runs import quiet

FIRST = Observation(" You see a desk.\n", "look", ("look",))
ANSWER = Step("You see a pen.", 0.0, False, False, True, True, ("look",))
GEMMA = (
    "<bos>{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
NAMES = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|bot|>", "<|end|>", "</s>")


def tokenizer(template: str | None, eos: str | None = "<eos>") -> Any:
    """A byte tokenizer with the special tokens of several families."""
    made = byte_tokenizer(300, NAMES)
    made.chat_template, made.eos_token, made.bos_token = template, eos, "<bos>"
    return made


def reader(template: str, eos: str | None = "<eos>", declared: tuple[str, ...] = (), style: Any = None) -> Renderer:
    made = tokenizer(template, eos)
    return Renderer(made, style or ChatStyle(), [made.convert_tokens_to_ids(name) for name in declared])


def ends(renderer: Renderer) -> list[str]:
    return renderer.tokenizer.convert_ids_to_tokens(list(renderer.ends))


BARE = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{% else %}<|bot|>{% endif %}{{ m.content }}"
ASK = "{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"


@pytest.mark.parametrize(
    ("template", "eos", "declared", "wanted"),
    [
        (GEMMA, "<eos>", ("<eos>", "<end_of_turn>"), ["<end_of_turn>", "<eos>"]),
        (GEMMA, "<eos>", (), ["<end_of_turn>"]),
        (GEMMA, None, (), ["<end_of_turn>"]),
        (GEMMA, "<end_of_turn>", ("<eos>", "<end_of_turn>"), ["<end_of_turn>"]),  # right already: as it always was
        # every turn closes, the last one's text too
        (
            BARE + "<|end|>\n{% endfor %}{{ '<|bot|>' if add_generation_prompt else eos_token }}",
            "</s>",
            (),
            ["<|end|>"],
        ),
        # blanks before the marker; markers after responses alone
        (BARE + "{% if m.role != 'user' %} </s>{% endif %}" + ASK, "</s>", (), ["</s>"]),
        # nothing closes a response but the next user's marker, and the model is said to end with it, or not
        (BARE + ASK, "<eos>", ("<eos>", "<|user|>"), ["<|user|>", "<eos>"]),
        (BARE + ASK, "<eos>", ("<|end|>", "<eos>"), ["<eos>", "<|end|>"]),
        (BARE + ASK, "<eos>", (), ["<eos>"]),
        # only the last response is closed
        (BARE + "{% endfor %}{{ '<|bot|>' if add_generation_prompt else '</s>' }}", "</s>", (), ["</s>"]),
    ],
)
def test_the_end_of_a_turn_is_what_the_template_closes_it_with(template, eos, declared, wanted):
    assert ends(reader(template, eos, declared)) == wanted


def test_an_end_that_is_an_ordinary_entry_of_the_vocabulary():
    """The tokenizer of the small models before it is saved: `<end>` is a word like others, and eos is `<pad>`."""
    from divopd.cloning.tokenizer import build_tokenizer

    made = build_tokenizer(["look"], [])
    made.chat_template = made.chat_template.replace("<end>", "<unk>")
    made.eos_token = "<pad>"
    renderer = Renderer(made, ChatStyle())
    assert ends(renderer) == ["<unk>"]
    assert renderer.action(np.array([made.convert_tokens_to_ids("look"), renderer.eos]), ()) == "look"


def test_appended_tokens_are_the_template_s():
    """A template that trims, and whose marker is not eos: turn by turn the tokens are those of the whole chat."""
    renderer = reader(GEMMA)
    made, style = renderer.tokenizer, TemplateStyle(Template(first="{task}\n\n", follow="\n {observation}\n"))
    renderer.style = style
    tokens = [*renderer.first(FIRST), *made.encode("look"), renderer.eos, *renderer.follow("look", ANSWER, False)]
    messages = [{"role": "user", "content": style.first(FIRST)}, {"role": "assistant", "content": "look"},
                {"role": "user", "content": style.follow("look", ANSWER)}]  # fmt: skip
    assert tokens == made.encode(made.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    unclosed = renderer.follow("look", ANSWER, True)
    assert unclosed.tolist() == [renderer.eos, *renderer.follow("look", ANSWER, False)]


def test_what_a_generation_prompt_adds_stands_before_the_response():
    template = GEMMA.replace("model\n{% endif %}", "model\n<think>\n{% endif %}")
    renderer = reader(template)
    assert renderer.chat.open == "<end_of_turn>\n<start_of_turn>model\n<think>\n"
    assert renderer.chat.close == "\n<start_of_turn>user\n"


SYSTEM = TemplateStyle(Template(system="Be brief.", first="{task}", follow="{observation}"))


@pytest.mark.parametrize(
    ("template", "style", "words"),
    [
        (None, None, "has no chat template: take the model's instruction-tuned version"),
        (GEMMA, SYSTEM, "raises System role not supported: leave `system` out of the prompt template"),
        ("{{ messages[1].content }}", None, "raises .*: it must take user and assistant turns"),
        ("{{ 1 / 0 }}", None, "raises division by zero"),
        ("{% if %}", None, "raises Expected an expression"),
        ("{{ bos_token }}", None, "changes the words of a user message"),
        ("{% for m in messages %}{{ m.content | lower }}<|end|>{% endfor %}", None, "changes the words of a user"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", None, "not show each user message once"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", None, "each assistant or user"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(template, style, words):
    with pytest.raises(PromptError, match=words) as caught:
        Renderer(tokenizer(template), style or ChatStyle())
    assert "\n" not in str(caught.value)


def test_where_nothing_says_how_a_turn_ends():
    with pytest.raises(PromptError, match=r"nothing says how a response of .* ends: .* set eos_token"):
        reader(BARE + ASK, None)
    assert ends(reader(BARE + ASK, None, ("<|end|>",))) == ["<|end|>"]


def test_end_ids_that_a_checkpoint_declares(tmp_path):
    config = PolicyConfig(path=str(tmp_path))
    assert declared_ends(config) == ()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert declared_ends(config) == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 106]}))
    assert declared_ends(config) == (1, 106)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(PolicyError, match=r"generation_config.json of .* is not a JSON object"):
        declared_ends(config)
    made = tokenizer(GEMMA)
    assert len(Renderer(made, ChatStyle(), (10**9, -1)).ends) == 1  # ids that no token has


# the date ------------------------------------------------------------------------------------------------------------

DAY = "2026-01-02"
LLAMA = "{% set day = strftime_now('%d %b %Y') if strftime_now is defined else 'unknown' %}Today: {{ day }}\n"


def test_a_template_that_asks_for_the_day_is_told_the_configured_one():
    made, prompts = tokenizer(LLAMA + GEMMA), []
    for date in (CHAT_DATE, CHAT_DATE, datetime.date.fromisoformat(DAY)):
        renderer = Renderer(made, ChatStyle(), (), date)
        assert renderer.chat.dated
        prompts.append(made.decode(renderer.first(FIRST)))
    assert prompts[0] == prompts[1] and prompts[0].startswith("Today: 26 Jul 2024\n")
    assert prompts[2].startswith("Today: 02 Jan 2026\n")
    assert not Renderer(tokenizer(GEMMA), ChatStyle()).chat.dated


def test_a_template_that_draws_is_the_same_again_and_leaves_other_draws_alone():
    made = tokenizer("{{ [1, 2, 3, 4, 5, 6, 7, 8, 9] | random }}{{ lipsum(1) }}\n" + GEMMA)
    random.seed(5)
    heads = {Renderer(made, ChatStyle()).chat.head for _ in range(5)}
    drawn = random.random()
    random.seed(5)
    assert len(heads) == 1 and random.random() == drawn


def test_the_date_is_part_of_a_cell_only_where_it_is_set(tiny_cell):
    plain, dated = (
        tiny_cell(),
        tiny_cell(prompt={"max_prompt_tokens": 48, "max_response_tokens": 3, "date": "2026-01-02"}),
    )
    assert "date" not in plain.model_dump()["prompt"]
    assert dated.model_dump(mode="json")["prompt"]["date"] == "2026-01-02"
    assert config_hash(plain) == config_hash(
        tiny_cell(prompt={"max_prompt_tokens": 48, "max_response_tokens": 3, "date": CHAT_DATE})
    )
    assert config_hash(plain) != config_hash(dated)


# back ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False])
def test_any_end_stops_a_response_and_no_other(tiny_models, monkeypatch, lean):
    """The same draws with one end and with more: the longer response is the shorter one, gone on."""
    if not lean:
        monkeypatch.setattr("divopd.policies.hf.fits", lambda model: False)
    model = load_model(PolicyConfig(path=str(tiny_models / "student")))
    prompt = [np.array([5, 6, 7])] * 8

    def sample(several: Any) -> list[Any]:
        session = HFPolicy(model, several).session(8)
        assert isinstance(session.lean, LeanDecoder) == lean
        return session.act(range(8), prompt, 5.0, 60, [rng("ends", i) for i in range(8)])

    whole = sample(3)
    seen = [int(s.tokens[4]) for s in whole if len(s.tokens) > 8]
    some = sample((3, *seen))
    assert any(len(a.tokens) < len(b.tokens) for a, b in zip(some, whole, strict=True))
    for short, long in zip(some, whole, strict=True):
        stops = np.isin(short.tokens, [3, *seen])
        assert short.tokens.tolist() == long.tokens[: len(short.tokens)].tolist()
        assert not stops[:-1].any() and stops[-1] == (not short.truncated)


def test_vllm_is_told_every_end(monkeypatch):
    asked: dict[str, Any] = {}
    monkeypatch.setitem(__import__("sys").modules, "vllm", SimpleNamespace(SamplingParams=lambda **k: asked.update(k)))
    monkeypatch.setattr(vllm.VLLMPolicy, "_plain", lambda self: {"ignore_eos": True})
    policy = object.__new__(vllm.VLLMPolicy)
    policy.ends = (106, 1)
    policy.sampling(1.0, 8, 0)
    assert asked["stop_token_ids"] == [106, 1] and asked["ignore_eos"]

    def output(*tokens: int) -> Any:
        logprobs = SimpleNamespace(logprobs=[0.0] * len(tokens), token_ids=list(tokens))
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=logprobs, weight_versions=[])])

    assert [vllm._sample(output(5, last), policy.ends).truncated for last in (106, 1, 7)] == [False, False, True]


def with_eos(models: Path, to: Path, eos: str | None) -> None:
    """The same checkpoints under a tokenizer whose eos token is another one, or none."""
    for name in ("student", "teacher"):
        shutil.copytree(models / name, to / name)
        path = to / name / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": eos}))


@pytest.mark.slow
def test_a_run_does_not_depend_on_what_the_tokenizer_calls_eos(tiny_cell, tiny_models, tmp_path):
    """Weights, template and vocabulary are the same, but eos is `<pad>`: the same turns, updates and episodes."""
    with_eos(tiny_models, tmp_path / "models", "<pad>")
    for name, models in (("right", tiny_models), ("wrong", tmp_path / "models")):
        cell = tiny_cell(
            train={"updates": 2, "batch_rows": 8},
            prompt={"max_prompt_tokens": 200, "max_response_tokens": 60},
            **{who: {"path": str(models / who)} for who in ("student", "teacher")},
        )
        train(cell, tmp_path / name, quiet)
        evaluate_run(tmp_path / name, quiet)
    tables = [f"{table}.parquet" for table in ("turns", "updates", "evals", "transcripts")]
    assert [(tmp_path / "wrong" / table).read_bytes() for table in tables] == [
        (tmp_path / "right" / table).read_bytes() for table in tables
    ]
    turns = read_table(tmp_path / "right", "turns").to_pandas()
    assert (turns["response_tokens"].between(1, 59)).any()  # or no response would have ended
