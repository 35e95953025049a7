"""What one cell costs on GPUs: hours, tokens, memory a rank and disk. docs/scaling.md states the formulae."""

from __future__ import annotations

from dataclasses import dataclass

from divopd.config import RunConfig
from divopd.plan.rates import StageRates, paper_turns_per_rollout
from divopd.plan.rollouts import RolloutStats
from divopd.plan.shapes import Shape

GIB = 2**30
OVERHEAD = 2.0 * GIB  # CUDA context, kernels, fragmentation (ours, assumed)
LOG_BYTES_A_TURN = 60  # 30-36 measured in results/demo-reference, whose actions are short
_TAKEN = 4.0  # turns that a batch takes of a rollout, of methods and settings that the paper does not list


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs of a run."""

    rollout: float
    teacher: float
    learner: float

    @property
    def total(self) -> float:
        return self.rollout + self.teacher + self.learner


@dataclass(frozen=True, slots=True)
class Cost:
    """A cell's. Hours are GPU-hours; tokens are of the whole cell; memory is the peak of one rank, in GiB."""

    source: str
    update_seconds: float  # wall, of one update, whatever it waits for
    limited_by: str
    train_hours: float
    evaluation_hours: float
    generated: float
    scored: float
    trained: float  # row tokens: the paper's unit
    computed: float
    learner_gib: float
    rollout_gib: float
    teacher_gib: float
    peak_disk_gib: float
    kept_disk_gib: float

    @property
    def hours(self) -> float:
        return self.train_hours + self.evaluation_hours


@dataclass(frozen=True, slots=True)
class Flow:
    """One update of B rows: the seconds each stage needs for B rows, turns that arrive meanwhile, tokens computed."""

    explore: float
    teach: float
    learn: float
    arriving: float
    computed: float
    teacher_busy: float

    @property
    def seconds(self) -> float:
        """Explorers, teacher and learner work side by side: the slowest sets the pace."""
        return max(self.explore, self.teach, self.learn)

    @property
    def limit(self) -> str:
        stages = {"explorers": self.explore, "teacher": self.teach, "learner": self.learn}
        return max(stages, key=lambda name: stages[name])


def flow(cell: RunConfig, stats: RolloutStats, rates: StageRates, layout: Layout) -> Flow:
    """The pace of a cell. Explorers never wait, nor for weights (`pipeline.sync`, which scaling.py plays): while the
    learner is busy they bring what they and the teacher can.
    """
    rows = cell.train.batch_rows
    grows = cell.prompt.history == "chat"
    taken = paper_turns_per_rollout(cell.setting, cell.method.name) or _TAKEN
    sequences = rows / taken if grows else rows
    computed = sequences * stats.computed(taken) if grows else rows * stats.row_tokens
    tokens = rows * stats.row_tokens if rates.trains == "row" else computed
    learn = rates.update_seconds + tokens / (min(layout.learner, sequences) * rates.train)  # one rank a sequence
    a_turn = stats.end / stats.turns if grows else stats.row_tokens  # tokens scored
    plays, scores = (
        layout.rollout * rates.turns(stats.response),
        layout.teacher * rates.score / a_turn,
    )  # turns a second
    seconds = max(rows / plays, rows / scores, learn)
    arriving = max(rows, min(plays, scores) * seconds)
    return Flow(rows / plays, rows / scores, learn, arriving, computed, arriving / seconds / scores)


def cost(
    cell: RunConfig, student: Shape, teacher: Shape, stats: RolloutStats, rates: StageRates, layout: Layout,
    evaluation: StageRates,
) -> Cost:  # fmt: skip
    """One cell. `evaluation`: rates with `evaluation.batch` episodes at once, on one GPU after the training."""
    pace, updates = flow(cell, stats, rates, layout), cell.train.updates
    turns = pace.arriving * updates
    tasks = cell.pipeline.tasks_per_step * cell.pipeline.runs_per_task
    each = cell.evaluation.every_updates
    steps = turns / (tasks * stats.turns) / cell.evaluation.every_explorer_steps
    evaluations = 2 + int(steps if each is None else updates / each)
    played = evaluations * cell.evaluation.episodes * stats.turns
    weights = 2 * student.parameters
    resume = 14 * student.parameters  # float32 weights, both moments of AdamW, published bfloat16 weights
    scored = turns / stats.turns * stats.end if cell.prompt.history == "chat" else turns * stats.row_tokens
    return Cost(
        source=rates.source,
        update_seconds=pace.seconds,
        limited_by=pace.limit,
        train_hours=updates * pace.seconds * layout.total / 3600,
        evaluation_hours=played / evaluation.turns(stats.response) / 3600,
        generated=turns * stats.response,
        scored=scored,
        trained=updates * cell.train.batch_rows * stats.row_tokens,
        computed=updates * pace.computed,
        learner_gib=learner_bytes(cell, student, stats, layout.learner) / GIB,
        rollout_gib=engine_bytes(cell, student, cell.student.engine.episodes) / GIB,
        teacher_gib=engine_bytes(cell, teacher, 1, cell.teacher.engine.batch_tokens) / GIB,
        peak_disk_gib=(2 * resume + evaluations * weights + turns * LOG_BYTES_A_TURN) / GIB,
        kept_disk_gib=(weights + turns * LOG_BYTES_A_TURN) / GIB,
    )


def learner_bytes(cell: RunConfig, shape: Shape, stats: RolloutStats, ranks: float) -> float:
    """Peak of a learner rank: sharded float32 weights, gradients and AdamW, what is gathered, activations, logits."""
    train = cell.train
    state = 16.0 * shape.parameters / max(ranks, 1.0)
    gathered = 2.0 * (2 * shape.block + shape.embedding)  # bfloat16: a layer, the next one, and the output matrix
    tokens = train.micro_batch_tokens
    q = shape.heads * shape.head_dim
    layer = 2.0 * tokens * (4 * shape.hidden + 2 * q + 2 * shape.kv_heads * shape.head_dim + 3 * shape.ffn)
    kept = 2.0 * tokens * shape.layers * shape.hidden
    activations = kept + 2 * layer if train.activation_checkpointing else shape.layers * layer + layer
    trains = tokens * min(1.0, stats.turns * stats.response / stats.end)  # positions whose logits are needed
    logits = 3 * 4.0 * shape.vocab * (min(train.logit_chunk, trains) if train.logit_chunk else trains)
    return state + gathered + activations + logits + OVERHEAD


def engine_bytes(cell: RunConfig, shape: Shape, episodes: int, logit_rows: int = 0) -> float:
    """What a rollout or teacher engine needs: weights, keys and values of `episodes` at their limits, logits."""
    longest = cell.prompt.max_prompt_tokens + cell.prompt.max_response_tokens
    logits = 2 * 4.0 * shape.vocab * max(logit_rows, episodes)
    return 2.0 * shape.parameters + episodes * longest * shape.kv_bytes + logits + OVERHEAD
