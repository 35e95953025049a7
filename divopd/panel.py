"""What teachers and students can do before any distillation: success on the panel, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .analysis.uncertainty import wilson
from .config import PolicyConfig, RunConfig
from .diagnostics import batch_diagnostics
from .envs.registry import train_tasks
from .evaluate import Evaluator
from .policies.hf import HFPolicy, load_model, load_tokenizer
from .rollout import play, score
from .seeds import rng
from .train import check_tokenizers


@dataclass(frozen=True, slots=True)
class PanelScore:
    """One checkpoint on the panel. `kl`: nats a token from student to teacher on the student's own turns, else None."""

    setting: str
    who: str
    path: str
    parameters: int
    successes: int
    episodes: int
    kl: float | None

    def line(self) -> str:
        """As `divopd panel` prints it."""
        low, high = wilson(self.successes, self.episodes)
        share = self.successes / self.episodes
        text = f"{self.setting:20} {self.who:8} {self.parameters / 1e6:5.2f} M  {share:6.1%}  [{low:.1%}, {high:.1%}]"
        return text + ("" if self.kl is None else f"  KL to the teacher {self.kl:.2f} a token")


def scores(cells: Iterable[RunConfig], episodes: int) -> Iterator[PanelScore]:
    """Teacher and student of every setting once, on the first `episodes` tasks of the panel, as evaluation plays it."""
    seen = set()
    for cell in cells:
        cell = cell.model_copy(update={"evaluation": cell.evaluation.model_copy(update={"episodes": episodes})})
        for who, policy in (("teacher", cell.teacher), ("student", cell.student)):
            if (cell.setting, who) in seen:
                continue
            seen.add((cell.setting, who))
            yield _score(cell, who, policy)


def _score(cell: RunConfig, who: str, policy: PolicyConfig) -> PanelScore:
    evaluator = Evaluator(cell.model_copy(update={"student": policy}))
    rollouts = evaluator.run(0)
    return PanelScore(
        setting=cell.setting,
        who=who,
        path=policy.path,
        parameters=sum(p.numel() for p in load_model(policy).parameters()),  # whatever back end plays
        successes=sum(rollout.success for rollout in rollouts),
        episodes=len(rollouts),
        kl=_divergence(cell, evaluator) if who == "student" else None,
    )


def _divergence(cell: RunConfig, evaluator: Evaluator) -> float:
    """Mean student - teacher log-prob over the tokens of rollouts sampled as in training, from the first tasks."""
    tasks = train_tasks(cell.env)[: len(evaluator.envs)]
    settings = replace(evaluator.settings, temperature=cell.rollout_temperature)
    named = [((0, i, 0), task, rng(cell.seed, "panel", i)) for i, task in enumerate(tasks)]
    rollouts = play(
        evaluator.policy, evaluator.renderer, evaluator.envs[: len(named)], named, 0, settings, evaluator.watch
    )
    teacher = HFPolicy(load_model(cell.teacher), evaluator.renderer.eos)
    vocabulary = check_tokenizers(load_tokenizer(cell.student), load_tokenizer(cell.teacher))
    score(teacher, rollouts, vocabulary, evaluator.watch)
    return batch_diagnostics([turn for rollout in rollouts for turn in rollout.turns], 0)["kl_per_token"]
