"""What a cell reads, looked at before it trains: task lists, templates, checkpoints, tokenizers. No model is loaded.

`divopd doctor` lists these checks and `divopd train` stops at the first that fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from divopd import checks
from divopd.checks import Check
from divopd.config import PolicyConfig, RunConfig
from divopd.envs.base import EnvError
from divopd.envs.registry import RANGE, panel_tasks, require_tasks, train_tasks
from divopd.prompts import PromptError, Renderer, make_renderer


def of_cell(cell: RunConfig, playable: bool) -> Iterator[Check]:
    """All of them, cheapest first. `playable`: the environment's packages and data are here, so it can know a task."""
    yield panel(cell, playable)
    yield from filter(None, (training_tasks(cell, playable), checks.template(cell)))
    policies = (cell.student, cell.teacher)
    found = [checks.checkpoint(policy) for policy in policies]
    yield from found
    if all(check.ok for check in found):
        yield checks.tokenizers(*policies)
        yield from chat(cell)


def panel(cell: RunConfig, playable: bool) -> Check:
    """The panel can be read, has as many tasks as evaluation plays, and they are of this environment and source."""
    env, episodes = cell.env, cell.evaluation.episodes
    name = f"panel {env.eval_panel}"
    try:
        tasks = panel_tasks(env, episodes)
        if playable:
            require_tasks(env, tasks, name)
    except EnvError as error:
        return Check(name, False, str(error).removeprefix(name).lstrip(": "))
    return Check(name, True, f"{len(tasks)} tasks, of which evaluation plays {episodes}")


def training_tasks(cell: RunConfig, playable: bool) -> Check | None:
    """A range or a file of training tasks is of this environment and source; None for a split that the source names."""
    spec, name = cell.env.train_tasks, f"{cell.env.name} training tasks {cell.env.train_tasks}"
    if not (RANGE.fullmatch(spec) or spec.endswith(".txt")):
        return None
    try:
        tasks = train_tasks(cell.env)
        if playable:
            require_tasks(cell.env, tasks, "env.train_tasks")
    except EnvError as error:
        return Check(name, False, str(error))
    return Check(name, True, f"{len(tasks)} tasks")


def chat(cell: RunConfig) -> Iterator[Check]:
    """The student's chat template can be used, and the teacher's ends a turn in the same way; says what was found."""
    name, other = (f"chat template of {policy.path}" for policy in (cell.student, cell.teacher))
    if checks.model_folder(cell.student) is None:
        yield Check(name, False, "looked at once it is here", needed=False)
        return
    if (template := checks.template(cell)) is not None and not template.ok:
        return
    student, teacher = _renderer(cell, cell.student), _renderer(cell, cell.teacher)
    if not isinstance(student, Renderer):
        yield Check(name, False, str(student))
        return
    beyond = _beyond(student, cell.student)
    yield Check(name, beyond is None, beyond or _described(student, cell))
    if not isinstance(teacher, Renderer):  # the student's is used for both
        return
    one, two = student.chat, teacher.chat
    if one.ends[0] != two.ends[0]:
        detail = f"it ends a turn with {_token(teacher)}, the student's with {_token(student)}: choose one family"
        yield Check(other, False, detail)
    elif (one.head, one.open, one.close) != (two.head, two.open, two.close):
        yield Check(other, False, "differs from the student's, which is used for both", needed=False)


def _renderer(cell: RunConfig, policy: PolicyConfig) -> Renderer | Exception | None:
    """Of a checkpoint; what is wrong with it, or None where it is not here."""
    from divopd.policies.base import PolicyError

    if checks.model_folder(policy) is None:
        return None
    try:
        return make_renderer(policy, cell.prompt, cell.env.name)
    except (PromptError, PolicyError) as error:
        return error


def _beyond(renderer: Renderer, policy: PolicyConfig) -> str | None:
    """What is wrong where prompts hold, or end with, a token that the model has no embedding for."""
    folder = checks.model_folder(policy)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    rows = (config.get("text_config") or config).get("vocab_size")
    tokenizer, chat = renderer.tokenizer, renderer.chat
    used = tokenizer.encode(chat.head + chat.open + chat.close, add_special_tokens=False)
    most = max((renderer.eos, *used))
    if not isinstance(rows, int) or most < rows:
        return None
    named = repr(tokenizer.convert_ids_to_tokens(most))
    return f"it uses {named}, id {most}, and the model has {rows} embeddings: tokenizer and model differ"


def _token(renderer: Renderer) -> str:
    return repr(renderer.tokenizer.convert_ids_to_tokens(renderer.eos))


def _described(renderer: Renderer, cell: RunConfig) -> str:
    """What was read off a chat template."""
    chat, tokenizer = renderer.chat, renderer.tokenizer
    said = f"a turn ends with {_token(renderer)} (by {chat.source}"
    said += ")" if tokenizer.eos_token_id == renderer.eos else f"; the tokenizer's eos is {tokenizer.eos_token!r})"
    if more := tokenizer.convert_ids_to_tokens(list(renderer.ends[1:])):
        said += f", {', '.join(map(repr, more))} end a response too"
    said += f"; a response follows {chat.open[-24:]!r}"
    return said + (f"; today is {cell.prompt.date} to it (prompt.date)" if chat.dated else "")
