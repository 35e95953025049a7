"""How fast each stage is: assumed from a GPU's data sheet, taken from the paper's tables, or measured by gpu_check.

All rates are of one GPU. docs/scaling.md states every formula and says where each number comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from divopd.config import RunConfig, Strict
from divopd.plan.rollouts import RolloutStats
from divopd.plan.shapes import Shape
from divopd.strict_yaml import YamlError, read_yaml_file
from divopd.suite import SuiteError

PAPER_LAYOUT = (4, 2, 2)  # rollout, teacher and learner GPUs (paper)
TASKS = 16  # rollouts in flight in the paper's explorer: its tasks a step


class Gpu(Strict):
    """A card, and what share of its data sheet the stages reach. All ours, assumed: an 80 GB H100 SXM."""

    name: str = "H100 80 GB (assumed)"
    memory_gib: PositiveFloat = 79.0
    tflops: PositiveFloat = 989.0  # dense bfloat16, data sheet
    bandwidth_gb: PositiveFloat = 3350.0  # a second, data sheet
    read_share: PositiveFloat = 0.4  # of tflops, prefill and scoring
    train_share: PositiveFloat = 0.3  # of tflops, counting three forward passes a token and one more to recompute
    decode_share: PositiveFloat = 0.5  # of bandwidth
    step_seconds: NonNegativeFloat = 0.004  # a decoding step's fixed part
    turn_seconds: NonNegativeFloat = 0.1  # environment and scheduling, a turn
    update_seconds: NonNegativeFloat = 2.0  # fixed part of an update: optimizer, gathering, weight transfer


CARDS = {"H200": (989.0, 4800.0), "H100": (989.0, 3350.0), "A100": (312.0, 2039.0), "L40S": (362.0, 864.0)}
"""Data sheets by a part of the name: dense bfloat16 TFLOP/s, GB/s."""


def gpu_named(name: str, memory_gib: float) -> Gpu:
    """A card that is here; one that CARDS does not list is taken for an H100."""
    tflops, bandwidth = next((sheet for part, sheet in CARDS.items() if part in name), CARDS["H100"])
    return Gpu(name=name, memory_gib=memory_gib, tflops=tflops, bandwidth_gb=bandwidth)


class ModelRates(Strict):
    """What gpu_check measured of one model on one GPU, in tokens a second; absent: scaled from another model."""

    decode: PositiveFloat | None = None  # response tokens, `decode_episodes` at once
    decode_episodes: PositiveInt = 64
    prefill: PositiveFloat | None = None
    score: PositiveFloat | None = None  # as a teacher: prompt log-probs
    train: PositiveFloat | None = None  # computed tokens, forward, backward and step
    sync_seconds: NonNegativeFloat | None = None


class RatesFile(Strict):
    """The YAML that scripts/gpu_check.sh writes."""

    source: str
    gpu: Gpu = Gpu()
    models: dict[str, ModelRates] = {}
    checks: dict[str, object] = {}  # parity gaps and peak memory, for a reader


@dataclass(frozen=True, slots=True)
class StageRates:
    """A cell's stages on one GPU each.

    `episodes`: how many run at once on a rollout GPU; `token_seconds`: of one decoded token of each of them;
    `turn_seconds`: the rest of a turn. `score` and `train`: tokens a second; `trains`: which tokens `train` counts.
    """

    source: str
    episodes: float
    token_seconds: float
    turn_seconds: float
    score: float
    train: float
    update_seconds: float
    trains: Literal["row", "computed"] = "computed"

    def turns(self, response: float) -> float:
        """Turns a second of a rollout GPU, `response` tokens each."""
        return self.episodes / (self.turn_seconds + response * self.token_seconds)

    def shared(self, share: float) -> StageRates:
        """The same on a share of the GPU."""
        return replace(
            self,
            token_seconds=self.token_seconds / share,
            turn_seconds=self.turn_seconds / share,
            score=self.score * share,
            train=self.train * share,
            update_seconds=self.update_seconds / share,
        )


def read_rates(path: Path) -> RatesFile:
    """A rates file. Raises SuiteError that names file and key."""
    try:
        return RatesFile.model_validate(read_yaml_file(path))
    except OSError as error:
        raise SuiteError(f"{path}: {error.strerror}; scripts/gpu_check.sh writes such a file") from error
    except (YamlError, ValidationError) as error:
        raise SuiteError(f"{path}: not a rates file: {' '.join(str(error).split())[:200]}") from error


def assumed(student: Shape, teacher: Shape, stats: RolloutStats, episodes: float, gpu: Gpu, source: str) -> StageRates:
    """A roofline: decoding reads weights and all episodes' keys once a token, the rest computes at a share of peak."""
    context = stats.row_tokens
    read = 2.0 * student.parameters + episodes * context * student.kv_bytes
    decode = read / (gpu.decode_share * gpu.bandwidth_gb * 1e9)
    compute = episodes * student.flops(context) / (gpu.read_share * gpu.tflops * 1e12)
    peak = gpu.tflops * 1e12
    # each turn prefills what its observation added; the rest of its prompt is in the cache
    prefill = episodes * stats.added * student.flops(context) / (gpu.read_share * peak)
    return StageRates(
        source=source,
        episodes=episodes,
        token_seconds=max(decode, compute) + gpu.step_seconds,
        turn_seconds=gpu.turn_seconds + prefill,
        score=gpu.read_share * peak / teacher.flops(stats.end / 2),
        train=gpu.train_share * peak / (4.0 * student.flops(stats.end / 2)),
        update_seconds=gpu.update_seconds,
    )


def measured(file: RatesFile, student: Shape, teacher: Shape, stats: RolloutStats, episodes: float) -> StageRates:
    """The roofline of the measured card, with what was measured in place of what is assumed."""
    base = assumed(student, teacher, stats, episodes, file.gpu, file.source)
    decode = _nearest(file, "decode", student)
    train, score = _nearest(file, "train", student), _nearest(file, "score", teacher)
    token_seconds = base.token_seconds
    if decode is not None:
        rate, name = decode
        at = file.models[name].decode_episodes
        # the roofline's slope carries the rate from the episodes that were measured to those asked for
        there = assumed(student, teacher, stats, at, file.gpu, "").token_seconds
        token_seconds = at / rate * base.token_seconds / there
    sync = next((m.sync_seconds for m in file.models.values() if m.sync_seconds is not None), None)
    return replace(
        base,
        token_seconds=token_seconds,
        score=score[0] if score else base.score,
        train=train[0] if train else base.train,
        update_seconds=base.update_seconds if sync is None else sync,
    )


def _nearest(file: RatesFile, key: str, shape: Shape) -> tuple[float, str] | None:
    """A measured rate, scaled by parameters from the model nearest in size, and that model's name."""
    from divopd.plan.shapes import SHAPES

    have = {name: getattr(rates, key) for name, rates in file.models.items() if name in SHAPES}
    have = {name: rate for name, rate in have.items() if rate is not None}
    if not have:
        return None
    name = min(have, key=lambda n: abs(SHAPES[n].parameters - shape.parameters))
    return have[name] * SHAPES[name].parameters / shape.parameters, name


def paper(cell: RunConfig, setting: str, stats: RolloutStats) -> StageRates | None:
    """From the paper's tables: its learner's seconds a step, and explorers as fast as the turns it did not train tell.

    The paper gives no time of explorers or teacher. It says what share of scored turns DivOPD (k = 3) did not train;
    so 1 / (1 - share) times B turns arrive while its learner makes a step. TASKS rollouts play at once on 4 GPUs, so a
    turn takes TASKS / (turns a second). The teacher keeps up with that, which bounds its rate from below.
    """
    seconds = paper_step(setting, cell.method.name)
    reference = paper_step(setting, "divopd")
    tokens = _paper_rows("teacher_tokens", setting)
    if seconds is None or reference is None or not tokens:
        return None
    arriving = float(tokens[0]["divopd_k3_scored_over_trained"]) * cell.train.batch_rows / reference
    explorers, teachers, learners = PAPER_LAYOUT
    return StageRates(
        source="paper",
        episodes=TASKS / explorers,
        token_seconds=0.0,
        turn_seconds=TASKS / arriving,
        score=arriving / stats.turns * stats.end / teachers,
        train=cell.train.batch_rows * stats.row_tokens / seconds / learners,
        update_seconds=0.0,
        trains="row",
    )


def paper_step(setting: str, method: str) -> float | None:
    """The paper's seconds a learner step; of a method that it does not list, those of the one it builds on."""
    return _diagnostic("step_seconds", setting, method)


def paper_turns_per_rollout(setting: str, method: str) -> float | None:
    """Turns that a batch takes of a rollout, likewise."""
    return _diagnostic("turns_per_rollout", setting, method)


def _diagnostic(column: str, setting: str, method: str) -> float | None:
    rows = {row["method"]: row for row in _paper_rows("batch_diagnostics", setting)}
    row = rows.get(method) or rows.get(method.removesuffix("_recovery")) or rows.get("vanilla")
    return float(row[column]) if row else None


def _paper_rows(table: str, setting: str) -> list[dict[str, str]]:
    import csv

    import divopd.paper as tables

    lines = (Path(tables.__file__).parent / f"{table}.csv").read_text().splitlines()
    return [
        row for row in csv.DictReader(line for line in lines if not line.startswith("#")) if row["setting"] == setting
    ]
