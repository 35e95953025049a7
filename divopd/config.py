"""What a run is made of. Every model is frozen and refuses unknown keys, so that a typo is an error that names the key.

Defaults are the paper's (METHOD: arXiv 2609.34838 sections 3-5); what the paper leaves open is marked "ours".
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from divopd.names import Name

CHAT_DATE = datetime.date(2024, 7, 26)  # what Llama 3's chat templates print where they are told no date
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvConfig(Strict):
    """One environment and where its tasks come from."""

    name: Literal["alfworld", "scienceworld", "webshop"] = "alfworld"
    source: str = "generated"  # "generated" (embedded, no download), or where the official games or products lie
    size: dict[str, Any] = {}  # GameSize fields of generated ALFWorld games
    options: dict[str, Any] = {}  # the environment's own: `Options` in divopd/envs/<name>/plugin.py
    train_tasks: str = "gen/train/0:2000"  # a range of task ids, or a panel file
    eval_panel: str = "experiments/panels/alfworld_eval.txt"  # frozen, hashed
    max_turns: PositiveInt = 30
    cache_dir: str = ".cache"  # compiled games, a folder an environment; safe to delete
    engine: Literal["fast", "stock"] = "fast"  # "stock" is TextWorld's own: the same texts, some hundred times slower

    @model_validator(mode="after")
    def _own_options(self) -> EnvConfig:
        from divopd.envs.registry import plugin  # which imports this module

        try:
            plugin(self.name).Options.model_validate(self.options)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"options.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return self


class EngineConfig(Strict):
    """vLLM's engine (docs/vllm.md): read where a policy's `backend` is vllm."""

    cache_gib: PositiveFloat = 1.0  # memory for keys and values where the engine runs on CPU
    gpu_memory: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.85  # share of each GPU that the engine may take
    tensor_parallel: PositiveInt = 1  # GPUs one engine spans
    max_tokens: PositiveInt | None = None  # longest sequence; None: the prompt's and response's limits
    episodes: PositiveInt = 64  # requests decoded at once; more wait their turn
    batch_tokens: PositiveInt = 2048  # tokens a forward pass holds; scoring holds so many rows of logits
    # how new weights reach the engine; auto: ipc for tensors on a GPU of this machine, else a file in memory
    transfer: Literal["auto", "file", "ipc", "nccl"] = "auto"
    sync: Literal["wait", "keep"] = "wait"  # requests under way: end under the old weights, or go on under the new


class PolicyConfig(Strict):
    """A Hugging Face checkpoint folder or model id, and what runs it.

    Fields from `backend` on stay out of the resolved configuration at their defaults: older runs keep their identity.
    """

    path: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"  # for sampling and scoring; the learner's weights are float32
    backend: Literal["hf", "vllm"] = Field(default="hf", exclude_if=lambda backend: backend == "hf")
    engine: EngineConfig = Field(default=EngineConfig(), exclude_if=lambda engine: engine == EngineConfig())
    # nats: mean gap to the learner's log-probs after a sync above which a run warns (policies/parity.py); None: by
    # dtype under vllm, no probe under hf, where both are one code
    gap_alarm: PositiveFloat | None = Field(default=None, exclude_if=lambda alarm: alarm is None)


class PromptConfig(Strict):
    """How observations become tokens (docs/prompts.md). Those from `template` on are left out at their defaults."""

    style: Literal["compact", "chat"] = "compact"
    max_prompt_tokens: PositiveInt = 10_240  # the TCOD code base's limits
    max_response_tokens: PositiveInt = 512
    # token ids that the teacher's tokenizer lacks: False masks them (ours), True takes the teacher's raw score
    score_unknown_ids: bool = False
    # of the chat style: a template that ships ("alfworld", ...) or a file; None: the same plain sentences everywhere
    template: str | None = Field(default=None, exclude_if=lambda template: template is None)
    # the chat grows (the paper), or every turn is one new prompt with the last `history_turns` observations and actions
    history: Literal["chat", "rewrite"] = Field(default="chat", exclude_if=lambda history: history == "chat")
    history_turns: PositiveInt = Field(default=2, exclude_if=lambda turns: turns == 2)
    # today, to a chat template that asks for it: a run has the same prompts on every day
    date: datetime.date = Field(default=CHAT_DATE, exclude_if=lambda date: date == CHAT_DATE)

    @property
    def max_tokens(self) -> int:
        """Of a prompt and its response: the longest sequence there is."""
        return self.max_prompt_tokens + self.max_response_tokens


class TrainConfig(Strict):
    """The learner and the batch (METHOD section 2 and 3)."""

    updates: PositiveInt = 250
    batch_rows: PositiveInt = 64  # B
    pool_factor: PositiveInt = 4  # c
    max_staleness: NonNegativeInt = 2  # delta, in versions
    retention: NonNegativeInt = 8  # W, in updates
    beta: PositiveFloat = 1.0
    learning_rate: PositiveFloat = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.01
    grad_clip: PositiveFloat = 1.0
    micro_batch_tokens: PositiveInt = 16_384  # computed tokens a forward pass holds at once (ours)
    bf16: bool = False  # compute in bfloat16 under autocast; weights and optimizer stay float32
    # at the paper's scale (docs/learner.md); at their defaults left out of the configuration, so that hashes stay
    packed: bool = Field(default=False, exclude_if=lambda on: not on)  # sequences share a row instead of being padded
    # positions whose logits are in memory at once; None: all that a micro-batch trains
    logit_chunk: PositiveInt | None = Field(default=None, exclude_if=lambda chunk: chunk is None)
    # activations are computed again in the backward pass instead of being kept
    activation_checkpointing: bool = Field(default=False, exclude_if=lambda on: not on)
    # nats: drift of an update above which a run warns; None: never, as drift holds the staleness of the batch too
    drift_alarm: PositiveFloat | None = Field(default=None, exclude_if=lambda alarm: alarm is None)


class PipelineConfig(Strict):
    """Explorer steps, how they enter the queue and get weights; and the virtual clock's cost model, in virtual seconds,
    of which only ratios matter.

    One explorer step plays `tasks_per_step` tasks at once, each `runs_per_task` times, all with the same weights. It
    is in flight until its slowest rollout has ended and been scored; then the explorer's next one starts.
    """

    tasks_per_step: PositiveInt = 16
    runs_per_task: PositiveInt = 1
    steps_in_flight: PositiveInt = 1  # explorer steps at once; under ray the explorers are dealt out to them
    # a step's rollouts join the queue together, when its slowest was scored, or each when it has ended and been scored
    arrives: Literal["step", "rollout"] = "step"
    order: Literal["ended", "task"] = "ended"  # inside a step that arrives as one: as its rollouts ended, or by task
    # a step that could start while an update is under way waits for its weights, or takes those published last;
    # None: wait where ray's weights travel directly, on real clocks, as in Trinity-RFT under TCOD; else latest
    sync: Literal["wait", "latest"] | None = None
    turn_seconds: PositiveFloat = 0.3  # environment and scheduling, a turn
    response_token_seconds: NonNegativeFloat = 0.02  # decoding, a token of one rollout
    teacher_token_seconds: NonNegativeFloat = 0.0002  # scoring, a token of a finished rollout; reading, before it acts
    teacher_response_token_seconds: NonNegativeFloat = 0.04  # decoding by the teacher, where it acts (ours: twice)
    update_seconds: NonNegativeFloat = 2.0  # fixed part of a learner update
    update_token_seconds: NonNegativeFloat = 0.0001  # a row token of its batch
    load: PositiveFloat | None = None  # arrival / drain to aim at: scales the explorer's speed (ours)
    save_every: PositiveInt = 20  # updates between resume points
    # ray: real workers on real clocks (docs/ray.md); costs and `load` are the virtual clock's alone
    kind: Literal["virtual", "ray"] = Field(default="virtual", exclude_if=lambda kind: kind == "virtual")

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and {"explorers", "steps_in_flight"} <= values.keys():
            raise ValueError("explorers is the old name of steps_in_flight: give one of them")
        named = {"explorers": "steps_in_flight"}
        return {named.get(k, k): value for k, value in values.items()} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _orders_steps(self) -> PipelineConfig:
        if self.order == "task" and self.arrives == "rollout":
            raise ValueError("order: task needs arrives: step; rollouts that arrive one by one arrive as they end")
        return self


class WorkersConfig(Strict):
    """The workers of one kind, each a Ray actor, and what each takes of the cluster."""

    count: NonNegativeInt = 1
    cpus: NonNegativeFloat = 0.5
    gpus: NonNegativeFloat = 0.0
    resources: dict[str, PositiveFloat] = {}  # a cluster's own, such as a kind of node


class PlacementConfig(Strict):
    """Who runs where under `pipeline.kind: ray` (docs/ray.md). Not in the resolved configuration at its defaults."""

    address: str | None = None  # of a running cluster ("auto": this node's); None: a cluster of this machine alone
    explorers: WorkersConfig = WorkersConfig()
    scorers: WorkersConfig = WorkersConfig()
    learners: WorkersConfig = WorkersConfig()  # ranks of one learner
    evaluators: WorkersConfig = WorkersConfig()  # 0 or 1; 0: `divopd evaluate` plays the checkpoints afterwards
    # shares of an explorer's step that are played each for itself; None: one an episode under vLLM, else one in all
    lanes: PositiveInt | None = None
    environment_processes: PositiveInt = 1  # an explorer's; its episodes are dealt out to them
    backpressure: bool = True  # explorers wait while more is queued than can be read before it is stale
    patience: PositiveFloat = 120.0  # seconds to wait for the cluster to place the workers
    # seconds after which a call that has not ended counts as its worker's death (real clock); None: never
    call_limit: PositiveFloat | None = Field(default=3600.0, exclude_if=lambda limit: limit == 3600.0)
    # the road of new weights to explorers: Ray's object store, or directly into the memory that samples; auto: directly
    # where vLLM samples
    weights: Literal["auto", "store", "direct"] = Field(default="auto", exclude_if=lambda road: road == "auto")
    # virtual: the virtual clock drives the workers one after another, for a log that one process would leave too
    clock: Literal["real", "virtual"] = "real"

    @model_validator(mode="after")
    def _enough(self) -> PlacementConfig:
        for name in ("explorers", "scorers", "learners"):
            if not getattr(self, name).count:
                raise ValueError(f"{name}.count: at least one is needed")
        if self.evaluators.count > 1:
            raise ValueError("evaluators.count: 0 or 1")
        return self


class EvalConfig(Strict):
    """Evaluation of the student alone on a fixed, ordered panel."""

    every_explorer_steps: PositiveInt = 5
    every_updates: PositiveInt | None = None  # when set, replaces the line above (ours)
    episodes: PositiveInt = 140  # the first so many tasks of the panel
    temperature: PositiveFloat = 0.4
    batch: PositiveInt = 32  # episodes played at once


class RolloutConfig(Strict):
    """How explorers play: a file of divopd/rollouts/ and its parameters."""

    policy: str = "student"
    params: dict[str, Any] = {}


class LossConfig(Strict):
    """What a token costs (divopd/losses.py) and how tokens add up. The defaults are the paper's."""

    name: str = "sampled_reverse_kl"
    params: dict[str, Any] = {}
    # rows alike (the paper), tokens alike, or from tokens to rows on a line over the first `ramp` of the run's updates
    reduction: Literal["row_mean", "token_mean", "blended"] = "row_mean"
    ramp: Probability = 0.5

    def balance(self, version: int, updates: int) -> float:
        """Weight of the row mean against the token mean at an update: 1 and 0 but for `blended`."""
        if self.reduction == "blended":
            return min(1.0, version / (self.ramp * updates)) if self.ramp else 1.0
        return float(self.reduction == "row_mean")


class MethodConfig(Strict):
    """A selection rule (which queued turns train), a rollout policy and a loss."""

    name: Name
    rule: str
    params: dict[str, Any] = {}
    rollout: RolloutConfig = RolloutConfig()
    loss: LossConfig = LossConfig()


class RunConfig(Strict):
    """One cell of the grid, fully resolved: what `divopd train` reads and the run log keeps."""

    suite: Name
    setting: Name
    method: MethodConfig
    seed: NonNegativeInt = 0
    env: EnvConfig = Field(default_factory=EnvConfig)
    student: PolicyConfig
    teacher: PolicyConfig
    prompt: PromptConfig = PromptConfig()
    train: TrainConfig = TrainConfig()
    pipeline: PipelineConfig = PipelineConfig()
    evaluation: EvalConfig = EvalConfig()
    rollout_temperature: PositiveFloat = 1.0
    target: Probability | None = None  # success rate to reach, for speedups; None: the default rule
    threads: PositiveInt = 1  # torch threads of this process
    placement: PlacementConfig = Field(PlacementConfig(), exclude_if=lambda placement: placement == PlacementConfig())

    @model_validator(mode="after")
    def _steps(self) -> RunConfig:
        pipeline, count = self.pipeline, self.placement.explorers.count
        if pipeline.kind == "ray" and pipeline.steps_in_flight > count:
            steps = f"pipeline.steps_in_flight: {pipeline.steps_in_flight} steps need as many explorers"
            raise ValueError(f"{steps}, each plays one at a time, and placement.explorers.count is {count}")
        if pipeline.sync is None:  # resolved here, so that the log says what was done
            real = pipeline.kind == "ray" and self.placement.clock == "real"
            sync = "wait" if real and self.weights_directly else "latest"
            object.__setattr__(self, "pipeline", pipeline.model_copy(update={"sync": sync}))
        return self

    @property
    def weights_directly(self) -> bool:
        """Whether Ray's explorers take weights from the learner directly (`placement.weights`)."""
        return self.placement.weights == "direct" or self.placement.weights == "auto" and self.student.backend == "vllm"

    def run_dir(self, root: str | Path = "results") -> Path:
        """results/<suite>/<setting>/<env>/<method>/seed<n>"""
        return Path(root) / self.suite / self.setting / self.env.name / self.method.name / f"seed{self.seed}"
